"""A folder whose shard was damaged: opening it fails as a store does, also where the engine panics."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from samples import CALL

from verl_comprl.cli.main import main
from verl_comprl.experience import Add, BankConfig, ExperienceBank, StoreError
from verl_comprl.experience.store.embedded import EmbeddedStore

PANICS = [f"{folder}/status.dat" for folder in ("vectors", "deleted", "quantized_data")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with asyncio.timeout(60):
            bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / "bank")), FakeEmbedder())
            await bank.apply([Add(title="lamp", content="light it")], call_id="c", **CALL)
            await bank.close()

    asyncio.run(fill())
    return tmp_path / "bank"


def cut(folder: Path, name: str) -> None:
    files = [*folder.glob(f"shard-0/segments/*/vector_storage/{name}")]
    assert files
    for file in files:
        os.truncate(file, 0)


@pytest.mark.parametrize("name", PANICS)
def test_a_shard_on_which_the_engine_panics_is_one_line(
    folder: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    cut(folder, name)
    with pytest.raises(StoreError, match=f"experience bank {folder}: ") as caught:
        asyncio.run(ExperienceBank.open(BankConfig(path=str(folder)), FakeEmbedder()))
    assert "\n" not in str(caught.value)
    capfd.readouterr()
    assert main(["bank", "list", "--path", str(folder)]) == 2
    # The engine tells of its panic itself, before.
    assert f"comprl bank: experience bank {folder}: " in capfd.readouterr().err.splitlines()[-1]


async def test_a_panic_of_a_search_is_a_failure_of_the_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As the engine raises it."""

    class Panicking:
        def __init__(self, shard: Any, method: str) -> None:
            self.shard, self.method = shard, method

        def __getattr__(self, name: str) -> Any:
            if name == self.method:
                raise PanicException("index out of bounds")
            return getattr(self.shard, name)

    bank = await ExperienceBank.open(BankConfig(path=str(folder)), FakeEmbedder())
    store: Any = bank._ledger.store
    assert isinstance(store, EmbeddedStore)
    for method in ("count", "query"):
        with monkeypatch.context() as patch:
            patch.setattr(store, "_shard", Panicking(store._shard, method))
            with pytest.raises(StoreError, match="PanicException: index out of bounds"):
                await bank.search("lamp", 1)
    assert len(await bank.search("lamp", 1)) == 1
    await bank.close()
