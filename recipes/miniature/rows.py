"""Rows of the miniature, one for each finished run, read from the folders of the runs.

Owns what is read: success on held-out instances at every evaluation, what the extractor wrote and the actor read, and
how the extractor was rewarded.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from env_adapters.vaults.world import code_of
from recipes.miniature.entries import is_right, style_of

Row = dict[str, Any]
"""One run: arm, batch ("3" for three families with four prompts each, "1x12" for one with twelve), seed,
``step_seconds`` and ``evaluation_seconds``, ``evaluations`` by step and ``journal`` by window of steps."""

WINDOW = 15
"""Steps over which what was written and read is averaged."""

Windows = dict[str, dict[str, float]]
"""Figures by the last step of a window."""


def read_rows(runs: Path) -> list[Row]:
    """Return a row for each finished run in a folder."""
    rows = []
    for finished in sorted(runs.glob("*-*-*/finished.json")):
        arm, batch, seed = finished.parent.name.rsplit("-", 2)
        if arm == "filling":
            continue
        evaluations = {}
        for line in (finished.parent / "evaluations.jsonl").read_text().splitlines():
            record = json.loads(line)
            evaluations[str(record["step"])] = {
                mode: record[key] for mode in ("with", "without") if (key := f"comprl/eval/success_{mode}") in record
            }
        rows.append(
            {
                "arm": arm,
                "batch": batch,
                "seed": int(seed),
                **read_seconds(finished.parent / "metrics.jsonl"),
                "evaluations": evaluations,
                "journal": merged(
                    read_journal(finished.parent / "experience.jsonl", world=int(seed)),
                    read_rewards(finished.parent / "metrics.jsonl"),
                ),
            }
        )
    return rows


def read_journal(file: Path, *, world: int) -> Windows:
    """Return shares of what was written and read, by window.

    Written entries: ``kind_family`` titles (which transfer), ``right`` contents, and both (``good``). Entries that
    guided an episode: ``read_rule``, their title names the episode's kind and family; ``read_right``, their content is
    the episode's code.
    """
    if not file.exists():
        return {}
    counts: dict[str, defaultdict[str, list[bool]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] not in ("written", "read"):
            continue
        window = counts.setdefault(_window(event["step"]), defaultdict(list))
        kind, family = event["goal"].split()[2:4]
        code = code_of(world, family, kind, length=3)
        title, _, content = (event.get("text") or f"{event['title']}\n{event['content']}").partition("\n")
        rule, right = set(title.split()) == {kind, family}, is_right(content, code)
        if event["event"] == "written":
            style = style_of(title)
            window["kind_family"].append(style == "kind_family")
            window["right"].append(right)
            window["good"].append(right and rule)
        else:
            window["read_rule"].append(rule)
            window["read_right"].append(right)
    return {last: {name: sum(v) / len(v) for name, v in window.items()} for last, window in counts.items()}


def read_rewards(metrics: Path) -> Windows:
    """Return mean ``extractor_reward`` and the share of ``unreadable`` answers, by window."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[float]] = {}
    before = [0.0, 0.0]
    for step, data in _steps(metrics):
        if "comprl/extractor/reward" in data:
            rewards[_window(step)].append(data["comprl/extractor/reward"])
        kinds = ("unreadable", "written", "return")
        counts = [data.get(f"comprl/distillations/{kind}", 0.0) for kind in kinds]  # since the start of the run
        now = [counts[0], sum(counts)]
        sums = answers.setdefault(_window(step), [0.0, 0.0])
        answers[_window(step)] = [total + new - old for total, new, old in zip(sums, now, before, strict=True)]
        before = now
    return merged(
        {last: {"extractor_reward": sum(values) / len(values)} for last, values in rewards.items()},
        {last: {"unreadable": bad / total} for last, (bad, total) in answers.items() if total},
    )


def read_seconds(metrics: Path) -> dict[str, float]:
    """Return the mean seconds of a step and of an evaluation."""
    steps = [data for _, data in _steps(metrics)]
    evaluations = [data["timing_s/testing"] for data in steps if "timing_s/testing" in data]
    return {
        # Saving is part of a step; evaluating is not.
        "step_seconds": sum(data["timing_s/step"] for data in steps) / len(steps),
        "evaluation_seconds": sum(evaluations) / max(1, len(evaluations)),
    }


def merged(one: Windows, two: Windows) -> Windows:
    """Return the figures of both."""
    return {last: one.get(last, {}) | two.get(last, {}) for last in {**one, **two}}


def _window(step: int) -> str:
    return str(-(-step // WINDOW) * WINDOW)


def _steps(metrics: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if not metrics.exists():
        return
    for line in metrics.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "comprl/guided/rollouts" in record["data"] or "comprl/free/rollouts" in record["data"]:
            yield record["step"], record["data"]
