"""A manager that was killed and restored goes on as one that was not; a recorded extractor answers in both."""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience)
from managed import WHERE, Extractor, MakeRequest, Open, Setup, answered
from waiting import until

from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.record.prefix import Prefix
from verl_comprl.trainer.run_folder.log import cut_log

STEPS, SAVED = 8, 4
GOALS = ("open the door", "fetch the key", "leave the room")
SETTINGS: dict[str, Any] = {
    # Of what the merge of step 6 writes some is left after the 16 episodes of the last two steps.
    "bank": {"candidate_dropout": 0.3, "capacity": 18, "retrieval_pool": 8},
    "extractor_settings": {"distillation_workers": 1, "batch_size": 4, "utility": "relative"},
    "exploration": 0.4,
}


def recorded(prompt: str) -> str:
    """Answer the same prompt in the same way: with a lesson, that of an entry in other words, or what is no answer."""
    number = crc32(prompt.encode())
    if number % 5 == 0:
        return "unreadable"
    if number % 5 == 1 and "\n1. " in prompt:
        return answered({"operation": "update", "ids": [1], "title": f"again {number % 97}", "content": str(number)})
    return answered({"operation": "add", "title": f"lesson {number % 97}", "content": f"about the number {number}"})


def merging(prompt: str) -> str:
    return answered({"operation": "merge", "ids": [1, 2], "title": "both", "content": f"of {crc32(prompt.encode())}"})


async def play(setup: Setup, make_request: MakeRequest, step: int) -> None:
    """Play a step of two prompts with two guided and two free rollouts each, as a run does."""
    manager = setup.manager
    for prompt in range(2):
        for session in range(4):
            goal, name = GOALS[(step + prompt) % 3], f"{step}-{prompt}"
            guide = await manager.guide(goal, *WHERE, prompt=name) if session < 2 else None
            read = (guide.experience_id,) if guide and guide.experience_id else ()
            records = (guide.record_id,) if guide and guide.record_id else ()
            success = crc32(f"{name} {session} {read}".encode()) % 2 == 0
            request = make_request(f"{name}_{session}", success=success, goal=goal, step=step, experience_ids=read)
            report = EpisodeReport(request, guided=bool(read), record_ids=records)
            await manager.report(report)
            await setup.finished()  # in the order of the episodes
    await manager.collect(step)
    if await manager.next_batch(step) is not None:
        await manager.trained()
    if step % 3 == 0:
        passes = (await manager.metrics())["merge/passes"]
        assert await manager.merge()

        async def over() -> bool:
            return (await manager.metrics())["merge/passes"] == passes + 1

        await until(over)


async def state(setup: Setup, folder: Path) -> dict[str, Any]:
    """Return everything that a checkpoint holds, in a form that can be compared."""
    await setup.manager.save(str(folder))
    files = {name: (folder / name).read_text() for name in ("queue.jsonl", "buffer/samples.json", "manager.json")}
    kept = {name: json.loads(text) for name, text in files.items() if text}
    buffer: Any = setup.manager._buffer
    entries = [entry.model_dump(exclude={"created_at", "last_retrieved_at"}) for entry in setup.bank.entries()]
    vectors = read_snapshot(folder / "bank", None).vectors.tolist()
    return kept | {"records": buffer._records, "entries": entries, "vectors": vectors}


def without_ties(text: str) -> np.ndarray:
    """Return a vector of which no two texts are equally similar: a store orders equal ones as they were written."""
    vector = np.random.default_rng(crc32(text.encode())).standard_normal(FakeEmbedder.dimension)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


async def test_a_resumed_run_has_the_same_entries_credits_and_samples(
    open_manager: Open,
    extractor: Extractor,
    embedder: FakeEmbedder,
    make_request: MakeRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedder, "_vector", without_ties)
    extractor.replies |= {"distill": recorded, "merge": merging}
    whole = await open_manager("whole", **SETTINGS)
    whole.start()
    for step in range(1, STEPS + 1):
        await play(whole, make_request, step)

    killed = await open_manager("killed", **SETTINGS)
    killed.start()
    for step in range(1, STEPS):  # its bank is newer than its checkpoint when it ends
        await play(killed, make_request, step)
        if step == SAVED:
            await killed.manager.save(str(tmp_path / "checkpoint"))
            size = len(killed.bank)
    await killed.manager.close()
    noted = json.loads((tmp_path / "checkpoint" / "manager.json").read_text())["events"]
    assert cut_log(tmp_path / "killed.jsonl", Prefix(**noted))
    resumed = await open_manager("killed", **SETTINGS)
    await resumed.manager.restore(str(tmp_path / "checkpoint"))
    assert len(resumed.bank) == size
    resumed.start()
    for step in range(SAVED + 1, STEPS + 1):
        await play(resumed, make_request, step)

    expected = await state(whole, tmp_path / "expected")
    assert await state(resumed, tmp_path / "found") == expected
    assert (tmp_path / "killed.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    # All parts were in use, or there would be nothing to compare.
    totals = expected["manager.json"]["totals"]
    assert totals["guides"]["explored"] and totals["merges"] == 2 and totals["parse_failures"]
    assert any(record.train_count for record in expected["records"].values())
    assert {entry["title"] for entry in expected["entries"]} > {"both"}
    assert any(entry["ancestors"] for entry in expected["entries"])
