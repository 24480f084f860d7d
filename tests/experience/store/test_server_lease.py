"""Lease of the writer of a bank on a server: who may take it, and when it is renewed and given back."""

import asyncio
import os
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest
import qdrant_edge as edge
from fake_embedder import FakeEmbedder
from qdrant_double import QdrantDouble

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


@pytest.mark.parametrize(
    ("where", "age", "refused"),
    [
        (HERE, 1, False),
        (["another boot", HERE[1]], 1, True),
        ([HERE[0], "pid:[1]"], 1, True),
        ([], 1, True),
        (None, 1, True),
        ([HERE[0], "pid:[1]"], 40, False),
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
    where: list[str] | None,
    age: float,
    refused: bool,
) -> None:
    monkeypatch.setattr("verl_comprl.experience.store.server_lease.RENEW_SECONDS", 0.01)
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    assert lease_of(double, config)["processes"] == HERE
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename
    writer = {"owner": "other", "turn": 9, "host": host, "pid": dead.pid, "seen_at": time.time() - age}
    set_lease(double, config, writer if where is None else {**writer, "processes": where})
    if refused:
        with pytest.raises(StoreError, match=rf"process {dead.pid} on '{host}'.*can be opened in 2\d s"):
            await ServerStore.open(config, embedding=IDENTITY)
    else:
        await (await ServerStore.open(config, embedding=IDENTITY)).close()


async def test_where_processes_cannot_be_told_apart_a_lease_has_to_expire(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(path: Any) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr("verl_comprl.experience.store.server_lease.os.readlink", missing)
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    set_lease(double, config, lease_of(double, config) | {"owner": "other", "pid": dead.pid, "seen_at": time.time()})
    with pytest.raises(StoreError, match=rf"is being written by process {dead.pid}"):
        await ServerStore.open(config, embedding=IDENTITY)


@pytest.mark.parametrize("ahead", [-3600, 3600])
async def test_a_writer_whose_clock_differs_is_alive_while_it_renews_its_lease(
    double: QdrantDouble, config: BankConfig, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    await (await ServerStore.open(config, embedding=IDENTITY)).close()
    monkeypatch.setattr("verl_comprl.experience.store.server_lease.RENEW_SECONDS", 0.2)

    async def renew() -> None:
        for turn in range(9, 99):
            writer = {"owner": "other", "turn": turn, "host": "elsewhere", "pid": 1, "seen_at": time.time() + ahead}
            set_lease(double, config, writer)
            await asyncio.sleep(0.2)

    renewing = asyncio.create_task(renew())
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="is being written by process 1 on 'elsewhere', whose clock differs"):
        await ServerStore.open(config, embedding=IDENTITY)
    renewing.cancel()
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
    store = await ServerStore.open(config, embedding=IDENTITY)
    first = lease_of(double, config)["seen_at"]
    await store.flush()
    assert lease_of(double, config)["seen_at"] == first  # not at every write
    monkeypatch.setattr("verl_comprl.experience.store.server_lease.RENEW_SECONDS", 0.0)
    await store.flush()
    assert lease_of(double, config)["seen_at"] > first
    await store.close()


async def test_an_idle_bank_renews_its_lease_however_rarely_it_flushes(
    double: QdrantDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("server", "server_lease"):
        monkeypatch.setattr(f"verl_comprl.experience.store.{module}.RENEW_SECONDS", 0.02)
    config = BankConfig(url=double.url, collection=f"idle-{uuid.uuid4().hex}", flush_seconds=3600)
    bank = await ExperienceBank.open(config, FakeEmbedder())
    first = lease_of(double, config)["turn"]
    async with asyncio.timeout(30):
        while lease_of(double, config)["turn"] < first + 2:
            await asyncio.sleep(0.02)
    await bank.close()
