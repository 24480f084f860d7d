"""Compares arms on the quickstart's environment and models: success over several seeds, and wall-clock time.

Every arm and seed is a separate training run from the same warm-started models, with the same tasks and the same number
of episodes; they run one after the other. Evaluations use ``--tasks`` held-out tasks. A run that has finished is not
repeated.

    python benchmarks/arms.py [--arms complementary baseline] [--seeds 1 2 3] [--steps 60] [--output outputs/arms]
    … [key=value …]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAINING_TASKS = 960
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}


def prepare(output: Path, tasks: int) -> None:
    """Create models and tasks, unless they exist."""
    command = [sys.executable, "-m", "recipes.quickstart_cpu.prepare", "--output", str(output / "models")]
    subprocess.run(command, cwd=ROOT, check=True)
    for split, count in (("train", TRAINING_TASKS), ("val", tasks)):
        command = [sys.executable, "-m", "verl_comprl.cli.main", "data", "minihack", "--variant", "room-ultimate"]
        command += ["--split", split, "--count", str(count), "--max-turns", "8"]
        subprocess.run([*command, "--output", str(output / "data" / f"{split}.parquet")], cwd=ROOT, check=True)


def train(output: Path, arm: str, seed: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Run one arm with one seed, unless it is finished; returns its evaluations and its wall-clock time in seconds."""
    folder = output / f"{arm}-{seed}"
    finished = folder / "finished.json"
    if not finished.exists():
        environment = os.environ | ENVIRONMENT | {"COMPRL_QUICKSTART": str(output)}
        command = [sys.executable, "-m", "verl_comprl.train"]
        command += ["--config-dir", "recipes", "--config-name", "quickstart_cpu/quickstart", f"arm={arm}"]
        command += [f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}", f"extractor.rollout.seed={seed}"]
        command += [f"trainer.total_training_steps={steps}", f"trainer.test_freq={max(1, steps // 3)}"]
        command += ["trainer.save_freq=-1", "trainer.logger=[console]", f"trainer.default_local_dir={folder}"]
        command += overrides
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        with (folder / "output.txt").open("w") as log:
            subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=True)
        seconds = time.perf_counter() - started
        evaluations = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
        finished.write_text(json.dumps({"seconds": seconds, "steps": steps, "evaluations": evaluations}))
    found = json.loads(finished.read_text())
    if found["steps"] != steps:
        raise SystemExit(f"{folder} holds a run of {found['steps']} steps, not {steps}; choose another --output")
    return found


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {deviation:.2f}"


def row(arm: str, side: str, runs: list[dict[str, Any]]) -> list[str]:
    """Return a row of the table: success with or without experience in every evaluation, and each seed's last."""
    key = f"comprl/eval/success_{side}"
    evaluated = list(zip(*([line.get(key) for line in run["evaluations"]] for run in runs), strict=True))
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
    for seed in options.seeds:  # arms alternate, so that other load on the machine affects all of them
        for arm in options.arms:
            results[arm].append(train(output, arm, seed, options.steps, options.overrides))
            print(f"{arm} seed {seed}: {results[arm][-1]['seconds']:.0f} s", flush=True)
    steps = [line["step"] for line in results[options.arms[0]][0]["evaluations"]]
    header = ["arm", "experience", *(f"step {step}" for step in steps), "last, by seed"]
    print("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for arm, runs in results.items():
        for side in ("with", "without"):
            if any(f"comprl/eval/success_{side}" in run["evaluations"][-1] for run in runs):
                print("| " + " | ".join(row(arm, side, runs)) + " |")
    print("\n| arm | wall clock, s |\n|---|---|")
    for arm, runs in results.items():
        seconds = [run["seconds"] for run in runs]
        print(f"| {arm} | {statistics.fmean(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f}) |")


if __name__ == "__main__":
    main()
