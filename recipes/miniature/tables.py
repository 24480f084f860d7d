"""Tables of the miniature: success by arm and step, paired differences, and what was learned in every seed.

Owns what is compared. The runs are read in ``rows``, and the figures are drawn in ``figures``.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from scipy.stats import t

from recipes.miniature.rows import Row

COMPARISONS = (
    ("complementary", "with", "baseline", "without"),
    ("complementary", "with", "static_online", "with"),
    ("complementary", "with", "experience_only", "with"),
    ("experience_only", "with", "baseline", "without"),
    ("static_online", "with", "baseline", "without"),
    ("offline", "with", "baseline", "without"),
    ("self_distillation", "with", "complementary", "with"),
    ("complementary", "without", "baseline", "without"),
    ("self_distillation", "without", "baseline", "without"),
    ("self_distillation", "without", "self_imitation", "without"),
)
"""Differences in the second table: arm and evaluation, minus arm and evaluation."""

BATCHES = "Batch: task families, with four prompts each in a step unless it says how many (1x12: one family, twelve)."

SHARES = {
    "kind_family": "written entries with a title that transfers",
    "right": "written entries with the whole code",
    "good": "written entries with both",
    "read_rule": "episodes that read an entry about their rule",
    "read_right": "episodes that read the right code",
    "extractor_reward": "reward of the extractor",
    "unreadable": "answers of the extractor without an operation",
}
"""Figures of the journal, with what they say."""

BySeed = dict[int, float]


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % t-interval of a mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def success_table(rows: Iterable[Row]) -> str:
    """Return mean and standard deviation over seeds at every evaluation, as a Markdown table.

    A mean over fewer seeds than the arm has elsewhere is followed by their number.
    """
    groups: defaultdict[tuple[str, str, str], defaultdict[int, BySeed]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        for step, values in row["evaluations"].items():
            for mode, value in values.items():
                groups[row["batch"], row["arm"], mode][int(step)][row["seed"]] = value
    steps = sorted({step for values in groups.values() for step in values})
    lines = _head("batch", "arm", "evaluated", *(f"step {step}" for step in steps), "last, by seed")
    for (batch, arm, mode), values in sorted(groups.items()):
        seeds = max(len(found) for found in values.values())
        cells = [_cell(values.get(step, {}), seeds) for step in steps]
        last = {seed: value for step in sorted(values) for seed, value in values[step].items()}
        lines.append(_line(batch, arm, mode, *cells, " ".join(_short(last[seed]) for seed in sorted(last))))
    return "\n".join(lines)


def _cell(values: BySeed, seeds: int) -> str:
    if not values:
        return "-"
    spread = f" ± {_short(statistics.stdev(values.values()))}" if len(values) > 1 else ""
    return f"{_short(statistics.mean(values.values()))}{spread}" + (f" ({len(values)})" if len(values) < seeds else "")


def paired_table(rows: Sequence[Row]) -> str:
    """Return the ``COMPARISONS`` at every evaluation, paired over seeds: mean ± 95 % t-interval, and seeds above 0."""
    found = {(row["batch"], row["arm"], row["seed"]): row["evaluations"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    steps = sorted({int(step) for row in rows for step in row["evaluations"]} - {0})
    lines = _head("batch", "difference", *(f"step {step}" for step in steps))
    for batch in sorted({row["batch"] for row in rows}):
        for arm, mode, other, other_mode in COMPARISONS:
            pairs = [(found.get((batch, arm, seed), {}), found.get((batch, other, seed), {})) for seed in seeds]
            cells = [
                _difference([a[str(s)][mode] - b[str(s)][other_mode] for a, b in pairs if str(s) in a and str(s) in b])
                for s in steps
            ]
            if set(cells) != {"-"}:
                lines.append(_line(batch, f"{arm} ({mode}) − {other} ({other_mode})", *cells))
    return "\n".join(lines)


def _difference(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {_short(interval(values))}" if len(values) > 1 else ""
    mean = statistics.mean(values)
    return f"{'+' if mean > 0 else ''}{_short(mean)}{spread} ({sum(value > 0 for value in values)} of {len(values)})"


def journal_table(rows: Iterable[Row]) -> str:
    """Return what the extractor wrote and the actor read: mean over seeds by window, first → last window by seed."""
    groups: defaultdict[tuple[str, str, str], dict[int, dict[int, float]]] = defaultdict(dict)
    for row in rows:
        for last, values in sorted(row["journal"].items(), key=lambda item: int(item[0])):
            for name, value in values.items():
                groups[row["batch"], row["arm"], name].setdefault(row["seed"], {})[int(last)] = value
    lines = _head("batch", "arm", "share", "by window of steps", "first → last window, by seed")
    for batch, arm in sorted({key[:2] for key in groups}):
        for name in SHARES:
            seeds = groups.get((batch, arm, name), {})
            windows = sorted({window for values in seeds.values() for window in values})
            means = [statistics.mean(v[window] for v in seeds.values() if window in v) for window in windows]
            ends = [f"{_short(v[min(v)])} → {_short(v[max(v)])}" for _, v in sorted(seeds.items())]
            if seeds:
                lines.append(_line(batch, arm, name, " ".join(map(_short, means)), ", ".join(ends)))
    return "\n".join([*lines, "", *(f"* {name}: {meaning}" for name, meaning in SHARES.items())])


def time_table(rows: Iterable[Row]) -> str:
    """Return the mean seconds of a step and of an evaluation by arm, with the spread over seeds."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["batch"], row["arm"]].append(row)
    lines = _head("batch", "arm", "seconds of a step, mean (least to most, by run)", "of an evaluation")
    for (batch, arm), found in sorted(groups.items()):
        steps, evaluations = ([row[f"{part}_seconds"] for row in found] for part in ("step", "evaluation"))
        spread = f"{statistics.mean(steps):.1f} ({min(steps):.1f} to {max(steps):.1f})"
        lines.append(_line(batch, arm, spread, f"{statistics.mean(evaluations):.0f}"))
    return "\n".join(lines)


def _head(*columns: str) -> list[str]:
    return [_line(*columns), "|" + "---|" * len(columns)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _short(value: float) -> str:
    """Two digits behind the point, and none before it but for ±1 and more."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
