"""A bank that is copied into memory: who may use its folder meanwhile, and what is found in the copy."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.cli.bank import copied
from verl_comprl.cli.bank.copied import sharing
from verl_comprl.cli.bank.mcp_server import make_server
from verl_comprl.experience import Add, BankConfig, ExperienceBank, StoreError
from verl_comprl.experience.store.folder import lock_bank


async def filled(folder: Path, lessons: Sequence[Add]) -> ExperienceBank:
    bank = await ExperienceBank.open(BankConfig(path=str(folder), dedup_similarity=0), FakeEmbedder("served"))
    for number, lesson in enumerate(lessons):
        await bank.apply(
            [lesson], call_id=f"{number}", listed=(), task="house", environment="", step=0, weight_version=0
        )
    return bank


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    async def fill() -> None:
        lessons = [Add(title="lake", content="walk around"), Add(title="red door", content="pull")]
        await (await filled(tmp_path / "bank", lessons)).close()

    asyncio.run(fill())
    return tmp_path / "bank"


async def served_embedder(identity: dict[str, Any]) -> FakeEmbedder:
    embedder = FakeEmbedder("served")
    embedder.identity = identity
    return embedder


async def test_a_folder_that_is_in_use_is_waited_for(bank: Path) -> None:
    holder = lock_bank(bank)
    asyncio.get_running_loop().call_later(1, holder.release)
    async with asyncio.timeout(60), sharing(BankConfig(path=str(bank)), served_embedder) as source:
        assert [entry.title for entry, _ in await source.search("lake", 1)] == ["lake"]
        assert await source.search("", 1) == []


async def test_a_folder_that_stays_in_use_is_refused(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "_WAIT_SECONDS", 0.0)
    holder = lock_bank(bank)
    try:
        with pytest.raises(StoreError, match="already open in this process"):
            async with sharing(BankConfig(path=str(bank)), served_embedder):
                pass
    finally:
        holder.release()


async def test_another_embedder_than_that_of_the_bank_is_refused(bank: Path) -> None:
    async def another(_: dict[str, Any]) -> FakeEmbedder:
        return FakeEmbedder("another")

    with pytest.raises(StoreError, match=r"was built with another embedder: .*--embedder"):
        async with sharing(BankConfig(path=str(bank)), another):
            pass


async def test_copies_of_a_lesson_are_one_result(tmp_path: Path) -> None:
    """A bank may hold a text many times; an agent reads it once, from the entry that has helped most."""
    lessons = [Add(title="red door", content="pull")] * 70 + [Add(title="red gate", content="push")]
    bank = await filled(tmp_path / "bank", lessons)
    helpful = bank.entries()[30].id
    for _ in range(5):
        bank.record_outcome([helpful], True, task="house")
    await bank.close()
    async with sharing(BankConfig(path=str(tmp_path / "bank")), served_embedder) as source:
        server = make_server(source, None)
        answer: Any = await server.call_tool("search", {"query": "red door", "limit": 2})
    found = answer.structured_content
    assert [entry["title"] for entry in found["entries"]] == ["red door", "red gate"]
    assert found["entries"][0]["id"] == helpful
