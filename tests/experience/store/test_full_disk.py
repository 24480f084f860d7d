"""A disk that is full under the embedded engine, which maps its files: a write to a hole of one would be a SIGBUS."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import verl_comprl
from verl_comprl.experience.store.embedded import EmbeddedStore
from verl_comprl.experience.store.errors import StoreUnavailable

SCRIPT = Path(__file__).parents[1] / "filling_process.py"
SIZE = 400  # MiB: as much as must be free, what opening takes of a tmpfs, and the bank
IN_A_TMPFS = f'mount -t tmpfs -o size={SIZE}m tmpfs "$0" && exec "$@"'


def with_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command for which ``folder`` is a disk of its own, which goes with it."""
    mounting = ("unshare", "--map-root-user", "--mount", "sh", "-c", IN_A_TMPFS, str(folder), *command)
    environment = {**os.environ, "PYTHONPATH": str(Path(verl_comprl.__path__[0]).parent)}
    return subprocess.run(mounting, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    try:
        tried = with_small_disk(tmp_path, "true")
    except FileNotFoundError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if tried.returncode:
        pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
    return tmp_path


def full(name: str, needed: int = 256) -> str:
    reason = f"the disk is full: 0 MiB are free, and {needed} are needed; make room on it"
    return f"StoreUnavailable: experience bank DISK/{name}: {reason}"


def test_a_full_disk_keeps_the_bank_from_changing_until_there_is_room(small_disk: Path) -> None:
    ended = with_small_disk(small_disk, sys.executable, str(SCRIPT), str(small_disk))
    said: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]
    assert said == [
        {"add": full("bank")},
        {"quarantine": full("bank")},
        {"flush": full("bank")},
        {"retrieve": "found"},
        {"add": "done"},
        {"close": full("bank")},
        {"open": full("bank", 96)},
        {"create": full("another")},
        {"entries": 41, "differences": []},
        {"close": "done"},
    ], ended.stderr
    assert ended.returncode == 0, ended.stderr


async def test_a_bank_can_be_read_with_less_room_than_a_change_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = {"name": "fake", "dimension": 4}
    await (await EmbeddedStore.open(tmp_path / "bank", embedding=embedding)).close()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100 * 2**20))
    store = await EmbeddedStore.open(tmp_path / "bank", embedding=None, create=False)
    assert await store.load() == []
    with pytest.raises(StoreUnavailable, match="100 MiB are free, and 256 are needed"):
        await store.flush()
    with pytest.raises(StoreUnavailable):
        await store.close()
    with pytest.raises(StoreUnavailable, match="and 256 are needed"):
        await EmbeddedStore.open(tmp_path / "another", embedding=embedding)
