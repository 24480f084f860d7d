"""Points of other programs in a store cost themselves only."""

import json
from typing import Any

import pytest

from verl_comprl.experience import Experience, StoreError, derive_id
from verl_comprl.experience.entries import EntryTable
from verl_comprl.experience.store.payload import (
    Contents,
    as_json,
    from_payload,
    point_id,
    to_payload,
    verified_embedding,
)

MINE = Experience(id=derive_id("mine"), title="t", content="c")
OTHER = Experience(id=derive_id("other"), title="t", content="c")


def read(*points: tuple[Any, dict[str, Any]]) -> Contents:
    contents = Contents()
    for id, payload in points:
        contents.add(id, payload)
    return contents


def test_a_replacement_that_was_interrupted_names_what_is_left_over() -> None:
    old = (MINE.id, {**to_payload(MINE), "stored": 1.0, "replaces": []})
    assert read(old, (OTHER.id, {**to_payload(OTHER), "stored": 2.0, "replaces": [MINE.id]})).left_over == [MINE.id]
    assert read(old, (OTHER.id, {**to_payload(OTHER), "stored": 0.5, "replaces": [MINE.id]})).left_over == []


@pytest.mark.parametrize(
    "broken",
    [
        {"entry": "{}"},
        {"stored": 1e300},
        {"stored": 10**400},
        {"stored": 2.0**33 - 1},
        {"stored": -1.0},
        {"stored": "inf"},
        {"stored": {}},
        {"replaces": [MINE.id, {}]},  # the first one is read before the second cannot be
        {"replaces": 5},
    ],
)
def test_a_point_that_cannot_be_read_removes_nothing(broken: dict[str, Any]) -> None:
    mine = (MINE.id, {**to_payload(MINE), "stored": 1.0, "replaces": []})
    planted = (OTHER.id, {**to_payload(OTHER), "stored": 2.0, "replaces": [MINE.id], **broken})
    contents = read(mine, planted)
    assert contents.left_over == [] and set(contents.unreadable) == {OTHER.id} and contents.entries == [MINE]
    times = [payload["stored"] for _ in range(3) for payload in contents.payloads([MINE], ())]
    assert times == sorted(set(times))
    written = read(*((entry.id, {**to_payload(entry), "stored": times[-1]}) for entry in (MINE, OTHER)))
    assert len(written.entries) == 2


@pytest.mark.parametrize("id", [7, "7", "lamp", "\x1b[2J"])
def test_an_entry_needs_a_uuid(id: Any) -> None:
    payload = {"entry": Experience(id=str(id), title="", content="c").model_dump_json()}
    with pytest.raises(StoreError, match="its id is not a UUID") as caught:
        from_payload(id, payload)
    assert "\x1b" not in str(caught.value)


def test_the_reason_cannot_control_a_terminal() -> None:
    fields = {**json.loads(MINE.model_dump_json()), "\x1b[2J" + "x" * 1000: 1}
    with pytest.raises(StoreError, match="cannot be read") as caught:
        from_payload(MINE.id, {"entry": json.dumps(fields)})
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 250


def test_the_id_of_a_point_is_a_number_or_a_text() -> None:
    assert point_id("7") == 7 and point_id(MINE.id) == MINE.id and point_id("lamp") == "lamp"


@pytest.mark.parametrize("model", [["a"], {"a": 1}, None, 5])
def test_the_model_of_an_embedder_is_a_text(model: Any) -> None:
    """It is loaded by that name. A bank gets no other, since it could not be opened again."""
    stored = {"schema_version": 2, "embedding": {"model": model, "dimension": 8}}
    with pytest.raises(StoreError, match="it names no schema or no embedder"):
        verified_embedding("bank", stored, None)
    with pytest.raises(StoreError, match="its model is not a text"):
        as_json(stored["embedding"])
    assert verified_embedding("bank", {**stored, "embedding": {"dimension": 8}}, None) == {"dimension": 8}


@pytest.mark.parametrize("created_at", [2.0**33 - 1e-6, 2.0**32, 2.0**32 - 1e-6, 5.0])
def test_a_new_entry_has_a_possible_time_whatever_the_newest_one_says(created_at: float) -> None:
    table = EntryTable([MINE.model_copy(update={"created_at": created_at})], max_calls=9)
    times = []
    for turn in range(3):
        later = Experience(id=derive_id(turn), title="", content="c", created_at=table.now())
        table.change([later], ())
        times.append(later.created_at)
    assert times == sorted(set(times))
