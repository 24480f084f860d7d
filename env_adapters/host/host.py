"""Pool of environment workers with time limits and replacement of failed workers.

Owns which worker an episode gets, the limits of time and length, and what happens to the worker afterwards: if the
session ends without an exception and none of its calls failed, the worker is kept for the next episode with the same
options; otherwise it is stopped.
"""

import asyncio
import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from env_adapters.base import Step
from env_adapters.cutting import cut
from env_adapters.host.answers import check_number, check_texts, check_tools
from env_adapters.host.importer import Importer
from env_adapters.host.process import ForkServer, ProcessWorker
from env_adapters.host.temporary import use_temporary_place
from env_adapters.host.thread import ThreadWorker
from env_adapters.host.waiting import in_daemon_thread, within
from env_adapters.host.worker import EnvironmentFailure, Worker
from env_adapters.registry import portable_name

Isolation = Literal["auto", "thread", "process"]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a host: times in seconds, and the length of a text.

    Attributes:
        reset: For creating an environment, for resetting it, and for importing its family into this process.
        step: For a step, or for truncating an episode.
        episode: For a whole session, including the time that the caller spends between steps.
        characters: For an observation or a goal; a longer one loses its middle.
    """

    reset: float = 300.0
    step: float = 120.0
    episode: float = 3600.0
    characters: int = 2**20

    def __post_init__(self) -> None:
        """Check that the limits are positive."""
        for name in ("reset", "step", "episode", "characters"):
            if not getattr(self, name) > 0:
                raise ValueError(f"limit {name} must be positive, got {getattr(self, name)!r}")


class Session:
    """One episode's environment."""

    def __init__(
        self, worker: Worker, tools: list[dict[str, Any]], limits: Limits, running: AbstractAsyncContextManager[Any]
    ) -> None:
        """Wrap a worker that has already created its environment."""
        self.tools = tools
        """Function schemas to offer to the model."""
        self._worker = worker
        self._limits = limits
        self._running = running
        self.broken = False
        """Whether a call failed or was cut short: its answer may still come, so the worker is of no use any more."""
        self._total = 0.0
        """Sum of the episode's rewards so far."""

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start the episode of ``seed``.

        Raises:
            EnvironmentFailure: If the environment raised, died or took too long; the other methods raise it too.
        """
        self._total = 0.0
        answer = await self._call(self._limits.reset, "reset", seed)
        with self._usable("a reset"):
            observation, info = answer
            check_texts(observation, info)
        return self._short(observation), self._with_short_goal(info)

    async def step(self, action_text: str) -> Step:
        """Play one turn with the model's message."""
        return self._checked(await self._call(self._limits.step, "step", action_text))

    async def truncate(self) -> Step:
        """Truncate the episode."""
        # The limit of a step, not a shorter one: SWE-bench runs the tests here to grade the patch.
        return self._checked(await self._call(self._limits.step, "truncate"))

    async def _call(self, seconds: float, method: str, *arguments: Any) -> Any:
        if self.broken:
            raise EnvironmentFailure(f"{method}() was called after the environment had failed")
        async with self._running:  # outside of the time limit: waiting for a free thread must not count
            self.broken = True  # until the answer is there
            result = await within(seconds, f"{method}()", self._worker.call(method, *arguments))
            self.broken = False
            return result

    def _checked(self, answer: Sequence[Any]) -> Step:
        """Return a step whose numbers can be learned from: one NaN would make the advantages of its whole group NaN.

        The sum as well, since rewards that are finite one by one can add up to infinity.
        """
        with self._usable("a step"):
            observation, reward, terminated, truncated, info = answer
            check_texts(observation, info)
            check_number("reward", reward)
            self._total += reward
            check_number("sum of the episode's rewards", self._total)
            check_number("score", info.get("score", 0.0))
        return self._short(observation), reward, terminated, truncated, self._with_short_goal(info)

    @contextmanager
    def _usable(self, what: str) -> Iterator[None]:
        """Turn what the block finds wrong with an answer into a failure of the environment."""
        try:
            yield
        except (ValueError, TypeError, OverflowError) as error:
            self.broken = True
            raise EnvironmentFailure(f"{what} cannot be used: {error}", kind=type(error).__name__) from error

    def _short(self, text: str) -> str:
        return cut(text, self._limits.characters)

    def _with_short_goal(self, info: dict[str, Any]) -> dict[str, Any]:
        return info | {"goal": self._short(info["goal"])} if "goal" in info else info


class EnvironmentHost:
    """Runs the environments of one event loop."""

    def __init__(
        self,
        *,
        isolation: Isolation = "auto",
        limits: Limits | None = None,
        max_idle: int = 64,
        max_threads: int = 4,
        make_limit: Callable[[float], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        """Configure the host; workers are started on demand.

        Args:
            isolation: ``process`` gives every running episode its own process, ``thread`` its own thread; ``auto`` uses
                threads for families that declare ``thread_safe`` and processes for the others.
            limits: Time limits.
            max_idle: Number of idle workers kept for later episodes; the least recently used is stopped first.
            max_threads: Number of threads that may work at the same time; more would make the event loop wait for the
                interpreter lock.
            make_limit: Makes the time limit of an episode, for a caller that lets it stand still at times.

        Raises:
            ValueError: If ``isolation`` is unknown.
        """
        if isolation not in get_args(Isolation):
            raise ValueError(f"unknown isolation {isolation!r}; known: {', '.join(get_args(Isolation))}")
        self.counts: Counter[str] = Counter()
        """Number of workers ``made``, ``reused`` and ``failed`` so far."""
        self._isolation = isolation
        self._limits = limits or Limits()
        self._max_idle = max_idle
        self._make_limit = make_limit
        self._idle: OrderedDict[Worker, tuple[_Key, list[dict[str, Any]]]] = OrderedDict()
        self._threads = asyncio.Semaphore(max_threads)
        self._importer = Importer()
        self._fork_servers: defaultdict[str, ForkServer] = defaultdict(ForkServer)
        """By name, or by module of ``module:Class``: what cannot be imported, or ends its server, costs no other."""

    @asynccontextmanager
    async def session(self, name: str, options: dict[str, Any]) -> AsyncIterator[Session]:
        """Provide an environment for one episode.

        Args:
            name: As in ``env_adapters.make``.
            options: The environment's options, JSON values.

        Raises:
            EnvironmentFailure: If the environment cannot be made, or the episode took too long.
            ValueError: If the name is unknown.
            ImportError: If the family's dependencies are missing.
        """
        key = (name, json.dumps(options, sort_keys=True))
        worker, tools = self._take(key) or await self._make(name, options)
        deadline = self._make_limit(self._limits.episode)
        try:
            async with deadline:
                session = Session(worker, tools, self._limits, self._running(worker))
                yield session
        except BaseException as error:  # cancellation too: it may have left the worker in the middle of a call
            self.counts["failed"] += 1
            worker.stop()
            if isinstance(error, TimeoutError) and deadline.expired():
                text = f"the episode was not over within {self._limits.episode:g} s"
                raise EnvironmentFailure(text, kind="TimeoutError") from error
            raise
        if session.broken:  # the caller has caught the failure
            self.counts["failed"] += 1
            worker.stop()
            return
        self._idle[worker] = key, tools
        if len(self._idle) > self._max_idle:
            await self._retire(next(iter(self._idle)))

    async def close(self) -> None:
        """Stop all idle workers and the fork servers; all sessions must have ended. A later one starts new ones."""
        await asyncio.gather(*map(self._retire, list(self._idle)))
        servers = [*self._fork_servers.values()]
        self._fork_servers.clear()
        await asyncio.gather(*(in_daemon_thread(server.close) for server in servers))  # waits for one that starts

    def _take(self, key: _Key) -> tuple[Worker, list[dict[str, Any]]] | None:
        # Most recently used first: its memory is warm, and workers that are not needed become the oldest.
        for worker in [worker for worker in reversed(self._idle) if self._idle[worker][0] == key]:
            tools = self._idle.pop(worker)[1]
            if worker.alive():
                self.counts["reused"] += 1
                return worker, tools
            worker.stop()
        return None

    async def _make(self, name: str, options: dict[str, Any]) -> tuple[Worker, list[dict[str, Any]]]:
        worker = await self._start_worker(name)
        self.counts["made"] += 1
        # Other processes can import what is installed, but do not know the names registered in this one.
        known_as = name if isinstance(worker, ThreadWorker) else portable_name(name)
        try:
            async with self._running(worker):
                tools = await within(self._limits.reset, "make()", worker.call("make", known_as, options))
            check_tools(tools)
            return worker, tools
        except BaseException:
            self.counts["failed"] += 1
            worker.stop()
            raise

    async def _start_worker(self, name: str) -> ThreadWorker | ProcessWorker:
        isolation = self._isolation
        if isolation == "auto":
            family = await self._importer.family(name, seconds=self._limits.reset)
            isolation = "thread" if family.thread_safe else "process"
        if isolation == "thread":
            use_temporary_place()
            return ThreadWorker()
        known_as = portable_name(name)
        return await self._fork_servers[known_as.partition(":")[0]].fork(known_as)

    def _running(self, worker: Worker) -> AbstractAsyncContextManager[Any]:
        return self._threads if isinstance(worker, ThreadWorker) else nullcontext()

    async def _retire(self, worker: Worker) -> None:
        self._idle.pop(worker, None)
        try:
            with suppress(EnvironmentFailure):
                await within(5.0, "close()", worker.call("close"))
        finally:  # also if nobody waits any more
            worker.stop()
