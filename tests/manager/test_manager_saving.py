"""A snapshot that takes long, and what rollouts ask of the manager meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

from managed import WHERE, MakeRequest, Setup

from verl_comprl.manager.messages import EpisodeReport


async def test_rollouts_are_guided_and_answered_while_a_snapshot_is_written(
    running: Setup, make_request: MakeRequest, tmp_path: Path, monkeypatch: Any
) -> None:
    """A report waits, since it changes bank, queue and buffer together; its rollout waits no longer than a limit."""
    await running.seed("open the door")
    begun, goes_on = asyncio.Event(), asyncio.Event()
    save = running.bank.save

    async def slowly(folder: Path) -> Any:
        begun.set()
        await goes_on.wait()
        return await save(folder)

    monkeypatch.setattr(running.bank, "save", slowly)
    saving = asyncio.create_task(running.manager.save(str(tmp_path / "snapshot")))
    async with asyncio.timeout(20):
        await begun.wait()
        assert (await running.manager.guide("open the door", *WHERE)).status == "found"
        assert (await running.manager.search_and_ask("open the door", *WHERE)).status == "answered"
    reporting = asyncio.create_task(running.manager.report(EpisodeReport(make_request("a"), guided=False)))
    await asyncio.sleep(0.05)
    assert not reporting.done() and not saving.done()
    goes_on.set()
    await asyncio.gather(saving, reporting)
    assert (tmp_path / "snapshot" / "queue.jsonl").read_text() == "", "the episode is not in the snapshot"
    assert (await running.finished())["distillations/return"] == 1
