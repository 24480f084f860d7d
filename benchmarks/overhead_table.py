"""Makes the table of what ``overhead`` has measured, and says whether the target is met or nothing can be said."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.paired import geometric_ratio, ratio_of_means, show

ARMS = ("baseline", "burdened", "longer", "recorded", "idle", "normal")
WITHOUT = ("baseline", "burdened", "longer")
"""Without experience."""
LEFT_OUT = 1
"""Steps at the start of a turn that are not measured: nothing is in the background yet."""
UPDATES = "comprl/extractor/updates"
DISTILLED = tuple(f"comprl/distillations/{made}" for made in ("written", "return", "unreadable"))
MOST_OTHERS = 0.1
"""Cores that others may use, on average, beside a turn; a round with more is left out."""
LEAST_STARTS = 3
"""Starts of the engines from which on the interval is over starts."""
LEAST_READABLE = 0.5
"""Share of the extractor's answers below which its part of the method has not been done: nothing is written."""
HALVES = ("free", "guided")
GENERATED = "comprl/rollout/{}/tokens_generated"
EQUAL = 1e-6
"""Relative difference of two means that are equal."""
TARGET = 1.03
"""Upper bound of the interval of mean rollout time, relative to the baseline, for the arms ``JUDGED``."""
JUDGED = ("recorded", "idle")
SERVERS = "ray::vLLMHttpServer"
"""The process that passes requests to an engine, one of each model. The actor's does most, the same in all arms."""

Row = dict[str, Any]


def quiet(rows: list[Row]) -> list[Row]:
    """Return the rows of the rounds in none of whose turns others have used the cores."""
    disturbed = {row["round"] for row in rows if row["others"] > MOST_OTHERS}
    return [row for row in rows if row["round"] not in disturbed]


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
        started: dict[int, int] = {row["round"]: row.get("start", 0) for row in rows}
        self.starts = [
            [index for index, number in enumerate(rounds) if started[number] == start]
            for start in sorted({started[number] for number in rounds})
        ]
        """For each start of the engines the indices of its rounds in ``turns``."""

    def rows(self, arm: str) -> list[Row]:
        """Return all rows of an arm."""
        return [row for turn in self.turns[arm] for row in turn]

    def mean(self, arm: str, key: str) -> float | None:
        """Return the mean of a metric over the steps of an arm that have it; None if none has."""
        found = [row["metrics"][key] for row in self.rows(arm) if key in row["metrics"]]
        return statistics.fmean(found) if found else None

    def made(self, arm: str, *keys: str) -> float:
        """Return how much totals have grown from an arm's first step to its last; a continued run begins at 0 again."""
        totals = [sum(row["metrics"].get(key, 0.0) for key in keys) for row in self.rows(arm)]
        return sum(after - before if after >= before else after for before, after in itertools.pairwise(totals))

    def updates_per_step(self, arm: str) -> float:
        """Return the extractor's updates in a step, those that are not measured included."""
        each, turns = len(self.turns[arm][0]), self.steps[-1][0] - self.steps[0][0]
        return self.made(arm, UPDATES) / max(1, turns * (each + LEFT_OUT) + each - 1)

    def readable(self, arm: str) -> float | None:
        """Return the share of the extractor's answers that could be read; None if there were none."""
        answers = self.made(arm, *DISTILLED)
        return 1 - self.made(arm, DISTILLED[-1]) / answers if answers else None

    def ratio(self, arm: str, key: str) -> tuple[float, float, float] | None:
        """Return an arm's ratio to the baseline with its interval; None if there is only one round.

        Rounds are resampled, a mean for each turn: the steps of a turn share the load of the machine, and those of two
        arms are minutes apart, so that steps are no independent pairs. Nor are rounds of one start of the engines if
        starts differ by more than their rounds: from three starts on, these are what is counted.
        """
        if len(self.starts) >= LEAST_STARTS:
            by_start = [[self._means(name, key, rounds) for rounds in self.starts] for name in (arm, "baseline")]
            return geometric_ratio(*([statistics.fmean(means) for means in each] for each in by_start))
        return self.ratio_of_rounds(arm, key, range(len(self.turns[arm])))

    def ratio_of_rounds(self, arm: str, key: str, rounds: Sequence[int]) -> tuple[float, float, float] | None:
        """Return the ratio in some rounds, with the interval over these; None if there is only one."""
        ours, base = (self._means(name, key, rounds) for name in (arm, "baseline"))
        return ratio_of_means(ours, base) if len(base) > 1 else None

    def _means(self, arm: str, key: str, rounds: Sequence[int]) -> list[float]:
        return [statistics.fmean(row["metrics"][key] for row in self.turns[arm][number]) for number in rounds]

    def per_server_second(self, arm: str) -> tuple[float, float, float] | None:
        """Return the ratio of rollout times per processor second of the actor's server; None for one round.

        The cores of a virtual machine are now faster, now slower, whatever runs on it, and with them everything that a
        turn takes. The actor's server does the same in each arm, so that its processor time tells how fast the cores
        were in a turn: where they are slower because the extractor uses their caches, that is not seen either. Over
        rounds in any case.
        """
        ours, base = (
            [statistics.fmean(row["metrics"]["timing_s/gen"] for row in turn) / server_seconds(turn) for turn in turns]
            for turns in (self.turns[arm], self.turns["baseline"])
        )
        return ratio_of_means(ours, base) if len(base) > 1 else None

    def differences(self) -> list[str]:
        """Return what is not as it is to be: equal tokens of an episode in each half, and an extractor at work."""
        expected = self.mean("baseline", GENERATED.format("free")) or 0.0
        found = {
            f"{arm}, {half}": self.mean(arm, GENERATED.format(half))
            for arm in self.turns
            for half in (HALVES[:1] if arm in WITHOUT else HALVES)
        }
        tokens = [
            f"{name}: episodes of {'no' if number is None else f'{number:.4f}'} tokens instead of {expected:.4f}"
            for name, number in found.items()
            if number is None or abs(number - expected) > EQUAL * expected
        ]
        experienced = [arm for arm in self.turns if arm not in WITHOUT]
        unread = [
            f"{arm}: {'no answers' if share is None else f'{share:.0%} of the answers can be read'}"
            for arm in experienced
            if (share := self.readable(arm)) is None or share < LEAST_READABLE
        ]
        return [*tokens, *unread, *(f"{arm}: no update" for arm in experienced if not self.made(arm, UPDATES))]


def server_seconds(turn: list[Row]) -> float:
    """Return the processor time of the actor's server in a step of a turn."""
    cores = max(used for name, used in turn[0]["cores"].items() if name.startswith(SERVERS))  # of the whole turn
    return cores * statistics.fmean(row["metrics"]["timing_s/step"] for row in turn)


def equal_speed(measured: Measured) -> str:
    """Return what each arm costs at equal speed of the cores; nothing without a verdict, or after one round."""
    if measured.differences():
        return ""
    ratios = {arm: measured.per_server_second(arm) for arm in measured.turns if arm != "baseline"}
    return "\n".join(
        f"{arm}, rollout time per processor second of the actor's server: {show(ratio)}"
        for arm, ratio in ratios.items()
        if ratio
    )


def verdict(measured: Measured) -> str:
    """Return whether the target is met, or why that cannot be said."""
    if differences := measured.differences():
        return f"NO VERDICT, since the arms have not done their work: {'; '.join(differences)}"
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
        f"{len(measured.steps)} steps of each arm, in {len(measured.turns['baseline'])} rounds, "
        f"starts of the engines: {len(measured.starts)}",
        "| arm | rollout, s | ratio (95 %) | step, s | ratio (95 %) | tokens generated: free | guided | guided prompt "
        "| guide, ms | report, ms | answers read | updates per step | queue at the end | others' cores |",
        "|" + "---|" * 14,
    ]
    for arm in measured.turns:
        times: list[str] = []
        for key in ("timing_s/gen", "timing_s/step"):
            ratio = measured.ratio(arm, key) if arm != "baseline" else None
            times += [cell(arm, key, ".3f"), show(ratio) if ratio else "-"]
        turns, readable = measured.turns[arm], measured.readable(arm)
        queue = sum(turn[-1]["metrics"].get("comprl/queue/depth", 0.0) for turn in turns) / len(turns)
        others = statistics.fmean(row["others"] for row in measured.rows(arm))
        cells = [arm, *times, *(cell(arm, GENERATED.format(half)) for half in HALVES)]
        cells += [cell(arm, "comprl/rollout/guided/tokens_prompt")]
        cells += [cell(arm, f"comprl/rollout/guided/seconds_{part}", factor=1000.0) for part in ("guide", "report")]
        cells += ["-" if readable is None else f"{readable:.0%}"]
        lines.append(
            "| " + " | ".join([*cells, f"{measured.updates_per_step(arm):.2f}", f"{queue:.1f}", f"{others:.2f}"]) + " |"
        )
    return "\n".join(lines)


def starts(measured: Measured) -> str:
    """Return a table with the rollouts of each start, if there are several, and of all rounds together."""
    if len(measured.starts) == 1:
        return ""
    arms = [arm for arm in measured.turns if arm != "baseline"]
    lines = ["| start | rounds | " + " | ".join(arms) + " |", "|" + "---|" * (2 + len(arms))]
    named = [(str(number), rounds) for number, rounds in enumerate(measured.starts, 1)]
    for name, rounds in [*named, ("all", list(itertools.chain(*measured.starts)))]:
        ratios = [measured.ratio_of_rounds(arm, "timing_s/gen", rounds) for arm in arms]
        cells = [name, str(len(rounds)), *(show(ratio) if ratio else "-" for ratio in ratios)]
        lines.append("| " + " | ".join(cells) + " |")
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
