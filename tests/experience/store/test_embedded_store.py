"""The embedded store: errors of the engine, replacement, other embedders, crashes, forks."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_embedder import FakeEmbedder
from samples import IDENTITY, vectors

from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, StoreError, Update, derive_id
from verl_comprl.experience.store.embedded import EmbeddedStore
from verl_comprl.files import write_atomically


def entries(count: int, **fields: Any) -> list[Experience]:
    return [Experience(id=derive_id("e", n), title=f"t{n}", content="c\u2028é", **fields) for n in range(count)]


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


@pytest.mark.parametrize("written", [False, True], ids=["before bank.json is written", "after it"])
async def test_a_replacement_whose_last_step_fails_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    await store.upsert(entries(3), vectors(3))

    def fail(path: Path, data: bytes) -> None:
        monkeypatch.undo()
        if written:
            write_atomically(path, data)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("verl_comprl.experience.store.embedded.write_atomically", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        await store.replace_all(entries(2), vectors(2))
    await store.upsert(entries(4)[3:], vectors(1))  # goes where the next opening looks for it
    await store.close()
    store = await EmbeddedStore.open(tmp_path, embedding=IDENTITY)
    assert len(await store.load()) == 4 and [path.name for path in tmp_path.glob("shard-*")] == ["shard-0"]
    await store.replace_all(entries(2), vectors(2))
    assert len(await store.load()) == 2
    await store.close()


async def test_another_embedder_or_schema_is_refused_and_the_folder_released(tmp_path: Path) -> None:
    config = BankConfig(path=str(tmp_path))
    await (await ExperienceBank.open(config, FakeEmbedder())).close()
    with pytest.raises(StoreError, match="another embedder: model was 'fake', is 'other'"):
        await ExperienceBank.open(config, FakeEmbedder("other"))
    await (await ExperienceBank.open(config, FakeEmbedder())).close()
    identity = tmp_path / "bank.json"
    identity.write_text(identity.read_text().replace('"schema_version": 2', '"schema_version": 99'))
    with pytest.raises(StoreError, match="schema version 99, this release reads 1, 2; use a newer release"):
        await ExperienceBank.open(config, FakeEmbedder())
    identity.write_text("{")
    with pytest.raises(StoreError, match=str(tmp_path)):
        await ExperienceBank.open(config, FakeEmbedder())


async def test_opening_a_bank_of_release_0_1_0_records_the_new_schema(tmp_path: Path) -> None:
    await (await EmbeddedStore.open(tmp_path, embedding=IDENTITY)).close()
    identity = tmp_path / "bank.json"
    identity.write_text(identity.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    await (await EmbeddedStore.open(tmp_path, embedding=IDENTITY)).close()
    assert '"schema_version": 2' in identity.read_text()  # an older release refuses it from now on


async def test_an_interrupted_replacement_is_completed_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BankConfig(path=str(tmp_path))
    bank = await ExperienceBank.open(config, FakeEmbedder())
    call = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}
    (old,) = (await bank.apply([Add(title="a", content="a")], call_id="1", listed=[], **call)).new_ids

    async def killed(*_: Any) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as patch:  # the process dies before the old entry is deleted
        patch.setattr(bank._ledger.store, "delete", killed)
        await bank.apply([Update(ids=(1,), title="b", content="b")], call_id="2", listed=[old], **call)
        with pytest.raises(StoreError, match="killed"):
            await bank.close()
    new = derive_id("2", 0)
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
