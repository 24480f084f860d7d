"""A snapshot that takes long, and what rollouts ask of the manager meanwhile."""

import asyncio
import json
from pathlib import Path
from typing import Any

from managed import WHERE, MakeRequest, Open, Setup

from verl_comprl.extractor.dead_letters import DEAD_LETTERS
from verl_comprl.manager.journal import Journal
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.record.prefix import Prefix


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


async def test_an_episode_that_is_given_up_during_a_snapshot_is_in_it_as_given_up_or_as_waiting(
    open_manager: Open, make_request: MakeRequest, tmp_path: Path, monkeypatch: Any
) -> None:
    """Given up in the middle of each part that a thread writes; files and counts agree."""
    setup = await open_manager()
    loop = asyncio.get_running_loop()

    async def give_up() -> None:
        for _ in range(3):  # attempts
            setup.manager._queue.fail(await setup.manager._queue.get(), "no use")

    for owner, name in ((setup.manager._buffer, "save"), (setup.manager._journal, "end")):
        await setup.manager.report(EpisodeReport(make_request(name), guided=False))
        write = getattr(owner, name)

        def and_give_up(*arguments: Any, write: Any = write) -> Any:
            asyncio.run_coroutine_threadsafe(give_up(), loop).result(30)
            return write(*arguments)

        folder = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, and_give_up)
            await setup.manager.save(str(folder))
        waiting = len((folder / "queue.jsonl").read_text().splitlines())
        letters = json.loads((folder / "dead_letters.json").read_text())["bytes"]
        dead = json.loads((folder / "manager.json").read_text())["queue"]["dead"]
        assert (tmp_path / "bank-queue" / DEAD_LETTERS).read_bytes()[:letters].count(b"\n") == dead
        assert waiting + dead == setup.manager._queue.counts["dead"], "each is in one place"


async def test_a_snapshot_holds_no_quarantine_without_its_event(
    running: Setup, tmp_path: Path, monkeypatch: Any
) -> None:
    (entry,) = await running.seed("open the door")
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> list[str]:
        begun.set()
        await goes_on.wait()
        return [entry]

    monkeypatch.setattr(running.bank, "retire", slowly)
    collecting = asyncio.create_task(running.manager.collect(1))
    await begun.wait()
    saving = asyncio.create_task(running.manager.save(str(tmp_path / "snapshot")))
    await asyncio.wait({saving}, timeout=0.5)
    goes_on.set()
    await asyncio.gather(collecting, saving)
    noted = json.loads((tmp_path / "snapshot" / "manager.json").read_text())["events"]
    assert noted == Prefix.of(tmp_path / "bank.jsonl")._asdict() and noted["size"] > 0


def test_a_journal_that_cannot_be_read_costs_its_end_and_no_checkpoint(tmp_path: Path, caplog: Any) -> None:
    assert Journal(tmp_path).end() is None and "Is a directory" in caplog.text
    assert Journal().end() is None
