"""Entries, snapshots and folders of other people cannot brick a bank, delete from it, or take what is not its own."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from fake_embedder import FakeEmbedder
from forging import forge
from pydantic import ValidationError

from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, SnapshotError, StoreError, Update
from verl_comprl.experience.schema import derive_id
from verl_comprl.experience.store.base import SearchRequest
from verl_comprl.experience.store.embedded import EmbeddedStore
from verl_comprl.experience.transfer.snapshot import read_snapshot, write_snapshot
from verl_comprl.experience.updates.parsing import parse_distillation

IDENTITY = {"model": "fake", "dimension": 64}
CALL: dict[str, Any] = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}


async def added(bank: ExperienceBank, title: str, call: str = "") -> str:
    (id,) = (await bank.apply([Add(title=title, content="x")], call_id=call or title, listed=[], **CALL)).new_ids
    return id


@pytest.mark.parametrize(
    "field",
    [
        {"created_at": float("inf")},
        {"created_at": float("nan")},
        {"created_at": -1.0},
        {"last_retrieved_at": float("nan")},
        {"retrievals": -1},
        {"trainings": 2**64},
        {"usage": [{"task": "t", "uses": -3}]},
        {"usage": [{"task": "t", "asked_successes": -3}]},
        {"upvotes": -1},
        {"created_at": 1e300},  # after which no later time can be told from an earlier one
        {"created_step": 10**30},  # no table of a snapshot holds it
        {"weight_version": -(10**30)},
        {"last_trained_step": 10**30},
        {"schema_version": 10**30},
        {"retrievals": 2**63 - 1},  # nor this one after the next retrieval
        {"usage": [{"task": "t", "uses": 1, "successes": 2}]},  # it would win every retrieval of an evaluation
        {"usage": [{"task": "t", "asked": 1, "asked_successes": 2}]},
        {"usage": [{"task": "t", "uses": 1, "compared": 1.5}]},
        {"usage": [{"task": "t", "uses": 2, "compared": 1.0, "compared_successes": 1.5}]},
    ],
)
def test_impossible_numbers_are_no_entry(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Experience.model_validate({"id": "a", "title": "", "content": "c", **field})


def test_spellings_of_a_uuid_are_one_id() -> None:
    id = derive_id("a")
    for spelling in (id.upper(), id.replace("-", ""), f"{{{id}}}", f"urn:uuid:{id}"):
        entry = Experience(id=spelling, title="", content="c", parents=(spelling,))
        assert entry.id == id and entry.parents == (id,)
    assert Experience(id="call-1", title="", content="c").id == "call-1"


async def test_a_point_that_cannot_be_read_is_skipped_reported_and_deleted(open_bank: Any) -> None:
    bank = await open_bank()
    good, bad, other = [await added(bank, title) for title in ("lamp", "door", "key")]
    shard = bank._ledger.store._shard
    shard.update(edge.UpdateOperation.set_payload([bad], {"entry": '{"id":"x","created_at":null}'}))
    stolen = bank.get(good).model_dump_json()
    shard.update(edge.UpdateOperation.set_payload([other], {"entry": stolen}))  # says that it is another
    await bank.close()
    bank = await open_bank()
    assert [entry.id for entry in bank.entries()] == [good] and set(bank.unreadable) == {bad, other}
    assert (await bank.retrieve("door")).entry.id == good
    (problem,) = await bank.verify()
    assert problem.startswith("2 entries that cannot be read")
    assert await bank.delete([bad, other, bad]) == 2 and await bank.verify() == [] and bank.unreadable == {}


async def test_points_that_other_programs_numbered_disturb_no_write_and_are_deleted(
    open_bank: Any, tmp_path: Path
) -> None:
    bank = await open_bank()
    good = await added(bank, "lamp")
    await bank.save(tmp_path / "saved")
    row = (await FakeEmbedder().embed_documents(["lamp"]))[0].tolist()
    entry = {"entry": Experience(id="7", title="lamp", content="x").model_dump_json()}
    points = [edge.Point(id=7, vector=row, payload=entry), edge.Point(id=8, vector=row, payload={})]
    bank._ledger.store._shard.update(edge.UpdateOperation.upsert_points(points))
    await bank.close()
    bank = await open_bank()
    assert set(bank.unreadable) == {"7", "8"} and "7: its id is not a UUID" not in bank.unreadable["8"]
    bank.record_outcome(["7", good], success=True)
    await bank.flush()
    assert await bank.delete(["7"]) == 1 and set(bank.unreadable) == {"8"}
    await bank.restore(tmp_path / "saved")
    assert bank.unreadable == {} and await bank.verify() == []


@pytest.mark.parametrize("stored", ["inf", "nan", "-inf", "1e300"])
async def test_a_point_from_the_end_of_time_spoils_no_later_one(open_bank: Any, stored: str) -> None:
    bank = await open_bank()
    good, bad = await added(bank, "lamp"), await added(bank, "door")
    bank._ledger.store._shard.update(edge.UpdateOperation.set_payload([bad], {"stored": stored}))
    await bank.close()
    bank = await open_bank()
    later = await added(bank, "key")
    await bank.close()
    bank = await open_bank()
    assert {entry.id for entry in bank.entries()} == {good, later} and set(bank.unreadable) == {bad}


async def test_an_imported_entry_that_names_others_as_its_parents_deletes_none(open_bank: Any, tmp_path: Path) -> None:
    bank = await open_bank()
    mine = [await added(bank, title) for title in ("lamp", "door")]
    planted = Experience(id=derive_id("planted"), title="t", content="c", parents=tuple(mine))
    vector = await FakeEmbedder().embed_documents(["t\nc"])
    write_snapshot(tmp_path / "forged", [planted], vector, IDENTITY)
    report = await bank.add_snapshot(tmp_path / "forged")
    assert (report.added, report.superseded) == (1, 2)
    await bank.close()
    bank = await open_bank()
    assert {*mine, planted.id} == {entry.id for entry in bank.entries()} and await bank.verify() == []


async def test_an_entry_that_was_removed_and_imported_again_stays(open_bank: Any, tmp_path: Path) -> None:
    """The mark of the replacement that removed it is older."""
    bank = await open_bank()
    old = await added(bank, "lamp")
    await bank.save(tmp_path / "snapshot")
    await bank.apply(
        [Add(title="a", content="b"), Update(ids=(1,), title="c", content="d")], call_id="u", listed=[old], **CALL
    )
    entry, vector = Experience(id=old, title="lamp", content="x"), await FakeEmbedder().embed_documents(["lamp\nx"])
    await bank._ledger.store.upsert([entry], vector)
    await bank.close()
    assert (await open_bank()).get(old) is not None


async def test_what_an_interrupted_answer_removed_is_removed_at_the_next_opening(
    open_bank: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the halves of an addition with a discard."""
    from verl_comprl.experience import Discard

    bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / "bank")), FakeEmbedder())
    old, kept = await added(bank, "lamp"), await added(bank, "door")

    async def killed(*_: Any) -> None:
        raise StoreError("killed")

    monkeypatch.setattr(bank._ledger.store, "delete", killed)
    operations = [Add(title="new", content="x"), Discard(ids=(1,))]
    await bank.apply(operations, call_id="u", listed=[old], **CALL)  # the store is to be told again
    with pytest.raises(StoreError, match="killed"):
        await bank.close()
    bank = await open_bank()
    assert {entry.title for entry in bank.entries()} == {"door", "new"} and bank.get(kept) is not None


async def test_an_update_of_a_quarantined_entry_stays_in_quarantine(bank: Any) -> None:
    listed = [await added(bank, "lamp")]
    for turn in range(3):
        await bank.quarantine(listed, "harmful")
        operation = Update(ids=(1,), title="lamp", content=f"better {turn}")
        listed = list((await bank.apply([operation], call_id=f"u{turn}", listed=listed, **CALL)).new_ids)
        assert "harmful" in bank.get(listed[0]).quarantined
        assert (await bank.retrieve("lamp")).status == "nothing"


async def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shard-mine").mkdir()
    with pytest.raises(StoreError, match=r"holds other files \(shard-mine\) and is not an experience bank"):
        await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    assert (tmp_path / "shard-mine").is_dir()
    own = tmp_path / "own"
    await (await EmbeddedStore.open(own, embedding=IDENTITY)).close()
    (own / "shard-mine").mkdir()
    await (await EmbeddedStore.open(own, embedding=IDENTITY)).close()
    assert (own / "shard-mine").is_dir()


@pytest.mark.parametrize("shard", ["0/../../victim", "0", -1, 1.5, True, None, []])
async def test_a_bank_of_others_names_no_folder_but_its_own(tmp_path: Path, shard: Any) -> None:
    """As after a crash in the first opening, in which what the file names is removed."""
    folder, victim = tmp_path / "theirs", tmp_path / "victim"
    await (await EmbeddedStore.open(folder, embedding=IDENTITY)).close()
    victim.mkdir()
    (victim / "mine").write_text("mine")
    stored = json.loads((folder / "bank.json").read_text())
    (folder / "bank.json").write_text(json.dumps({**stored, "shard": shard, "creating": True}))
    with pytest.raises(StoreError, match="names no shard of this folder"):
        await EmbeddedStore.open(folder, embedding=None)
    assert (victim / "mine").read_text() == "mine" and (folder / "shard-0").is_dir()


@pytest.mark.parametrize("link", ["lock", "bank.json.tmp", "shard-0"])
async def test_links_in_a_bank_of_others_lead_nowhere(tmp_path: Path, link: str) -> None:
    folder, mine = tmp_path / "theirs", tmp_path / "mine"
    await (await EmbeddedStore.open(folder, embedding=IDENTITY)).close()
    if link == "shard-0":
        (folder / link).rename(mine)
    else:
        mine.write_text("mine")
        (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(mine)
    stored = json.loads((folder / "bank.json").read_text())
    (folder / "bank.json").write_text(json.dumps({**stored, "schema_version": 1}))  # so that it is written anew
    with nullcontext() if link == "bank.json.tmp" else pytest.raises(StoreError):
        await (await EmbeddedStore.open(folder, embedding=None)).close()
    assert mine.is_dir() if link == "shard-0" else mine.read_text() == "mine"


@pytest.mark.parametrize("inner", ["mine", "inner/mine"])
async def test_a_link_inside_of_a_shard_leads_nowhere(tmp_path: Path, inner: str) -> None:
    folder, mine = tmp_path / "theirs", tmp_path / "mine"
    await (await EmbeddedStore.open(folder, embedding=IDENTITY)).close()
    mine.mkdir()
    (folder / "shard-0" / inner).parent.mkdir(exist_ok=True)
    (folder / "shard-0" / inner).symlink_to(mine)
    with pytest.raises(StoreError, match="mine is a link"):
        await EmbeddedStore.open(folder, embedding=None)
    assert list(mine.iterdir()) == []


async def test_a_crash_in_the_first_opening_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any) -> None:
        raise StoreError("crash")

    with monkeypatch.context() as patch:
        patch.setattr("verl_comprl.experience.store.embedded._ensure_indexes", crash)
        with pytest.raises(StoreError, match="crash"):
            await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    assert await store.count() == 0
    await store.close()


async def test_reading_creates_no_bank(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not an experience bank"):
        await ExperienceBank.open(BankConfig(path=str(tmp_path / "typo")), FakeEmbedder(), read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_exports_leave_siblings_alone(tmp_path: Path) -> None:
    for name in ("bank.replaced", "bank.building", f".bank.building-{'0' * 32}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("keep")
    for _ in range(2):
        write_snapshot(tmp_path / "bank", [], np.zeros((0, 64), np.float32), IDENTITY)
    assert len(list(tmp_path.glob("*/mine.txt"))) == 3 and read_snapshot(tmp_path / "bank", IDENTITY).entries == []


@pytest.mark.parametrize("damage", ["deep", "scalar"])
def test_strange_files_are_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    from safetensors.numpy import save

    write_snapshot(tmp_path / "s", [], np.zeros((0, 64), np.float32), IDENTITY)
    if damage == "deep":
        (tmp_path / "s" / "manifest.json").write_text("[" * 100_000)
    else:
        forge(tmp_path / "s", "vectors.safetensors", save({"vectors": np.ones((), np.float32)}))
    with pytest.raises(SnapshotError, match=r"incomplete or damaged|have shape"):
        read_snapshot(tmp_path / "s", None)


@pytest.mark.parametrize("text", ["", "   ", "<|im_end|>", "\x00\u200b"])
async def test_an_empty_query_is_nothing_and_harms_no_other(bank: Any, text: str) -> None:
    await added(bank, "lamp")
    answers = await asyncio.gather(bank.retrieve(text), *(bank.retrieve(f"lamp {n}") for n in range(3)))
    assert [answer.status for answer in answers] == ["nothing", "found", "found", "found"]
    assert await bank.search(text) == []


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
async def test_a_vector_that_cannot_be_used_degrades_its_query_only(
    bank: Any, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    await added(bank, "lamp")
    vector = embedder._vector
    monkeypatch.setattr(embedder, "_vector", lambda t: np.full(64, value, np.float32) if "bad" in t else vector(t))
    answers = await asyncio.gather(*(bank.retrieve(text) for text in ("lamp", "bad", "lamp 2")))
    assert [answer.status for answer in answers] == ["found", "degraded", "found"]


async def test_quarantined_entries_are_left_out_by_an_index_and_not_one_by_one(tmp_path: Path) -> None:
    """The quantised path too, which begins at 4,096 entries: searches agree with brute force."""
    store, count = await EmbeddedStore.open(tmp_path, embedding=IDENTITY), 4600
    rows = np.random.default_rng(0).normal(size=(count, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    everything = [Experience(id=derive_id(n), title="", content="c", quarantined="q" * (n % 2)) for n in range(count)]
    await store.upsert(everything, rows)
    queries = rows[:20] + 0.1 * rows[20:40]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = await store.search([SearchRequest(query, 16) for query in queries])
    usable = np.arange(0, count, 2)
    same = 0
    for query, hits in zip(queries, found, strict=True):
        best = usable[np.argsort(-(rows[usable] @ query))[:16]]
        same += len({hit.id for hit in hits} & {derive_id(int(n)) for n in best})
        assert len(hits) == 16 and hits[0].score == pytest.approx(float((rows[usable] @ query).max()), abs=1e-5)
    assert same >= 0.95 * 16 * len(queries)
    (hits,) = await store.search([SearchRequest(rows[1], 1, quarantined=True)])
    assert hits[0].id == derive_id(1)
    await store.close()


async def test_quarantined_entries_of_an_earlier_release_are_left_out_too(open_bank: Any) -> None:
    bank = await open_bank()
    id = await added(bank, "lamp")
    await bank.quarantine([id], "q")
    store = bank._ledger.store
    store._shard.update(edge.UpdateOperation.delete_payload([id], ["state"]))
    assert (await bank.retrieve("lamp")).status == "nothing"  # memory knows
    await bank.close()
    bank = await open_bank()
    assert (await bank.retrieve("lamp")).status == "nothing"
    assert await bank._ledger.store.search([SearchRequest((await FakeEmbedder().embed_queries(["a"]))[0], 9)]) == [[]]


LOCKING = """
import os, sys, time
from pathlib import Path
from verl_comprl.experience.store.folder import lock_bank
lock = lock_bank(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
"""


def test_a_fork_does_not_keep_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    from verl_comprl.experience.store.folder import lock_bank

    owner = subprocess.Popen(
        [sys.executable, "-c", LOCKING, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert owner.stdout and owner.stdout.readline() == b"forked\n"
        with pytest.raises(StoreError, match=f"already open in process {owner.pid}"):
            lock_bank(tmp_path)
        owner.kill()
        owner.wait()
        lock_bank(tmp_path).release()
    finally:
        os.killpg(owner.pid, 9)


def test_an_answer_that_is_quoted_does_not_win() -> None:
    real = '<answer>[{"operation": "add", "title": "t", "content": "write <answer>[]</answer> at the end"}]</answer>'
    for text in (real, f"{real}\nAs asked I used <answer> and </answer>.", f"{real}\nNot: <answer>later</answer>"):
        (operation,) = parse_distillation(text, max_operations=3, listed=0).operations
        assert isinstance(operation, Add) and operation.title == "t"
