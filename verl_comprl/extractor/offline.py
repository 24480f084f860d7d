"""Distils finished episodes into a bank without a run: no actor, no training, no queue on disk.

Owns the order of work and the journal from which an interrupted distillation resumes.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from verl_comprl.experience import BankConfig, DistillationRequest, ExperienceBank, derive_id
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.distillation import apply_answer, listed_ids, nearest_entries, outcome_of
from verl_comprl.extractor.generation_record import CallKind
from verl_comprl.record.lines import Record, append_lines, decode, encode
from verl_comprl.record.redaction import redactor

_UNREADABLE = "unreadable"
_OF_A_RUN = re.compile(r"([0-9a-f-]{36}_\d+):[0-9a-f]{8}")
_MOST_OPERATIONS = 16
"""Of an answer, by whose position its entries are named; 3 by default."""
_GIVE_UP = 5
"""Failures in a row, of as many episodes, after which nothing more is tried: the endpoint or the bank is gone."""


class OfflineDistillation:
    """Distils episodes concurrently and notes each that is done, so that the next attempt leaves it out.

    One whose answer cannot be read is not done: the next attempt asks again.
    """

    def __init__(
        self,
        bank: ExperienceBank,
        calls: ExtractorCalls,
        journal: Path,
        *,
        limits: BankConfig,
        workers: int = 8,
        list_nearest: int = 3,
        progress: Callable[[Counter[str]], None] = lambda _: None,
    ) -> None:
        """Set up.

        Args:
            bank: Open for writing.
            calls: Calls to the extractor.
            journal: JSONL file of the episodes that are done.
            limits: Longest title and content of the entries that an episode is shown.
            workers: Episodes at the same time.
            list_nearest: Entries that an episode is shown to update instead of adding a near-copy.
            progress: Called with the counts after every episode.
        """
        self._bank = bank
        self._calls = calls
        self._journal = journal
        self._limits = limits
        self._workers = workers
        self._list_nearest = list_nearest
        self._progress = progress
        self._failed_in_a_row = 0
        self.counts: Counter[str] = Counter()
        """Episodes by what became of them: ``written``, ``return``, ``unreadable``, ``failed``; ``done`` before."""
        self.last_failure = ""

    async def run(self, episodes: Sequence[DistillationRequest]) -> None:
        """Distil those that neither journal nor bank has; a failure costs one episode, many in a row end the work."""
        done, written = self._done(), _written(self._bank)
        redact = redactor()  # neither the endpoint nor the bank gets the keys of who starts this
        waiting = [
            episode.redacted(redact)
            for episode in episodes
            if not any(name in done or written(name) for name in _names(episode))
        ]
        self.counts["done"] = len(episodes) - len(waiting)
        waiting.reverse()
        await asyncio.gather(*(self._work(waiting) for _ in range(self._workers)))

    async def _work(self, waiting: list[DistillationRequest]) -> None:
        while waiting and self._failed_in_a_row < _GIVE_UP:
            episode = waiting.pop()
            try:
                became = await self._distill(episode)
            except Exception as error:  # of the endpoint, the store or the embedder
                self._failed_in_a_row += 1
                self.last_failure = f"{type(error).__name__}: {error}".splitlines()[0]
                self.counts["failed"] += 1
            else:
                self._failed_in_a_row = 0
                self.counts[became] += 1
                if became != _UNREADABLE:
                    self._note(episode, became)
            self._progress(self.counts)

    async def _distill(self, episode: DistillationRequest) -> str:
        similar = await nearest_entries(self._bank, episode, self._list_nearest, self._limits)
        answer, record = await self._calls.distill(episode, [entry.text for entry in similar])
        if not answer.format_ok:
            return _UNREADABLE
        report = await apply_answer(self._bank, episode, listed_ids(episode, similar), answer, record)
        return outcome_of(answer, report)

    def _done(self) -> set[str]:
        # Journals of older releases name unreadable answers, too.
        return {record["id"] for record in _noted(self._journal) if record.get("became") != _UNREADABLE}

    def _note(self, episode: DistillationRequest, became: str) -> None:
        # After the bank's write: an episode that is noted but not written would be lost.
        append_lines(self._journal, encode({"id": episode.id, "became": became}) + b"\n")


def set_aside_foreign(journal: Path, bank: ExperienceBank) -> Path | None:
    """Rename the journal if its entries are not in the bank, and return its new name; None if it may be the bank's.

    A bank that was emptied has none of them, nor has one of the same name on another server.
    """
    # One that names no written entry may be of a bank that is empty because no episode had anything new.
    if len(bank) or bank.unreadable or all(record.get("became") != "written" for record in _noted(journal)):
        return None
    return journal.rename(f"{journal}-{time.strftime('%Y%m%d-%H%M%S')}")


def _noted(journal: Path) -> list[Record]:
    if not journal.exists():
        return []
    with journal.open("rb") as lines:  # one that was cut off is left out: the bank recognises its call
        return [record for record in decode(lines) if isinstance(record.get("id"), str)]


def _written(bank: ExperienceBank) -> Callable[[str], bool]:
    """Return what says whether a bank has an entry of the episode of a name, or one that stands for it now."""
    # Imported ones name no call, and say nothing: two runs of one seed give their episodes the same ids.
    own = [entry for entry in bank.entries() if entry.record_id]
    calls = {entry.record_id for entry in own}
    replaced = {id for entry in own for id in (*entry.parents, *entry.ancestors)}

    def written(name: str) -> bool:
        call = derive_id(CallKind.DISTILL, name)
        return call in calls or any(derive_id(call, position) in replaced for position in range(_MOST_OPERATIONS))

    return written


def _names(episode: DistillationRequest) -> set[str]:
    """Return the ids under which a journal or a bank may name an episode."""
    # A run's own bank and older journals name an episode of a run without its checksum, so that nothing tells which run
    # it was of: asking again would write all that they name a second time.
    older = _OF_A_RUN.fullmatch(episode.id)
    return {episode.id, older[1]} if older else {episode.id}
