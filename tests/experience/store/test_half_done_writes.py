"""Writes of which a store does one half, or does not tell what it has done: memory and store agree afterwards."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from qdrant_double import QdrantDouble

from verl_comprl.experience import Add, BankConfig, Discard, ExperienceBank, Merge, Return, StoreError
from verl_comprl.experience.transfer.snapshot import read_snapshot

CALL: dict[str, Any] = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}
MERGED = Merge(ids=(1, 2), title="lamp", content="both")


async def open_bank(config: BankConfig, **settings: Any) -> tuple[ExperienceBank, list[str]]:
    # Nothing is to be written but by the test: a periodic write would meet the faults that are meant for others.
    settings["flush_seconds"] = 3600.0
    bank = await ExperienceBank.open(config.model_copy(update=settings), FakeEmbedder())
    lessons = [
        Add(title="lamp", content="light it"),
        Add(title="lamp", content="put it out"),
        Add(title="lamp door", content="o"),
    ]
    return bank, list((await bank.apply(lessons, call_id="first", listed=(), **CALL)).new_ids)


def fail(double: QdrantDouble, config: BankConfig, end: str, how: str) -> None:
    """Let every attempt of one call of the bank's collection fail: carried out with its answer lost, or refused."""
    double.faults.only = f"{config.collection}.v1{end}"
    if how == "lost":
        double.faults.lost_answers = config.attempts
    else:
        double.faults.responses = [(503, {})] * config.attempts


def heal(double: QdrantDouble) -> None:
    double.faults.lost_answers, double.faults.responses = 0, []


async def agrees(bank: ExperienceBank, folder: Path) -> None:
    held = bank.entries()
    assert await bank.verify() == []
    await bank.save(folder)
    assert [entry.id for entry in read_snapshot(folder, None).entries] == [entry.id for entry in held]
    assert sum(len(chunk) for chunk in (await bank.merge_chunks(5))[0]) == len(held)


@pytest.mark.parametrize("how", ["lost", "refused"])
@pytest.mark.parametrize(
    ("operation", "end"), [(MERGED, "/points/delete"), (MERGED, "/points"), (Discard(ids=(1,)), "/points/delete")]
)
async def test_an_answer_that_was_half_applied_and_another_one_in_its_place(
    double: QdrantDouble, config: BankConfig, tmp_path: Path, operation: Any, end: str, how: str
) -> None:
    """A distillation that fails asks the extractor again, and gets another answer under the same id."""
    bank, ids = await open_bank(config)
    fail(double, config, end, how)
    try:
        report = await bank.apply([operation], call_id="second", listed=ids, **CALL)
        assert set(report.removed_ids) == set(ids) - {entry.id for entry in bank.entries()} != set()
    except StoreError:
        assert [entry.id for entry in bank.entries()] == ids
        heal(double)
        await bank.apply([Return()], call_id="second", listed=ids, **CALL)
    heal(double)
    await agrees(bank, tmp_path / "saved")
    held = bank.entries()
    await bank.close()
    bank = await ExperienceBank.open(config, FakeEmbedder())
    assert bank.entries() == held
    await bank.close()


async def test_what_cannot_be_deleted_is_found_by_nobody_and_deleted_before_the_next_write(
    double: QdrantDouble, config: BankConfig, tmp_path: Path
) -> None:
    bank, ids = await open_bank(config, retrieval_pool=1)
    fail(double, config, "/points/delete", "refused")
    await bank.apply([Discard(ids=(1, 2))], call_id="second", listed=ids, **CALL)
    answer = await bank.retrieve("lamp")
    assert answer.entry is not None and answer.entry.id == ids[2], "those two would fill the pool"
    await bank.save(tmp_path / "saved")
    fail(double, config, "/points/delete", "refused")
    with pytest.raises(StoreError, match="503"):
        await bank.apply([Add(title="new", content="new")], call_id="third", listed=(), **CALL)
    assert [entry.id for entry in bank.entries()] == ids[2:]
    await bank.apply([Add(title="new", content="new")], call_id="third", listed=(), **CALL)
    assert bank.statistics()["counter_flush_failures"] == 1
    await agrees(bank, tmp_path / "saved")
    await bank.close()


async def test_a_replacement_whose_process_ends_before_its_deletion_is_completed_at_the_next_opening(
    double: QdrantDouble, config: BankConfig
) -> None:
    bank, ids = await open_bank(config)
    fail(double, config, "/points/delete", "refused")
    double.faults.responses *= 2
    await bank.apply([MERGED], call_id="second", listed=ids, **CALL)
    with pytest.raises(StoreError, match="503"):
        await bank.close()
    held = bank.entries()
    bank = await ExperienceBank.open(config, FakeEmbedder())
    assert bank.entries() == held and await bank.verify() == []
    await bank.close()


async def test_a_quarantine_whose_answer_was_lost(double: QdrantDouble, config: BankConfig) -> None:
    bank, ids = await open_bank(config)
    fail(double, config, "/points/batch", "lost")
    with pytest.raises(StoreError, match="502"):
        await bank.quarantine(ids[:1], "bad advice")
    heal(double)
    await bank.flush()
    assert not any(entry.quarantined for entry in bank.entries()) and await bank.verify() == []
    await bank.close()


async def test_an_entry_that_a_server_has_shown_wrongly_is_deleted_in_memory_too(
    double: QdrantDouble, config: BankConfig, tmp_path: Path
) -> None:
    """It counts as one that cannot be read then, but memory has it."""
    bank, ids = await open_bank(config, attempts=1)

    def damaged(result: Any) -> Any:
        for point in result.get("points", ()) if isinstance(result, dict) else ():
            point["payload"] = {"entry": 7} if point["id"] == ids[0] else point["payload"]
        return result

    double.faults.tamper = damaged
    assert len(await bank.verify()) == 2  # it cannot be read, and is missing for that
    double.faults.tamper = None
    fail(double, config.model_copy(update={"attempts": 1}), "/points/delete", "lost")
    assert await bank.delete([ids[0]]) == 1
    heal(double)
    assert [entry.id for entry in bank.entries()] == ids[1:]
    await agrees(bank, tmp_path / "snapshot")
    await bank.close()


@pytest.mark.parametrize("step", ["upsert", "delete"])
@pytest.mark.parametrize("error", [StoreError, asyncio.CancelledError])
async def test_an_embedded_write_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    config = BankConfig(path=str(tmp_path / "bank"))
    bank, ids = await open_bank(config)
    work: Callable[..., Awaitable[None]] = getattr(bank._ledger.store, step)

    async def interrupted(*arguments: Any) -> None:
        await work(*arguments)
        raise error("now")

    with monkeypatch.context() as patch:
        patch.setattr(bank._ledger.store, step, interrupted)
        with contextlib.suppress(StoreError, asyncio.CancelledError):
            await bank.apply([MERGED], call_id="second", listed=ids, **CALL)
    await bank.flush()
    await agrees(bank, tmp_path / "saved")
    assert len(bank) == (3 if step == "upsert" else 2)
    held = bank.entries()
    await bank.close()
    bank = await ExperienceBank.open(config, FakeEmbedder())
    assert bank.entries() == held
    await bank.close()
