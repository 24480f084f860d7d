"""Measures what experience costs the actor: wall clock of rollouts and steps in four arms that do the same work.

``baseline``; ``recorded``, the method with an extractor that repeats recorded answers, so that no second model
computes; ``idle`` and ``normal``, the method with ``comprl.extractor.cpu_priority`` as named. Every episode has the
same number of turns and every turn the same number of tokens (``ignore_eos``), the learning rate is 0, nothing is
asked, and the arms have the same prompts. Arms take turns in blocks of steps, forwards and backwards (ABCD DCBA), on
engines that are started once; the first steps of a block are left out. Nothing is subtracted from the clock.

Rows are appended to ``overhead.jsonl``; the same command goes on with the blocks that are missing.

    python benchmarks/overhead.py [--blocks 4] [--steps 10] [--minutes 12] [--output outputs/overhead] [key=value …]
    python benchmarks/overhead.py --report
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from paired import ratio_of_means, show  # noqa: E402

from recipes.miniature.run import set_environment  # noqa: E402
from verl_comprl.sweep.checked_run import CheckedRun  # noqa: E402
from verl_comprl.sweep.checks import check  # noqa: E402
from verl_comprl.sweep.runs import Run, compose  # noqa: E402
from verl_comprl.sweep.sweep import Sweep  # noqa: E402
from verl_comprl.train import prepare_environment  # noqa: E402
from verl_comprl.trainer.run_log import METRICS  # noqa: E402
from verl_comprl.training import Training  # noqa: E402

ARMS = ("baseline", "recorded", "idle", "normal")
LEFT_OUT = 2
"""Steps at the start of a block that are not measured: imports, compilation, the first retrievals."""
ROLLOUTS, TURNS, TURN_TOKENS = 8, 8, 8
TARGET = 1.03
"""Upper bound of the interval of mean rollout time, relative to the baseline, for ``recorded`` and ``idle``."""

Row = dict[str, Any]


def overrides(output: Path, prompts: int) -> list[str]:
    """Return what all runs share."""
    import pandas
    from fixed_turns import fixed_turns_rows

    data = output / "rows.parquet"
    pandas.DataFrame(fixed_turns_rows(96, turns=TURNS)).to_parquet(data)
    batch = prompts * ROLLOUTS
    return [
        f"trainer.default_local_dir={output / 'runs'}",
        "trainer.resume_mode=disable",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={batch}",
        "actor_rollout_ref.actor.optim.lr=0.0",
        "actor_rollout_ref.rollout.ignore_eos=true",
        f"comprl.max_turn_tokens={TURN_TOKENS}",
        "comprl.warmup_steps=0",
        "comprl.poll_interval=0.02",
        "comprl.drain_timeout=0",
    ]


async def make_bank(folder: Path) -> None:
    """Write a snapshot with lessons about the tasks, from which every run with experience starts."""
    from fixed_turns import lessons

    from verl_comprl.experience import Add, BankConfig, ExperienceBank, make_embedder

    if folder.exists():
        return
    with TemporaryDirectory() as place:
        bank = await ExperienceBank.open(BankConfig(path=place), await make_embedder("builtin", documents="title"))
        call = {"listed": [], "environment": "vaults", "step": 0, "weight_version": 0}
        for number, (task, title, content) in enumerate(lessons()):
            await bank.apply([Add(title=title, content=content)], call_id=str(number), task=task, **call)
        await bank.save(folder)
        await bank.close()


class CpuSeconds:
    """Processor time of this run's processes and of the rest of the machine."""

    def __init__(self) -> None:
        """Read the clocks."""
        self.at = time.perf_counter()
        times = psutil.cpu_times()
        self.machine = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        self.processes: dict[str, float] = defaultdict(float)
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            try:
                used = process.cpu_times()
                name = process.name() if process.pid == os.getpid() else (process.cmdline() or ["?"])[0]
                self.processes[f"{name.rpartition('/')[2].split('.')[0]} {process.pid}"] += used.user + used.system
            except psutil.NoSuchProcess:
                continue

    def since(self, start: "CpuSeconds") -> dict[str, Any]:
        """Return the mean number of cores used by each of our processes, and by others on the machine."""
        seconds = self.at - start.at
        ours = {name: (used - start.processes.get(name, 0.0)) / seconds for name, used in self.processes.items()}
        others = (self.machine - start.machine) / seconds - sum(ours.values())
        return {"cores": {name: round(used, 3) for name, used in ours.items() if used > 0.002}, "others": others}


class MeasuredSweep(Sweep):
    """Gives each run its arm's extractor, and reads processor times around the measured steps."""

    def __init__(self, runs: list[CheckedRun], output: Path, update_seconds: float) -> None:
        """Take the runs; the recording is ``recording.jsonl`` in ``output``."""
        super().__init__(runs, output / "sweep.jsonl")
        self.recording = output / "recording.jsonl"
        self.update_seconds = update_seconds
        self.clocks: list[CpuSeconds] = []

    def make_training(self, run: CheckedRun) -> Training:
        """Make the trainer of a run."""
        from verl_comprl.trainer.engines import Engines

        arm = run.run.name.rpartition("-")[2]
        self._engines.extractor = lambda view: self._lend(arm, Engines.extractor, view)
        training = super().make_training(run)
        trainer, begin, end = training.trainer, training.trainer.on_step_begin, training.trainer.on_step_end

        def on_step_begin() -> None:
            if trainer.global_steps == LEFT_OUT + 1:
                self.clocks = [CpuSeconds()]
            begin()

        def on_step_end() -> None:
            end()
            if trainer.global_steps == trainer.total_training_steps:
                self.clocks.append(CpuSeconds())

        trainer.on_step_begin, trainer.on_step_end = on_step_begin, on_step_end
        return training

    def _lend(self, arm: str, start: Any, view: Any) -> Any:
        from recorded import RecordedExtractor, RecordingClient

        if arm == "recorded":
            return RecordedExtractor(view, self.recording, self.update_seconds)
        runtime = start(self._engines, view)
        vars(runtime).pop("client", None)
        if arm == "recording":
            client = runtime.client()
            runtime.client = lambda: RecordingClient(client, self.recording)
        return runtime


def blocks(count: int, done: set[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the blocks that are missing, in the order in which they are run."""
    order = [(number, arm) for number in range(count) for arm in (ARMS if number % 2 == 0 else reversed(ARMS))]
    return [block for block in order if block not in done]


def read_rows(file: Path) -> list[Row]:
    """Return the rows measured so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read_steps(run: CheckedRun) -> list[Row]:
    """Return the metrics of a run's steps, without those left out."""
    lines = [json.loads(line) for line in (run.folder / METRICS).read_text().splitlines()]
    return [line["data"] | {"step": line["step"]} for line in lines if line["step"] > LEFT_OUT]


def measure(options: argparse.Namespace, file: Path) -> None:
    """Run what is missing, until the time is up."""
    started = time.perf_counter()
    output = file.parent
    set_environment(output)
    os.environ["VERL_PLATFORM"] = "cpu"
    prepare_environment()
    missing = blocks(options.blocks, {(row["block"], row["arm"]) for row in read_rows(file)})
    if not missing:
        return
    shared = [*overrides(output, options.prompts), *options.overrides]
    bank = output / "bank"
    asyncio.run(make_bank(bank))
    shared.append(f"comprl.initial_bank={bank}")
    notes = output / "recording.json"
    # The first run starts both engines. It records, unless that has been done in an earlier session.
    if notes.exists():
        first = Run("warm-up", (*shared, "trainer.total_training_steps=3", "trainer.save_freq=-1"))
    else:
        (output / "recording.jsonl").unlink(missing_ok=True)
        first = Run("recording", (*shared, "trainer.total_training_steps=12", "trainer.save_freq=-1"))
    runs = [first]
    for number, arm in missing:
        steps = LEFT_OUT + options.steps
        own = [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1", f"data.seed={number}"]
        if arm == "baseline":
            own += ["arm=baseline"]
        else:
            own += [f"comprl.extractor.cpu_priority={arm.replace('recorded', 'normal')}"]
        runs.append(Run(f"{number}-{arm}", (*shared, *own)))
    checked = check(runs, compose(runs, ROOT / "recipes", "miniature/plain"))
    sweep = MeasuredSweep(checked, output, 0.0)
    try:
        for run, block in zip(checked, [None, *missing], strict=True):
            if time.perf_counter() - started > 60 * options.minutes:
                print("time is up; the same command goes on")
                return
            begun = time.perf_counter()
            record = sweep.train(run)  # and no other run's processes beside it
            if record["status"] != "finished":
                raise SystemExit(f"{run.folder}: {record['error'] or record['status']}")
            steps = read_steps(run)
            if block is None:
                if not notes.exists():
                    last = steps[-1]
                    spent, updates = last["comprl/extractor/seconds"], max(1.0, last["comprl/extractor/updates"])
                    notes.write_text(json.dumps({"update_seconds": spent / updates}))
                sweep.update_seconds = json.loads(notes.read_text())["update_seconds"]
                continue
            cpu = sweep.clocks[1].since(sweep.clocks[0])
            with file.open("a") as target:
                for step in steps:
                    kept = {key: value for key, value in step.items() if key.startswith(("comprl/", "timing_s/"))}
                    row = {"block": block[0], "arm": block[1], "step": step["step"], "metrics": kept, **cpu}
                    target.write(json.dumps(row) + "\n")
            gen = sum(step["timing_s/gen"] for step in steps) / len(steps)
            seconds = time.perf_counter() - begun
            print(f"{run.run.name}: rollout {gen:.3f} s, others {cpu['others']:.2f} cores, {seconds:.0f} s", flush=True)
    finally:
        sweep.close()


def report(rows: list[Row]) -> str:
    """Return the table."""
    by_arm: dict[str, dict[tuple[int, int], Row]] = {arm: {} for arm in ARMS}
    for row in rows:
        by_arm[row["arm"]][row["block"], row["step"]] = row
    pairs = sorted(set.intersection(*(set(found) for found in by_arm.values())))

    def series(arm: str, key: str) -> list[float]:
        return [by_arm[arm][pair]["metrics"].get(key, 0.0) for pair in pairs]

    def mean(arm: str, key: str) -> float:
        return sum(series(arm, key)) / len(pairs)

    lines = [
        f"{len(pairs)} steps of each arm",
        "| arm | rollout, s | ratio (95 %) | step, s | ratio (95 %) | tokens generated | guided prompt | guide, ms "
        "| report, ms | updates per step | queue at the end | others' cores |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        ratios = [
            show(ratio_of_means(series(arm, key), series("baseline", key))) if arm != "baseline" else "1"
            for key in ("timing_s/gen", "timing_s/step")
        ]
        ends = [by_arm[arm][pair]["metrics"] for pair in pairs if (pair[0], pair[1] + 1) not in pairs]
        updates = sum(end.get("comprl/extractor/updates", 0.0) for end in ends) / len(ends) / max(p[1] for p in pairs)
        queue = sum(end.get("comprl/queue/depth", 0.0) for end in ends) / len(ends)
        others = sum(by_arm[arm][pair]["others"] for pair in pairs) / len(pairs)
        cells = [arm, f"{mean(arm, 'timing_s/gen'):.3f}", ratios[0], f"{mean(arm, 'timing_s/step'):.3f}", ratios[1]]
        cells += [f"{mean(arm, 'comprl/rollout/free/tokens_generated'):.1f}"]
        cells += [f"{mean(arm, 'comprl/rollout/guided/tokens_prompt'):.1f}"]
        cells += [f"{1000 * mean(arm, f'comprl/rollout/guided/seconds_{part}'):.1f}" for part in ("guide", "report")]
        lines.append("| " + " | ".join([*cells, f"{updates:.2f}", f"{queue:.1f}", f"{others:.2f}"]) + " |")
    return "\n".join(lines)


def processes(rows: list[Row]) -> str:
    """Return mean cores of every kind of process by arm."""
    seen: dict[str, dict[str, float]] = {arm: defaultdict(float) for arm in ARMS}
    for arm in ARMS:
        chosen = {row["block"]: row["cores"] for row in rows if row["arm"] == arm}
        for cores in chosen.values():
            for name, used in cores.items():
                seen[arm][name.rpartition(" ")[0]] += used / len(chosen)
    names = sorted({name for found in seen.values() for name in found}, key=lambda name: -seen["normal"][name])
    lines = ["| process, cores | " + " | ".join(ARMS) + " |", "|" + "---|" * (len(ARMS) + 1)]
    lines += ["| " + " | ".join([name, *(f"{seen[arm][name]:.2f}" for arm in ARMS)]) + " |" for name in names]
    return "\n".join(lines)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each arm (default: 4)")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a block (default: 10)")
    parser.add_argument("--prompts", type=int, default=6, help="prompts of a step, 8 rollouts each (default: 6)")
    parser.add_argument("--minutes", type=float, default=12.0, help="no block begins later than this (default: 12)")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs/overhead", help="folder of all files")
    parser.add_argument("--report", action="store_true", help="print the tables of what has been measured")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of every run's configuration")
    options = parser.parse_args()
    file = options.output.resolve() / "overhead.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(options, file)
    rows = read_rows(file)
    if {row["arm"] for row in rows} == set(ARMS):
        print(f"\n{report(rows)}\n\n{processes(rows)}\n\ntarget: at most {TARGET} for recorded and idle")


if __name__ == "__main__":
    main()
