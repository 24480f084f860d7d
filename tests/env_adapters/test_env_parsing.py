"""How an action is found in a message."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_adapters.parsing import extract_action, match_action

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
def test_the_last_tag_wins_whatever_stands_before(noise: str, action: str) -> None:
    assert extract_action(f"{noise}<action>{action}</action>") == action


@pytest.mark.parametrize("unit", ["<action>", "</action>", "<think>", "</think>", "<", " ", "\x00"])
def test_a_megabyte_is_read_in_linear_time(unit: str) -> None:
    message = unit * (1_000_000 // len(unit))
    started = time.perf_counter()
    assert match_action(extract_action(message), ALLOWED) is None
    assert time.perf_counter() - started < 1.0
