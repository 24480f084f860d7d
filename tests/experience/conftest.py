"""A bank in a temporary folder on the real engine, with the fake embedder."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_embedder import FakeEmbedder
from waiting import Hold

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


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Return what holds up a method at its next call, before or after its work: until the second event is set.

    The first event says that it has come so far.
    """

    def hold_(owner: Any, name: str, *, after: bool = False) -> tuple[asyncio.Event, asyncio.Event]:
        method, arrived, may_go_on = getattr(owner, name), asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> Any:
            done = await method(*arguments) if after else None
            if not arrived.is_set():
                arrived.set()
                await may_go_on.wait()
            return done if after else await method(*arguments)

        monkeypatch.setattr(owner, name, held)
        return arrived, may_go_on

    return hold_
