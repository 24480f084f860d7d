"""Script for tests: writes to the bank in argv[1] until killed, and prints each acknowledged write as a JSON line."""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, BankConfig, Discard, ExperienceBank, Operation, Update

FLUSH_SECONDS = 0.1
CALL = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}


def count_flushed(bank: ExperienceBank, id: str) -> Callable[[], int]:
    """Return what says how many uses of an entry the periodic flushes have written."""
    ledger: Any = bank._ledger
    write_counters, flushed = ledger.write_counters, 0

    async def write() -> None:
        nonlocal flushed
        entry = bank.get(id)
        uses = entry.uses if entry else 0
        await write_counters()
        flushed = uses

    ledger.write_counters = write
    return lambda: flushed


async def main() -> None:
    bank = await ExperienceBank.open(BankConfig(path=sys.argv[1], flush_seconds=FLUSH_SECONDS), FakeEmbedder())
    start = time.time_ns()  # calls of an earlier process have other ids
    (anchor,) = (await bank.apply([Add(title="anchor", content="x")], call_id=f"{start}", listed=[], **CALL)).new_ids
    flushed = count_flushed(bank, anchor)
    print(json.dumps({"added": [anchor], "anchor": anchor, "flushed": 0}), flush=True)
    last: list[str] = []
    for number in itertools.count():
        title = f"lesson {number}"
        operations: list[Operation] = [Add(title=title, content="text"), Add(title=title, content="text")]
        if len(last) == 2 and number % 2:
            operations += [Update(ids=(1,), title=title, content="text"), Discard(ids=(2,))]
        listed = last if len(operations) > 2 else []
        report = await bank.apply(operations, call_id=f"{start}-{number}", listed=listed, **CALL)
        bank.record_outcome([anchor], success=True)
        print(json.dumps({"added": report.new_ids, "removed": listed, "flushed": flushed()}), flush=True)
        last = list(report.new_ids[:2])


if __name__ == "__main__":
    asyncio.run(main())
