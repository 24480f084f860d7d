"""Imports families into this process."""

import asyncio
from contextlib import suppress

from env_adapters.base import TextEnvironment
from env_adapters.host.waiting import in_daemon_thread, within
from env_adapters.registry import environment_class


class Importer:
    """Imports each family once, in a thread because it takes seconds, and one family after the other.

    If the modules of a library import each other, two importing threads would deadlock, and Python avoids that by
    exposing partially initialised modules. An import that takes longer than its limit is no longer waited for by the
    others, but by the episodes of its own family: there is never more than one thread for a family.
    """

    def __init__(self) -> None:
        """Begin with nothing imported."""
        self._imported: set[str] = set()
        self._under_way: dict[str, _Import] = {}
        self._one = asyncio.Lock()

    async def family(self, name: str, *, seconds: float) -> type[TextEnvironment]:
        """Return the class of an environment.

        Args:
            name: As in ``env_adapters.make``.
            seconds: Limit for the import, which begins when that of another family has ended or exceeded its own.

        Raises:
            EnvironmentFailure: If it takes longer, or would end the process.
            ValueError: If the name is unknown.
            ImportError: If the family's dependencies are missing.
        """
        if name in self._imported:
            return environment_class(name)
        if name not in self._under_way:
            self._under_way[name] = _Import(asyncio.create_task(self._import(name, seconds)))
        this = self._under_way[name]
        await this.begun.wait()
        return await within(seconds, f"importing {name!r}", asyncio.shield(this.task))

    async def _import(self, name: str, seconds: float) -> type[TextEnvironment]:
        try:
            async with self._one:
                self._under_way[name].begun.set()
                thread = in_daemon_thread(environment_class, name)
                await asyncio.wait([thread], timeout=seconds)
            family = await thread
            self._imported.add(name)
            return family
        finally:
            del self._under_way[name]


class _Import:
    """An import that has not ended."""

    def __init__(self, task: "asyncio.Task[type[TextEnvironment]]") -> None:
        self.begun = asyncio.Event()
        self.task = task
        task.add_done_callback(_look_at)


def _look_at(task: "asyncio.Task[type[TextEnvironment]]") -> None:
    """Take the exception: where every episode has stopped waiting, asyncio would report that nobody has."""
    with suppress(asyncio.CancelledError):
        task.exception()
