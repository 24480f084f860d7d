"""Lease of the writer of a bank on a server: who may take it, and when it is renewed and given back."""

import asyncio
import logging
import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
import qdrant_edge as edge
from fake_embedder import FakeEmbedder
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)
from qdrant_double import QdrantDouble
from waiting import until

from verl_comprl.experience import BankConfig, ExperienceBank, StoreError
from verl_comprl.experience.store.server import ServerStore

IDENTITY = {"model": "fake", "dimension": 8}


def lease_of(double: QdrantDouble, config: BankConfig) -> dict[str, Any]:
    (record,) = double.collections[f"{config.collection}.lease"]["shard"].retrieve([1], True, False)
    return record.payload


def set_lease(double: QdrantDouble, config: BankConfig, writer: dict[str, Any]) -> None:
    point = edge.Point(id=1, vector=[1.0], payload=writer)
    double.collections[f"{config.collection}.lease"]["shard"].update(edge.UpdateOperation.upsert_points([point]))


def processes() -> list[str]:
    """Boot and namespace of process ids, as the kernel names them."""
    boot = subprocess.run(["cat", "/proc/sys/kernel/random/boot_id"], capture_output=True, text=True, check=True)
    return [boot.stdout.strip(), f"pid:[{os.stat('/proc/self/ns/pid').st_ino}]"]


HERE = processes()
LEASE = "verl_comprl.experience.store.server_lease"


@pytest.mark.parametrize(
    ("where", "age", "waits"),
    [
        (HERE, 1, False),
        (["another boot", HERE[1]], 1, True),
        ([HERE[0], "pid:[1]"], 1, True),
        ([], 1, True),
        (None, 1, True),
        ([HERE[0], "pid:[1]"], 40, True),
    ],
    ids=[
        "dead process of this machine",
        "another machine, just now",
        "a container with the name of this machine, just now",
        "a system without namespaces",
        "an earlier release, just now",
        "a container with the name of this machine, long ago",
    ],
)
async def test_stale_lock(
    double: QdrantDouble,
    config: BankConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: list[str] | None,
    age: float,
    waits: bool,
) -> None:
    """The bank can be opened, at once or when the lease has expired, however soon after the death."""
    for name, seconds in {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.1, "_LOOK_SECONDS": 0.1}.items():
        monkeypatch.setattr(f"{LEASE}.{name}", seconds)
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    assert lease_of(double, config)["processes"] == HERE
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename
    seen_at = time.time() - age
    writer = {"owner": "other", "turn": 9, "host": host, "pid": dead.pid, "seen_at": seen_at}
    set_lease(double, config, writer if where is None else {**writer, "processes": where})
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, LEASE):
        store = await ServerStore.open(config, embedding=IDENTITY)
    lines = [record.getMessage() for record in ours(caplog)]
    if waits:
        (line,) = lines
        assert re.search(rf"waiting \d s for the lease .*, process {dead.pid} on '{host}'$", line)
        assert time.time() > seen_at + 2.0 and time.monotonic() > started + 0.2
    else:
        assert not lines
    assert lease_of(double, config)["pid"] == os.getpid()
    await store.close()


async def test_where_processes_cannot_be_told_apart_a_lease_has_to_expire(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(path: Any) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(f"{LEASE}.os.readlink", missing)
    for name in ("LEASE_SECONDS", "RENEW_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(f"{LEASE}.{name}", 0.3)
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    started = time.monotonic()
    set_lease(double, config, lease_of(double, config) | {"owner": "other", "pid": dead.pid, "seen_at": time.time()})
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    assert time.monotonic() - started > 0.3


async def test_an_opening_that_waits_goes_on_when_the_lease_is_given_back(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{LEASE}.LEASE_SECONDS", 600.0)
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    writer = {"owner": "other", "turn": 9, "host": "elsewhere", "pid": 1, "seen_at": time.time()}
    set_lease(double, config, writer)
    opening = asyncio.create_task(ServerStore.open(config, embedding=IDENTITY))
    await asyncio.sleep(0.5)
    assert not opening.done()
    set_lease(double, config, writer | {"owner": "", "turn": 10})
    async with asyncio.timeout(60):
        store = await opening
    await store.flush()
    await store.close()


@pytest.mark.parametrize(
    ("ahead", "message"),
    [(-3600, ", whose clock differs"), (3600, ", whose clock differs"), (0, r" \(seen \d s ago\); close that run")],
)
async def test_a_writer_is_alive_while_it_renews_its_lease_whatever_its_clock_says(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch, ahead: int, message: str
) -> None:
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    monkeypatch.setattr(f"{LEASE}._LOOK_SECONDS", 0.2)

    async def renew() -> None:
        for turn in range(9, 99):
            writer = {"owner": "other", "turn": turn, "host": "elsewhere", "pid": 1, "seen_at": time.time() + ahead}
            set_lease(double, config, writer)
            await asyncio.sleep(0.2)

    renewing = asyncio.create_task(renew())
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match=f"is being written by process 1 on 'elsewhere'{message}"):
        await ServerStore.open(config, embedding=IDENTITY)
    renewing.cancel()
    for name, seconds in {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.2}.items():
        monkeypatch.setattr(f"{LEASE}.{name}", seconds)
    await (await ServerStore.open(config, embedding=IDENTITY)).close()  # it has died


async def test_an_opening_that_fails_gives_the_lease_back(double: QdrantDouble, config: BankConfig) -> None:
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    double.collections[f"{config.collection}.v1"]["indexes"].clear()
    double.faults.ignore_indexes = True
    tasks = asyncio.all_tasks()
    with pytest.raises(StoreError, match="has no index"):
        await ServerStore.open(config, embedding=IDENTITY)
    assert lease_of(double, config)["owner"] == "" and asyncio.all_tasks() == tasks


async def test_the_writer_renews_its_lease(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]  # since the opening
    monkeypatch.setattr(f"{LEASE}._clocks", lambda: (seconds[0], seconds[0]))
    store = await ServerStore.open(config, embedding=IDENTITY)
    first = lease_of(double, config)["turn"]
    for seconds[0], renewals in ((9.0, 0), (11.0, 1), (20.0, 1)):  # not at every write
        await store.update([])
        assert lease_of(double, config)["turn"] == first + renewals
    await store.close()


async def test_an_idle_bank_renews_its_lease_however_rarely_it_flushes(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("server", "server_lease"):
        monkeypatch.setattr(f"verl_comprl.experience.store.{module}.RENEW_SECONDS", 0.02)
    bank = await ExperienceBank.open(config.model_copy(update={"flush_seconds": 3600.0}), FakeEmbedder())
    first = lease_of(double, config)["turn"]
    await until(lambda: lease_of(double, config)["turn"] >= first + 2)
    await bank.close()
