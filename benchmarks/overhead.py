"""Measures what experience costs the actor: wall clock of rollouts and steps in arms that do the same work.

``baseline``; ``longer``, the baseline with prompts that have as many more tokens as experience adds on average, which
any method pays that shows it; ``recorded``, the method with an extractor that repeats recorded answers, so that no
second model computes; ``idle`` and ``normal``, the method with ``comprl.extractor.cpu_priority`` as named; and
``burdened``, the baseline beside a process at idle priority that is not part of it (``burden``). Every episode has the
same number of turns and every turn the same number of tokens (``ignore_eos``), the learning rate is 0, nothing is
asked, and the arms have the same prompts. The beginning of an episode takes up to ``--start-ms`` and a turn of the
environment up to ``--pause-ms``, so that in no arm all episodes wait for their next tokens at the same moment; little,
since at most four environments of an agent loop worker work at a time, and longer ones would decide how long a rollout
takes. Arms take turns of a few steps, forwards and backwards (ABCD DCBA), on engines that are started once; the first
step of a turn is left out, and a short turn of each arm before the first. Nothing is subtracted from the clock; below
the verdict stands what the method costs at equal speed of the cores.

Rows are appended to ``overhead.jsonl``; the same command continues with the rounds that are missing, with engines that
are started again. From three starts on, the intervals of the first table and of the verdict are over starts. The tables
leave out rounds beside which others have used the cores; they are not measured again.

    python -m benchmarks.overhead [key=value …] [--arms ARM …] [--rounds 10] [--steps 4]
        [--prompts 3] [--turns 64] [--pause-ms 10] [--start-ms 300] [--minutes 12] [--output outputs/overhead]
    python -m benchmarks.overhead --report
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import OmegaConf

from benchmarks.burden import burden
from benchmarks.overhead_table import (
    ARMS,
    GENERATED,
    LEFT_OUT,
    WITHOUT,
    Measured,
    Row,
    equal_speed,
    measured_arms,
    processes,
    quiet,
    report,
    starts,
    verdict,
)
from recipes.miniature.run import set_environment
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose
from verl_comprl.train import prepare_environment

ROOT = Path(__file__).parents[1]
USUAL = ("baseline", "recorded", "idle", "normal")
RECORDED_STEPS = 6
WARM_UP_STEPS = 1
"""Of each arm after a start, which are not measured: the first step of the first turn was up to a quarter slower."""
ROLLOUTS, TURN_TOKENS = 8, 8
USUAL_TURNS = 8
"""Of an episode of the miniature."""
LONGER = 44
"""Words of one token that prompts of the arm ``longer`` have more: half of what a guided prompt has of experience."""
LONGER_ROWS = "longer.parquet"
LENGTHS = ("data.max_response_length", "actor_rollout_ref.rollout.max_model_len")
"""Settings of the miniature, in tokens, that hold an episode with ``USUAL_TURNS``."""


def lengths(turns: int) -> list[str]:
    """Return what lets an episode with ``turns`` fit into the actor as one of the miniature's does.

    The extractor reads as much as it does there, the beginning and the end of an episode: of what it has not learned to
    read it writes nothing that can be used, and its part of the method would not be measured.
    """
    usual = OmegaConf.load(ROOT / "recipes/miniature/miniature.yaml")
    more = (turns - USUAL_TURNS) * OmegaConf.select(usual, LENGTHS[0]) // USUAL_TURNS
    return [f"{key}={OmegaConf.select(usual, key) + more}" for key in LENGTHS]


def overrides(
    output: Path, prompts: int, turns: int = USUAL_TURNS, pause: float = 0.0, start: float = 0.0
) -> list[str]:
    """Return what all runs share."""
    import pandas

    from benchmarks.fixed_turns import fixed_turns_rows

    data = output / "rows.parquet"
    for file, longer in ((data, 0), (output / LONGER_ROWS, LONGER)):
        rows = fixed_turns_rows(96, turns=turns, pause=pause, start=start, longer=longer)
        pandas.DataFrame(rows).to_parquet(file)
    batch = prompts * ROLLOUTS
    return [
        f"trainer.default_local_dir={output / 'runs'}",
        "trainer.total_training_steps=100000",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={batch}",
        "actor_rollout_ref.actor.optim.lr=0.0",
        "actor_rollout_ref.rollout.ignore_eos=true",
        *lengths(turns),
        "comprl.warmup_steps=0",
        "comprl.poll_interval=0.02",
        "comprl.drain_timeout=0",
    ]


async def make_bank(folder: Path) -> None:
    """Write a snapshot with lessons about the tasks, from which every run with experience starts."""
    from benchmarks.fixed_turns import lessons
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


def order(number: int, arms: Sequence[str]) -> list[str]:
    """Return the arms in the order of a round: forwards, then backwards."""
    return list(arms if number % 2 == 0 else reversed(arms))


def read_rows(file: Path) -> list[Row]:
    """Return the rows measured so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def measure(options: argparse.Namespace, file: Path) -> None:
    """Measure until the time is up or there are enough rounds."""
    started = time.perf_counter()
    output = file.parent
    set_environment(output)
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # of Ray's workers
    prepare_environment()
    from benchmarks.interleaved import Interleaved
    from verl_comprl.display.redirect import redirect_verl_output

    bank = output / "bank"
    asyncio.run(make_bank(bank))
    shared = [
        *overrides(output, options.prompts, options.turns, options.pause_ms / 1000, options.start_ms / 1000),
        f"comprl.initial_bank={bank}",
        *options.overrides,
    ]
    own = {arm: ["arm=baseline"] if arm in WITHOUT else [f"comprl.extractor.cpu_priority={arm}"] for arm in ARMS}
    own["longer"] += [f"data.train_files={output / LONGER_ROWS}"]
    own["recorded"] = ["comprl.extractor.cpu_priority=normal"]
    # The first one starts both engines, and records.
    starting = ["normal", *(arm for arm in ARMS[:-1] if arm in options.arms)]
    runs = [Run(arm, (*shared, *own[arm])) for arm in starting]
    checked = dict(zip(starting, check(runs, compose(runs, ROOT / "recipes", "miniature/plain")), strict=True))
    notes = output / "recording.json"
    with redirect_verl_output(output / "train.log", print, str):
        sweep = Interleaved(list(checked.values()), output / "recording.jsonl")
        arms: dict[str, Any] = {}
        try:
            first = sweep.arm(checked["normal"], extractor="real" if notes.exists() else "recording")
            arms["normal"] = first
            if not notes.exists():
                first.begin_turn()
                for _ in range(RECORDED_STEPS):
                    first.step()
                first.end_turn()
                notes.write_text(json.dumps({"update_seconds": first.update_seconds()}))
            sweep.update_seconds = json.loads(notes.read_text())["update_seconds"]
            for arm in starting[1:]:
                arms[arm] = sweep.arm(checked[arm], extractor="recorded" if arm == "recorded" else "real")
            for arm in options.arms:
                turn(arms[arm], arm, -1, WARM_UP_STEPS)
            tell(f"started after {time.perf_counter() - started:.0f} s")
            before = read_rows(file)
            start = 1 + max((row.get("start", 0) for row in before), default=0)
            for number in range(1 + max((row["round"] for row in before), default=-1), options.rounds):
                rows: list[Row] = []
                for arm in order(number, options.arms):
                    if time.perf_counter() - started > 60 * options.minutes:
                        tell("time is up; the same command continues")
                        return
                    with burden() if arm == "burdened" else nullcontext():
                        rows += [{"start": start, **row} for row in turn(arms[arm], arm, number, options.steps)]
                with file.open("a") as target:  # whole rounds only: what is compared belongs together
                    target.writelines(json.dumps(row) + "\n" for row in rows)
                means = {arm: statistics.fmean(seconds(rows, arm)) for arm in options.arms}
                others = statistics.fmean(row["others"] for row in rows)
                found = " ".join(f"{arm} {mean:.2f}" for arm, mean in means.items())
                tell(f"round {number}, rollout, s: {found}; others {others:.2f} cores")
        finally:
            with ExitStack() as ending:  # each of them, also if one raises
                ending.callback(sweep.close)
                for arm in arms.values():
                    ending.callback(arm.close)


def tell(text: str) -> None:
    """Print past the redirection of verl's output."""
    print(text, file=sys.__stdout__, flush=True)


def seconds(rows: list[Row], arm: str) -> list[float]:
    """Return the rollout times of an arm."""
    return [row["metrics"]["timing_s/gen"] for row in rows if row["arm"] == arm]


def turn(arm: Any, name: str, number: int, steps: int) -> list[Row]:
    """Let an arm take its turn; returns the rows of the measured steps."""
    from benchmarks.interleaved import CpuSeconds

    arm.begin_turn()
    for _ in range(LEFT_OUT):
        arm.step()
    before = CpuSeconds()
    found = [arm.step() for _ in range(steps)]
    cpu = CpuSeconds().since(before)
    arm.end_turn()
    rows = []
    for step, metrics in enumerate(found):
        kept = {key: value for key, value in metrics.items() if key.startswith(("comprl/", "timing_s/"))}
        rows.append({"round": number, "arm": name, "step": step, "metrics": kept, **cpu})
    return rows


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=USUAL, help="default: all but burdened, longer")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each arm (default: 10)")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a turn (default: 4)")
    parser.add_argument("--prompts", type=int, default=3, help="prompts of a step, 8 rollouts each (default: 3)")
    parser.add_argument("--turns", type=int, default=64, help="of an episode, each of 8 tokens (default: 64)")
    parser.add_argument("--pause-ms", type=float, default=10.0, help="most time of an environment's turn (default: 10)")
    parser.add_argument("--start-ms", type=float, default=300.0, help="most time of its beginning (default: 300)")
    parser.add_argument("--minutes", type=float, default=12.0, help="no turn begins later than this (default: 12)")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs/overhead", help="folder of all files")
    parser.add_argument("--report", action="store_true", help="print the tables of what has been measured")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of every run's configuration")
    options = parser.parse_args()
    if "baseline" not in options.arms:
        parser.error("--arms: baseline is missing, to which the others are compared")
    file = options.output.resolve() / "overhead.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    if (before := read_rows(file)) and not options.report:
        if set(arms := measured_arms(before)) != set(options.arms):
            parser.error(f"{file} has rounds of {', '.join(arms)}; other --arms need another --output")
        if (tokens := before[0]["metrics"].get(GENERATED.format("free"))) != options.turns * TURN_TOKENS:
            parser.error(f"{file} has episodes of {tokens} tokens; other --turns need another --output")
    if not options.report:
        measure(options, file)
    rows = quiet(every := read_rows(file))
    if left_out := sorted({row["round"] for row in every} - {row["round"] for row in rows}):
        print(f"\nleft out, since others have used the cores: rounds {', '.join(map(str, left_out))}")
    if "baseline" in measured_arms(rows):
        measured = Measured(rows)
        tables = filter(None, (report(measured), starts(measured), processes(rows), verdict(measured)))
        print("\n" + "\n\n".join(tables) + f"\n{equal_speed(measured)}")


if __name__ == "__main__":
    main()
