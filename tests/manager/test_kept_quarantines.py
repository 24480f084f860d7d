"""Quarantines by hand between two starts of a run, which has the bank of its checkpoint again."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from opened import CALL, NOT_KEPT, OpenManager, write  # pyright: ignore[reportMissingImports]

from verl_comprl.experience import Experience, ExperienceBank, SnapshotError, Update
from verl_comprl.manager.kept_quarantines import KeptQuarantines
from verl_comprl.manager.opening import Opening


async def test_quarantines_between_starts_last(start_manager: OpenManager, tmp_path: Path, caplog: Any) -> None:
    manager, checkpoint = await start_manager(NOT_KEPT), tmp_path / "global_step_1" / "comprl"
    for title in "harmful", "bad", "good":
        await write(manager, title)
    await manager.save(str(checkpoint))
    await write(manager, "imported")
    harmful, bad, _, late = [entry.id for entry in manager._bank.entries()]
    await manager._bank.quarantine([bad], "0 of 8 successes, free half 0.50")  # by the run, which goes back
    await manager._bank.quarantine([harmful, late], "misleads")
    for _ in range(2):
        await (manager := await start_manager(Opening(True, checkpoint=checkpoint))).restore(str(checkpoint))
        assert [entry.quarantined for entry in manager._bank.entries()] == ["misleads", "", ""]
    assert f"quarantine it again: {late}" not in caplog.text, "it is not of this run"
    assert KeptQuarantines(tmp_path).reasons() == {harmful: "misleads"}
    assert (tmp_path / "experience.jsonl").read_text().count('"reason":"misleads"') == 2


async def test_a_quarantine_that_a_checkpoint_lacks_is_noted(
    start_manager: OpenManager, tmp_path: Path, caplog: Any
) -> None:
    manager, checkpoint = await start_manager(NOT_KEPT), tmp_path / "global_step_1" / "comprl"
    await manager.save(str(checkpoint))
    for number in range(12):
        await write(manager, str(number))
    manager._journal.merged(entries := manager._bank.entries())
    await manager._bank.quarantine([entry.id for entry in entries], "misleads")
    await start_manager(Opening(True, checkpoint=checkpoint))
    (line,) = [record.getMessage() for record in caplog.records if "quarantine it again" in record.getMessage()]
    assert line.startswith("12 entries") and [entry.id in line for entry in entries].count(True) == 10


async def test_quarantines_between_starts_last_whatever_happens_to_the_entries_before_a_kill(
    start_manager: OpenManager, tmp_path: Path
) -> None:
    manager, checkpoint = await start_manager(NOT_KEPT), tmp_path / "global_step_1" / "comprl"
    for title in "replaced", "evicted", "released", "good":
        await write(manager, title)
    replaced, evicted, released, _ = [entry.id for entry in manager._bank.entries()]
    await manager.save(str(checkpoint))
    await manager._bank.quarantine([replaced, evicted, released], "misleads")
    await (manager := await start_manager(again := Opening(True, checkpoint=checkpoint))).restore(str(checkpoint))
    call = {**CALL, "listed": [replaced]}
    await manager._bank.apply([Update(ids=(1,), title="other words", content="take the key")], call_id="later", **call)
    await manager._bank.delete([evicted])
    await manager._bank.release([released])
    manager = await start_manager(again)
    await manager.restore(str(checkpoint))
    quarantined = {"replaced": "misleads", "evicted": "misleads", "released": "", "good": ""}
    assert {entry.title: entry.quarantined for entry in manager._bank.entries()} == quarantined

    await manager._bank.delete([replaced])
    await manager._bank.clear()  # its store begins anew
    manager = await start_manager(Opening(True, killed_in=2, checkpoint=checkpoint))
    assert {entry.title: entry.quarantined for entry in manager._bank.entries()} == quarantined
    await start_manager(NOT_KEPT)
    assert not (tmp_path / "quarantined.json").exists(), "of the run before"


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1, "b": ""', "\xff", "[" * 100_000])
def test_a_damaged_note_of_quarantines_stops_no_start(tmp_path: Path, content: str, caplog: Any) -> None:
    (tmp_path / "quarantined.json").write_text(content)
    kept = KeptQuarantines(tmp_path)
    assert kept.reasons() == {}
    assert len(list(tmp_path.glob("quarantined-*.json"))) == (content != "[]")
    kept.note([Experience(id="a", title="", content="c", quarantined="misleads")])
    assert kept.reasons() == {"a": "misleads"}


@pytest.mark.parametrize("reason", ["\ud800", "x" * 10_000_000, "two\nlines <|im_end|>"])
def test_reasons_are_a_line_that_a_bank_can_keep(tmp_path: Path, reason: str) -> None:
    (tmp_path / "quarantined.json").write_text(json.dumps({"a": reason, "b": 3, "c": " "}))
    kept = KeptQuarantines(tmp_path).reasons()
    assert kept.keys() == {"a", "c"} and kept["c"] == "by hand"
    for line in kept.values():
        assert 0 < len(line.encode()) <= 800 and len(line.splitlines()) == 1 and "<|im_end|>" not in line


def test_a_disk_that_fails_for_a_moment_loses_no_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept := KeptQuarantines(tmp_path)).note([Experience(id="a", title="", content="c", quarantined="misleads")])
    read, failures = Path.read_bytes, [OSError(errno.EIO, "a disk")]

    def fails(path: Path) -> bytes:
        if failures:
            raise failures.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fails)
    monkeypatch.setattr("verl_comprl.files.PAUSES", (0.0, 0.0))
    assert kept.reasons() == {"a": "misleads"}
    failures += [OSError(errno.EIO, "a disk")] * 3
    with pytest.raises(OSError, match="a disk"):
        kept.note([])
    failures.clear()
    assert kept.reasons() == {"a": "misleads"}


async def test_a_bank_that_cannot_be_saved_aside_keeps_what_was_quarantined(
    start_manager: OpenManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(manager := await start_manager(NOT_KEPT), "a")
    (entry,) = manager._bank.entries()
    (kept := KeptQuarantines(tmp_path)).note([entry.model_copy(update={"quarantined": "misleads"})])

    async def full(*_: object) -> None:
        raise SnapshotError("the disk is full")

    monkeypatch.setattr(ExperienceBank, "save", full)
    with pytest.raises(SnapshotError):
        await start_manager(NOT_KEPT)
    assert list(kept.reasons().values()) == ["misleads"]
