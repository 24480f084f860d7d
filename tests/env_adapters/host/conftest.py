"""Hosts that are closed, and environments that are let go, when a test ends."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator

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
