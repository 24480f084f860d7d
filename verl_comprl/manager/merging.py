"""One pass of the merge over the bank: every entry goes through the extractor once, in chunks of neighbours.

Owns the pass. ``experience.updates.merge`` decides which entries form a chunk, the bank what an answer changes.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.errors import panics_as_errors
from verl_comprl.experience import ExperienceBank, ParsedAnswer
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.updates.merge import split_into_runs
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.distillation import is_usual
from verl_comprl.extractor.generation_record import GenerationRecord
from verl_comprl.extractor.prompt_encoder import PromptTooLong
from verl_comprl.extractor.prompts import render_entry
from verl_comprl.manager.availability import BankAvailability
from verl_comprl.manager.distilling import Note
from verl_comprl.manager.journal import Journal
from verl_comprl.platform.under_way import doing


@dataclass(frozen=True)
class MergePass:
    """What a pass needs of the manager."""

    config: ComprlConfig
    bank: ExperienceBank
    availability: BankAvailability
    """Of the bank; the pass waits while it is away."""
    calls: ExtractorCalls
    commit: ReadWriteLock
    """Its read side is held while an answer changes bank and buffer together."""
    step: Callable[[], int]
    """Returns the last actor step that was closed: a pass runs between two, and is counted to the first."""
    note: Note
    journal: Journal
    fail: Callable[[str, Exception], None]
    """Counts a failure."""

    async def run(self) -> None:
        """Merge runs of neighbouring chunks concurrently; within a run, each chunk's output is carried into the next.

        Raises:
            StoreError: If the bank cannot be divided into chunks.
        """
        at_once = asyncio.Semaphore(self.config.merge.workers)
        groups = await self.availability.when_there(lambda: self.bank.merge_chunks(self.config.merge.chunk))

        async def merge_run(chunks: Sequence[Sequence[str]]) -> None:
            async with at_once:
                with doing("merge"):
                    await self._merge_run(chunks)

        async with asyncio.TaskGroup() as tasks:
            for chunks in split_into_runs(groups, self.config.merge.workers):
                tasks.create_task(merge_run(chunks))

    async def _merge_run(self, chunks: Sequence[Sequence[str]]) -> None:
        carried: list[str] = []
        for chunk in chunks:
            # Entries as they are now: distillation may have replaced or removed some since the pass began.
            listed = [entry for id in (*carried, *chunk) if (entry := self.bank.get(id)) and self._is_listed(entry)]
            if len(listed) < 2:
                carried = [entry.id for entry in listed]
                continue
            try:
                with panics_as_errors():
                    carried = await self._merge_chunk(listed)
            except Exception as error:
                self.fail("merge", error)
                carried = []

    def _is_listed(self, entry: Experience) -> bool:
        return not entry.quarantined and is_usual(entry, self.config.bank)

    async def _merge_chunk(self, listed: Sequence[Experience]) -> list[str]:
        """Merge entries and return the ids of the newest that are left, to be carried into the next chunk.

        At most a chunk of them: an extractor that retains everything would otherwise get ever longer prompts. An answer
        that cannot be parsed leaves its entries as they are, and carries none. While the prompt does not fit, the
        longest entry is left out: the same ones meet in every pass, of which none would be merged.
        """
        weight = self.config.bank.asked_weight
        step, quote = self.step(), self.calls.quote
        texts = [render_entry(entry, step=step, asked_weight=weight, quote=quote) for entry in listed]
        try:
            answer, record = await self.calls.merge(texts, step, listed=[entry.id for entry in listed])
        except PromptTooLong:
            if len(listed) == 2:
                raise
            longest = max(listed, key=lambda entry: len(entry.text.encode()))  # rare characters are several tokens
            return await self._merge_chunk([entry for entry in listed if entry is not longest])
        return await self.availability.when_there(lambda: self._apply(listed, answer, record))

    async def _apply(self, listed: Sequence[Experience], answer: ParsedAnswer, record: GenerationRecord) -> list[str]:
        if answer.format_ok:  # as in a distillation, before the lock
            await self.bank.embed(answer.operations)
        async with self.commit.read():
            ids = [entry.id for entry in listed]
            if not answer.format_ok:
                self.note(answer, record, listed=ids)
                return []
            report = await self.bank.apply(
                answer.operations,
                call_id=record.id,
                listed=ids,
                task="",
                environment="",
                step=record.created_step,
                weight_version=record.weight_version,
            )
            written = [entry for id in report.new_ids if (entry := self.bank.get(id))]
            self.journal.merged(written)
            self.journal.removed(report, written, step=record.created_step, call=record.id)
            self.note(answer, record, report, listed=ids)
        return list(report.surviving_ids[-self.config.merge.chunk :])
