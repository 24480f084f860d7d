"""Distils finished episodes from the queue into the bank, in the background.

Owns one episode's way from the queue to the bank. ``extractor.calls`` makes the prompt, the bank applies the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.errors import panics_as_errors
from verl_comprl.experience import ExperienceBank, ParsedAnswer
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.schema import DistillationRequest, Experience
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.distillation import apply_answer, listed_ids, nearest_entries
from verl_comprl.extractor.generation_record import GenerationRecord
from verl_comprl.extractor.queue import DistillationQueue
from verl_comprl.manager.availability import BankAvailability
from verl_comprl.manager.journal import Journal
from verl_comprl.platform.under_way import doing


class Note(Protocol):
    """Counts and keeps a call whose answer has been processed."""

    def __call__(
        self,
        answer: ParsedAnswer,
        record: GenerationRecord,
        report: ApplyReport | None = None,
        *,
        listed: Sequence[str] = (),
        episode: str | None = None,
    ) -> None:
        """Note the call, what it did to the bank, which entries its prompt numbered, and the episode it was about."""
        ...


@dataclass(frozen=True)
class Distilling:
    """What the distillation of episodes needs of the manager."""

    config: ComprlConfig
    bank: ExperienceBank
    availability: BankAvailability
    """Of the bank. While it is away no episode is begun, and each worker keeps the answer that it has got."""
    queue: DistillationQueue
    calls: ExtractorCalls
    commit: ReadWriteLock
    """Its read side is held while an answer changes bank, queue and buffer together."""
    journal: Journal
    note: Note
    fail: Callable[[str, Exception], None]
    """Counts a failure."""

    async def run(self) -> None:
        """Distil the episodes of the queue until cancelled; several tasks may do so at the same time."""
        while True:
            request = await self.queue.get()
            try:
                with doing("distillation"), panics_as_errors():
                    await self._distil(request)
            except Exception as error:
                self.fail("distill", error)
                self.queue.fail(request, f"{type(error).__name__}: {error}")

    async def _distil(self, request: DistillationRequest) -> None:
        similar = await self._similar(request)
        answer, record = await self.calls.distill(request, [entry.text for entry in similar])

        async def commit() -> None:
            if answer.format_ok:  # not under the lock, for which a checkpoint waits: an embedder may be slow, or hang
                await self.bank.embed(answer.operations)
            async with self.commit.read():
                await self._apply(request, similar, answer, record)
                self.queue.acknowledge(request)

        await self.availability.when_there(commit)

    async def _similar(self, request: DistillationRequest) -> list[Experience]:
        """Return entries close to goal and outcome; none if that fails: the episode is distilled with what there is."""
        try:
            limit, limits = self.config.extractor.list_nearest, self.config.bank
            return await self.availability.when_there(lambda: nearest_entries(self.bank, request, limit, limits))
        except Exception as error:
            self.fail("list_nearest", error)
            return []

    async def _apply(
        self,
        request: DistillationRequest,
        similar: Sequence[Experience],
        answer: ParsedAnswer,
        record: GenerationRecord,
    ) -> None:
        listed = listed_ids(request, similar)
        # The bank first, the record after it: if the write fails the episode is distilled again, and only the record of
        # the text that is really in the bank may be trained on. One that cannot be read has no operations.
        report = await apply_answer(self.bank, request, listed, answer, record)
        written = [entry for id in report.new_ids if (entry := self.bank.get(id)) is not None]
        # Also those of a call that was applied before: the process may have been killed before it noted them.
        self.journal.wrote(request, written)
        self.journal.removed(report, written, step=request.step, call=record.id)
        if not written:
            self.journal.nothing(request, record.id)
        self.note(answer, record, report, listed=listed, episode=request.id)
