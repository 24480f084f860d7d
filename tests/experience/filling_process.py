"""Script for tests: uses a bank in the folder argv[1], whose disk it fills, and prints what that does as JSON lines."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, BankConfig, ExperienceBank

CALL: dict[str, Any] = {"listed": [], "task": "t", "environment": "e", "step": 0, "weight_version": 0}
DISK = Path(sys.argv[1])


def fill() -> None:
    with (DISK / "filling").open("wb", buffering=0) as file:
        for size in (2**20, 1):  # to the last byte
            try:
                while file.write(os.urandom(size)) == size:
                    pass
            except OSError:
                continue


def opened(name: str = "bank") -> Awaitable[ExperienceBank]:
    # Counters are written when the test says so.
    return ExperienceBank.open(BankConfig(path=str(DISK / name), flush_seconds=3600.0), FakeEmbedder())


async def add(bank: ExperienceBank, *titles: str) -> None:
    operations = [Add(title=title, content="x" * 4000) for title in titles]
    await bank.apply(operations, call_id=titles[0], **CALL)


async def say(what: str, doing: Awaitable[Any]) -> None:
    try:
        await doing
        outcome = "done"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps({what: outcome.replace(str(DISK), "DISK")}), flush=True)


async def main() -> None:
    bank = await opened()
    await add(bank, *(f"lesson {number}" for number in range(40)))
    fill()
    await say("add", add(bank, "open the door"))
    await say("quarantine", bank.quarantine([bank.entries()[0].id], "wrong"))
    await say("flush", bank.flush())
    found = await bank.retrieve("lesson 3")
    print(json.dumps({"retrieve": found.status}), flush=True)
    (DISK / "filling").unlink()
    await say("add", add(bank, "open the door"))
    fill()
    await say("close", bank.close())
    await say("open", opened())
    await say("create", opened("another"))
    (DISK / "filling").unlink()
    bank = await opened()
    print(json.dumps({"entries": len(bank), "differences": await bank.verify()}), flush=True)
    await say("close", bank.close())


if __name__ == "__main__":
    asyncio.run(main())
