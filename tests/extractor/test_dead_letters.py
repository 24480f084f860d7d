"""Letters of given-up distillations, as a checkpoint takes them back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.extractor.dead_letters import DEAD_LETTERS, DeadLetters


def letter(id: str) -> bytes:
    return json.dumps({"reason": "once", "request": {"id": id}}).encode()


@given(before=st.lists(st.text(), max_size=4), after=st.lists(st.text(), max_size=4))
def test_those_after_the_checkpoint_are_dropped_and_kept_beside(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("queue") / "not there yet"
    letters = DeadLetters(folder)
    for id in before:
        letters.add(letter(id))
    state = letters.state()
    for id in after:
        letters.add(letter(id))
    letters.take_back(state)
    assert letters.ids() == set(before)
    aside = list(folder.glob("dead_letters-*.jsonl"))
    assert [len(file.read_bytes().splitlines()) for file in aside] == [len(before) + len(after)] * bool(after)


def test_a_file_that_does_not_begin_with_those_of_the_checkpoint_has_none_of_them(tmp_path: Path) -> None:
    letters, others = DeadLetters(tmp_path / "a"), DeadLetters(tmp_path / "b")
    letters.add(letter("ours"))
    others.add(letter("its!"))
    others.take_back(letters.state())
    assert others.ids() == set() and others.path.read_bytes() == b""


def test_damaged_lines_have_no_ids(tmp_path: Path) -> None:
    (tmp_path / DEAD_LETTERS).write_bytes(b'\xff\n{"request": 3}\n{"request": {"id": []}}\n[]\n' + letter("a") + b"\n{")
    assert DeadLetters(tmp_path).ids() == {"a"}
