"""Answers of another form than an environment's, from a process in which untrusted code has run."""

from contextlib import nullcontext
from typing import Any

import pytest

from env_adapters.host import EnvironmentFailure, Limits, Session
from env_adapters.host.answers import check_tools

INFO = {"goal": "win", "success": False, "score": 0.0}


class Answering:
    """A worker that answers everything with the same value."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def call(self, method: str, *arguments: Any) -> Any:
        return self._answer

    def alive(self) -> bool:
        return True

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("reset", 5),
        ("reset", None),
        ("reset", ["seen"]),
        ("reset", [5, INFO]),
        ("reset", ["seen", None]),
        ("reset", ["seen", [1]]),
        ("reset", ["seen", {"goal": 5}]),
        ("step", 5),
        ("step", ["seen", 1.0, False]),
        ("step", [None, 1.0, False, False, INFO]),
        ("step", ["seen", 1.0, False, False, "goal"]),
        ("step", ["seen", 1.0, False, False, INFO | {"goal": ["win"]}]),
        ("step", ["seen", {}, False, False, INFO]),
        ("step", ["seen", 1.0, False, False, INFO | {"score": "high"}]),
    ],
)
async def test_an_answer_of_another_form_is_a_failure_of_the_environment(method: str, answer: Any) -> None:
    session = Session(Answering(answer), [], Limits(), nullcontext())
    with pytest.raises(EnvironmentFailure, match=f"a {method} cannot be used: "):
        await (session.reset(1) if method == "reset" else session.step("go"))
    assert session.broken


def nested(depth: int) -> Any:
    schema: Any = {"type": "function"}
    for level in range(depth):
        schema = [schema] if level % 2 else {"items": schema}
    return schema


@pytest.mark.parametrize("tools", [None, 5, {"a": {}}, ["search"], [nested(601)]])
def test_tools_that_are_no_schemas_or_nested_without_end_are_a_failure(tools: Any) -> None:
    with pytest.raises(EnvironmentFailure, match=r"the tools are |more than 64 levels"):
        check_tools(tools)


def test_usual_tools_pass() -> None:
    check_tools([])
    check_tools([nested(41), {"name": "search", "parameters": {"properties": {"query": {"enum": ["a", None, 1]}}}}])
