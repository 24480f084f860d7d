"""Tables of the miniature: success by arm and step, paired differences, and what was learned in every seed.

Owns what is compared, and the words under each table. Runs are read in ``rows``, figures are drawn in ``figures``.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from recipes.miniature.rows import Row
from verl_comprl.curves.bands import half_interval

COMPARISONS = (
    ("complementary", "with", "baseline", "without"),
    ("complementary", "with", "static_online", "with"),
    ("complementary", "with", "experience_only", "with"),
    ("experience_only", "with", "baseline", "without"),
    ("static_online", "with", "baseline", "without"),
    ("offline", "with", "baseline", "without"),
    ("shared_baseline", "with", "complementary", "with"),
    ("all_guided", "with", "complementary", "with"),
    ("no_merge", "with", "complementary", "with"),
    ("no_search_and_ask", "with", "complementary", "with"),
    ("self_distillation", "with", "complementary", "with"),
    ("complementary", "with", "complementary", "without"),
    ("static_online", "with", "static_online", "without"),
    ("complementary", "without", "baseline", "without"),
    ("self_distillation", "without", "baseline", "without"),
    ("self_distillation", "without", "self_imitation", "without"),
)
"""Differences in the second table: arm and mode, minus arm and mode."""

BATCH = "Batch: task families, with four prompts each in a step unless it says how many (1x12: one family, twelve)."
CAPTIONS = {
    "success": f"{BATCH} Mean ± standard deviation over seeds, and their number where some have not come so far.",
    "training": "Guided (with) and free half (without) in windows of 15 steps, by the last; mean ± standard deviation.",
    "paired": "Mean ± half of the 95 % t-interval over seeds; how many seeds are above 0.",
    "journal": "Mean over seeds in each window of 15 steps, by its last step; then first → last window of each seed.",
    "time": "Means over steps, then runs; the range is over runs. A step has other parts, too, such as old log-probs.",
}

SHARES = {
    "kind_family": "written entries with a title that transfers",
    "right": "written entries with the whole code",
    "good": "written entries with both, about the episode's own rule",
    "coverage": "rules about which such an entry was written, of those about which any was",
    "read_rule": "entries read whose title names the episode's rule",
    "read_right": "entries read that have the whole code",
    "extractor_reward": "reward of the extractor in the last update of a step",
    "uses_per_entry": "guided episodes per entry written, since the start of the run",
    "unreadable": "answers of the extractor that could not be parsed",
    "endless_turns": "turns of a free episode that did not end within their tokens",
    "invalid_actions": "actions of a free episode that were refused",
}
"""Figures of the journal, with what they say."""

BySeed = dict[int, float]


def success_table(rows: Iterable[Row], measured: str = "evaluations") -> str:
    """Return mean and standard deviation over seeds by step, as a Markdown table.

    If there are runs of an asynchronous trainer, their staleness is the last column.

    Args:
        rows: The runs.
        measured: ``evaluations``, on held-out instances, or ``training``, by window.
    """
    rows = list(rows)
    groups: defaultdict[tuple[str, str, str], defaultdict[int, BySeed]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        for step, values in row[measured].items():
            for mode, value in values.items():
                groups[row["batch"], row["arm"], mode][int(step)][row["seed"]] = value
    steps = sorted({step for values in groups.values() for step in values})
    stale = _staleness(rows)
    more = ["staleness"] if stale else []
    columns = ("batch", "arm", "experience", *(f"step {step}" for step in steps), "last step of all seeds: each")
    lines = _head(*columns, *more)
    for (batch, arm, mode), values in sorted(groups.items()):
        seeds = max(len(found) for found in values.values())
        cells = [_cell(values.get(step, {}), seeds) for step in steps]
        last = max(step for step, found in values.items() if len(found) == seeds)
        each = " ".join(_short(value) for _, value in sorted(values[last].items()))
        lines.append(_line(batch, arm, mode, *cells, f"{last}: {each}", *(stale.get((batch, arm), "-") for _ in more)))
    note = ["", "Staleness: weight syncs by which trained episodes lagged behind, mean (largest)."] if stale else []
    return "\n".join(lines + note)


def _staleness(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    """Return mean and largest staleness by batch and arm, of those that have any."""
    groups: defaultdict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        if "staleness" in row:
            groups[row["batch"], row["arm"]].append(row["staleness"])
    cells = {}
    for group, found in groups.items():
        mean, largest = statistics.mean(each["mean"] for each in found), max(each["largest"] for each in found)
        cells[group] = f"{_short(mean)} ({largest:.0f})"
    return cells


def _cell(values: BySeed, seeds: int) -> str:
    if not values:
        return "-"
    spread = f" ± {_short(statistics.stdev(values.values()))}" if len(values) > 1 else ""
    return f"{_short(statistics.mean(values.values()))}{spread}" + (f" ({len(values)})" if len(values) < seeds else "")


def paired_table(rows: Sequence[Row], measured: str = "evaluations") -> str:
    """Return the ``COMPARISONS`` by step, paired over seeds; as ``success_table``."""
    found = {(row["batch"], row["arm"], row["seed"]): row[measured] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    steps = sorted({int(step) for row in rows for step in row[measured]} - {0})
    lines = _head("batch", "difference", *(f"step {step}" for step in steps))
    for batch in sorted({row["batch"] for row in rows}):
        for arm, mode, other, other_mode in COMPARISONS:
            pairs = [(found.get((batch, arm, seed), {}), found.get((batch, other, seed), {})) for seed in seeds]
            cells = [
                _difference(
                    [
                        one[step][mode] - two[step][other_mode]
                        for one, two in pairs
                        if mode in one.get(step, {}) and other_mode in two.get(step, {})
                    ]
                )
                for step in map(str, steps)
            ]
            if set(cells) != {"-"}:
                lines.append(_line(batch, f"{arm} ({mode}) − {other} ({other_mode})", *cells))
    return "\n".join(lines)


def _difference(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {_short(half_interval(values))}" if len(values) > 1 else ""
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
    """Return the mean seconds of a step, of its parts and of an evaluation, by arm."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["batch"], row["arm"]].append(row["seconds"])
    names = ("rollouts", "update", "step", "evaluation")
    lines = _head("batch", "arm", *(f"{name}, s" for name in names), "step, range")
    for (batch, arm), found in sorted(groups.items()):
        means = [statistics.mean(values) if (values := [each[n] for each in found if n in each]) else 0 for n in names]
        steps = [each["step"] for each in found]
        lines.append(_line(batch, arm, *(f"{mean:.1f}" for mean in means), f"{min(steps):.1f} to {max(steps):.1f}"))
    return "\n".join(lines)


def _head(*columns: str) -> list[str]:
    return [_line(*columns), "|" + "---|" * len(columns)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _short(value: float) -> str:
    """Two digits behind the point, and none before it but for ±1 and more."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
