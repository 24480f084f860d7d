"""A bank on the embedded engine, and ``comprl bank`` run on it in process."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.cli import main
from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, Update


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def comprl_bank(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run ``comprl bank`` with these arguments."""

    def run(*arguments: object) -> Done:
        code = main.main(["bank", *map(str, arguments)])
        shown = capsys.readouterr()
        return Done(code, shown.out, shown.err)

    return run


async def _fill(folder: Path) -> list[Experience]:
    bank = await ExperienceBank.open(BankConfig(path=str(folder)), FakeEmbedder())

    async def call(step: int, *operations: Any) -> str:
        listed = [entry.id for entry in bank.entries()]
        report = await bank.apply(
            list(operations),
            call_id=f"call-{step}",
            listed=listed,
            task=("minihack", "alfworld")[step % 2],
            environment="room",
            step=step,
            weight_version=1,
        )
        return report.new_ids[0]

    ids = [await call(step, Add(title=f"lesson {step}", content=f"open the door {step}")) for step in range(6)]
    ids[1] = await call(6, Update(ids=(2,), title="better lesson", content="search for the key"))
    for id, uses, successes in ((ids[0], 10, 1), (ids[2], 5, 5), (ids[3], 1, 0)):
        for use in range(uses):
            bank.record_outcome([id], success=use < successes, task="minihack")
    await bank.quarantine([ids[4]], "bad record")
    entries = bank.entries()
    await bank.close()
    return entries


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six entries: one updated, three used, one quarantined."""
    asyncio.run(_fill(tmp_path / "bank"))
    return tmp_path / "bank"
