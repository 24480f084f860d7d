"""Episodes of misbehaving environments on a host."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from env_adapters.host import EnvironmentHost, Limits, Session

PROCESS = "misbehaving:Misbehaving"
THREAD = "misbehaving:Sharing"
BOTH = pytest.mark.parametrize("name", [PROCESS, THREAD])


async def play(host: EnvironmentHost, name: str, *actions: str, seed: int = 1, **options) -> list[str]:
    """Play an episode, and return the observations."""
    async with host.session(name, options) as session:
        texts = [(await session.reset(seed))[0]]
        texts += [(await session.step(action))[0] for action in actions]
    return texts


def gone(pid: int) -> bool:
    """Return whether a process ends within half a minute; one that is waiting to be reaped has ended."""
    try:
        process = psutil.Process(pid)
        deadline = time.monotonic() + 30
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    except psutil.NoSuchProcess:  # also between two of these calls
        pass
    return True


@contextmanager
def hurried(owner: EnvironmentHost | Session) -> Iterator[None]:
    """Limit calls that hang; all others have the time that a busy machine needs."""
    usual, owner._limits = owner._limits, Limits(reset=0.5, step=0.5)
    try:
        yield
    finally:
        owner._limits = usual
