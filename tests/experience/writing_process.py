"""Script for tests: writes to the bank in argv[1] until killed, and prints each acknowledged write as a JSON line."""

import asyncio
import itertools
import json
import sys
import time

from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, BankConfig, Discard, ExperienceBank, Operation, Update

FLUSH_SECONDS = 0.1
CALL = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}


async def main() -> None:
    bank = await ExperienceBank.open(BankConfig(path=sys.argv[1], flush_seconds=FLUSH_SECONDS), FakeEmbedder())
    start = time.time_ns()  # calls of an earlier process have other ids
    (anchor,) = (await bank.apply([Add(title="anchor", content="x")], call_id=f"{start}", listed=[], **CALL)).new_ids
    print(json.dumps({"added": [anchor], "anchor": anchor}), flush=True)
    last: list[str] = []
    for number in itertools.count():
        title = f"lesson {number}"
        operations: list[Operation] = [Add(title=title, content="text"), Add(title=title, content="text")]
        if len(last) == 2 and number % 2:
            operations += [Update(ids=(1,), title=title, content="text"), Discard(ids=(2,))]
        listed = last if len(operations) > 2 else []
        report = await bank.apply(operations, call_id=f"{start}-{number}", listed=listed, **CALL)
        bank.record_outcome([anchor], success=True)
        uses = {"uses": number + 1, "at": time.monotonic()}
        print(json.dumps({"added": report.new_ids, "removed": listed, **uses}), flush=True)
        last = list(report.new_ids[:2])


if __name__ == "__main__":
    asyncio.run(main())
