"""Run by a test: adds one entry after the other to the bank in argv[1] and prints an id once it is acknowledged."""

import asyncio
import itertools
import sys

from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, BankConfig, ExperienceBank


async def main() -> None:
    bank = await ExperienceBank.open(BankConfig(path=sys.argv[1]), FakeEmbedder())
    for number in itertools.count():
        report = await bank.apply(
            [Add(title=f"lesson {number}", content="text")],
            call_id=f"call-{number}",
            listed=[],
            task="t",
            environment="e",
            step=0,
            weight_version=0,
        )
        print(report.new_ids[0], flush=True)


asyncio.run(main())
