"""Maps an entry to a Qdrant payload and back, and checks the metadata of a collection.

Owns the payload format, which both stores share.
"""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from verl_comprl.experience.embedding.base import embedding_difference, is_identity
from verl_comprl.experience.schema import LAST_SECOND, READABLE_VERSIONS, Experience, canonical_id, is_uuid
from verl_comprl.experience.store.errors import StoreError

KEYWORD_FIELDS = ("task", "environment", "state")
"""Fields that a search can filter by; every collection has an index on each."""

QUARANTINED = "quarantined"
"""Value of the field ``state`` by which searches leave entries out."""

_STORED, _REPLACES = "stored", "replaces"


class Contents:
    """Entries that were read from a store, and what else was found.

    Attributes:
        entries: In no particular order.
        unreadable: Reason by id, for points that hold no entry that this release can read.
        unflagged: Quarantined entries of an earlier release, which searches still find.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.entries: list[Experience] = []
        self.unreadable: dict[str, str] = {}
        self.unflagged: list[Experience] = []
        self._stored: dict[str, float] = {}
        self._replaced: dict[str, float] = {}
        self._latest = 0.0

    def add(self, id: Any, payload: dict[str, Any] | None) -> None:
        """Add a point."""
        payload = payload or {}
        try:
            entry = from_payload(id, payload)
            stored = float(payload.get(_STORED, 0.0))
            if not 0 <= stored < LAST_SECOND / 2:  # what is written next is dated after the latest
                raise StoreError(f"{_unreadable(id)}: {_STORED} is {stored}")
            replaced = {old: max(stored, self._replaced.get(old, 0.0)) for old in payload.get(_REPLACES, ())}
        except (StoreError, TypeError, ValueError, OverflowError) as error:
            self.unreadable[str(id)] = str(error)
            return
        self._replaced |= replaced  # not before: a point that cannot be read removes nothing
        self.entries.append(entry)
        self._stored[entry.id] = stored
        self._latest = max(self._latest, stored)
        if entry.quarantined and "state" not in payload:
            self.unflagged.append(entry)

    @property
    def left_over(self) -> list[str]:
        """Entries that a replacement, interrupted by a crash, should have removed.

        Only those that were stored before it: an entry that was imported again later is meant to be there.
        """
        return [id for id, at in self._replaced.items() if self._stored.get(id, at) < at]

    def payloads(self, entries: Sequence[Experience], replaces: Iterable[str]) -> list[dict[str, Any]]:
        """Return the payloads of entries that are written now, and together replace others."""
        written = [{**to_payload(entry), **self._marks(())} for entry in entries]
        if written:  # with the last: a crash between two requests must not remove what is replaced
            written[-1] |= self._marks(replaces)
        return written

    def _marks(self, replaces: Iterable[str]) -> dict[str, Any]:
        self._latest = max(time.time(), self._latest + 1e-6)
        return {_STORED: self._latest, _REPLACES: list(replaces)}


def to_payload(entry: Experience) -> dict[str, Any]:
    """Return the payload of an entry's point."""
    # The entry as one JSON string: in separate fields the engine would round the last bit of times.
    # A filter matches any element of a list, and single names as version 1 wrote them.
    filters = {
        "task": list(entry.tasks),
        "environment": list(entry.environments),
        "state": QUARANTINED if entry.quarantined else "usable",
    }
    return {**filters, "entry": entry.model_dump_json()}


def from_payload(id: Any, payload: dict[str, Any] | None) -> Experience:
    """Return the entry of a point.

    Raises:
        StoreError: If the payload holds no entry that this release can read.
    """
    try:
        entry = Experience.model_validate_json((payload or {})["entry"])
    except (KeyError, ValidationError) as error:
        reason = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("entry",), "msg": "missing"}
        field = ".".join(map(str, reason["loc"]))
        raise StoreError(f"{_unreadable(id)}: {escaped(field)}: {reason['msg']}") from error
    if entry.id != canonical_id(str(id)):
        raise StoreError(f"{_unreadable(id)}: it says that its id is {entry.id[:80]!r}")
    if not is_uuid(entry.id):
        raise StoreError(f"{_unreadable(id)}: its id is not a UUID")
    return entry


def point_id(id: str) -> str | int:
    """Return the id of a point as an engine has it: other programs can have given it a number."""
    return int(id) if id.isdecimal() else id


def escaped(text: Any, most: int = 80) -> str:
    """Return text from a store for a message: at most ``most`` characters, and no control characters."""
    return repr(str(text)[:most])[1:-1]


def _unreadable(id: Any) -> str:
    return f"entry {escaped(id)} in the store cannot be read"


def as_json(embedding: dict[str, Any]) -> dict[str, Any]:
    """Return an embedder identity as it is read back from a store, for comparison with a stored one.

    Raises:
        StoreError: If it is none: a bank that had it could not be opened.
    """
    if not is_identity(embedding):
        raise StoreError("the identity of the embedder is not usable: its model is not a text")
    return json.loads(json.dumps(embedding))


def verified_embedding(where: str, stored: Any, wanted: dict[str, Any] | None) -> dict[str, Any]:
    """Return the embedder identity of a collection, after checking that its content can be used.

    Args:
        where: Name of the bank in messages.
        stored: Metadata of the collection, ``{"schema_version", "embedding"}``.
        wanted: Identity of the embedder that will search; None accepts any.

    Raises:
        StoreError: If the collection is not a bank, or has another schema or embedder.
    """
    try:
        version, embedding = stored["schema_version"], stored["embedding"]
        if not is_identity(embedding):
            raise TypeError
        if type(embedding["dimension"]) is not int or embedding["dimension"] < 1 or type(version) is not int:
            raise TypeError
    except (KeyError, TypeError):
        raise StoreError(f"{where} is not an experience bank: it names no schema or no embedder") from None
    if version not in READABLE_VERSIONS:
        readable = ", ".join(map(str, READABLE_VERSIONS))
        raise StoreError(
            f"{where} has schema version {version}, this release reads {readable}; use a newer release of verl-comprl"
        )
    if wanted is not None and (difference := embedding_difference(embedding, as_json(wanted))) is not None:
        raise StoreError(
            f"{where} was built with another embedder: {difference}; use that embedder, "
            "choose another bank, or embed it again with `comprl bank reembed`"
        )
    return embedding
