"""Work under way in a process, across threads and tasks, with a clock that the test sets."""

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform import under_way as module
from verl_comprl.platform.under_way import doing, gets_on, under_way
from verl_comprl.platform.waiting import call_within


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "_clock", clock)
    return clock


def seen() -> list[tuple[str, float]]:
    return [(item.what, item.seconds) for item in under_way()]


def test_only_the_innermost_block_is_under_way_and_one_that_goes_on_is_young_again(clock: Clock) -> None:
    assert seen() == []
    with doing("step"):
        clock.now += 5
        assert seen() == [("step", 5)]
        with pytest.raises(KeyError), doing("checkpoint"):
            clock.now += 3
            assert seen() == [("step > checkpoint", 3)]
            raise KeyError
        clock.now += 1
        assert seen() == [("step", 1)]
    assert seen() == []


def test_threads_have_blocks_of_their_own_and_tasks_belong_to_the_block_that_began_them(clock: Clock) -> None:
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        with doing("update"):
            begun.set()
            done.wait()

    async def chunks() -> list[tuple[str, float]]:
        async def chunk(gate: asyncio.Event) -> None:
            with doing("chunk"):
                await gate.wait()

        with doing("merge"):
            gates = [asyncio.Event(), asyncio.Event()]
            tasks = []
            for gate in gates:
                tasks.append(asyncio.create_task(chunk(gate)))
                await asyncio.sleep(0)
                clock.now += 10
            both = seen()
            gates[0].set()
            await tasks[0]
            clock.now += 1
            one = seen()
            gates[1].set()
            await tasks[1]
            return [*both, ("-", 0.0), *one]

    thread = threading.Thread(target=work)
    with doing("step"):
        thread.start()
        begun.wait()
        assert [(item.innermost, item.thread) for item in under_way()] == [
            ("step", threading.get_ident()),
            ("update", thread.ident),
        ]
        assert [what for what, _ in seen()] == ["step", "update"]
    done.set()
    thread.join()
    assert asyncio.run(chunks()) == [
        ("merge > chunk", 20),
        ("merge > chunk", 10),
        ("-", 0),
        ("merge > chunk", 11),
    ]
    assert seen() == []


def hanging() -> Coroutine[Any, None, None]:
    """Return a coroutine that has begun a block and hangs in it."""

    async def hang() -> None:
        with doing("hanging"):
            await asyncio.Event().wait()

    async def begin() -> None:
        coroutine.send(None)

    coroutine = hang()
    asyncio.run(begin())
    return coroutine


def test_a_coroutine_that_is_closed_from_outside_is_not_under_way_any_more(clock: Clock) -> None:
    coroutine = hanging()
    assert seen() == [("hanging", 0)]
    coroutine.close()
    assert seen() == []


def test_a_wait_with_a_limit_is_under_way_until_its_limit() -> None:
    gate, found = threading.Event(), set()

    def look() -> None:
        while not gate.wait(0.01):
            found.update(item.what for item in under_way())

    with doing("checkpoint"), pytest.raises(WaitTimeout):
        call_within(look, 3, "the workers to save")
    gate.set()
    assert "checkpoint > waiting for the workers to save" in found
    assert seen() == []


def test_a_sign_that_a_block_gets_on_is_one_of_it_alone_and_its_age_stays(clock: Clock) -> None:
    gets_on()  # nothing is under way
    with doing("step"), doing("rollouts"):
        clock.now += 5
        gets_on()
        clock.now += 2
        (item,) = under_way()
        assert (item.seconds, item.stalled) == (7, 2)
    with doing("step"):
        clock.now += 3
        with doing("checkpoint"):
            pass
        clock.now += 1
        assert [item.stalled for item in under_way()] == [1]
        with doing("waiting for a save", has_limit=True):
            assert [item.stalled for item in under_way()] == [None]


COLLECTS = """
import asyncio
import gc

from verl_comprl.platform.under_way import doing, under_way


class Cycle:
    pass


async def hang(cycle):
    with doing("environment"):
        cycle.future = asyncio.get_running_loop().create_future()
        await cycle.future


async def main():
    for _ in range(3000):
        cycle = Cycle()
        cycle.task = asyncio.ensure_future(hang(cycle))
        cycle.itself = cycle
        await asyncio.sleep(0)
        del cycle
        for _ in range(20):
            under_way()


asyncio.run(main())
gc.collect()
print(under_way())
"""


def test_a_coroutine_that_is_collected_as_garbage_at_any_moment_does_not_stop_the_process() -> None:
    """Its block ends in the thread that collects, in the middle of what that does here."""
    command = [sys.executable, "-c", COLLECTS]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout == "[]\n"


def test_a_coroutine_that_is_closed_within_another_block_does_not_end_that_one(clock: Clock) -> None:
    coroutine = hanging()
    with doing("step"):
        coroutine.close()
        with doing("checkpoint"):
            assert seen() == [("step > checkpoint", 0)]


class Interrupting:
    """Calls of an object, after the n-th of which a signal comes: Python handles one when a call has returned."""

    def __init__(self, owner: object, calls: Iterator[int], at: int) -> None:
        self.owner, self.calls, self.at = owner, calls, at

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            result = getattr(self.owner, name)(*arguments)
            if next(self.calls) == self.at:
                raise KeyboardInterrupt
            return result

        return call

    def __call__(self) -> object:
        return self.__getattr__("__call__")()


@pytest.mark.parametrize("at", range(7))
def test_an_interruption_at_any_moment_leaves_no_block_behind(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    calls = itertools.count()
    with monkeypatch.context() as patch:
        for name in ("_current", "_clock"):
            patch.setattr(module, name, Interrupting(getattr(module, name), calls, at))
        with suppress(KeyboardInterrupt), doing("step"), doing("checkpoint"):
            pass
    assert next(calls) > at, "it has come"
    assert seen() == []
    with doing("next run"):
        assert [what for what, _ in seen()] == ["next run"]


def test_what_was_left_behind_in_a_block_that_has_ended_is_not_under_way(clock: Clock) -> None:
    """As of an interruption whose traceback somebody keeps, and with it the frames that it went through."""
    with doing("step"):
        left = doing("checkpoint")
        left.__enter__()
        assert seen() == [("step > checkpoint", 0)]
    assert seen() == []
    with doing("next run"):
        assert seen() == [("next run", 0)]
    left.__exit__(None, None, None)
