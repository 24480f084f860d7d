"""kill -9 in the middle of writes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder

import verl_comprl
from verl_comprl.experience import BankConfig, ExperienceBank, StoreError

ROUNDS = 10


def start_writer(folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("writing_process.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(verl_comprl.__path__[0]).parent)}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )


def acknowledged(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.slow
async def test_ten_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    there: set[str] = set()
    gone: set[str] = set()
    for round in range(ROUNDS):
        writer = start_writer(tmp_path)
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        while round % 2 and not acknowledged(lines[-1:])[0]["flushed"]:  # every other kill comes after a flush
            lines.append(writer.stdout.readline())
        # The kill hits a random point of a write, since the process does nothing else.
        time.sleep(random.Random(round).uniform(0.0, 0.3))
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.wait()
        steps = acknowledged(lines)
        for step in steps:
            there |= set(step["added"])
            gone |= set(step.get("removed", ()))

        bank = await ExperienceBank.open(BankConfig(path=str(tmp_path)), FakeEmbedder())
        try:
            assert await bank.verify() == []
            held = {entry.id for entry in bank.entries()}
            assert there - gone <= held | set(steps[-1]["added"][:2]), "acknowledged and lost"
            assert not gone & held, "acknowledged as removed and still there"
            # The write that was never acknowledged: at most its three entries, and it replaces at most two.
            assert len(held - there) <= 3 and len(there - gone - held) <= 2
            anchor = bank.get(steps[0]["anchor"])
            assert anchor is not None and anchor.uses >= steps[-1]["flushed"]
            assert round % 2 == 0 or steps[-1]["flushed"] > 0
            assert (await bank.retrieve("lesson 3", read_only=True)).status == "found"
            there, gone = held, set()
        finally:
            await bank.close()


async def test_second_process_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    writer = start_writer(tmp_path)
    try:
        assert writer.stdout is not None
        added = acknowledged([writer.stdout.readline()])[0]["added"]
        with pytest.raises(
            StoreError, match=f"already open in process {writer.pid}; end that first, or choose another"
        ):
            await ExperienceBank.open(BankConfig(path=str(tmp_path)), FakeEmbedder())
        steps = acknowledged([writer.stdout.readline() for _ in range(100)])  # it still writes
    finally:
        writer.kill()
        writer.communicate()
    bank = await ExperienceBank.open(
        BankConfig(path=str(tmp_path)), FakeEmbedder()
    )  # the lock of a dead process is free
    assert bank.get(added[0]) is not None
    assert all(bank.get(id) for id in steps[-2]["added"][2:])
    assert await bank.verify() == []
    await bank.close()
