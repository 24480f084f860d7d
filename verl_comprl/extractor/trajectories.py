"""Finished episodes from a JSONL file of chat messages, or from a run, as the extractor distils them.

Owns the file's format, which is documented in ``docs/distill.md``: one object per line. ``recorded_episodes`` knows
that of a run.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from verl_comprl.experience.schema import DistillationRequest, Outcome, Turn, derive_id
from verl_comprl.extractor.recorded_episodes import RecordedEpisode, is_recorded, is_to_be_distilled, step_files

_NO_OBSERVATION = "(none)"


class ChatMessage(BaseModel):
    """One message; other keys of it are ignored."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    """Text, or OpenAI's list of parts, of which those with ``text`` are read."""
    tool_calls: list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """The message's text, and its tool calls as JSON."""
        if isinstance(self.content, list):
            parts = [str(part["text"]) for part in self.content if isinstance(part.get("text"), str)]
        else:
            parts = [self.content] if self.content else []
        calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in self.tool_calls or ()]
        return "\n".join([*parts, *(f"<tool_call>{call}</tool_call>" for call in calls)])


class ChatEpisode(BaseModel):
    """One finished episode; other keys of it are ignored."""

    model_config = ConfigDict(frozen=True)

    messages: list[ChatMessage]
    success: bool
    score: float | None = None
    id: str = ""
    goal: str = ""
    task: str = ""
    environment: str = ""

    def request(self) -> DistillationRequest:
        """Return the episode in the form that a run's episodes have.

        Raises:
            ValueError: If it has no assistant message, or neither a goal nor a user message.
        """
        instructions = [item.text for item in self.messages if item.role in ("system", "developer")]
        goal, turns, final = self.goal, [], []
        for message in self.messages:
            if message.role == "assistant":
                turns.append(Turn(observation="\n\n".join(final) or _NO_OBSERVATION, response=message.text))
                final = []
            elif message.role in ("user", "tool"):
                if goal:
                    final.append(message.text)
                else:
                    goal = message.text  # not shown as an observation again
        if not turns:
            raise ValueError("it has no assistant message")
        if not goal:
            raise ValueError("it has neither a goal nor a user message, so the task is unknown")
        # With the content: another file may have other episodes of the same names, such as numbers from 0.
        content = derive_id(self.model_dump_json())
        return DistillationRequest(
            id=f"{self.id}:{content[:8]}" if self.id else content,
            task=self.task,
            environment=self.environment,
            goal=goal,
            turns=tuple(turns),
            outcome=Outcome(success=self.success, score=float(self.success) if self.score is None else self.score),
            final_observation="\n\n".join(final),
            instructions="\n\n".join(instructions),
        )


def read_episodes(path: Path) -> list[DistillationRequest]:
    """Return the episodes of a file, or those of a run that were played to their end in training.

    Empty lines are skipped, and of equal lines without an id the first one counts.

    Args:
        path: A file of chat messages or of a run's record, compressed or not; a run's folder, or its ``episodes``.

    Raises:
        FileNotFoundError: If there is no such file, or no episode in the folder.
        ValueError: If a line is no episode, or two have the same id; names the line.
    """
    found: dict[str, DistillationRequest] = {}
    names: set[str] = set()
    for file in step_files(path) if path.is_dir() else [path]:
        for number, fields in _lines(file):
            kind = RecordedEpisode if is_recorded(fields) else ChatEpisode
            if kind is RecordedEpisode and not is_to_be_distilled(fields):
                continue
            try:
                episode = kind.model_validate(fields)
                request = episode.request()
                if not math.isfinite(request.outcome.score):
                    raise ValueError(f"the outcome's score is {request.outcome.score}, not a finite number")
            except ValidationError as error:
                details = error.errors()[0]
                place = ".".join(map(str, details["loc"])) or "the line"
                raise ValueError(f"{file}, line {number}: {place}: {details['msg']}") from error
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: {error}") from error
            if episode.id in names:
                raise ValueError(f"{file}, line {number}: the id {episode.id!r} is that of an earlier line, too")
            if episode.id:
                names.add(episode.id)
            found.setdefault(request.id, request)
    return list(found.values())


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist")
    open_text = gzip.open if file.suffix == ".gz" else open
    try:
        with open_text(file, "rt", encoding="utf-8-sig", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield number, _without_half_pairs(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{file}, line {number} is not JSON: {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def _without_half_pairs(fields: Any) -> Any:
    """Return JSON with a question mark for half of a surrogate pair, which neither a file nor a request can hold."""
    return json.loads(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace"))
