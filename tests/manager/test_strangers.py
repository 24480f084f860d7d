"""Entries of a bank that are not of its run."""

import json
from pathlib import Path

import pytest

from verl_comprl.manager.strangers import strangers


def note(file: Path, *events: tuple[str, str]) -> None:
    lines = [json.dumps({"event": event, "entry": entry}, separators=(",", ":")) for event, entry in events]
    file.write_text("\n".join([*lines, '{"event":"written","ent']))


def test_what_the_run_has_written_or_begun_with_is_its_own(tmp_path: Path) -> None:
    note(tmp_path / "experience.jsonl", ("given", "a"), ("written", "b"), ("merged", "c"), ("read", "d"))
    assert strangers("abc", tmp_path) == set()
    assert strangers("abcde", tmp_path) == {"d", "e"}, "who has read an entry need not have written it"


def test_events_that_a_resume_has_put_aside_count_too(tmp_path: Path) -> None:
    """A start that is killed between that and the restore leaves the bank as it was."""
    note(tmp_path / "experience-20260101-000000.jsonl", ("written", "a"))
    note(tmp_path / "experience-20260102-000000.jsonl", ("written", "b"))
    assert strangers("abc", tmp_path) == {"c"}
    note(tmp_path / "experience.jsonl", ("written", "c"))
    assert strangers("abc", tmp_path) == set()


def test_a_run_without_events_has_written_nothing(tmp_path: Path) -> None:
    assert strangers("ab", tmp_path) == {"a", "b"}


def test_events_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "experience.jsonl").mkdir()
    assert strangers((), tmp_path) == set(), "nor need they be"
    with pytest.raises(OSError):
        strangers("a", tmp_path)
