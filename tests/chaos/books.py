"""Whether the files of a run agree with one another after whatever happened to it.

For runs that ended with a checkpoint: by themselves, by SIGTERM, or after kills of the driver. (One that was stopped in
the middle of a step may lack an episode whose record was on its way then.)
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.extractor.draw import is_drawn
from verl_comprl.record import RunRecord

Line = dict[str, Any]
UNWRITTEN = "comprl/bank/counters_unwritten_seconds"
"""Metric of a step that the manager has closed."""
Tally = Counter[tuple[str, str, str]]
"""Episodes by entry, task and counter of the entry's usage."""


def problems(run: Path, ahead: Collection[str] = ()) -> list[str]:
    """Return what is wrong with the books of a run.

    * An episode was distilled, waits in the queue, is a dead letter, or was not drawn: also one that the manager did
      not confirm in time, which is reported again. As many of those may be missing as agent loops have given up, and
      those that were not trained: a stop may have ended their agent loop.
    * No episode was distilled twice, both distilled and given up, or given up twice.
    * An outcome rewards each call whose text the episode has read, and no other, once.
    * An entry of the bank has the uses and successes of the episodes that read it, and was written by a call.

    A manager that was killed may have lost rewards and uses of the last steps, but has counted nothing twice.

    Args:
        run: Folder of the run.
        ahead: With an asynchronous trainer, what :func:`counted_ahead` has returned at each end of the run. A resume
            may play such an episode again under its id: its record is of that, what has counted is the first.
    """
    books = Books(run, ahead)
    return [
        *_twice((each["id"] for each in books.record.episodes()), "episode"),
        *_unconfirmed(books),
        *_twice(books.dead, "dead letter of episode"),
        *_undistilled(books),
        *_distilled_twice(books),
        *_rewards(books),
        *_reads(books),
        *_entries(books),
        *_usage(books),
    ]


def counted_ahead(run: Path) -> set[str]:
    """Return the episodes that the manager of the last checkpoint has counted, and that no step had trained then."""
    books = Books(run)
    if books.checkpoint is None:
        return set()
    saved = books.manager
    recorded = {id for id, episode in books.episodes.items() if episode["step"] <= saved["step"]}
    return set(saved["reported"]) - recorded


class Books:
    """What a run has left, by what it is about."""

    def __init__(self, run: Path, ahead: Collection[str] = ()) -> None:
        self.record = RunRecord(run)
        self.ahead = ahead
        config = run / "config.yaml"
        settings = yaml.safe_load(config.read_text("utf-8")) if config.exists() else {}
        self.learning: Line = settings.get("comprl", {}).get("extractor", {})
        self.steps = list(self.record.metrics())
        self.episodes = {each["id"]: each for each in self.record.episodes()}
        self.finished = {
            id: each
            for id, each in self.episodes.items()
            if each["kind"] == "training" and each["outcome"] is not None and not each["error"]
        }
        self.last = max((line["step"] for line in self.steps), default=0)
        """Last step that ended. An episode of a later one belongs to no checkpoint."""
        self.events: dict[str, list[Line]] = defaultdict(list)
        for event in self.record.events():
            self.events[event["event"]].append(event)
        self.writer = {event["entry"]: event["call"] for event in [*self.events["written"], *self.events["merged"]]}
        """Call that wrote each entry."""
        # The latest of an episode: an asynchronous trainer, or a resume, may play it again under the same id.
        self.reads = {(event["episode"], event["entry"]): event for event in self.events["read"]}
        latest = run / "latest_checkpointed_iteration.txt"
        self.checkpoint = run / f"global_step_{latest.read_text().strip()}/comprl" if latest.exists() else None
        letters = run / "queue/dead_letters.jsonl"
        self.given_up = int(sum(line["data"].get("comprl/unreported_dropped", 0.0) for line in self.steps))
        """Episodes that the manager did not confirm in time, and that were not reported again."""
        self.dead: list[str] = [line["request"]["id"] for line in _lines(letters)] if letters.exists() else []

    @property
    def waiting(self) -> set[str]:
        """Episodes that wait in the last checkpoint."""
        return {line["request"]["id"] for line in _lines(self.checkpoint / "queue.jsonl")} if self.checkpoint else set()

    @property
    def unpaid(self) -> set[tuple[str, str]]:
        """Episodes and calls whose reward waits, in the last checkpoint, for the free half."""
        waiting = self.manager["credit"]["waiting"] if self.checkpoint else ()
        return {(use["episode"], use["record_id"]) for use in waiting}

    @property
    def manager(self) -> Line:
        """State of the manager in the last checkpoint."""
        assert self.checkpoint
        return json.loads((self.checkpoint / "manager.json").read_text("utf-8"))

    def killed(self, waits: int = 0, *, counters: bool = False) -> set[int]:
        """Steps of which a manager that was killed has lost something that takes ``waits`` steps.

        It may have died when the last step that it closed was over, and is counted when it is back.

        Args:
            waits: Steps before that one.
            counters: Also those for which it had not written the counters of the entries.
        """
        steps, before, closed = set[int](), 0.0, 0
        for line in self.steps:
            restarts = line["data"].get("comprl/manager_restarts", 0.0)
            if restarts > before:
                first = self._first_unwritten(closed) if counters else closed
                steps |= set(range(first - waits, line["step"] + 1))
            before = restarts
            if UNWRITTEN in line["data"]:
                closed = line["step"]
        return steps

    def _first_unwritten(self, closed: int) -> int:
        """The first step of which some counters may not have been written when step ``closed`` was."""
        data = {line["step"]: line["data"] for line in self.steps}
        left = data.get(closed, {}).get(UNWRITTEN, 0.0)
        while closed > 1 and (left := left - data[closed]["timing_s/step"]) > 0:
            closed -= 1
        return closed

    def may_be_missing(self, episode: Line) -> bool:
        """Return whether the manager may not know an episode."""
        return not episode["reported"] and (self.given_up > 0 or episode["status"] != "trained")

    def may_be_lost(self, id: str, step: int, lost: set[int]) -> bool:
        """Return whether a manager that was killed may have lost what an episode counted for.

        Args:
            id: The episode.
            step: Its step. The manager may have taken it in any later one if it did not confirm it in time.
            lost: Steps of which it has lost something.
        """
        is_late = id in self.finished and not self.finished[id]["reported"]
        return step in lost or (is_late and any(step < each for each in lost))

    def left(self, event: Line) -> bool:
        """Whether an event belongs to a step in which the run was stopped, or one that is not trained yet.

        The record of an episode of the last one may be missing; and no metric tells of a manager that was killed then.
        """
        id = event.get("episode", "")
        episode = self.episodes.get(id, {"status": ""})
        return event["step"] > self.last or episode["status"] == "dropped" or id in self.ahead


def _lines(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


def _twice(ids: Iterable[str], what: str) -> Iterator[str]:
    for id, count in Counter(ids).items():
        if count > 1:
            yield f"{what} {id} is there {count} times"


def _unconfirmed(books: Books) -> Iterator[str]:
    for line in books.steps:
        of_step = [each for each in books.finished.values() if each["step"] == line["step"]]
        counted = line["data"].get("comprl/unreported", 0.0)
        known = sum(each["reported"] is False for each in of_step if each["status"] == "trained")
        if counted != known:
            yield f"{counted:g} unreported episodes were counted in step {line['step']}, {known} are on record"


def _undistilled(books: Books) -> Iterator[str]:
    if not books.learning.get("distill", True):
        return
    distilled = {event["episode"] for event in [*books.events["written"], *books.events["nothing"]]}
    share = books.learning.get("distill_share", 1.0)
    for id in distilled & {*books.dead}:
        yield f"episode {id} was distilled, and is a dead letter"
    known = distilled | books.waiting | {*books.dead}
    finished = {id: each for id, each in books.finished.items() if each["step"] <= books.last}
    missing = {id: each for id, each in finished.items() if id not in known and is_drawn(id, share)}
    late = sum(not each["reported"] and each["status"] == "trained" for each in missing.values())
    for id, each in missing.items():
        if not books.may_be_missing(each) or late > books.given_up > 0:
            yield f"episode {id} of step {each['step']} has vanished"


def _distilled_twice(books: Books) -> Iterator[str]:
    """One distillation writes several entries, which are noted again after a kill; but it is on record once."""
    calls = [event for event in books.record.call_events() if event["event"] == "call"]
    yield from _twice((call["episode"] for call in calls if call["kind"] == "distill"), "distillation of episode")
    written, nothing = ({event["episode"] for event in books.events[name]} for name in ("written", "nothing"))
    for id in written & nothing:
        yield f"episode {id} was distilled into entries, and into none"


def _rewards(books: Books) -> Iterator[str]:
    uses = [event for event in books.record.call_events() if event["event"] == "use"]
    paid = {(use["episode"], use["call"]) for use in uses}
    yield from _twice((f"{use['call']} for episode {use['episode']}" for use in uses), "reward of call")
    left = {event["episode"] for event in books.events["read"] if books.left(event)}
    for use in uses:
        name, id = use["episode"], use["call"]
        episode = books.finished.get(name)
        if name in books.ahead:
            continue
        if episode is None and name not in left:
            yield f"call {id} was rewarded for episode {name}, which is not on record"
        elif episode and id not in _texts_read(episode) | _behind_answers(books, episode):
            yield f"call {id} was rewarded for episode {name}, which had not read it"
        elif episode and use["success"] != episode["outcome"]["success"]:
            yield f"call {id} was rewarded for another outcome than that of episode {name}"
    lost = books.killed(2 if books.learning.get("utility") == "relative" else 0)
    for name, episode in books.finished.items():
        is_known = episode["status"] == "trained" and not books.may_be_missing(episode) and name not in books.ahead
        if is_known and not books.may_be_lost(name, episode["step"], lost):
            for id in _texts_read(episode):
                if (name, id) not in paid | books.unpaid:
                    yield f"call {id} was not rewarded for episode {name}, which had read it"


def _questions(episode: Line) -> list[Line]:
    asked = [question for turn in episode["turns"] for question in turn["questions"]]
    return [*asked, *(episode["unfinished"] or {"questions": []})["questions"]]


def _texts_read(episode: Line) -> set[str]:
    """Return the calls that wrote the entry and the answers that an episode has read, or judged."""
    guide = episode["guide"] or {}
    read = {guide.get("call")} if episode["guided"] or guide.get("verdict") else set()
    return {id for id in read | {q["call"] for q in _questions(episode) if q["status"] == "answered"} if id}


def _behind_answers(books: Books, episode: Line) -> set[str | None]:
    """Return the calls that wrote the entries of the answers, which ``search_and_ask.reward_entry`` rewards too."""
    return {books.writer.get(question["entry"]) for question in _questions(episode)}


def _reads(books: Books) -> Iterator[str]:
    read = defaultdict[str, set[tuple[str, bool]]](set)
    for event in books.reads.values():
        read[event["episode"]].add((event["entry"], event["asked"]))
        if event["episode"] not in books.finished and not books.left(event):
            yield f"entry {event['entry']} was read by episode {event['episode']}, which is not on record"
    for name, episode in books.finished.items():
        if name in books.ahead:
            continue
        guide = episode["guide"]["entry"] if episode["guided"] else None
        asked = {q["entry"] for q in _questions(episode) if q["status"] == "answered"} - {guide}
        expected = {(guide, False), *((entry, True) for entry in asked)} if guide else set()
        # An event is written after its episode is in the queue: a kill may come in between.
        is_left_out = not (read[name] or episode["reported"])
        lost = books.may_be_lost(name, episode["step"], books.killed())
        excused = is_left_out and (books.may_be_missing(episode) or lost)
        if read[name] != expected and not excused:
            yield f"episode {name} has read other entries than its events say"


def _entries(books: Books) -> Iterator[str]:
    for event in books.events["written"]:
        if event["episode"] not in books.finished and not books.left(event):
            yield f"entry {event['entry']} was written from episode {event['episode']}, which is not on record"
    if books.checkpoint:
        for entry in read_snapshot(books.checkpoint / "bank", None).entries:
            merged = entry.parents and entry.created_step in books.killed()  # killed before the event was written
            if entry.id not in books.writer and not merged:
                yield f"entry {entry.id} is in the bank, and no event says who wrote it"


def _usage(books: Books) -> Iterator[str]:
    """Compare counters of the entries in the last checkpoint with the events of the episodes that read them."""
    if books.checkpoint is None:
        return
    killed = books.killed(counters=True)
    known, certain = Tally(), Tally()
    for event in books.reads.values():
        uses, successes = ("asked", "asked_successes") if event["asked"] else ("uses", "successes")
        names = [uses, successes] if event["success"] else [uses]
        counts = Tally((event["entry"], event["task"], name) for name in names)
        known += counts
        if not books.may_be_lost(event["episode"], event["step"], killed) and not books.left(event):
            certain += counts
    for entry in read_snapshot(books.checkpoint / "bank", None).entries:
        counted = {usage.task: usage for usage in entry.usage}
        for task in counted.keys() | {task for id, task, _ in known if id == entry.id}:
            for name in ("uses", "successes", "asked", "asked_successes"):
                count, key = getattr(counted.get(task), name, 0), (entry.id, task, name)
                if not certain[key] <= count <= known[key]:
                    yield f"entry {entry.id} has {count} {name} in {task}, its events {certain[key]} to {known[key]}"
