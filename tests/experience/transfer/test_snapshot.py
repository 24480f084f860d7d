"""Snapshots: saving and restoring, damage, forgery, full disks and crashes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_embedder import FakeEmbedder
from forging import forge
from safetensors.numpy import save_file

from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, SnapshotError, TaskUsage
from verl_comprl.experience.transfer.snapshot import read_snapshot, write_snapshot

FILES = ("README.md", "data/entries.parquet", "vectors.safetensors", "manifest.json")
EMBEDDING = {"model": "m", "dimension": 2}
ENTRIES = [
    Experience(
        id="a", title="t\u2028\n", content="é 语 \x85", created_at=0.1 + 0.2, parents=("x", "y"), retrievals=2**53 + 1
    ),
    Experience(id="b", title="", content="c", source_success=False, last_trained_step=0, quarantined="why"),
]
VECTORS = np.array([[0.6, 0.8], [1 / 3, np.sqrt(8 / 9)]], dtype=np.float32)


async def fill(bank: Any, apply: Any, count: int, call_id: str = "call") -> None:
    operations = [Add(title=f"lesson {n}", content=f"line\u2028{n} é") for n in range(count)]
    await apply(bank, *operations, call_id=call_id)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_round_trip_is_exact_and_equal_content_gives_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_snapshot(tmp_path / "new" / name, ENTRIES, VECTORS, EMBEDDING)
    assert content(tmp_path / "new" / "one") == content(tmp_path / "new" / "two")
    assert set(content(tmp_path / "new" / "one")) == set(FILES)
    entries, vectors, embedding = read_snapshot(tmp_path / "new" / "one", EMBEDDING)
    assert entries == ENTRIES and embedding == EMBEDDING
    assert vectors.dtype == np.float32 and vectors.tobytes() == VECTORS.tobytes()


async def test_round_trip_into_another_bank(open_bank: Any, apply: Any, tmp_path: Path) -> None:
    source = await open_bank("source")
    await fill(source, apply, 40)
    found = (await source.retrieve("lesson 7")).entry
    source.record_outcome([found.id], success=True)
    await source.save(tmp_path / "snapshot")
    target = await open_bank("target")
    await fill(target, apply, 3, call_id="to be replaced")
    await target.restore(tmp_path / "snapshot")
    assert target.entries() == source.entries()
    await target.save(tmp_path / "again")
    assert content(tmp_path / "again") == content(tmp_path / "snapshot")
    assert (await apply(target, Add(title="x", content="y"))).repeated  # the calls in the snapshot are known
    await target.close()
    assert (await open_bank("target")).entries() == source.entries()


async def test_a_restore_may_quarantine(open_bank: Any, apply: Any, tmp_path: Path) -> None:
    bank = await open_bank()
    a, b, _ = [(await apply(bank, Add(title=title, content="x"), call_id=title)).new_ids[0] for title in "abc"]
    await bank.quarantine([a], "before")
    await bank.save(tmp_path / "snapshot")
    await bank.clear()
    assert await bank.restore(tmp_path / "snapshot", {a: "again", b: "by hand", "unknown": "x"}) == [b]
    for _ in range(2):
        assert {entry.title: entry.quarantined for entry in bank.entries()} == {"a": "before", "b": "by hand", "c": ""}
        await bank.close()
        bank = await open_bank()


async def test_an_empty_bank_and_saving_twice(bank: Any, apply: Any, tmp_path: Path) -> None:
    await bank.save(tmp_path / "snapshot")
    await fill(bank, apply, 2)
    await bank.restore(tmp_path / "snapshot")
    assert len(bank) == 0 and (await bank.retrieve("lesson")).status == "nothing"
    await fill(bank, apply, 3, call_id="another")
    await bank.save(tmp_path / "snapshot")
    await bank.restore(tmp_path / "snapshot")
    assert len(bank) == 3
    assert [path.name for path in tmp_path.iterdir() if "snapshot" in path.name] == ["snapshot"]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("data/entries.parquet", lambda data: data[:-5], "entries.parquet does not have the checksum"),
        ("vectors.safetensors", lambda data: data[:-1] + b"\xff", "vectors.safetensors does not have the checksum"),
        (
            "manifest.json",
            lambda data: data.replace(b'"count": 5', b'"count": 6'),
            "should have 6 entries, its vectors",
        ),
        (
            "manifest.json",
            lambda data: data.replace(b'"schema_version": 2', b'"schema_version": 7'),
            "version 7, this release reads 1, 2",
        ),
        ("manifest.json", lambda data: data[:20], "incomplete or damaged"),
        ("manifest.json", lambda data: b"[]", "incomplete or damaged"),
        ("manifest.json", None, "incomplete or damaged: it has no manifest.json"),
        ("data/entries.parquet", None, "incomplete or damaged: it has no data/entries.parquet"),
        ("vectors.safetensors", None, "incomplete or damaged: it has no vectors.safetensors"),
    ],
)
async def test_damage_is_found_and_the_bank_left_alone(
    bank: Any, apply: Any, tmp_path: Path, name: str, damage: Any, message: str
) -> None:
    await fill(bank, apply, 5)
    await bank.save(tmp_path / "snapshot")
    file = tmp_path / "snapshot" / name
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    before = bank.entries()
    with pytest.raises(SnapshotError, match=message) as caught:
        await bank.restore(tmp_path / "snapshot")
    assert "\n" not in str(caught.value)
    assert bank.entries() == before and (await bank.retrieve("lesson 1")).status == "found"


@pytest.mark.parametrize(
    "vectors",
    [
        VECTORS * 1000,
        VECTORS * np.array([[1], [np.nan]], np.float32),
        VECTORS.astype(np.float64),
        np.eye(2, 3, dtype=np.float32),
    ],
)
def test_vectors_that_would_spoil_every_search_are_refused(tmp_path: Path, vectors: np.ndarray) -> None:
    write_snapshot(tmp_path / "snapshot", ENTRIES, VECTORS, EMBEDDING)
    save_file({"vectors": vectors}, tmp_path / "forged")
    forge(tmp_path / "snapshot", "vectors.safetensors", (tmp_path / "forged").read_bytes())
    with pytest.raises(SnapshotError, match=r"not normalised float32 of shape \(2, 2\)"):
        read_snapshot(tmp_path / "snapshot", None)


@pytest.mark.parametrize("embedding", [{"model": ["a"], "dimension": 2}, {"model": None, "dimension": 2}, [], "m"])
def test_an_embedder_that_could_not_be_loaded_is_refused(tmp_path: Path, embedding: Any) -> None:
    write_snapshot(tmp_path / "snapshot", ENTRIES, VECTORS, EMBEDDING)
    manifest = json.loads((tmp_path / "snapshot" / "manifest.json").read_text())
    (tmp_path / "snapshot" / "manifest.json").write_text(json.dumps({**manifest, "embedding": embedding}))
    with pytest.raises(SnapshotError, match="its manifest names no embedder"):
        read_snapshot(tmp_path / "snapshot", None)


def test_rows_that_are_not_entries_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_snapshot(tmp_path / "snapshot", ENTRIES, VECTORS, EMBEDDING)
    for rows, message in (
        ([{"id": "a", "title": "t", "content": "c"}, {"id": "b", "title": "t"}], "row 1 is not an entry: content"),
        ([{"id": "a", "title": "t", "content": "c"}] * 2, "should have 2 entries"),
    ):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "forged")
        forge(tmp_path / "snapshot", "data/entries.parquet", (tmp_path / "forged").read_bytes())
        with pytest.raises(SnapshotError, match=message):
            read_snapshot(tmp_path / "snapshot", None)
    forge(tmp_path / "snapshot", "data/entries.parquet", b"PAR1")
    with pytest.raises(SnapshotError, match="not a parquet file"):
        read_snapshot(tmp_path / "snapshot", None)


async def test_another_embedder_is_refused(bank: Any, apply: Any, tmp_path: Path) -> None:
    await fill(bank, apply, 2)
    await bank.save(tmp_path / "snapshot")
    other = await ExperienceBank.open(BankConfig(path=str(tmp_path / "other")), FakeEmbedder("other"))
    with pytest.raises(SnapshotError, match="another embedder: model was 'fake', is 'other'"):
        await other.restore(tmp_path / "snapshot")
    await other.close()


@pytest.mark.parametrize("foreign", ["mine.txt", "data/mine.txt", ".git"])
async def test_a_folder_with_other_files_is_not_overwritten(bank: Any, tmp_path: Path, foreign: str) -> None:
    await bank.save(tmp_path / "snapshot")
    (tmp_path / "snapshot" / foreign).write_text("keep")
    before = content(tmp_path / "snapshot")
    with pytest.raises(SnapshotError, match=f"holds other files \\({foreign}\\)"):
        await bank.save(tmp_path / "snapshot")
    assert content(tmp_path / "snapshot") == before


@pytest.mark.parametrize("call", range(1, 5))
def test_disk_full_in_mid_write_leaves_the_old_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    import os

    folder = tmp_path / "snapshot"
    write_snapshot(folder, ENTRIES, VECTORS, EMBEDDING)
    before, calls, fsync = content(folder), [], os.fsync

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2 * call - 1:  # each file is synced, then its folder
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match=r"could not be written: .*No space left"):
        write_snapshot(folder, ENTRIES[:1], VECTORS[:1], EMBEDDING)
    assert content(folder) == before and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("renames", [1, 2])
def test_a_crash_during_a_replacement_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """After each of the two renames, the next reader and writer find a complete snapshot."""

    class Crash(BaseException):
        pass

    folder, done, rename = tmp_path / "snapshot", [], Path.rename
    write_snapshot(folder, ENTRIES, VECTORS, EMBEDDING)

    def crashing(self: Path, target: Path) -> Path:
        result = rename(self, target)
        done.append(target)
        if len(done) == renames:
            raise Crash
        return result

    monkeypatch.setattr(Path, "rename", crashing)
    with pytest.raises(Crash):
        write_snapshot(folder, ENTRIES[:1], VECTORS[:1], EMBEDDING)
    monkeypatch.undo()
    assert len(list(tmp_path.glob(".snapshot.replaced-*"))) == 1 and folder.exists() == (renames == 2)
    assert read_snapshot(folder, EMBEDDING).entries == (ENTRIES if renames == 1 else ENTRIES[:1])
    write_snapshot(folder, ENTRIES[1:], VECTORS[1:], EMBEDDING)
    assert read_snapshot(folder, EMBEDDING).entries == ENTRIES[1:]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_failed_replacement_restores_the_old_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rename = tmp_path / "snapshot", Path.rename
    write_snapshot(folder, ENTRIES, VECTORS, EMBEDDING)

    def failing(self: Path, target: Path) -> Path:
        if ".building-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(SnapshotError, match="could not be written"):
        write_snapshot(folder, ENTRIES[:1], VECTORS[:1], EMBEDDING)
    assert read_snapshot(folder, EMBEDDING).entries == ENTRIES and list(tmp_path.iterdir()) == [folder]


async def test_a_snapshot_of_release_0_1_0_is_read(open_bank: Any, tmp_path: Path) -> None:
    """An entry had one task and one environment, and one count of uses."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"schema_version": 1, "id": "a", "title": "t", "content": "c", "task": "fetch", "environment": "room"}
        | {"created_at": 0.5, "uses": 4, "successes": 3, "retrievals": 7, "parents": ["p"], "last_trained_step": None},
        {"schema_version": 1, "id": "b", "title": "", "content": "d", "task": "", "environment": ""}
        | {"created_at": 1.5, "uses": 0, "successes": 0, "retrievals": 0, "parents": [], "last_trained_step": 3},
    ]
    folder = tmp_path / "old"
    write_snapshot(folder, ENTRIES, VECTORS, EMBEDDING)
    pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "entries.parquet")
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256((folder / "data" / "entries.parquet").read_bytes()).hexdigest()
    manifest |= {"schema_version": 1, "sha256": manifest["sha256"] | {"data/entries.parquet": digest}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    first, second = read_snapshot(folder, EMBEDDING).entries
    assert (first.tasks, first.environments, first.parents) == (("fetch",), ("room",), ("p",))
    assert first.usage == (TaskUsage(task="fetch", uses=4, successes=3),) and first.retrievals == 7
    assert (second.tasks, second.environments, second.usage) == ((), (), ()) and second.last_trained_step == 3
    assert first.schema_version == second.schema_version == 2


@pytest.mark.parametrize("changed", [{"schema_version": "9" * 500_000}, {"count": "9" * 500_000}])
def test_a_refusal_shows_the_beginning_of_what_a_manifest_says(tmp_path: Path, changed: dict[str, str]) -> None:
    write_snapshot(tmp_path / "snapshot", ENTRIES, VECTORS, EMBEDDING)
    manifest = tmp_path / "snapshot" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changed))
    with pytest.raises(SnapshotError, match="9999") as refused:
        read_snapshot(tmp_path / "snapshot", None)
    assert len(str(refused.value)) < 500


def test_a_refusal_shows_the_beginning_of_what_an_embedder_says_of_itself(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "snapshot", ENTRIES, VECTORS, EMBEDDING | {"model": "9" * 500_000})
    with pytest.raises(SnapshotError, match="another embedder: model was '9999") as refused:
        read_snapshot(tmp_path / "snapshot", EMBEDDING)
    assert len(str(refused.value)) < 2000
