"""Extraction of actions and tool calls from messages."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_adapters.parsing import extract_action, extract_tool_call, is_one_action, match_action

ALLOWED = ["move north", "move northeast", "pickup"]


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("<think>north looks good</think><action>move north</action>", "move north"),
        ("<think>first</think> so\n<action>\n move north \n</action>\n", "move north"),
        ("<action>move south</action> no, <action>move north</action>", "move north"),
        ("<action>move north", "move north"),
        ("move north", "move north"),
        ("  pickup\n", "pickup"),
        ("reasoning the template opened</think>move north", "move north"),
        ("<think><action>move south</action></think><action>move north</action>", "move north"),
        ("<think><action>move south</action></think>", ""),
        ("<action></action>", ""),
        ("", ""),
        ("I move north", "I move north"),
    ],
)
def test_extract_action(message: str, action: str) -> None:
    assert extract_action(message) == action


@pytest.mark.parametrize(
    ("action", "match"),
    [
        ("move north", "move north"),
        ("Move  NORTH", "move north"),
        ("move northeast", "move northeast"),
        ("move north now", None),
        ("movenorth", None),
        ("", None),
    ],
)
def test_match_action(action: str, match: str | None) -> None:
    assert match_action(action, ALLOWED) == match


@given(st.text(), st.sampled_from(ALLOWED))
def test_the_last_tag_counts_whatever_precedes_it(noise: str, action: str) -> None:
    assert extract_action(f"{noise}<action>{action}</action>") == action


@pytest.mark.parametrize("unit", ["<action>", "</action>", "<think>", "</think>", "<", " ", "\x00"])
def test_a_megabyte_is_parsed_in_linear_time(unit: str) -> None:
    message = unit * (1_000_000 // len(unit))
    started = time.process_time()
    assert match_action(extract_action(message), ALLOWED) is None
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', ("bash", {"command": "ls"})),
        ('<think><tool_call>{}</tool_call></think>\n<tool_call>\n{"name": "submit"}\n', ("submit", {})),
        ('<tool_call>{"name": "a"}</tool_call> or <tool_call>{"name": "b"}</tool_call>', ("b", {})),
        ('{"name": "bash", "arguments": {}}', None),
        ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', None),
        ('<tool_call>{"name": ["bash"]}</tool_call>', None),
        ('<tool_call>["bash"]</tool_call>', None),
        ("<tool_call>ls</tool_call>", None),
        ("<tool_call>" + "[" * 100_000, None),
        ("", None),
    ],
)
def test_a_tool_call_is_found(message: str, call: tuple[str, dict] | None) -> None:
    assert extract_tool_call(message) == call


@given(st.text())
def test_extracting_a_tool_call_never_raises(text: str) -> None:
    extract_tool_call(f"<tool_call>{text}")


@pytest.mark.parametrize(
    ("message", "only"),
    [
        ("<action>left</action>", True),
        ("I go.\n<action>left</action>\n", True),
        ("<action>left", True),
        ("left", True),
        ("<action>up</action> or so</think><action>left</action>", True),
        ("<action>left</action><action>left</action>", False),
        ("<action>left</action><action>", False),
        ("<action>left</action></action>", False),
        ("<action>left</action> and then up", False),
    ],
)
def test_an_action_may_have_to_be_the_last_thing_said(message: str, only: bool) -> None:
    assert is_one_action(message) == only
