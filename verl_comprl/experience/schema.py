"""The records that travel between actor, extractor and bank; typed, versioned, JSON in and out.

Owns the shape of the data. How an answer becomes operations is ``operations``, where entries are kept is ``store``.
"""

import uuid
from typing import Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

_NAMESPACE = uuid.UUID("8b1d6a52-5f0e-4a53-9a55-0d6f3f6f6c11")


def derive_id(*parts: str | int) -> str:
    """Return the UUID5 of ``parts``: the same call again gives the same id, which makes a repeated write harmless."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Outcome(BaseModel):
    """How an episode ended: ``success`` is what utilities are made of, ``score`` is logged."""

    model_config = ConfigDict(frozen=True)

    success: bool
    score: float = 0.0


class Experience(_Record):
    """One entry ``m`` of the bank, with its provenance and its counters.

    The counters are the persisted values; while a bank is open the bank's own are ahead of them.
    """

    schema_version: int = SCHEMA_VERSION
    id: str
    title: str
    content: str
    task: str = ""
    environment: str = ""
    record_id: str = ""
    """Generation record of the extractor call that wrote this text; empty for imported entries."""
    created_step: int = 0
    created_at: float = 0.0
    """Seconds since the epoch."""
    weight_version: int = 0
    """Extractor weights that wrote the text."""
    source_trajectory: str = ""
    source_success: bool | None = None
    parents: tuple[str, ...] = ()
    """Entries that this one replaced (update, merge)."""
    uses: int = 0
    """Guided episodes that used the entry."""
    successes: int = 0
    retrievals: int = 0
    last_retrieved_at: float = 0.0
    trainings: int = 0
    """CISPO samples of the generation record that wrote the entry."""
    last_trained_step: int | None = None
    upvotes: int = 0
    downvotes: int = 0
    quarantined: str = ""
    """Why the entry is never retrieved; empty for one that may be."""

    @property
    def text(self) -> str:
        """What is embedded and what an actor reads."""
        return f"{self.title}\n{self.content}" if self.title else self.content

    @property
    def success_rate(self) -> float | None:
        """``successes / uses``, or None for an entry that was never used."""
        return self.successes / self.uses if self.uses else None


class Add(_Record):
    """Add a new entry."""

    operation: Literal["add"] = "add"
    title: str
    content: str


class Update(_Record):
    """Replace the listed entries by one new entry. ``ids`` are 1-based indices into the entries the prompt listed."""

    operation: Literal["update"] = "update"
    ids: tuple[int, ...]
    title: str
    content: str


class Upvote(_Record):
    """An optional opinion: the listed entries helped."""

    operation: Literal["upvote"] = "upvote"
    ids: tuple[int, ...]


class Downvote(_Record):
    """An optional opinion: the listed entries misled."""

    operation: Literal["downvote"] = "downvote"
    ids: tuple[int, ...]


class Return(_Record):
    """Nothing to learn."""

    operation: Literal["return"] = "return"


class Retain(_Record):
    """Merge: keep entries as they are."""

    operation: Literal["retain"] = "retain"
    ids: tuple[int, ...]


class Merge(_Record):
    """Merge: replace the listed entries by one new entry."""

    operation: Literal["merge"] = "merge"
    ids: tuple[int, ...]
    title: str
    content: str


class Discard(_Record):
    """Merge: remove entries."""

    operation: Literal["discard"] = "discard"
    ids: tuple[int, ...]


class Turn(_Record):
    """One decision of the actor: what it saw and what it wrote (tool calls and injected experience stripped)."""

    observation: str
    response: str


class DistillationRequest(_Record):
    """``(τ, g, o, m)`` of a finished episode; ``id`` is the episode's and makes a second delivery harmless."""

    id: str
    task: str
    environment: str
    goal: str
    turns: tuple[Turn, ...]
    outcome: Outcome
    experience_ids: tuple[str, ...] = ()
    """Entries that guided the episode: the retrieved one first."""
    step: int = 0
