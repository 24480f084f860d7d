"""Bank commands while a run has the folder open: reading goes through its manager, writing is refused.

The manager here is the real ``BankInspection`` with a real bank, in a Ray actor.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from verl_comprl.cli.bank import live as live_module
from verl_comprl.experience import BankConfig, ExperienceBank, StoreError
from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.manager.inspection import BankInspection, remove_address, write_address

ROOT = Path(__file__).parents[3]


class Live(NamedTuple):
    folder: Path
    pid: int


def comprl_bank(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "verl_comprl.cli.main", "bank", *map(str, arguments)]
    # Without the variables that Ray sets for its own processes: a user runs the command in a shell.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment)


@pytest.fixture
def live(folder: Path) -> Iterator[Live]:
    import ray

    class Manager(BankInspection):
        async def open(self, folder: str) -> int:
            from fake_embedder import FakeEmbedder

            self._bank = await ExperienceBank.open(BankConfig(path=folder, flush_seconds=600), FakeEmbedder())
            for use in range(10):  # in memory only, not yet flushed
                self._bank.record_outcome([self._bank.entries()[1].id], success=use < 5)
            await self._bank.retrieve("lesson")
            write_address(Path(folder), "the manager")
            return os.getpid()

        async def close(self, folder: str) -> None:
            remove_address(Path(folder))
            await self._bank.close()

    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "experience")])
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        namespace="run",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    try:
        manager: Any = ray.remote(Manager).options(name="the manager").remote()
        pid: Any = ray.get(manager.open.remote(str(folder)))
        yield Live(folder, pid)
        ray.get(manager.close.remote(str(folder)))
        assert not (folder / "address.json").exists()
    finally:
        ray.shutdown()


@pytest.mark.run
def test_reading_works_and_writing_is_refused_while_a_run_has_the_bank_open(live: Live, tmp_path: Path) -> None:
    target = ("--path", live.folder)
    listed = comprl_bank("list", *target, "--json")
    entries = [json.loads(line) for line in listed.stdout.splitlines()]
    assert listed.stderr == "" and len(entries) == 6
    assert (entries[1]["uses"], entries[1]["successes"]) == (15, 10)  # 5 on disk, 10 in the run's memory

    stats = json.loads(comprl_bank("stats", *target, "--json").stdout)
    assert (stats["size"], stats["uses"], stats["retrievals"]) == (6, 26, 1) and stats["embedding"]["model"] == "fake"

    found = comprl_bank("search", "search for the key", *target, "--limit", "1", "--json")
    assert (
        json.loads(found.stdout)["title"] == "better lesson"
    )  # with the run's embedder, which the command could not load

    assert comprl_bank("export", tmp_path / "some", *target, "--where", "uses=15").returncode == 0
    (exported,) = read_snapshot(tmp_path / "some", None).entries
    assert exported.id == entries[1]["id"] and exported.successes == 10
    refused = comprl_bank("export", live.folder, *target)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert f"the run in process {live.pid} reported an error: snapshot folder" in refused.stderr

    assert comprl_bank("verify", *target).stdout == "6 entries, no problems found\n"
    for arguments in (("delete", "--where", "uses=0", "--yes"), ("import", tmp_path / "some")):
        refused = comprl_bank(*arguments, *target)
        assert refused.returncode == 2 and f"is already open in process {live.pid}" in refused.stderr
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("manager", "message"),
    [
        (None, ""),
        ({"pid": 1}, ""),  # a killed run left it; another process holds the folder now
        ([], ""),
        ("[" * 100_000, ""),
        ({"pid": os.getpid()}, "its experience manager cannot be reached: 'ray_address'"),
        (
            {"pid": os.getpid(), "ray_address": "127.0.0.1:1", "namespace": "n", "actor": "a"},
            "its experience manager cannot be reached: [Errno 111] Connection refused",
        ),
    ],
)
async def test_a_folder_held_by_a_process_that_cannot_be_reached(folder: Path, manager: Any, message: str) -> None:
    bank = await ExperienceBank.open(BankConfig(path=str(folder)), None)
    if manager is not None:
        text = manager if isinstance(manager, str) else json.dumps(manager)
        (folder / "address.json").write_text(text)
    started = time.perf_counter()
    done = comprl_bank("list", "--path", folder)
    assert time.perf_counter() - started < 30
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert f"is already open in process {os.getpid()}; end that first, or choose another bank" in done.stderr
    assert "--path" in done.stderr
    assert message in done.stderr
    await bank.close()
    assert comprl_bank("verify", "--path", folder).returncode == 0


async def test_the_address_of_another_user_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster runs code of whoever has it, in whoever connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        cluster.settimeout(0.1)
        address = {"pid": os.getpid(), "ray_address": f"127.0.0.1:{cluster.getsockname()[1]}"}
        (folder / "address.json").write_text(json.dumps(address))
        (folder / "lock").write_text(str(os.getpid()))
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(StoreError, match="another user's"):
            async with live_module.connected(folder, StoreError("held")):
                pass
        with pytest.raises(TimeoutError):
            cluster.accept()


async def test_a_manager_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_ANSWER_SECONDS", 0.05)
    hanging: Any = SimpleNamespace(bank_verify=SimpleNamespace(remote=lambda: asyncio.sleep(60)))
    with pytest.raises(StoreError, match=r"the run in process 7 did not answer within 0\.05 s"):
        await live_module._LiveBank(hanging, 7).verify()
