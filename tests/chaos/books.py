"""Whether the files of a run agree with one another after whatever happened to it."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_comprl.record import RunRecord


def problems(run: Path) -> list[str]:
    """Return what is wrong with the books of a run that has ended.

    * Every finished training episode was distilled, waits in the queue, or is a dead letter, but for as many as the
      manager did not confirm (``unreported``) or lost the record of (the step in which it was killed).
    * Every reward of a call belongs to one episode, which had read that call's text.
    * Every entry of the bank was written by a call that the record has, from an episode that it has.
    """
    record = RunRecord(run)
    episodes = {each["id"]: each for each in record.episodes() if each["kind"] == "training"}
    calls = {call["call"]: call for call in record.calls()}
    return [
        *_undistilled(run, record, episodes, calls),
        *_twice([each["id"] for each in record.episodes()], "episode"),
        *_rewards(episodes, calls),
        *_entries(record, episodes),
    ]


def _undistilled(run: Path, record: RunRecord, episodes: dict[str, Any], calls: dict[str, Any]) -> Iterator[str]:
    finished = {id: each for id, each in episodes.items() if each["outcome"] is not None and not each["error"]}
    written = {event["episode"] for event in record.events() if event["event"] == "written"}
    read = {call["episode"] for call in calls.values() if call["kind"] == "distill"} | written
    steps = list(record.metrics())
    tolerated = sum(line["data"].get("comprl/unreported", 0.0) for line in steps)
    restarts, killed_in = 0.0, set()
    for line in steps:
        if line["data"].get("comprl/manager_restarts", 0.0) > restarts:
            killed_in.add(line["step"])
        restarts = line["data"].get("comprl/manager_restarts", 0.0)
    missing = {
        id
        for id, each in finished.items()
        if id not in read | _waiting(run) | _dead(run) and not killed_in & {each["step"], each["step"] + 1}
    }
    if len(missing) > tolerated:
        yield f"{len(missing)} finished episodes have vanished, {tolerated:g} were not confirmed: {sorted(missing)[:5]}"


def _waiting(run: Path) -> set[str]:
    """Return the episodes that wait in the last checkpoint."""
    latest = run / "latest_checkpointed_iteration.txt"
    if not latest.exists():
        return set()
    file = run / f"global_step_{latest.read_text().strip()}" / "comprl/queue.jsonl"
    return {json.loads(line)["request"]["id"] for line in file.read_text("utf-8").split("\n") if line}


def _dead(run: Path) -> set[str]:
    file = run / "queue/dead_letters.jsonl"
    lines = file.read_text("utf-8").split("\n") if file.exists() else []
    return {json.loads(line)["request"]["id"] for line in lines if line}


def _twice(ids: list[str], what: str) -> Iterator[str]:
    for id, count in Counter(ids).items():
        if count > 1:
            yield f"{what} {id} is there {count} times"


def _rewards(episodes: dict[str, Any], calls: dict[str, Any]) -> Iterator[str]:
    for id, call in calls.items():
        used_by = [use["episode"] for use in call["uses"]]
        yield from _twice(used_by, f"reward of call {id} for episode")
        for name in used_by:
            if name in episodes and id not in _texts_read(episodes[name]):
                yield f"call {id} was rewarded for episode {name}, which had not read it"


def _texts_read(episode: dict[str, Any]) -> set[str | None]:
    questions = [question for turn in episode["turns"] for question in turn["questions"]]
    unfinished = episode["unfinished"] or {"questions": []}
    guide = episode["guide"] or {}
    return {guide.get("call")} | {question["call"] for question in (*questions, *unfinished["questions"])}


def _entries(record: RunRecord, episodes: dict[str, Any]) -> Iterator[str]:
    for event in record.events():
        if event["event"] == "written" and event["episode"] not in episodes:
            yield f"entry {event['entry']} was written from episode {event['episode']}, which is not on record"
