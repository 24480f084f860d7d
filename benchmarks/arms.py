"""Compares arms on MiniHack with small models: success over several seeds, and wall-clock time.

A sweep: every arm and seed is a run from the same warm-started models, with the same tasks and the same number of
episodes, and all runs use the same engines. Evaluations use ``--tasks`` held-out tasks. A run that has finished is not
repeated. What the table is made of, and some figures of every step, is in ``rows.jsonl`` in the output folder.

    python -m benchmarks.arms [--arms complementary baseline] [--seeds 1 2 3] [--steps 60] [--output outputs/arms]
    … [key=value …]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from verl_comprl import sweep
from verl_comprl.record.reader import EVALUATIONS, METRICS

ROOT = Path(__file__).parents[1]
TRAINING_TASKS = 960
SIDES = ("with", "without")
"""Of experience."""
FIGURES = {
    "gap": "comprl/gap",
    "extractor_reward": "comprl/extractor/reward",
    "format_failures": "comprl/extractor/share/format_failure",
}
"""Figures of a step that a row has, by the names of their metrics."""


def prepare(output: Path, tasks: int) -> None:
    """Create models and tasks, unless they exist."""
    command = [sys.executable, "-m", "recipes.minihack_small.prepare", "--output", str(output / "models")]
    subprocess.run(command, cwd=ROOT, check=True)
    for split, count in (("train", TRAINING_TASKS), ("val", tasks)):
        command = [sys.executable, "-m", "verl_comprl.cli.main", "data", "minihack", "--variant", "room-ultimate"]
        command += ["--split", split, "--count", str(count), "--max-turns", "8"]
        subprocess.run(
            [*command, "--output", str(output / "data" / f"small-room-{split}.parquet")], cwd=ROOT, check=True
        )


def train(output: Path, arms: list[str], seeds: list[int], steps: int, overrides: list[str]) -> list[dict[str, Any]]:
    """Run every arm with every seed, unless it is finished; returns the records of the runs."""
    folders = {"COMPRL_MODELS": output / "models", "COMPRL_TASKS": output / "data", "COMPRL_RUN": output}
    os.environ.update(VERL_PLATFORM="cpu", HF_HUB_OFFLINE="1", **{name: str(path) for name, path in folders.items()})
    common = [f"trainer.default_local_dir={output}", "trainer.save_freq=-1", f"trainer.total_training_steps={steps}"]
    common += [f"trainer.test_freq={max(1, steps // 3)}", *overrides]
    # Arms alternate, so that other load on the machine affects all of them.
    pairs = [(arm, seed) for seed in seeds for arm in arms]
    runs = [sweep.Run(f"{arm}-{seed}", (*common, f"arm={arm}", f"data.seed={seed}")) for arm, seed in pairs]
    records = sweep.run(runs, config_dir=ROOT / "recipes", config_name="minihack_small/cpu")
    if len(records) < len(runs) or any(record["status"] != "finished" for record in records):
        raise SystemExit(f"not all runs finished: {output / 'sweep.jsonl'}")
    return records


def read_row(record: dict[str, Any]) -> dict[str, Any]:
    """Return a run's seconds, its success in every evaluation, and figures of its steps, in order."""
    arm, _, seed = record["name"].rpartition("-")
    folder = Path(record["folder"])
    evaluations = [json.loads(line) for line in (folder / EVALUATIONS).read_text().splitlines()]
    steps = [json.loads(line)["data"] for line in (folder / METRICS).read_text().splitlines()]
    measured = {name: [data[key] for data in steps if key in data] for name, key in FIGURES.items()}
    return {
        "arm": arm,
        "seed": int(seed),
        "seconds": record["seconds"],
        "evaluations": [
            {
                "step": line["step"],
                **{side: line[key] for side in SIDES if (key := f"comprl/eval/success_{side}") in line},
            }
            for line in evaluations
        ],
        **{name: values for name, values in measured.items() if values},
    }


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {deviation:.2f}"


def row(arm: str, side: str, runs: list[dict[str, Any]]) -> list[str]:
    """Return a row of the table: success with or without experience in every evaluation, and each seed's last."""
    evaluated = list(zip(*([line.get(side) for line in run["evaluations"]] for run in runs), strict=True))
    cells = [spread(list(values)) if None not in values else "-" for values in evaluated]
    last = ", ".join(f"{value:.2f}" for value in evaluated[-1]) if None not in evaluated[-1] else "-"
    return [arm, side, *cells, last]


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=["complementary", "baseline"], help="arms to compare")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="one run of each arm per seed")
    parser.add_argument("--steps", type=int, default=60, help="actor steps of each run (default: 60)")
    parser.add_argument("--tasks", type=int, default=128, help="held-out tasks of an evaluation (default: 128)")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "outputs" / "arms", help="folder of models, tasks and runs"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of every run's configuration")
    options = parser.parse_args()
    output = options.output.resolve()
    prepare(output, options.tasks)
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in options.arms}
    for record in train(output, options.arms, options.seeds, options.steps, options.overrides):
        found = read_row(record)
        results[found["arm"]].append(found)
    rows = [json.dumps(found) for runs in results.values() for found in runs]
    (output / "rows.jsonl").write_text("\n".join(rows) + "\n")
    steps = [line["step"] for line in results[options.arms[0]][0]["evaluations"]]
    header = ["arm", "experience", *(f"step {step}" for step in steps), "last, by seed"]
    print("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for arm, runs in results.items():
        for side in SIDES:
            if any(side in run["evaluations"][-1] for run in runs):
                print("| " + " | ".join(row(arm, side, runs)) + " |")
    print("\n| arm | wall clock, s |\n|---|---|")
    for arm, runs in results.items():
        seconds = [run["seconds"] for run in runs]
        print(f"| {arm} | {statistics.fmean(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f}) |")


if __name__ == "__main__":
    main()
