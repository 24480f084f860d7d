"""The client of endpoints finds the message of an answer, and none in answers of any other form."""

from types import SimpleNamespace
from typing import Any

import pytest

from verl_comprl.openai_client import message_of


@pytest.mark.parametrize(
    "choices", [None, [], {}, {"a": 1}, 5, "text", [None], [{"message": "of no object"}], (SimpleNamespace(message=1),)]
)
def test_an_answer_without_a_message(choices: Any) -> None:
    assert message_of(SimpleNamespace(choices=choices)) is None
    assert message_of("no JSON") is None


def test_the_message_of_an_answer() -> None:
    choices = [SimpleNamespace(message="this"), SimpleNamespace(message="that")]
    assert message_of(SimpleNamespace(choices=choices)) == "this"
