"""The REST double answers as a real Qdrant 1.18.3, whose answers are in ``exchanges.jsonl``, in every call we make."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from qdrant_double import QdrantDouble

RECORDED = [json.loads(line) for line in Path(__file__).with_name("exchanges.jsonl").read_text().splitlines()]
FOREIGN = ("/points/query", "/points/payload", "bad%2Fname")
"""Ends of paths that the store never calls."""
NOT_SENT = {"payload batch by id, one missing"}
"""We write payloads by filter. The double fails at it, and closes the connection, at times under the next request."""
NOT_OURS = {
    "what it is",
    "scroll with limit 0",
    "payload: the one that is there has changed",
    "insert only: unchanged",  # a payload that two of the calls above have changed
}
PASSING = {"operation_id", "version", "score", "params", "points_count", "indexed_vectors_count", "segments_count"}


def lasting(value: Any) -> Any:
    """Leave out what may differ between two servers that agree: numbers of operations, scores, empty fields."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if inner is not None and key not in PASSING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def essence(exchange: dict[str, Any]) -> Any:
    answer = exchange["answer"]
    result = answer.get("result")
    if isinstance(result, dict) and "config" in result:
        types = {field: index["data_type"] for field, index in result["payload_schema"].items()}
        result = {"metadata": result["config"].get("metadata") or {}, "indexes": types}
    error = answer.get("status") if exchange["status"] != 200 else None
    return exchange["status"], error, lasting(result), "retry-after" in exchange["headers"]


def test_the_double_answers_as_a_real_server() -> None:
    server, compared = QdrantDouble().start(), 0
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for exchange in RECORDED:
                if exchange["path"].endswith(FOREIGN) or exchange["label"] in NOT_SENT:
                    continue
                answer = client.request(
                    exchange["method"], exchange["path"], params=exchange["params"], json=exchange["body"]
                )
                if exchange["label"] in NOT_OURS:
                    continue
                now = {"status": answer.status_code, "headers": answer.headers, "answer": answer.json()}
                assert essence(now) == essence(exchange), exchange["label"]
                compared += 1
    finally:
        server.close()
    assert compared >= 70, compared


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("points", {"points": [{"id": 1}]}),
        ("points/query/batch", {"searches": [{"limit": "many"}]}),
        ("points/scroll", {"limi": 1}),
    ],
)
def test_the_double_refuses_requests_that_the_client_could_not_have_made(path: str, body: Any) -> None:
    server = QdrantDouble().start()
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            client.put("/collections/a", json={"vectors": {"size": 4, "distance": "Dot"}})
            method = "PUT" if path == "points" else "POST"
            assert client.request(method, f"/collections/a/{path}", json=body).status_code == 400
    finally:
        server.close()
