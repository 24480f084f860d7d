"""Measures what experience costs the actor: wall clock of rollouts and steps in arms that do the same work.

``baseline``; ``recorded``, the method with an extractor that repeats recorded answers, so that no second model
computes; ``idle`` and ``normal``, the method with ``comprl.extractor.cpu_priority`` as named; and ``burdened``, the
baseline beside a process at idle priority that is not part of it (``burden``). Every episode has the
same number of turns and every turn the same number of tokens (``ignore_eos``), the learning rate is 0, nothing is
asked, and the arms have the same prompts. Arms take turns of a few steps, forwards and backwards (ABCD DCBA), on
engines that are started once; the first step of a turn is left out. Nothing is subtracted from the clock.

Rows are appended to ``overhead.jsonl``; the same command continues with the rounds that are missing.

    python -m benchmarks.overhead [key=value …] [--arms ARM …] [--rounds 10] [--steps 4]
        [--turn-tokens 8] [--pause-ms 0] [--minutes 12] [--output outputs/overhead]
    python -m benchmarks.overhead --report
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import OmegaConf

from benchmarks.burden import burden
from benchmarks.paired import ratio_of_means, show
from recipes.miniature.run import set_environment
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose
from verl_comprl.train import prepare_environment

ROOT = Path(__file__).parents[1]
ARMS = ("baseline", "burdened", "recorded", "idle", "normal")
USUAL = ("baseline", "recorded", "idle", "normal")
WITHOUT = ("baseline", "burdened")
"""Without experience."""
LEFT_OUT = 1
"""Steps at the start of a turn that are not measured: nothing is in the background yet."""
RECORDED_STEPS = 6
ROLLOUTS, TURNS, TURN_TOKENS = 8, 8, 8
LENGTHS = (
    "data.max_response_length",
    "actor_rollout_ref.rollout.max_model_len",
    "extractor.rollout.prompt_length",
    "extractor.rollout.max_model_len",
)
"""Settings of the miniature, in tokens, that hold an episode with turns of ``TURN_TOKENS``."""
UPDATES = "comprl/extractor/updates"
HALVES = ("free", "guided")
GENERATED = "comprl/rollout/{}/tokens_generated"
EQUAL = 1e-6
"""Relative difference of two means that are equal."""
TARGET = 1.03
"""Upper bound of the interval of mean rollout time, relative to the baseline, for the arms ``JUDGED``."""
JUDGED = ("recorded", "idle")

Row = dict[str, Any]


def lengths(turn_tokens: int) -> list[str]:
    """Return what lets an episode with turns of ``turn_tokens`` fit into actor and extractor as one of 8 does."""
    usual, more = OmegaConf.load(ROOT / "recipes/miniature/miniature.yaml"), TURNS * (turn_tokens - TURN_TOKENS)
    longer = {key: OmegaConf.select(usual, key) + more for key in LENGTHS}
    return [f"comprl.max_turn_tokens={turn_tokens}", *(f"{key}={length}" for key, length in longer.items())]


def overrides(output: Path, prompts: int, turn_tokens: int = TURN_TOKENS, pause: float = 0.0) -> list[str]:
    """Return what all runs share."""
    import pandas

    from benchmarks.fixed_turns import fixed_turns_rows

    data = output / "rows.parquet"
    pandas.DataFrame(fixed_turns_rows(96, turns=TURNS, pause=pause)).to_parquet(data)
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
        *lengths(turn_tokens),
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
        *overrides(output, options.prompts, options.turn_tokens, options.pause_ms / 1000),
        f"comprl.initial_bank={bank}",
        *options.overrides,
    ]
    own = {arm: ["arm=baseline"] if arm in WITHOUT else [f"comprl.extractor.cpu_priority={arm}"] for arm in ARMS}
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
            tell(f"started after {time.perf_counter() - started:.0f} s")
            done = [row["round"] for row in read_rows(file)]
            for number in range(max(done, default=-1) + 1, options.rounds):
                rows: list[Row] = []
                for arm in order(number, options.arms):
                    if time.perf_counter() - started > 60 * options.minutes:
                        tell("time is up; the same command continues")
                        return
                    with burden() if arm == "burdened" else nullcontext():
                        rows += turn(arms[arm], arm, number, options.steps)
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


def measured_arms(rows: list[Row]) -> list[str]:
    """Return the arms that have rows, in the order of the table."""
    return [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]


class Measured:
    """The steps that all arms have, by round."""

    def __init__(self, rows: list[Row]) -> None:
        """Take what has been measured."""
        by_arm: dict[str, dict[tuple[int, int], Row]] = {arm: {} for arm in measured_arms(rows)}
        for row in rows:
            by_arm[row["arm"]][row["round"], row["step"]] = row
        self.steps = sorted(set.intersection(*(set(found) for found in by_arm.values())))
        rounds = sorted({number for number, _ in self.steps})
        self.turns = {
            arm: [[found[step] for step in self.steps if step[0] == number] for number in rounds]
            for arm, found in by_arm.items()
        }
        """By arm the rows of each of its turns, in the order of the rounds."""

    def rows(self, arm: str) -> list[Row]:
        """Return all rows of an arm."""
        return [row for turn in self.turns[arm] for row in turn]

    def mean(self, arm: str, key: str) -> float | None:
        """Return the mean of a metric over the steps of an arm that have it; None if none has."""
        found = [row["metrics"][key] for row in self.rows(arm) if key in row["metrics"]]
        return statistics.fmean(found) if found else None

    def ratio(self, arm: str, key: str) -> tuple[float, float, float] | None:
        """Return an arm's ratio to the baseline with its interval; None if there is only one round.

        Rounds are resampled, a mean for each turn: the steps of a turn share the load of the machine, and those of two
        arms are minutes apart, so that steps are no independent pairs.
        """
        ours, base = (
            [statistics.fmean(row["metrics"][key] for row in turn) for turn in self.turns[name]]
            for name in (arm, "baseline")
        )
        return ratio_of_means(ours, base) if len(base) > 1 else None

    def differences(self) -> list[str]:
        """Return what is not equal in the work that is to be the same: the tokens of an episode, in each half."""
        expected = self.mean("baseline", GENERATED.format("free")) or 0.0
        found = {
            f"{arm}, {half}": self.mean(arm, GENERATED.format(half))
            for arm in self.turns
            for half in (HALVES[:1] if arm in WITHOUT else HALVES)
        }
        return [
            f"{name}: {'none' if tokens is None else f'{tokens:.4f}'} instead of {expected:.4f}"
            for name, tokens in found.items()
            if tokens is None or abs(tokens - expected) > EQUAL * expected
        ]


def verdict(measured: Measured) -> str:
    """Return whether the target is met, or why that cannot be said."""
    if differences := measured.differences():
        found = "; ".join(differences)
        return f"NO VERDICT, since the arms have not done the same work; tokens generated by an episode: {found}"
    ratios = {arm: measured.ratio(arm, "timing_s/gen") for arm in JUDGED if arm in measured.turns}
    return "\n".join(
        f"{arm}: {show(ratio)}, target {'met' if ratio[2] <= TARGET else 'NOT MET'} (at most {TARGET})"
        if ratio
        else f"{arm}: no verdict, since one round has no interval"
        for arm, ratio in ratios.items()
    )


def report(measured: Measured) -> str:
    """Return the table."""

    def cell(arm: str, key: str, form: str = ".1f", factor: float = 1.0) -> str:
        found = measured.mean(arm, key)
        return "-" if found is None else format(factor * found, form)

    lines = [
        f"{len(measured.steps)} steps of each arm, in {len(measured.turns['baseline'])} rounds",
        "| arm | rollout, s | ratio (95 %) | step, s | ratio (95 %) | tokens generated: free | guided | guided prompt "
        "| guide, ms | report, ms | updates per step | queue at the end | others' cores |",
        "|" + "---|" * 13,
    ]
    for arm in measured.turns:
        times: list[str] = []
        for key in ("timing_s/gen", "timing_s/step"):
            ratio = measured.ratio(arm, key) if arm != "baseline" else None
            times += [cell(arm, key, ".3f"), show(ratio) if ratio else "-"]
        turns = [[row["metrics"] for row in turn] for turn in measured.turns[arm]]
        made = [turn[-1].get(UPDATES, 0.0) - turn[0].get(UPDATES, 0.0) for turn in turns]
        updates = sum(made) / max(1, len(measured.steps) - len(turns))
        queue = sum(turn[-1].get("comprl/queue/depth", 0.0) for turn in turns) / len(turns)
        others = statistics.fmean(row["others"] for row in measured.rows(arm))
        cells = [arm, *times, *(cell(arm, GENERATED.format(half)) for half in HALVES)]
        cells += [cell(arm, "comprl/rollout/guided/tokens_prompt")]
        cells += [cell(arm, f"comprl/rollout/guided/seconds_{part}", factor=1000.0) for part in ("guide", "report")]
        lines.append("| " + " | ".join([*cells, f"{updates:.2f}", f"{queue:.1f}", f"{others:.2f}"]) + " |")
    return "\n".join(lines)


def processes(rows: list[Row]) -> str:
    """Return mean cores of every kind of process by arm."""
    arms = measured_arms(rows)
    seen: dict[str, dict[str, float]] = {arm: defaultdict(float) for arm in arms}
    for arm in arms:
        chosen = {row["round"]: row["cores"] for row in rows if row["arm"] == arm}
        for cores in chosen.values():
            for name, used in cores.items():
                seen[arm][name.rpartition(" ")[0]] += used / len(chosen)
    names = sorted({name for found in seen.values() for name in found}, key=lambda name: -seen[arms[-1]][name])
    lines = ["| process, cores | " + " | ".join(arms) + " |", "|" + "---|" * (len(arms) + 1)]
    lines += ["| " + " | ".join([name, *(f"{seen[arm][name]:.2f}" for arm in arms)]) + " |" for name in names]
    return "\n".join(lines)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=USUAL, help="default: all but burdened")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each arm (default: 10)")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a turn (default: 4)")
    parser.add_argument("--prompts", type=int, default=6, help="prompts of a step, 8 rollouts each (default: 6)")
    parser.add_argument("--turn-tokens", type=int, default=TURN_TOKENS, help="of each of 8 turns (default: 8)")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="most time of an environment's turn (default: 0)")
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
        if (tokens := before[0]["metrics"].get(GENERATED.format("free"))) != TURNS * options.turn_tokens:
            parser.error(f"{file} has episodes of {tokens} tokens; other --turn-tokens need another --output")
    if not options.report:
        measure(options, file)
    rows = read_rows(file)
    if "baseline" in measured_arms(rows):
        measured = Measured(rows)
        print(f"\n{report(measured)}\n\n{processes(rows)}\n\n{verdict(measured)}")


if __name__ == "__main__":
    main()
