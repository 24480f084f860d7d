"""A bank in a temporary folder on the real engine, with the fake embedder."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_embedder import FakeEmbedder

from verl_comprl.experience import ApplyReport, BankConfig, ExperienceBank

CALL = {"listed": (), "task": "fetch", "environment": "room", "step": 3, "weight_version": 2}


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest_asyncio.fixture
async def open_bank(tmp_path: Path, embedder: FakeEmbedder) -> AsyncIterator[Callable[..., Awaitable[ExperienceBank]]]:
    banks = []

    async def open_(name: str = "bank", **settings: Any) -> ExperienceBank:
        bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / name), **settings), embedder)
        banks.append(bank)
        return bank

    yield open_
    for bank in banks:
        await bank.close()


@pytest_asyncio.fixture
async def bank(open_bank: Callable[..., Awaitable[ExperienceBank]]) -> ExperienceBank:
    return await open_bank()


@pytest.fixture
def apply() -> Callable[..., Awaitable[ApplyReport]]:
    async def apply_(bank: ExperienceBank, *operations: Any, **call: Any) -> ApplyReport:
        return await bank.apply(list(operations), **{"call_id": "call", **CALL, **call})

    return apply_
