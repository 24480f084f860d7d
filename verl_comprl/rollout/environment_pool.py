"""Environments for a rollout worker: made once, used again, never on the event loop.

Instances are kept per name and options. Each call runs in a thread; a family that may not share a process with another
instance of itself is refused here until the process host exists.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from env_adapters import TextEnvironment, make

StepResult = tuple[str, float, bool, bool, dict[str, Any]]


class EnvironmentSession:
    """One episode's environment."""

    def __init__(self, environment: TextEnvironment, threads: ThreadPoolExecutor) -> None:
        """Borrow an environment of the pool."""
        self._environment = environment
        self._threads = threads

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start the episode that ``seed`` names."""
        return await self._run(lambda: self._environment.reset(seed=seed))

    async def step(self, action_text: str) -> StepResult:
        """Play the actor's message."""
        return await self._run(lambda: self._environment.step(action_text))

    async def _run(self, call: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class EnvironmentPool:
    """Makes and reuses environments."""

    def __init__(self, max_threads: int = 8) -> None:
        """Create an empty pool; ``max_threads`` environments step at the same time."""
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="environment")
        self._free: dict[tuple[str, str], list[TextEnvironment]] = defaultdict(list)

    @asynccontextmanager
    async def session(self, name: str, options: dict[str, Any]) -> AsyncIterator[EnvironmentSession]:
        """Lend an environment for one episode.

        An environment that raised is closed and not lent again.

        Args:
            name: Environment name, as in :func:`env_adapters.make`.
            options: Its options.

        Raises:
            ValueError: If the name, an option or its value is unknown, or the family is not thread-safe.
            ImportError: If its extra is not installed.
        """
        key = (name, json.dumps(options, sort_keys=True))
        free = self._free[key]
        loop = asyncio.get_running_loop()
        environment = free.pop() if free else await loop.run_in_executor(self._threads, lambda: make(name, **options))
        if not environment.thread_safe:
            environment.close()
            raise ValueError(f"environment {name!r} must run in a process of its own, which is not supported yet")
        try:
            yield EnvironmentSession(environment, self._threads)
        except BaseException:
            await loop.run_in_executor(self._threads, environment.close)
            raise
        free.append(environment)
