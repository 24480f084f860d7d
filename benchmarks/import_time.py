"""Measures the time that the plugin adds to ``import verl``, in ms.

It is measured in two ways. First, new interpreters run ``import verl`` alternately with and without the plugin. This is
what a user waits for, but the difference is small against the variation of the import itself. Second, new interpreters
import verl without the plugin, and then load the plugin's entry point as verl would; only this last step is timed. The
target is at most 50 ms, since every process of a run imports verl.

    python -m benchmarks.import_time [--runs 15] [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import entry_points

TARGET_MS = 50.0
# Values of verl's plugin switch. Not "none" but an unknown name: with "none" verl would also skip its own plugin scan.
WITHOUT, WITH = "no-such-plugin", "comprl"
LOAD = """
import time
import verl
from importlib.metadata import entry_points
(plugin,) = (point for point in entry_points(group="verl.plugins") if point.name == "comprl")
started = time.perf_counter()
plugin.load()
print(1000 * (time.perf_counter() - started))
"""


def run_python(program: str, policy: str) -> tuple[float, str]:
    """Return the wall time in ms of an interpreter that runs a program under verl's plugin policy, and its output."""
    environment = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": policy}
    environment.pop("VERL_PLATFORM", None)  # without the plugin there is no CPU platform
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    return 1000 * (time.perf_counter() - started), done.stdout


def measure(runs: int) -> dict[str, list[float]]:
    """Return the times in ms; the order within a pair alternates, so that drift affects both equally."""
    for policy in (WITHOUT, WITH):
        run_python("import verl", policy)  # fill the disk cache and write byte code
    times: dict[str, list[float]] = {WITHOUT: [], WITH: [], "load": []}
    for run in range(runs):
        for policy in sorted((WITHOUT, WITH), reverse=bool(run % 2)):
            times[policy].append(run_python("import verl", policy)[0])
        times["load"].append(float(run_python(LOAD, WITHOUT)[1].split()[-1]))
    return times


def summarise(values: list[float]) -> dict[str, float]:
    """Return the median and the interquartile range in ms."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median_ms": median, "iqr_ms": high - low}


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description="Time of `import verl` with and without the plugin.")
    parser.add_argument("--runs", type=int, default=15, help="pairs of runs, at least 2 (default: 15)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error(f"--runs must be at least 2, got {options.runs}")
    if "comprl" not in entry_points(group="verl.plugins").names:
        parser.error("verl-comprl is not installed as a distribution, so there is nothing to compare: pip install -e .")
    times = measure(options.runs)
    rows = {
        "import verl, without": summarise(times[WITHOUT]),
        "import verl, with": summarise(times[WITH]),
        "pairs' difference": summarise([b - a for a, b in zip(times[WITHOUT], times[WITH], strict=True)]),
        "the plugin's load alone": summarise(times["load"]),
    }
    if options.json:
        print(json.dumps({"runs": options.runs, "target_ms": TARGET_MS, **rows}))
        return
    print(f"{'(wall time in ms)':<26}{'median':>10}{'IQR':>10}{'share':>10}")
    base = rows["import verl, without"]["median_ms"]
    for name, row in rows.items():
        print(f"{name:<26}{row['median_ms']:>10.1f}{row['iqr_ms']:>10.1f}{row['median_ms'] / base:>10.3f}")
    print(f"{options.runs} runs of each; target: at most {TARGET_MS:.0f} ms more")


if __name__ == "__main__":
    main()
