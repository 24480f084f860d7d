"""A run that is stopped in the middle of a step and resumed, without engines: its files and its bank agree."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from episode_queue import Queue  # pyright: ignore[reportMissingImports]
from fake_embedder import FakeEmbedder

from verl_comprl.config.tree import ComprlConfig, RecordConfig
from verl_comprl.experience import BankConfig, ExperienceBank
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.manager.call_log import CallLog
from verl_comprl.manager.manager import ExperienceManager
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.record import RunRecord
from verl_comprl.record.reader import CALLS, EVENTS
from verl_comprl.trainer.checkpoint.contents import noted_events
from verl_comprl.trainer.run_folder.episode_log import EpisodeLog
from verl_comprl.trainer.run_folder.rewinding import rewind_run

CAPACITY = 2


class Started:
    """One start of the run, from its latest checkpoint if there is one."""

    def __init__(self, run: Path, queue: Queue, manager: ExperienceManager, make_request: Callable[..., Any]) -> None:
        self._run, self._queue, self._make_request = run, queue, make_request
        self.manager, self.episodes = manager, EpisodeLog(run, RecordConfig())

    async def play(self, prompt: str, step: int) -> list[str]:
        """Play a guided and a free episode of a prompt, until they are distilled."""
        self._queue.prompt(prompt)
        guide = await self.manager.guide("open the door", "fetch", "room", prompt=prompt)
        read = {"experience_ids": (guide.experience_id,), "experience_texts": (guide.text,)} if guide.text else {}
        ids = [f"{prompt}_{session}" for session in range(2)]
        for id, entry in zip(ids, (read, {}), strict=True):
            used = (guide.record_id,) if entry and guide.record_id else ()
            request = self._make_request(id, step=step, **entry)
            assert await self.manager.report(EpisodeReport(request, guided=bool(entry), record_ids=used))
            self._queue.ended(id)
            assert await self.manager.drain(60)
        return ids

    async def train(self, ids: list[str], step: int) -> None:
        self.episodes.trained(ids, [1.0] * len(ids))
        await self.manager.collect(step)
        self.episodes.take(step)

    async def save(self, step: int) -> None:
        await self.manager.save(str(self._run / f"global_step_{step}" / "comprl"))

    async def end(self) -> None:
        self.episodes.close(99)
        await self.manager.close()
        self._queue.partitions.clear()  # it ends with the run


Start = Callable[..., Awaitable[Started]]


@pytest_asyncio.fixture
async def start(
    tmp_path: Path, queue: Queue, make_calls: Callable[..., ExtractorCalls], make_request: Callable[..., Any]
) -> AsyncIterator[Start]:
    starts: list[Started] = []
    lessons = iter(range(1000))

    async def teach(prompt: str) -> str:
        return f'<answer>[{{"operation": "add", "title": "lesson {next(lessons)}", "content": "door"}}]</answer>'

    async def start_(step: int = -1) -> Started:
        checkpoint = tmp_path / f"global_step_{step}"
        rewind_run(tmp_path, step, noted_events(checkpoint))
        config = ComprlConfig(
            bank=BankConfig(path=str(tmp_path / "bank"), capacity=CAPACITY, retrieval_pool=CAPACITY),
            queue=QueueConfig(folder=str(tmp_path / "queue")),
            extractor=ExtractorConfig(batch_size=1, distillation_workers=1),
        )
        bank = await ExperienceBank.open(config.bank, FakeEmbedder())
        log = CallLog(tmp_path / CALLS)
        manager = ExperienceManager(config, bank, journal=tmp_path / EVENTS, call_log=log)
        if checkpoint.exists():
            await manager.restore(str(checkpoint / "comprl"))
        manager.start(make_calls(teach))
        starts.append(Started(tmp_path, queue, manager, make_request))
        return starts[-1]

    yield start_
    for started in starts:
        await started.end()


@pytest.mark.parametrize("saved", ["at the stop", "before the step"])
async def test_lineage_outlives_a_stop_in_the_middle_of_a_step(start: Start, tmp_path: Path, saved: str) -> None:
    """The bank of the checkpoint knows the episodes of step 2 that had ended, unless it was written before the step."""
    knows = saved == "at the stop"
    first = await start()
    await first.train(await first.play("a", 1), 1)
    if not knows:
        await first.save(1)
    await first.play("left", 2)
    first.episodes.leave(1 if knows else 2)
    if knows:
        await first.save(1)
        await first.play("after", 2)  # what the manager still works off belongs to no checkpoint
    await first.end()
    again = await start(1)
    await again.train(await again.play("b", 2), 2)
    bank = {entry.id for entry in again.manager._bank.entries()}
    await again.end()

    run = RunRecord(tmp_path)
    episodes = {episode["id"]: episode["status"] for episode in run.episodes()}
    left = {"left_0": "dropped", "left_1": "dropped"} if knows else {}
    assert episodes == {"a_0": "trained", "a_1": "trained", "b_0": "trained", "b_1": "trained"} | left
    events = list(run.events())
    written = Counter(event["entry"] for event in events if event["event"] == "written")
    removed = Counter(event["entry"] for event in events if event["event"] == "removed")
    assert bank == written.keys() - removed.keys() and removed.keys() < written.keys() and len(bank) == CAPACITY
    assert {*written.values(), *removed.values()} == {1}
    assert {event["episode"] for event in events if "episode" in event} == episodes.keys()
    calls = Counter(event["call"] for event in run.call_events() if event["event"] == "call")
    uses = Counter((event["call"], event["episode"]) for event in run.call_events() if event["event"] == "use")
    assert set(calls.values()) == set(uses.values()) == {1}
    assert {event["call"] for event in events if event["event"] == "written"} == calls.keys()
    assert {event["episode"] for event in run.call_events() if event["event"] == "call"} == episodes.keys()
    assert {episode for _, episode in uses} == {id for id in episodes if id.endswith("_0")} - {"a_0"}
