"""Validation of tool calls, and conversion of program output to text."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_adapters.cutting import cut
from env_adapters.swebench.observation import plain
from env_adapters.swebench.tools import FORMS, MAX_LENGTH, REFUSAL, TOOLS, build_instructions, check_call

EDITOR = "str_replace_editor"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", {"command": "ls"}),
        ("bash", {"command": ""}),
        ("submit", {}),
        (EDITOR, {"command": "view", "path": "/a"}),
        (EDITOR, {"command": "view", "path": "/a", "view_range": [1, -1]}),
        (EDITOR, {"command": "create", "path": "/a", "file_text": ""}),
        (EDITOR, {"command": "str_replace", "path": "/a", "old_str": "x"}),
        (EDITOR, {"command": "str_replace", "path": "/a", "old_str": "x", "new_str": "y"}),
        (EDITOR, {"command": "insert", "path": "/a", "insert_line": 3, "new_str": "y"}),
    ],
)
def test_valid_calls_keep_their_known_arguments(name: str, arguments: dict[str, Any]) -> None:
    assert check_call(name, arguments) == arguments
    assert check_call(name, arguments | {"security_risk": "low", "timeout": None}) == arguments


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("", {}),
        ("Bash", {"command": "ls"}),
        ("bash", {}),
        ("bash", {"command": None}),
        ("bash", {"command": ["ls"]}),
        ("bash", {"command": "a\0b"}),
        ("bash", {"command": "x" * (MAX_LENGTH + 1)}),
        (EDITOR, {}),
        (EDITOR, {"command": "undo_edit", "path": "/a"}),
        (EDITOR, {"command": ["view"], "path": "/a"}),
        (EDITOR, {"command": "view"}),
        (EDITOR, {"command": "view", "path": "/a", "view_range": [1]}),
        (EDITOR, {"command": "view", "path": "/a", "view_range": [1, 2.5]}),
        (EDITOR, {"command": "view", "path": "/a", "view_range": [True, 2]}),
        (EDITOR, {"command": "view", "path": "/a", "view_range": "1-2"}),
        (EDITOR, {"command": "view", "path": "/a\0"}),
        (EDITOR, {"command": "create", "path": "/a"}),
        (EDITOR, {"command": "create", "path": "/a", "file_text": 1}),
        (EDITOR, {"command": "str_replace", "path": "/a", "new_str": "x"}),
        (EDITOR, {"command": "insert", "path": "/a", "insert_line": "3", "new_str": "y"}),
        (EDITOR, {"command": "insert", "path": "/a", "insert_line": True, "new_str": "y"}),
        (EDITOR, {"command": "insert", "path": "/a", "insert_line": 10**300, "new_str": "y"}),
        (EDITOR, {"command": "insert", "path": "/a", "insert_line": 3}),
    ],
)
def test_other_calls_are_not_valid(name: str, arguments: dict[str, Any]) -> None:
    assert check_call(name, arguments) is None


def test_schemas_and_examples_agree() -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    assert list(schemas) == ["bash", EDITOR, "submit"]
    for form in FORMS:
        call = json.loads(form)
        assert check_call(call["name"], call["arguments"]) == call["arguments"] and form in REFUSAL
        assert call["arguments"].keys() <= schemas[call["name"]]["properties"].keys()
        assert set(schemas[call["name"]]["required"]) <= call["arguments"].keys()
    assert "You have 12 turns" in build_instructions(12, 7.5) and "7.5 seconds" in build_instructions(12, 7.5)
    json.dumps(TOOLS)


@given(st.text(), st.dictionaries(st.sampled_from(["command", "path", "insert_line"]), st.from_type(object)))
def test_no_arguments_break_the_check(name: str, arguments: dict[str, Any]) -> None:
    for called in (name, "bash", EDITOR, "submit"):
        checked = check_call(called, arguments)
        assert checked is None or checked.items() <= arguments.items()


def test_plain_removes_terminal_escape_sequences() -> None:
    assert plain(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B\x1b7y\x1b") == "red xy"
    assert plain(b"1%\r2%\r\ndone\ttab\x00\x07\x7f\xff\xc2\x9b") == "1%\n2%\ndone\ttab\ufffd"
    assert plain("déjà ✓".encode()) == "déjà ✓"


@given(st.binary())
def test_plain_leaves_nothing_but_text(data: bytes) -> None:
    text = plain(data)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in text)
    text.encode()


def test_plain_runs_in_linear_time() -> None:
    for piece in (b"\x1b[", b"\x1b]", b"\x1b[0", b"\x1b", b"\x1b]x\x1b", b"\x1b ", b"0;", b"\r"):
        begin = time.process_time()
        plain(piece * (2**20 // len(piece)))
        assert time.process_time() - begin < 5, piece


def test_cut_keeps_both_ends() -> None:
    assert cut("x" * 100, 100) == "x" * 100
    assert cut("a" * 60 + "b" * 60, 21) == "a" * 10 + "\n[... 99 characters left out ...]\n" + "b" * 11
