"""Calls of the extractor in the run's folder, their uses and their training: ``extractor_calls/`` (docs/run_folder.md).

Owns what is written of a call. Events are kept in memory until the step is closed or saved, so that the files of a
step agree with its checkpoint.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from verl_comprl.experience import ParsedAnswer
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.calls import Transcript
from verl_comprl.extractor.credit import Use
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.record.writer import RecordWriter

CLOSE_SECONDS = 60.0
"""Limit of writing the last events at the end of a run."""

UNFINISHED = 1024
"""Answers kept until their result has been written; the limit is for results that never are."""


class CallLog:
    """Events of the extractor's calls of one run."""

    def __init__(self, folder: Path | None = None, keep_steps: int | None = None) -> None:
        """Write step files into ``folder``; nothing is kept or written if it is None."""
        self.writer = RecordWriter(folder, keep_steps) if folder else None
        self._answered: LRUCache[str, Transcript] = LRUCache(UNFINISHED)
        self._events: list[dict[str, Any]] = []

    @property
    def lost(self) -> int:
        """Events that could not be written."""
        return self.writer.lost if self.writer else 0

    def answered(self, call_id: str, transcript: Transcript) -> None:
        """Keep what was said until :meth:`finished`."""
        if self.writer:
            self._answered[call_id] = transcript

    def finished(
        self,
        record: GenerationRecord,
        answer: ParsedAnswer | None = None,
        report: ApplyReport | None = None,
        *,
        listed: Sequence[str] = (),
        reward: float | None = None,
        **details: str | None,
    ) -> None:
        """Note a call whose answer has been processed.

        Args:
            record: Its record.
            answer: Its operations; None for an answer to a question.
            report: What they did to the bank, if anything.
            listed: Entries that its prompt numbered.
            reward: Its only reward, if it could not be parsed.
            **details: ``episode``; or ``query``, ``entry`` and ``text``.
        """
        transcript = self._answered.pop(record.id, None)
        if transcript is None:
            return
        sent, sampled = transcript.tokens
        # The step of what it wrote, whatever step is open by now. An answer belongs to an episode of the open one.
        own = {} if record.kind is CallKind.ANSWER else {"step": record.created_step}
        self._note(
            "call",
            record.id,
            kind=record.kind.value,
            weight_version=record.weight_version,
            messages=transcript.messages,
            answer=transcript.answer,
            format_ok=answer.format_ok if answer else bool(details.get("text")),
            errors=[error._asdict() for error in answer.errors] if answer else [],
            operations=[operation.model_dump(mode="json") for operation in answer.operations] if answer else [],
            listed=list(listed),
            entries=list(report.new_ids) if report else [],
            removed=list(report.removed_ids) if report else [],
            rejections=dict(report.rejections) if report else {},
            reward=reward,
            tokens={"prompt": sent, "response": sampled},
            at=time.time(),
            **{name: details.get(name) for name in ("episode", "query", "entry", "text")},
            **own,
        )

    def used(self, use: Use, reward: float) -> None:
        """Note that the outcome of an episode has rewarded a call."""
        self._note(
            "use", use.record_id, episode=use.episode, success=use.success, judged=use.judged, reward=float(reward)
        )

    def trained(self, batch: TrainingBatch, update: int) -> None:
        """Note the calls that an update was trained on; those of weight 0 were not."""
        rows = zip(batch.records, batch.rewards, batch.weights, batch.advantages, strict=True)
        for record, reward, weight, advantage in rows:
            if weight > 0:
                self._note("trained", record.id, update=update, reward=reward, weight=weight, advantage=advantage)

    def flush(self, step: int) -> None:
        """Write the events since the last time into the file of ``step``, without waiting for it.

        It is also the step of those that have none of their own.
        """
        events, self._events = self._events, []
        if self.writer and events:
            self.writer.write(step, [{"step": step} | event for event in events], len(events))

    def settle(self) -> None:
        """Wait for what is being written; see :meth:`~verl_comprl.record.writer.RecordWriter.settle`."""
        if self.writer:
            self.writer.settle()

    def close(self, step: int) -> None:
        """Write the rest and wait for it."""
        self.flush(step)
        if self.writer:
            self.writer.close(CLOSE_SECONDS)

    def _note(self, event: str, call_id: str, **fields: Any) -> None:
        if self.writer:
            self._events.append({"event": event, "call": call_id, **fields})
