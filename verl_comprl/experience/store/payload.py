"""Maps an entry to a Qdrant payload and back, and checks the metadata of a collection.

Owns the payload format, which both stores share.
"""

import json
from typing import Any

from pydantic import ValidationError

from verl_comprl.experience.embedding.base import embedding_difference
from verl_comprl.experience.schema import READABLE_VERSIONS, Experience
from verl_comprl.experience.store.base import StoreError

KEYWORD_FIELDS = ("task", "environment")
INTEGER_FIELDS = ("created_step",)
"""Fields that a search can filter by; every collection has an index on each."""


def to_payload(entry: Experience) -> dict[str, Any]:
    """Return the payload of an entry's point."""
    # The entry as one JSON string: in separate fields the engine would round the last bit of times.
    # A filter matches any element of a list, and single names as version 1 wrote them.
    filters = {
        "task": list(entry.tasks),
        "environment": list(entry.environments),
        "created_step": entry.created_step,
    }
    return {**filters, "entry": entry.model_dump_json()}


def from_payload(id: Any, payload: dict[str, Any] | None) -> Experience:
    """Return the entry of a point.

    Raises:
        StoreError: If the payload holds no entry that this release can read.
    """
    try:
        return Experience.model_validate_json((payload or {})["entry"])
    except (KeyError, ValidationError) as error:
        raise StoreError(f"entry {id} in the store cannot be read: {error}") from error


def as_json(embedding: dict[str, Any]) -> dict[str, Any]:
    """Return an embedder identity as it is read back from a store, for comparison with a stored one."""
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
        embedding["dimension"]
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
