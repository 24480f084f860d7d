"""Between the bodies of Qdrant's REST calls and the embedded engine's types, for the double of a server."""

import uuid
from typing import Any

import qdrant_edge as edge


def vector_of(query: Any) -> list[float]:
    return query["nearest"] if isinstance(query, dict) else query


def is_uuid(id: str) -> bool:
    try:
        uuid.UUID(id)
    except ValueError:
        return False
    return True


def record_of(record: Any) -> dict[str, Any]:
    vector = None if record.vector is None else [float(value) for value in record.vector]
    return {
        "id": record.id if isinstance(record.id, int) else str(record.id),
        "payload": record.payload,
        "vector": vector,
    }


def filter_of(body: Any) -> edge.Filter | None:
    if not body:
        return None
    return edge.Filter(
        must=[condition_of(condition) for condition in body.get("must") or []],
        must_not=[condition_of(condition) for condition in body.get("must_not") or []],
    )


def condition_of(body: Any) -> Any:
    if "has_id" in body:
        return edge.HasIdCondition(set(body["has_id"]))
    if body.get("match"):
        return edge.FieldCondition(body["key"], match=edge.MatchValue(body["match"]["value"]))
    return edge.FieldCondition(body["key"], range=edge.RangeFloat(lte=body["range"]["lte"]))
