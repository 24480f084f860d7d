"""Fixtures for SWE-bench: bundled repositories, built once in temporary folders, and sandboxes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from env_adapters import TextEnvironment, make
from env_adapters.swebench import repositories
from env_adapters.swebench.bubblewrap import start_bubblewrap
from env_adapters.swebench.instances import FIXTURES, Instance, load
from env_adapters.swebench.sandbox import Limits, Sandbox

SMALL = {"memory": 128, "disk": 16, "processes": 32, "timeout": 5.0, "test_timeout": 10.0}


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("swebench-data")


@pytest.fixture(scope="module", autouse=True)  # not per session: tests of other families run in the same process
def own_repositories(data_root: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRL_DATA", str(data_root))
        patch.delenv("SWEBENCH_DATA", raising=False)
        patch.delenv("SWEBENCH_REPOSITORIES", raising=False)
        repositories._fixtures.cache_clear()
        yield
    repositories._fixtures.cache_clear()


@pytest.fixture(scope="session")
def instances() -> dict[str, Instance]:
    """The bundled tasks, by the last part of their names, such as ``chronos-1``."""
    return {task.instance_id.partition("__")[2]: task for task in load(FIXTURES / "instances.jsonl")}


@pytest.fixture
def start() -> Iterator[Callable[..., Sandbox]]:
    """Start sandboxes that are closed after the test."""
    started: list[Sandbox] = []

    def start(**limits: Any) -> Sandbox:
        small = {"timeout": 10.0, "memory": 256, "disk": 16, "processes": 48, "output": 100_000}
        started.append(start_bubblewrap(Limits(**(small | limits))))
        return started[-1]

    yield start
    for sandbox in started:
        sandbox.close()


@pytest.fixture
def small() -> Iterator[TextEnvironment]:
    """An environment with small limits; seed 0 selects one of the bundled tasks."""
    environment = make("swebench", max_turns=100, **SMALL)
    yield environment
    environment.close()


@pytest.fixture(scope="session")
def call() -> Callable[..., str]:
    """Write a message with a tool call."""

    def write(name: str, **arguments: Any) -> str:
        return f"<think>So be it.</think>\n<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    return write
