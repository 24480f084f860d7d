"""The embedded engine behind the store: who may open it, what it refuses, what a kill leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_embedder import FakeEmbedder

import verl_comprl
from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, StoreError, Update, derive_id
from verl_comprl.experience.embedded_store import EmbeddedStore
from verl_comprl.experience.store import SearchRequest

ROOT = Path(verl_comprl.__path__[0]).parent
IDENTITY = {"model": "fake", "dimension": 8}


def entries(count: int, **fields: Any) -> list[Experience]:
    return [Experience(id=derive_id("e", n), title=f"t{n}", content="c\u2028é", **fields) for n in range(count)]


def vectors(count: int) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def start_writer(folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("writing_process.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )


async def test_content_survives_reopening_bit_by_bit(tmp_path: Path) -> None:
    written = entries(300, created_at=1795219346.9726121, parents=("p",), source_success=None)
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    await store.upsert(written, vectors(300))
    await store.close()
    await store.close()
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    try:
        assert sorted(await store.load(), key=lambda entry: entry.id) == sorted(written, key=lambda entry: entry.id)
        assert np.array_equal(await store.vectors([entry.id for entry in written]), vectors(300))
    finally:
        await store.close()
    with pytest.raises(StoreError, match="is closed"):
        await store.load()


async def test_search_agrees_with_brute_force(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    everything = [
        entry.model_copy(update={"task": f"task{n % 3}", "environment": f"env{n % 2}"})
        for n, entry in enumerate(entries(200))
    ]
    await store.upsert(everything, vectors(200))
    query = vectors(201)[200]
    order = [everything[n] for n in np.argsort(-(vectors(200) @ query))]
    excluded = frozenset(entry.id for entry in order[:4])
    found = await store.search(
        [
            SearchRequest(query, 16),
            SearchRequest(query, 16, task="task1"),
            SearchRequest(query, 16, environment="env0", exclude=excluded),
            SearchRequest(query, 16, task="unknown"),
        ]
    )
    await store.close()
    assert found[0] == [entry.id for entry in order][:16]
    assert found[1] == [entry.id for entry in order if entry.task == "task1"][:16]
    expected = [entry.id for entry in order if entry.environment == "env0" and entry.id not in excluded]
    assert found[2] == expected[:16]
    assert found[3] == []


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([np.nan] * 8, "vector 0 of 1 is zero or not finite"),
        ([np.inf] * 8, "vector 0 of 1 is zero or not finite"),
        ([0.0] * 8, "vector 0 of 1 is zero or not finite"),
        ([1.0] * 7, r"shape \(1, 7\), expected \(1, 8\)"),
    ],
)
async def test_unusable_vectors_are_refused(tmp_path: Path, vector: list[float], message: str) -> None:
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    with pytest.raises(StoreError, match=message):
        await store.upsert(entries(1), np.array([vector]))
    with pytest.raises(StoreError):
        await store.search([SearchRequest(np.array(vector), 1)])
    assert await store.load() == []
    await store.close()


async def test_errors_of_the_engine_become_store_errors(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    with pytest.raises(StoreError, match="experience bank"):
        await store.upsert([Experience(id="not a uuid", title="t", content="c")], vectors(1))
    with pytest.raises(StoreError, match="1 of 1 entries have no vector"):
        await store.vectors([derive_id("unknown")])
    await store.delete([derive_id("unknown")])
    await store.close()


async def test_replace_all_is_all_or_nothing(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    await store.upsert(entries(100), vectors(100))
    bad = vectors(50)
    bad[40] = np.nan
    with pytest.raises(StoreError, match="vector 40 of 50"):
        await store.replace_all(entries(50), bad)
    assert len(await store.load()) == 100
    await store.replace_all(entries(50), vectors(50))
    await store.close()
    (tmp_path / "shard-7").mkdir()  # what a crash in a replacement leaves
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    assert len(await store.load()) == 50
    assert [path.name for path in tmp_path.glob("shard-*")] == ["shard-1"]
    await store.close()


async def test_another_embedder_or_schema_is_refused_and_the_folder_let_go(tmp_path: Path) -> None:
    config = BankConfig(path=str(tmp_path))
    await (await ExperienceBank.open(config, FakeEmbedder())).close()
    with pytest.raises(StoreError, match="another embedder: model was 'fake', is 'other'"):
        await ExperienceBank.open(config, FakeEmbedder("other"))
    await (await ExperienceBank.open(config, FakeEmbedder())).close()
    identity = tmp_path / "bank.json"
    identity.write_text(identity.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(StoreError, match="schema version 99, this release reads 1"):
        await ExperienceBank.open(config, FakeEmbedder())
    identity.write_text("{")
    with pytest.raises(StoreError, match=str(tmp_path)):
        await ExperienceBank.open(config, FakeEmbedder())


async def test_second_opener_gets_the_process_that_holds_the_folder(tmp_path: Path) -> None:
    config = BankConfig(path=str(tmp_path))
    bank = await ExperienceBank.open(config, FakeEmbedder())
    with pytest.raises(StoreError, match=f"already open in process {os.getpid()}; close that run or choose another"):
        await ExperienceBank.open(config, FakeEmbedder())
    await bank.close()

    writer = start_writer(tmp_path)
    try:
        assert writer.stdout is not None and writer.stdout.readline()
        with pytest.raises(StoreError, match=f"already open in process {writer.pid};"):
            await ExperienceBank.open(config, FakeEmbedder())
    finally:
        writer.kill()
        writer.communicate()
    await (await ExperienceBank.open(config, FakeEmbedder())).close()  # the dead process's lock is gone


async def test_a_killed_process_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    writer = start_writer(tmp_path)
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().strip() for _ in range(200)]
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged += writer.communicate()[0].split("\n")[:-1]
    bank = await ExperienceBank.open(BankConfig(path=str(tmp_path)), FakeEmbedder())
    try:
        assert all(bank.get(id) for id in acknowledged)
        assert len(bank) - len(acknowledged) in (0, 1)  # one may have been written and not yet acknowledged
        assert (await bank.retrieve("lesson 17")).status == "found"
    finally:
        await bank.close()


async def test_a_replacement_cut_in_the_middle_is_completed_at_opening(tmp_path: Path) -> None:
    config = BankConfig(path=str(tmp_path))
    bank = await ExperienceBank.open(config, FakeEmbedder())
    call = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}
    (old,) = (await bank.apply([Add(title="a", content="a")], call_id="1", listed=[], **call)).new_ids
    entry, vector = bank.get(old), await bank._ledger.store.vectors([old])
    assert entry is not None
    (new,) = (await bank.apply([Update(ids=(1,), title="b", content="b")], call_id="2", listed=[old], **call)).new_ids
    await bank._ledger.store.upsert([entry], vector)  # as if the process had died before the old entry was deleted
    await bank.close()
    for _ in range(2):
        bank = await ExperienceBank.open(config, FakeEmbedder())
        assert [entry.id for entry in bank.entries()] == [new]
        assert len(await bank._ledger.store.load()) == 1
        await bank.close()


async def test_a_fork_cannot_use_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    owner = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: owner + 1)
        with pytest.raises(StoreError, match=f"opened in process {owner}, this is a fork"):
            await store.load()
    await store.close()
