"""Rows of the miniature, one for each finished run, read from the folders of the runs.

Owns what is read: success on held-out instances at every evaluation, what the extractor wrote and the actor read, how
training went, and how old the weights were that generated what an asynchronous trainer trained on.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from env_adapters.vaults.world import code_of
from recipes.miniature.entries import is_right, style_of
from verl_comprl.record.lines import decode
from verl_comprl.record.reader import EVALUATIONS, EVENTS, METRICS
from verl_comprl.record.settings_file import SETTINGS, read_settings
from verl_comprl.sweep.checked_run import FINISHED

Row = dict[str, Any]
"""One run: arm, batch ("3" for three families with four prompts each, "1x12" for one with twelve, "3u4" for three with
four optimizer steps of the actor per step), seed, ``seconds`` of the parts of a step, ``evaluations`` by step; by the
last step of each window ``training`` (success of the two halves, under the names of evaluations) and ``journal`` (all
other figures). Runs of an asynchronous trainer also have ``staleness``."""

WINDOW = 15
"""Steps over which training is averaged."""

Windows = dict[str, dict[str, float]]
"""Figures by the last step of a window."""

_PARTS = {"rollouts": "timing_s/gen", "update": "timing_s/update_actor", "step": "timing_s/step"}
_EVALUATION = "timing_s/testing"
_STALENESS = {
    "mean": "training/off_policy/trajectory_staleness/mean",
    "largest": "training/off_policy/trajectory_staleness_worst/max",
}


def read_rows(runs: Path) -> list[Row]:
    """Return a row for each finished run in a folder that has made an evaluation."""
    rows = []
    for finished in sorted(runs.glob(f"*-*-*/{FINISHED}")):
        arm, batch, seed = finished.parent.name.rsplit("-", 2)
        evaluations = read_evaluations(finished.parent / EVALUATIONS, every=_every(finished.parent / SETTINGS))
        if arm == "filling" or not evaluations:
            continue
        steps = [data for _, data in _steps(finished.parent / METRICS)]
        staleness = read_staleness(steps)
        rows.append(
            {
                "arm": arm,
                "batch": batch,
                "seed": int(seed),
                "seconds": mean_seconds(steps),
                **({"staleness": staleness} if staleness else {}),
                "evaluations": evaluations,
                "training": read_training(finished.parent / METRICS),
                "journal": merged(
                    read_journal(finished.parent / EVENTS, world=int(seed)), read_health(finished.parent / METRICS)
                ),
            }
        )
    return rows


def stored_rows(file: Path) -> list[Row]:
    """Return the rows that a report has written; none if there is no such file."""
    return list(read_lines(file))


def merge_rows(stored: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return both, sorted; of a run that is in both the row with more evaluations, the new one in a tie."""
    rows = {_run(row): row for row in stored}
    for row in new:
        kept = rows.get(_run(row))
        if kept is None or len(row["evaluations"]) >= len(kept["evaluations"]):
            rows[_run(row)] = row
    return [rows[run] for run in sorted(rows)]


def _run(row: Row) -> tuple[str, str, int]:
    return row["arm"], row["batch"], row["seed"]


def _every(settings: Path) -> int:
    """Return the number of steps between two evaluations of a run; 1 if its settings are not there."""
    return read_settings(settings)["trainer"]["test_freq"] if settings.exists() else 1


def read_evaluations(file: Path, *, every: int = 1) -> Windows:
    """Return success with and without experience by step.

    A continued run evaluates again where it had ended: counted once, and not if that is no multiple of ``every``, where
    other runs have no evaluation.
    """
    evaluations: Windows = {}
    for record in read_lines(file):
        if record["step"] % every:
            continue
        measured = {mode: record[key] for mode in ("with", "without") if (key := _success(mode)) in record}
        evaluations.setdefault(str(record["step"]), measured)
    return evaluations


def _success(mode: str) -> str:
    return f"comprl/eval/success_{mode}"


def read_journal(file: Path, *, world: int) -> Windows:
    """Return shares of what was written and read, by window.

    Written entries: ``kind_family`` titles (which transfer), ``right`` contents, and both (``good``); ``coverage`` is
    the share of rules with a good entry among those written about in the window. Entries read in an episode:
    ``read_rule``, their title names the episode's kind and family; ``read_right``, their content is its code.
    """
    counts: defaultdict[str, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    rules: defaultdict[str, dict[tuple[str, ...], bool]] = defaultdict(dict)
    for event in _events(file):
        last = _window(event["step"])
        window = counts[last]
        kind, family = event["goal"].split()[2:4]
        title, _, content = (event.get("text") or f"{event['title']}\n{event['content']}").partition("\n")
        right = is_right(content, code_of(world, family, kind, length=3))
        rule = style_of(title) == "kind_family" and set(title.split()) == {kind, family}
        if event["event"] == "written":
            window["kind_family"].append(style_of(title) == "kind_family")
            window["right"].append(right)
            window["good"].append(right and rule)
            rules[last][kind, family] = rules[last].get((kind, family), False) or (right and rule)
        else:
            window["read_rule"].append(rule)
            window["read_right"].append(right)
    for last, found in rules.items():
        counts[last]["coverage"] = list(found.values())
    return {last: {name: sum(v) / len(v) for name, v in window.items()} for last, window in counts.items()}


def _events(file: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written about and read in each episode, the last time that it was distilled.

    Episodes that waited in the queue at a checkpoint are distilled again by the run that continues from it.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    previous = None
    for event in read_lines(file):
        if event["event"] not in ("written", "read"):
            continue
        key = (event["event"], event["episode"])
        if key != previous:
            groups[key] = []
        groups[key].append(event)
        previous = key
    for group in groups.values():
        yield from group


def read_training(metrics: Path) -> Windows:
    """Return success of the guided half (``with``) and of the free one (``without``), by window."""
    return _means(metrics, {"with": "comprl/guided/success", "without": "comprl/free/success"})


def read_health(metrics: Path) -> Windows:
    """Return measures of the metrics: reward, unreadable answers, uses per entry, endless turns, refused actions."""
    answers: dict[str, list[float]] = {}
    before = [0.0, 0.0]
    for step, data in _steps(metrics):
        kinds = ("unreadable", "written", "return")
        counts = [data.get(f"comprl/distillations/{kind}", 0.0) for kind in kinds]  # since the start of the run
        now = [counts[0], sum(counts)]
        sums = answers.setdefault(_window(step), [0.0, 0.0])
        answers[_window(step)] = [total + new - old for total, new, old in zip(sums, now, before, strict=True)]
        before = now
    names = {
        "extractor_reward": "comprl/extractor/reward",
        "uses_per_entry": "comprl/bank/uses_per_entry",
        "endless_turns": "comprl/free/cut_turns",
        "invalid_actions": "comprl/free/invalid_actions",
    }
    means = _means(metrics, names)
    return merged(means, {last: {"unreadable": bad / total} for last, (bad, total) in answers.items() if total})


def _means(metrics: Path, names: dict[str, str]) -> Windows:
    values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, data in _steps(metrics):
        for name, key in names.items():
            if key in data:
                values[_window(step)][name].append(data[key])
    return {last: {name: sum(v) / len(v) for name, v in window.items()} for last, window in values.items()}


def mean_seconds(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean seconds of a step, of its rollouts and its update of the actor, and of an evaluation."""
    names = _PARTS | {"evaluation": _EVALUATION}
    found = {name: [data[key] for data in steps if key in data] for name, key in names.items()}
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def read_staleness(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return how many weight syncs episodes lagged behind when they were trained on; nothing if none ever did.

    ``mean`` is that of the newest weights which generated an episode, over the steps; ``largest`` that of the oldest.
    """
    found = {name: [data[key] for data in steps if key in data] for name, key in _STALENESS.items()}
    if not any(found["largest"]):
        return {}
    return {"mean": sum(found["mean"]) / len(found["mean"]), "largest": max(found["largest"])}


def merged(one: Windows, two: Windows) -> Windows:
    """Return the figures of both."""
    return {last: one.get(last, {}) | two.get(last, {}) for last in {**one, **two}}


def _window(step: int) -> str:
    return str(-(-step // WINDOW) * WINDOW)


def _steps(metrics: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for record in read_lines(metrics):
        if "comprl/guided/rollouts" in record["data"] or "comprl/free/rollouts" in record["data"]:
            yield record["step"], record["data"]


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, if there is one, but a last line that an interruption has cut."""
    if file.exists():
        yield from decode(file.read_bytes().splitlines())
