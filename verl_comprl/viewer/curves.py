"""Curves of a run, from its metrics and evaluations."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from verl_comprl.algorithm.interval import pooled_interval, wilson_interval
from verl_comprl.viewer.comparison import Outcome

POINTS = 40
"""Points of a success curve. Single steps have few rollouts; more steps than this are pooled."""

Metrics = Mapping[str, Any]
Points = list[tuple[int, float, float | None, float | None]]
OutcomesByStep = Mapping[tuple[int, str], Sequence[Outcome]]
"""Outcomes of the training episodes on record by step and half."""

_BY_PROMPT = {
    "all": "",
    "some": ", of rollouts where episodes are not on record",
    "none": " of rollouts, since episodes are not on record",
}
"""End of the note on training, by the points whose intervals treat prompts, not rollouts, as independent."""

TRAINING, EVALUATIONS = "Success in training", "Success in evaluations"

_WITH, _WITHOUT = "with experience", "without"
_HALVES = {_WITH: "guided", _WITHOUT: "free"}


class Measure(NamedTuple):
    """A curve of plain metrics: labels and names of metrics without ``comprl/``."""

    title: str
    note: str
    series: tuple[tuple[str, str], ...]


MEASURES = (
    Measure("Extractor's reward", "mean of a batch", (("reward", "extractor/reward"),)),
    Measure("Bank", "entries", (("entries", "bank/size"), ("quarantined", "bank/quarantined"))),
    Measure("Actions", "per episode", ((_WITH, "guided/actions"), (_WITHOUT, "free/actions"))),
    Measure("Questions", "per guided episode", ((_WITH, "guided/tool_calls"),)),
    Measure("Uses per entry", "over the run", (("uses", "bank/uses_per_entry"),)),
    Measure("Informative samples", "share of a batch", (("share", "extractor/informative"),)),
    Measure("Time of a step", "seconds", (("step", "timing_s/step"), ("rollouts", "timing_s/gen"))),
)


def curves(
    metrics: Iterable[Metrics], evaluations: Iterable[Metrics], trained: OutcomesByStep | None = None
) -> list[dict[str, Any]]:
    """Return the curves that have points, as JSON-compatible objects.

    Args:
        metrics: ``step`` and ``data`` per step.
        evaluations: A line per evaluation, with a ``step``.
        trained: Outcomes of training episodes, for intervals that know which rollouts are of one prompt.
    """
    steps = [(line["step"], line["data"]) for line in metrics]
    evaluated = [(line["step"], line) for line in evaluations] or [
        (step, data) for step, data in steps if any(name.startswith("comprl/eval/") for name in data)
    ]
    # A run that is continued has lines of evaluations alone.
    played = [(step, data) for step, data in steps if any(data.get(_rollouts(half)) for half in _HALVES.values())]
    width = max(1, -(-len(played) // POINTS))
    success, by_prompt = _success(played, width, trained or {})
    note = f"{'each step' if width == 1 else f'{width} steps pooled'}, 95 % intervals{_BY_PROMPT[by_prompt]}"
    found = [
        _curve(TRAINING, note, success, rate=True, pooled=width),
        _curve(EVALUATIONS, "held-out tasks, 95 % intervals", _evaluation(evaluated, ""), rate=True),
    ]
    found += [
        _curve(title, note, {label: _plain(steps, name) for label, name in series}) for title, note, series in MEASURES
    ]
    if len(tasks := _tasks(evaluated)) > 1:
        found += [_curve(task, "evaluations", _evaluation(evaluated, f"{task}/"), rate=True) for task in tasks]
    return [curve for curve in found if curve["series"]]


def in_order(titles: Iterable[str]) -> list[str]:
    """Return titles of curves in the order in which a run with all of them has these; those of tasks are last."""
    known = [TRAINING, EVALUATIONS, *(measure.title for measure in MEASURES)]
    return sorted(titles, key=lambda title: (known.index(title) if title in known else len(known), title))


def _curve(title: str, note: str, series: Mapping[str, Points], rate: bool = False, pooled: int = 1) -> dict[str, Any]:
    columns = {label: list(zip(*points, strict=True)) for label, points in series.items() if points}
    return {
        "title": title,
        "note": note,
        "rate": rate,
        "pooled": pooled,
        "series": [
            {"label": label, "x": x, "y": y, "low": low, "high": high} for label, (x, y, low, high) in columns.items()
        ],
    }


def _rollouts(half: str) -> str:
    return f"comprl/{half}/rollouts"


def _success(
    steps: Sequence[tuple[int, Metrics]], width: int, trained: OutcomesByStep
) -> tuple[dict[str, Points], str]:
    """Return the halves' success, pooled over ``width`` steps, and whether ``all`` points have intervals by prompt.

    Rollouts of one prompt tend to end alike, so that an interval over rollouts is too narrow. It is all there is
    where not all of their episodes are on record: ``some`` points, or ``none``, have one by prompt then.
    """
    found: dict[str, Points] = {}
    by_prompt: set[bool] = set()
    for label, half in _HALVES.items():
        names = (f"comprl/{half}/success", _rollouts(half))
        for end in range(len(steps) % width or width, len(steps) + 1, width):  # of all groups the first may be smaller
            rows = [(step, *(data.get(name) for name in names)) for step, data in steps[max(0, end - width) : end]]
            known = [(step, rate, count) for step, rate, count in rows if rate is not None and count]
            if count := sum(count for _, _, count in known):
                successes = min(max(sum(rate * count for _, rate, count in known), 0), count)
                outcomes = [outcome for step, _, _ in known for outcome in trained.get((step, half), ())]
                by_prompt.add(complete := len(outcomes) == count)
                rate = successes / count
                interval = pooled_interval(outcomes, rate) if complete else wilson_interval(successes, count)
                found.setdefault(label, []).append((steps[end - 1][0], rate, *interval))
    return found, "all" if by_prompt == {True} else "some" if True in by_prompt else "none"


def _evaluation(evaluated: Sequence[tuple[int, Metrics]], task: str) -> dict[str, Points]:
    """Return success by step; a run that is continued evaluates again where it had ended, and the first counts."""
    found: dict[str, Points] = {}
    for label, arm in ((_WITH, "with"), (_WITHOUT, "without")):
        name = f"comprl/eval/{task}success_{arm}"
        points: dict[int, Any] = {}
        for step, line in evaluated:
            if line.get(name) is not None:
                points.setdefault(step, (step, line[name], line.get(f"{name}_low"), line.get(f"{name}_high")))
        found[label] = [*points.values()]
    return found


def _plain(steps: Sequence[tuple[int, Metrics]], name: str) -> Points:
    name = name if name.startswith("timing_s/") else f"comprl/{name}"
    points: Points = [(step, data[name], None, None) for step, data in steps if name in data]
    return points if any(value for _, value, _, _ in points) else []  # a part that is not used has no curve


def _tasks(evaluated: Sequence[tuple[int, Metrics]]) -> list[str]:
    prefix, suffix = "comprl/eval/", "/success_without"
    names = {name.removeprefix(prefix) for _, line in evaluated for name in line if name.startswith(prefix)}
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))
