"""A writer of a bank on a server that was suspended until another took its lease destroys nothing of that one's."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from qdrant_double import QdrantDouble
from test_server_lease import lease_of

from verl_comprl.experience import BankConfig, Experience, StoreError, derive_id
from verl_comprl.experience.store import server_lease
from verl_comprl.experience.store.server import ServerStore

STORE = "verl_comprl.experience.store"


def entries(name: str, count: int = 2) -> list[Experience]:
    return [Experience(id=derive_id(name, n), title="", content=f"{name}{n}") for n in range(count)]


VECTORS = np.eye(8, dtype=np.float32)[:2]


async def opened(config: BankConfig) -> ServerStore:
    return await ServerStore.open(config, embedding={"model": "fake", "dimension": 8})


async def contents(config: BankConfig) -> list[str]:
    reader = await ServerStore.open(config, embedding=None, read_only=True)
    found = sorted(entry.content for entry in await reader.load())
    await reader.close()
    return found


@pytest_asyncio.fixture
async def writer(config: BankConfig, monkeypatch: pytest.MonkeyPatch) -> ServerStore:
    store = await opened(config)
    await store.upsert(entries("old"), VECTORS)
    monkeypatch.setattr(f"{STORE}.server_lease.LEASE_SECONDS", 0.0)  # others find its lease expired
    monkeypatch.setattr(f"{STORE}.server_lease._SILENCE", 0.0)
    return store


@pytest.mark.parametrize(
    ("boot", "wall"),
    [(60.0, 60.0), (60.0, 0.0), (0.0, 60.0), (60.0, -3600.0)],
    ids=["slept", "slept, and its wall clock not set yet", "paused by its host", "slept, and its clock set back"],
)
async def test_a_machine_that_slept_is_no_writer_any_more(
    config: BankConfig, writer: ServerStore, monkeypatch: pytest.MonkeyPatch, boot: float, wall: float
) -> None:
    """Its monotonic clock stood still: by it, the lease was renewed a moment ago."""
    successor = await opened(config)
    now = server_lease._clocks
    monkeypatch.setattr(server_lease, "_clocks", lambda: (now()[0] + boot, now()[1] + wall))
    with pytest.raises(StoreError, match="this process is no longer its writer"):
        await writer.upsert(entries("too late"), VECTORS)
    assert await contents(config) == ["old0", "old1"]
    await successor.close()
    await writer.close()


async def test_a_machine_that_slept_stays_the_writer_if_no_other_came(
    config: BankConfig, writer: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = server_lease._clocks
    monkeypatch.setattr(server_lease, "_clocks", lambda: (now()[0] + 3600, now()[1] + 3600))
    await writer.upsert(entries("after"), VECTORS)
    assert await contents(config) == ["after0", "after1", "old0", "old1"]
    await writer.close()


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_keeps_no_writer_from_renewing(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    seconds, ahead, turns = [0.0], 0.0, []
    monkeypatch.setattr(server_lease, "_clocks", lambda: (seconds[0], seconds[0] + ahead))
    store = await opened(config)
    ahead = step
    for seconds[0] in (0.0, 4.0, 11.0, 22.0):
        await store.update([])
        turns.append(lease_of(double, config)["turn"])
    first = turns[0]
    assert turns == [first, first, first + 1, first + 2]
    await store.close()


async def test_a_renewal_that_got_no_answer_is_no_reason_to_skip_the_next(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the lease to expire looks at its turn: each renewal must change it."""
    store = await opened(config)
    lease = store._lease
    read = lease._read

    async def away() -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(lease, "_read", away)
    with pytest.raises(StoreError, match="no answer"):
        await lease.confirm()
    before = lease_of(double, config)["turn"]
    monkeypatch.setattr(lease, "_read", read)
    await lease.confirm()
    assert lease_of(double, config)["turn"] == before + 1
    await lease.confirm()
    assert lease_of(double, config)["turn"] == before + 2
    await store.close()


class Suspension:
    """The moment in which a writer is suspended, and that in which it goes on."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> None:
        self.begun.set()
        await self.over.wait()

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
def suspend_in_upsert(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Suspension]:
    """Suspend the next writer that fills a collection, before or after it has done so."""

    def prepare(*, filled: bool) -> Suspension:
        suspension, upsert = Suspension(), ServerStore._upsert

        async def suspended(*arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(ServerStore, "_upsert", upsert)
            if filled:
                await upsert(*arguments, **options)
            async with suspension:
                pass
            if not filled:
                await upsert(*arguments, **options)

        monkeypatch.setattr(ServerStore, "_upsert", suspended)
        return suspension

    return prepare


async def test_before_the_alias_moves(
    double: QdrantDouble, config: BankConfig, writer: ServerStore, suspend_in_upsert: Callable[..., Suspension]
) -> None:
    suspension = suspend_in_upsert(filled=True)
    replacement = asyncio.create_task(writer.replace_all(entries("new"), VECTORS))
    await suspension.begun.wait()
    double.faults.only, double.faults.responses = f"{config.collection}.v2", [(503, {})] * 9  # it is not cleared away
    successor = await opened(config)
    double.faults.responses = []
    await successor.upsert(entries("later"), VECTORS)
    suspension.over.set()
    with pytest.raises(StoreError, match=r"this process is no longer its writer, process .* is"):
        await replacement
    assert await contents(config) == ["later0", "later1", "old0", "old1"]
    await successor.close()
    await writer.close()


async def test_before_the_old_collection_is_deleted(config: BankConfig, writer: ServerStore) -> None:
    suspension = Suspension()
    replacement = asyncio.create_task(writer.replace_all(entries("new"), VECTORS, switching=suspension))
    await suspension.begun.wait()
    successor = await opened(config)
    await successor.replace_all(entries("later"), VECTORS)
    suspension.over.set()
    await replacement  # it was made, before the other
    assert await contents(config) == ["later0", "later1"]
    with pytest.raises(StoreError, match="this process is no longer its writer"):
        await writer.flush()
    await successor.close()
    await writer.close()


async def test_before_a_replacement_that_fails_is_cleaned_up(
    config: BankConfig,
    writer: ServerStore,
    suspend_in_upsert: Callable[..., Suspension],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The successor has deleted the half-filled collection, and uses its name again."""
    suspension = suspend_in_upsert(filled=False)
    replacement = asyncio.create_task(writer.replace_all(entries("new"), VECTORS))
    await suspension.begun.wait()
    successor = await opened(config)
    await successor.replace_all(entries("later"), VECTORS)
    monkeypatch.setattr(f"{STORE}.server_lease.RENEW_SECONDS", 0.0)  # the next write looks at the lease
    suspension.over.set()
    with pytest.raises(StoreError, match="this process is no longer its writer"):
        await replacement
    assert await contents(config) == ["later0", "later1"]
    await successor.close()
    await writer.close()
