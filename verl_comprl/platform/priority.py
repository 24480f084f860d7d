"""Priority of a process for cores that it shares with others (Linux).

At idle priority it gets what the others leave over, and hardly anything while they could use all cores. The kernel
compares processes of one session with each other where it groups them by session (``sched_autogroup_enabled``).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil

Priority = Literal["normal", "idle"]

_NICEST = 19

_before: int | None = None
"""Niceness before the highest one was set where idle priority is forbidden; None if it was not."""


def set_cpu_priority(priority: Priority) -> None:
    """Give this process and its children, with all their threads, normal or idle priority; later ones inherit it.

    A sandbox may forbid idle priority; the highest niceness takes its place there.

    Raises:
        PermissionError: If normal priority is asked for by a process at idle priority which may not raise its own.
    """
    done: set[int] = set()
    # Again until nothing is new: a thread that has not been reached yet may have started another.
    while threads := set(_threads()) - done:
        for thread in threads:
            _set(thread, priority)
        done |= threads


def _threads() -> Iterator[int]:
    process = psutil.Process()
    for pid in (process.pid, *(child.pid for child in process.children(recursive=True))):
        try:
            yield from [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
        except FileNotFoundError:  # it has just ended
            continue


def _set(thread: int, priority: Priority) -> None:
    global _before
    idle = priority == "idle"
    try:
        if (os.sched_getscheduler(thread) == os.SCHED_IDLE) != idle:
            os.sched_setscheduler(thread, os.SCHED_IDLE if idle else os.SCHED_OTHER, os.sched_param(0))
        if not idle and _before is not None:
            os.setpriority(os.PRIO_PROCESS, thread, _before)
    except ProcessLookupError:
        return
    except PermissionError as error:
        if not idle:
            text = "a process at idle priority may not go back to normal priority here (it needs CAP_SYS_NICE)"
            raise PermissionError(f"comprl.extractor.cpu_priority=normal: {text}; start the engines again") from error
        if _before is None:
            _before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, _NICEST)
