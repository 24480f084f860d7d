"""How much the plugin adds to ``import verl``.

Starts fresh interpreters that run ``import verl``, by turns with the plugin and without it, and compares wall times. The
bar is 50 ms: verl is imported in every process of a run.

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
# verl's own switch: "none" loads no plugin at all.
POLICIES = {"without plugin": "none", "with plugin": "comprl"}


def import_seconds(policy: str) -> float:
    """Return the wall time of ``python -c "import verl"`` under a plugin policy of verl."""
    environment = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": policy}
    environment.pop("VERL_PLATFORM", None)  # without the plugin there is no CPU platform to name
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import verl"], env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def measure(runs: int) -> dict[str, list[float]]:
    """Return the wall times in ms per arm; the order within a pair alternates, so that drift hits both alike."""
    times: dict[str, list[float]] = {arm: [] for arm in POLICIES}
    for policy in POLICIES.values():
        import_seconds(policy)  # fill the disk cache and write byte code
    for run in range(runs):
        for arm in sorted(POLICIES, reverse=bool(run % 2)):
            times[arm].append(1000 * import_seconds(POLICIES[arm]))
    return times


def summarise(times: dict[str, list[float]]) -> dict[str, float]:
    """Return medians, spreads (interquartile range), their ratio, and the median difference of the pairs, in ms."""
    without, with_ = times["without plugin"], times["with plugin"]
    differences = [b - a for a, b in zip(without, with_, strict=True)]
    summary: dict[str, float] = {"runs": len(without)}
    for name, values in (("without", without), ("with", with_), ("difference", differences)):
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        summary |= {f"{name}_median_ms": median, f"{name}_iqr_ms": high - low}
    return summary | {"ratio": summary["with_median_ms"] / summary["without_median_ms"], "bar_ms": BAR_MS}


def main() -> int:
    """Print the comparison; exit code 1 if the plugin costs more than the bar."""
    parser = argparse.ArgumentParser(description="Wall time of `import verl` with and without the plugin.")
    parser.add_argument("--runs", type=int, default=15, help="pairs of runs, at least 2 (default 15)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error(f"--runs must be at least 2, got {options.runs}")
    if "comprl" not in entry_points(group="verl.plugins").names:
        parser.error("verl-comprl is not installed as a distribution, so both arms would be the same: pip install -e .")
    summary = summarise(measure(options.runs))
    if options.json:
        print(json.dumps(summary))
    else:
        print(f"{'import verl':<16}{'median ms':>12}{'IQR ms':>12}")
        for label, name in (("without plugin", "without"), ("with plugin", "with"), ("difference", "difference")):
            print(f"{label:<16}{summary[f'{name}_median_ms']:>12.1f}{summary[f'{name}_iqr_ms']:>12.1f}")
        print(f"{'ratio':<16}{summary['ratio']:>12.3f}")
        print(f"{options.runs} pairs; bar: at most {BAR_MS:.0f} ms more")
    return 1 if summary["difference_median_ms"] > BAR_MS else 0


if __name__ == "__main__":
    sys.exit(main())
