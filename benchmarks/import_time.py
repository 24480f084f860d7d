"""How much the plugin adds to ``import verl``, in ms.

Two ways. Fresh interpreters run ``import verl``, by turns with the plugin and without it: what a user waits for, but a
difference of seconds that vary by more than the bar. And fresh interpreters import verl without the plugin and then
time verl's own next step, loading the plugin's entry point: the same work, without that noise. The bar is 50 ms more:
verl is imported in every process of a run.

    python benchmarks/import_time.py [--runs 15] [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import entry_points

BAR_MS = 50.0
# verl's own switch. A name that no plugin has, not "none": that would spare verl's scan for plugins, which is not ours.
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
    environment.pop("VERL_PLATFORM", None)  # without the plugin there is no CPU platform to name
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    return 1000 * (time.perf_counter() - started), done.stdout


def measure(runs: int) -> dict[str, list[float]]:
    """Return the times in ms; the order within a pair alternates, so that drift hits both alike."""
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
    parser.add_argument("--runs", type=int, default=15, help="pairs of runs, at least 2 (default 15)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error(f"--runs must be at least 2, got {options.runs}")
    if "comprl" not in entry_points(group="verl.plugins").names:
        parser.error("verl-comprl is not installed as a distribution, so both arms would be the same: pip install -e .")
    times = measure(options.runs)
    rows = {
        "import verl, without": summarise(times[WITHOUT]),
        "import verl, with": summarise(times[WITH]),
        "pairs' difference": summarise([b - a for a, b in zip(times[WITHOUT], times[WITH], strict=True)]),
        "the plugin's load alone": summarise(times["load"]),
    }
    if options.json:
        print(json.dumps({"runs": options.runs, "bar_ms": BAR_MS, **rows}))
        return
    print(f"{'(wall time in ms)':<26}{'median':>10}{'IQR':>10}{'share':>10}")
    base = rows["import verl, without"]["median_ms"]
    for name, row in rows.items():
        print(f"{name:<26}{row['median_ms']:>10.1f}{row['iqr_ms']:>10.1f}{row['median_ms'] / base:>10.3f}")
    print(f"{options.runs} runs of each; bar: at most {BAR_MS:.0f} ms more")


if __name__ == "__main__":
    main()
