"""How much the plugin adds to ``import verl``, in ms.

Starts fresh interpreters that run ``import verl``, by turns with the plugin and without it. Wall time is what a user
waits for; CPU time says the same on a machine that is busy with other work. The bar is 50 ms more: verl is imported in
every process of a run.

    python benchmarks/import_time.py [--runs 15] [--json]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import entry_points

BAR_MS = 50.0
# verl's own switch. A name that no plugin has, not "none": that would spare verl's scan for plugins, which is not ours.
POLICIES = {"without": "no-such-plugin", "with": "comprl"}
CLOCKS = ("wall", "cpu")


def import_once(policy: str) -> dict[str, float]:
    """Return wall and CPU time in ms of ``python -c "import verl"`` under a plugin policy of verl."""
    environment = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": policy}
    environment.pop("VERL_PLATFORM", None)  # without the plugin there is no CPU platform to name
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", "import verl"], env=environment, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": 1000 * wall, "cpu": 1000 * cpu}


def measure(runs: int) -> dict[str, list[dict[str, float]]]:
    """Return the times per arm; the order within a pair alternates, so that drift hits both alike."""
    for policy in POLICIES.values():
        import_once(policy)  # fill the disk cache and write byte code
    times: dict[str, list[dict[str, float]]] = {arm: [] for arm in POLICIES}
    for run in range(runs):
        for arm in sorted(POLICIES, reverse=bool(run % 2)):
            times[arm].append(import_once(POLICIES[arm]))
    return times


def summarise(times: dict[str, list[dict[str, float]]], clock: str) -> dict[str, float]:
    """Return medians and spreads (interquartile ranges) of the arms and of the pairs' differences, and the ratio."""
    without, with_ = ([run[clock] for run in times[arm]] for arm in ("without", "with"))
    differences = [b - a for a, b in zip(without, with_, strict=True)]
    summary: dict[str, float] = {}
    for name, values in (("without", without), ("with", with_), ("difference", differences)):
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        summary |= {f"{name}_ms": median, f"{name}_iqr_ms": high - low}
    return summary | {"ratio": summary["with_ms"] / summary["without_ms"]}


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
    summaries = {clock: summarise(times, clock) for clock in CLOCKS}
    if options.json:
        print(json.dumps({"runs": options.runs, "bar_ms": BAR_MS, **summaries}))
        return
    print(f"{'import verl':<12}{'without':>16}{'with':>16}{'difference':>16}{'ratio':>8}   (median ± IQR, ms)")
    for clock, values in summaries.items():
        cells = (f"{values[f'{name}_ms']:.0f} ± {values[f'{name}_iqr_ms']:.0f}" for name in (*POLICIES, "difference"))
        print(f"{clock + ' time':<12}{''.join(f'{cell:>16}' for cell in cells)}{values['ratio']:>8.3f}")
    print(f"{options.runs} pairs; bar: at most {BAR_MS:.0f} ms more")


if __name__ == "__main__":
    main()
