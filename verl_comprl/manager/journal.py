"""Journal of a run, ``RUN/experience.jsonl``: every entry written, merged, removed or quarantined, and who read one.

The bank holds the present entries with their counts; the journal keeps what was replaced or removed since, in order.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_comprl.experience.schema import DistillationRequest, Experience
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.record.lines import append_lines, decode, encode
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.redaction import redactor

logger = logging.getLogger(__name__)


class Journal:
    """Appends one line per event; each line has an actor step, that of the episode if there is one.

    Its methods never raise: what cannot be written is counted. Whoever calls them is in the middle of a change of bank,
    queue and buffer, of which a full disk must not leave one half.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Write to ``file``; nothing is written if it is None."""
        self._file = file
        self._redact = redactor()
        self.lost = 0
        """Events that could not be written."""

    def given(self, entries: Iterable[Experience]) -> None:
        """Note the entries that the bank of a new run begins with; their parents and calls are of another run."""
        self._append({"step": 0, "event": "given", **_text(entry)} for entry in entries)

    def wrote(self, request: DistillationRequest, entries: Iterable[Experience]) -> None:
        """Note the entries that the extractor wrote about an episode."""
        self._append({**_episode(request, "written"), **_text(entry)} for entry in entries)

    def nothing(self, request: DistillationRequest, call: str) -> None:
        """Note that an episode has been distilled by ``call``, which wrote no entry about it."""
        self._append([{**_episode(request, "nothing"), "call": call}])

    def merged(self, entries: Iterable[Experience]) -> None:
        """Note the entries that a merge wrote; they have several tasks and no episode."""
        self._append({"step": entry.created_step, "event": "merged", **_text(entry)} for entry in entries)

    def read(self, request: DistillationRequest) -> None:
        """Note the entries that a guided episode read: its guide, then those behind the answers to its questions."""
        pairs = zip(request.experience_ids, request.experience_texts, strict=False)
        self._append(
            {**_episode(request, "read"), "entry": id, "text": text, "asked": number > 0}
            for number, (id, text) in enumerate(pairs)
        )

    def removed(self, report: ApplyReport, written: Iterable[Experience], *, step: int, call: str) -> None:
        """Note the entries that have left the bank through a call that ``written`` is of."""
        parents = {parent for entry in written for parent in entry.parents}

        def reason(id: str) -> str:
            return "evicted" if id in report.evicted_ids else "replaced" if id in parents else "discarded"

        self._append(
            {"step": step, "event": "removed", "entry": id, "reason": reason(id), "call": call}
            for id in report.removed_ids
        )

    def quarantined(self, ids: Iterable[str], get: Callable[[str], Experience | None], step: int) -> None:
        """Note the entries that are no longer retrieved."""
        entries = (entry for id in ids if (entry := get(id)))
        self._append(
            {"step": step, "event": "quarantined", "entry": entry.id, "reason": entry.quarantined} for entry in entries
        )

    def end(self) -> dict[str, int] | None:
        """Make the file durable and return its extent, for a checkpoint; None if there is none or it cannot be read."""
        if self._file is None:
            return None
        try:
            if self._file.exists():
                with self._file.open("rb") as lines:
                    os.fsync(lines.fileno())
            return Prefix.of(self._file)._asdict()
        except OSError as error:
            logger.warning("a resume from this checkpoint goes by the steps in %s: %s", self._file, error)
            return None

    def distilled(self) -> set[str]:
        """Return the episodes that have been distilled; none if the file cannot be read."""
        if self._file is None:
            return set()
        try:
            with self._file.open("rb") as lines:
                noted = [line for line in decode(lines) if line.get("event") in ("written", "nothing")]
                return {line["episode"] for line in noted if isinstance(line.get("episode"), str)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            logger.warning("an episode may be distilled twice: %s cannot be read: %s", self._file, error)
            return set()

    def _append(self, events: Iterable[Mapping[str, Any]]) -> None:
        if self._file is None or not (lines := [self._redact(encode(event)) + b"\n" for event in events]):
            return
        try:
            append_lines(self._file, b"".join(lines))
        except OSError as error:
            if not self.lost:
                logger.warning("%s lacks events (further ones are counted only): %s", self._file, error)
            self.lost += len(lines)


def _episode(request: DistillationRequest, event: str) -> dict[str, Any]:
    return {
        "step": request.step,
        "event": event,
        "task": request.task,
        "goal": request.goal,
        "episode": request.id,
        "success": request.outcome.success,
    }


def _text(entry: Experience) -> dict[str, Any]:
    return {
        "entry": entry.id,
        "title": entry.title,
        "content": entry.content,
        "tasks": list(entry.tasks),
        "parents": list(entry.parents),
        "weight_version": entry.weight_version,
        "call": entry.record_id,
    }
