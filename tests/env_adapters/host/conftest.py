"""Hosts that are closed, and environments that are let go, when a test ends."""

import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import misbehaving
import pytest

from env_adapters.host import EnvironmentHost

MakeHost = Callable[..., EnvironmentHost]


@pytest.fixture
async def make_host() -> AsyncIterator[MakeHost]:
    """Return a function that makes a host."""
    hosts: list[EnvironmentHost] = []

    def make(**options) -> EnvironmentHost:
        hosts.append(EnvironmentHost(**options))
        return hosts[-1]

    yield make
    for host in hosts:
        await host.close()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Return the event for which environments wait in this process, where nothing can kill them."""
    misbehaving.released.clear()
    yield misbehaving.released
    misbehaving.released.set()


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Return a function that makes a family of some code, and returns its environment's name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, code: str) -> str:
        module = f"{name}_{uuid.uuid4().hex}"  # one of another test is still imported
        (tmp_path / f"{module}.py").write_text(code)
        return f"{module}:Environment"

    return make
