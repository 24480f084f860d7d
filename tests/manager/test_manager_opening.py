"""Opening of a bank by the manager: content that stays, goes or is replaced. A Ray actor's class, without Ray."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from opened import KEPT, NOT_KEPT, OpenManager, titles, write  # pyright: ignore[reportMissingImports]

from verl_comprl.config.generate import YAML_FILE
from verl_comprl.config.tree import ComprlConfig, RecordConfig
from verl_comprl.experience import BankConfig, SnapshotError, StoreUnavailable
from verl_comprl.experience.store import folder as bank_folder
from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.extractor.credit import ONE_STEP, Settling, Use
from verl_comprl.extractor.dead_letters import DEAD_LETTERS
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.manager import actor
from verl_comprl.manager.actor import open_bank
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.manager.opening import Opening
from verl_comprl.manager.reported import REPORTED
from verl_comprl.record import RunRecord


async def make_snapshot(start_manager: OpenManager, folder: Path, title: str) -> str:
    manager = await start_manager(NOT_KEPT, "another")
    await write(manager, title)
    await manager._bank.save(folder)
    return str(folder)


@pytest.mark.parametrize("kept", [[], ["kept"]])
async def test_a_bank_is_opened_again_if_what_came_after_it_has_failed(
    start_manager: OpenManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[str]
) -> None:
    """As after a kill, when the manager's process has opened its bank and could not go on."""
    manager = await start_manager(KEPT)
    for title in kept:
        await write(manager, title)
    config = ComprlConfig(
        bank=BankConfig(path=str(tmp_path / "bank")), queue=QueueConfig(folder=str(tmp_path / "queue"))
    )

    async def again() -> None:
        await manager.open(config, KEPT, run=str(tmp_path), seed=0, settling=ONE_STEP)

    await again()
    with monkeypatch.context() as patch:
        patch.setattr(actor, "CallLog", None)  # behind the opening
        with pytest.raises(TypeError):
            await again()
    await again()
    assert titles(manager) == kept


async def test_a_bank_on_a_full_disk_is_away_for_a_manager_that_begins_again(
    start_manager: OpenManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error for which the guard waits, and counts no failure: ``trainer/test_manager_guard.py``."""
    await write(await start_manager(KEPT), "kept")
    with monkeypatch.context() as patch:
        patch.setattr(bank_folder, "ROOM_TO_OPEN", 2**60)
        with pytest.raises(StoreUnavailable, match=f"the disk is full: .* {2**40} are needed"):
            await start_manager(Opening(True, killed_in=1))
    assert titles(await start_manager(Opening(True, killed_in=1))) == ["kept"]


async def test_a_bank_whose_store_was_emptied_before_a_kill_is_that_of_the_checkpoint(
    start_manager: OpenManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager, killed = (
        await start_manager(KEPT),
        Opening(True, killed_in=1, checkpoint=tmp_path / "global_step_1/comprl"),
    )
    await write(manager, "saved")
    await manager.save(str(killed.checkpoint))
    await write(manager, "later")
    manager = await start_manager(killed)
    assert titles(manager) == ["saved", "later"]
    await manager._bank.delete([entry.id for entry in manager._bank.entries()])
    assert titles(await start_manager(killed)) == ["saved"]
    assert "it is that of the checkpoint in" in caplog.text and "global_step_1, with 1 entries" in caplog.text


async def test_a_new_run_begins_with_an_empty_bank_and_what_was_there_is_saved_aside(
    start_manager: OpenManager, tmp_path: Path
) -> None:
    await write(await start_manager(NOT_KEPT), "of an earlier run")
    assert not list(tmp_path.glob("bank-*")), "nothing was there"
    manager = await start_manager(NOT_KEPT)
    assert titles(manager) == []
    await write(manager, "of an earlier run")  # calls of the same name, as with full_determinism
    assert titles(manager) == ["of an earlier run"]
    (aside,) = tmp_path.glob("bank-*")
    assert [entry.title for entry in read_snapshot(aside, None).entries] == ["of an earlier run"]


async def test_a_run_that_continues_another_ones_checkpoint_saves_aside_what_was_there(
    start_manager: OpenManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"initial_bank": await make_snapshot(start_manager, tmp_path / "snapshot", "known before")}
    checkpoint = tmp_path / "other" / "comprl"
    await (await start_manager(KEPT, "another")).save(str(checkpoint))
    await write(await start_manager(NOT_KEPT), "of an earlier run")
    manager = await start_manager(Opening(keep_content=False, checkpoint=checkpoint), **given)
    assert titles(manager) == [] and not manager._begins_with_entries, "the checkpoint has all that it begins with"
    monkeypatch.setattr(actor, "relieve_garbage_collector", lambda: relieved.append(1))
    relieved: list[int] = []
    await manager.restore(str(checkpoint))
    assert titles(manager) == ["known before"] and relieved
    (aside,) = tmp_path.glob("bank-*")
    assert [entry.title for entry in read_snapshot(aside, None).entries] == ["of an earlier run"]


async def test_a_checkpoint_whose_bank_cannot_be_restored_is_refused_before_anything_is_put_aside(
    start_manager: OpenManager, tmp_path: Path, embedder: Any
) -> None:
    checkpoint = tmp_path / "other" / "comprl"
    await (await start_manager(KEPT, "another")).save(str(checkpoint))
    embedder.identity = {**embedder.identity, "model": "newer"}
    await write(await start_manager(NOT_KEPT), "of an earlier run")
    with pytest.raises(SnapshotError, match="another embedder: model was 'fake', is 'newer'"):
        await start_manager(Opening(keep_content=False, checkpoint=checkpoint))
    assert titles(await start_manager(KEPT)) == ["of an earlier run"]
    assert not list(tmp_path.glob("bank-*"))


async def test_a_run_that_continues_with_a_bank_of_others_saves_that_aside(
    start_manager: OpenManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(await start_manager(NOT_KEPT, "curated"), "by hand")
    manager, checkpoint = await start_manager(NOT_KEPT), tmp_path / "global_step_1" / "comprl"
    await write(manager, "mine")
    await manager.save(str(checkpoint))
    manager = await start_manager(Opening(keep_content=True, checkpoint=checkpoint), "curated")
    await manager.restore(str(checkpoint))
    assert titles(manager) == ["mine"]
    (aside,) = tmp_path.glob("curated-*")
    assert [entry.title for entry in read_snapshot(aside, None).entries] == ["by hand"]
    assert f"1 entries of the bank are not of this run; it is saved as {aside}" in caplog.text


async def test_a_run_that_continues_after_a_kill_saves_nothing_aside(
    start_manager: OpenManager, tmp_path: Path
) -> None:
    """What it has written since the checkpoint is known by its events."""
    given = {"initial_bank": await make_snapshot(start_manager, tmp_path / "snapshot", "known before")}
    manager, checkpoint = await start_manager(NOT_KEPT, **given), tmp_path / "global_step_1" / "comprl"
    await manager.save(str(checkpoint))
    await write(manager, "since")
    manager._journal.merged(manager._bank.entries()[1:])
    await start_manager(Opening(keep_content=True, checkpoint=checkpoint))
    assert not list(tmp_path.glob("bank-*"))


async def test_a_run_that_continues_keeps_its_bank(start_manager: OpenManager, tmp_path: Path) -> None:
    await write(await start_manager(NOT_KEPT), "mine")
    assert titles(await start_manager(KEPT)) == ["mine"]
    assert not list(tmp_path.glob("bank-*"))


async def test_a_snapshot_is_where_a_new_run_begins_and_no_part_of_one_that_continues(
    start_manager: OpenManager, tmp_path: Path
) -> None:
    given = {"initial_bank": await make_snapshot(start_manager, tmp_path / "snapshot", "known before")}
    manager = await start_manager(NOT_KEPT, **given)
    assert titles(manager) == ["known before"]
    await manager._bank.delete([entry.id for entry in manager._bank.entries()])
    await write(manager, "learned since")
    assert titles(await start_manager(KEPT, **given)) == ["learned since"]


async def test_what_a_new_run_begins_with_is_in_its_events(
    start_manager: OpenManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any
) -> None:
    """Once, and not before the extractor is connected: until then the run's files may be put aside."""
    monkeypatch.setattr(actor, "load_tokenizer", lambda model: tokenizer)
    given = {"initial_bank": await make_snapshot(start_manager, tmp_path / "snapshot", "known before")}
    manager = await start_manager(NOT_KEPT, **given)
    (entry,) = manager._bank.entries()
    assert [*RunRecord(tmp_path).events()] == []
    for _ in range(2):
        await manager.connect(None, None, 100)
    event = {"event": "given", "step": 0, "entry": entry.id, "title": "known before", "content": "take the key"}
    (found,) = RunRecord(tmp_path).events()
    assert found.items() >= (event | {"tasks": ["fetch"]}).items()
    await (await start_manager(KEPT, **given)).connect(None, None, 100)
    assert len([*RunRecord(tmp_path).events()]) == 1


async def test_an_evaluation_replaces_the_bank_of_the_checkpoint_by_another(
    start_manager: OpenManager, tmp_path: Path
) -> None:
    snapshot = await make_snapshot(start_manager, tmp_path / "snapshot", "in another bank")
    manager = await start_manager(NOT_KEPT)
    await write(manager, "of the checkpoint")
    await manager.replace_bank("")
    assert titles(manager) == ["of the checkpoint"]
    await manager.replace_bank(snapshot)
    assert titles(manager) == ["in another bank"]


@pytest.mark.parametrize(
    ("record", "steps"),
    [
        (RecordConfig(), [1, 2, 3]),
        (RecordConfig(keep_steps=2), [2, 3]),
        (RecordConfig(enabled=False), []),
    ],
)
async def test_calls_are_recorded_as_the_settings_say(
    start_manager: OpenManager, tmp_path: Path, record: RecordConfig, steps: list[int]
) -> None:
    log = (await start_manager(NOT_KEPT, record=record))._call_log
    for step in (1, 2, 3):
        log.used(Use("call", "p", "fetch", success=True, judged=0.0, step=step), 1.0)
        log.flush(step)
    log.close(3)
    assert [event["step"] for event in RunRecord(tmp_path).call_events()] == steps


@pytest.mark.parametrize("saved", ["before the save", "after the save", "never"])
@pytest.mark.parametrize("distilling", ["waits", "is over", "not drawn", "off"])
async def test_a_manager_that_was_killed_counts_no_episode_twice(
    start_manager: OpenManager, make_request: Any, tmp_path: Path, saved: str, distilling: str
) -> None:
    """Also after a resume from a checkpoint that it saves afterwards, in which its prompt is still in flight."""
    learning = {"distill_share": 1e-9 if distilling == "not drawn" else 1.0, "distill": distilling != "off"}
    settings: Any = {"extractor": ExtractorConfig(batch_size=1, **learning)}
    manager = await start_manager(NOT_KEPT, **settings)
    await write(manager, "mine")
    (entry,) = manager._bank.entries()
    episode = EpisodeReport(make_request("a", experience_ids=(entry.id,), experience_texts=(entry.text,)), guided=True)
    checkpoint = None if saved == "never" else tmp_path / "checkpoint"
    if saved == "after the save":
        await manager.save(str(checkpoint))
    await manager.report(episode)
    assert len(manager._queue) == (distilling in ("waits", "is over"))
    if distilling == "is over":
        manager._queue.acknowledge(await manager._queue.get())
    if saved == "before the save":
        await manager.save(str(checkpoint))
        (tmp_path / "queue" / REPORTED).unlink()  # what the checkpoint has is known without it

    manager = await start_manager(Opening(keep_content=True, killed_in=3, checkpoint=checkpoint), **settings)
    assert await manager.report(episode)
    await manager.save(str(tmp_path / "later"))
    manager = await start_manager(KEPT, **settings)
    await manager.restore(str(tmp_path / "later"))
    assert await manager.report(episode)
    (entry,) = manager._bank.entries()
    events = (tmp_path / "experience.jsonl").read_text().count('"event":"read"')
    assert (entry.uses, events, len(manager._queue)) == (1, 1, distilling == "waits")


async def test_a_manager_that_was_killed_compares_no_use_twice_and_none_with_outcomes_of_before(
    start_manager: OpenManager, make_request: Any, tmp_path: Path
) -> None:
    settings: Any = {"extractor": ExtractorConfig(distill=False)}
    manager = await start_manager(NOT_KEPT, **settings)
    await write(manager, "mine")
    (entry,) = manager._bank.entries()

    async def use(manager: Any, step: int) -> None:
        request = make_request(f"use {step}", experience_ids=(entry.id,), experience_texts=(entry.text,))
        await manager.report(EpisodeReport(request, guided=True))

    def compared(manager: Any) -> float:
        return sum(item.compared for item in manager._bank.get(entry.id).usage)

    await use(manager, 1)
    await manager.collect(1)  # without a free half: one more could be compared than has been
    await use(manager, 2)
    for number in range(4):
        await manager.report(EpisodeReport(make_request(f"free {number}"), guided=False))
    await manager.save(str(tmp_path / "checkpoint"))
    await manager.collect(2)
    assert compared(manager) == 1

    manager = await start_manager(
        Opening(keep_content=True, killed_in=9, checkpoint=tmp_path / "checkpoint"), **settings
    )
    await use(manager, 9)
    await manager.collect(9)
    assert compared(manager) == 1


@pytest.mark.parametrize("rest", ["comes", "has failed"])
async def test_relative_rewards_wait_as_long_as_the_trainer_lets_a_prompt_play(
    start_manager: OpenManager, make_request: Any, rest: str
) -> None:
    """Three free rollouts, of which one has ended; the others may come until the eighth step after the use."""
    learning = ExtractorConfig(batch_size=1, distill=False, utility="relative")
    manager = await start_manager(NOT_KEPT, settling=Settling(3, 8), extractor=learning)
    manager._buffer.add(GenerationRecord("entry", CallKind.DISTILL, (1,), (2,), (-1.0,), weight_version=0))

    async def play(id: str, *, success: bool, guided: bool = False) -> None:
        assert await manager.report(EpisodeReport(make_request(id, success=success), guided, ("entry",) * guided))

    async def samples(step: int) -> float:
        return (await manager.collect(step))["extractor/samples"]

    await play("p_0", success=True, guided=True)
    await play("p_3", success=False)
    assert [await samples(step) for step in range(1, 8)] == [0.0] * 7
    if rest == "comes":
        await play("p_1", success=True)
        assert await samples(7) == 0.0, "two of three"
        await play("p_2", success=False)
    assert await samples(7 if rest == "comes" else 8) == 1.0
    batch = await manager.next_batch()
    # The outcome 1, less the mean of 1, -1 and -1, or of the one that has come.
    assert batch is not None and batch.rewards == [pytest.approx(1 + 1 / 3 if rest == "comes" else 2.0)]


def test_the_manager_is_told_how_long_the_runs_trainer_lets_a_prompt_play(monkeypatch: pytest.MonkeyPatch) -> None:
    asynchronous = {
        "trainer_mode": "comprl_colocate_async",
        "colocate_async": {"num_warmup_batches": 1},
        "sampler": {"max_off_policy_threshold": 5},
    }
    folder = {"default_local_dir": "run", "project_name": "project", "experiment_name": "experiment"}
    config = OmegaConf.create(
        {
            "trainer": folder | {"v1": asynchronous},
            "comprl": OmegaConf.load(YAML_FILE),
            "actor_rollout_ref": {"rollout": {"n": 6}},
            "data": {"seed": 3},
        }
    )
    config.comprl.guided_fraction = 0.5
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(actor, "wait_for", lambda *_: None)
    manager = SimpleNamespace(open=SimpleNamespace(remote=lambda *_, **given: told.append(given)))
    open_bank(manager, config, KEPT)
    # Half of six rollouts; five steps, a batch ahead, and two as without.
    assert told == [{"run": "run", "seed": 3, "settling": Settling(rollouts=3, steps=8)}]


@pytest.mark.parametrize("opening", [KEPT, NOT_KEPT])
async def test_a_new_run_begins_without_the_dead_letters_of_an_earlier_one(
    start_manager: OpenManager, tmp_path: Path, opening: Opening
) -> None:
    letters = tmp_path / "queue" / DEAD_LETTERS
    letters.parent.mkdir()
    letters.write_text("a letter\n")
    await start_manager(opening)
    (found,) = (tmp_path / "queue").glob("dead_letters*")
    assert found.read_text() == "a letter\n" and (found == letters) is opening.keep_content
