"""Says on the terminal and in train.log which part of a run waits for what, when that takes too long.

Owns the thread that looks, and which of the trainer's methods are phases. ``platform.watchdog`` decides when,
``situation`` asks the other processes where they stand.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import PurePath
from types import FrameType
from typing import Any

from verl_comprl.display.quiet import is_verbose
from verl_comprl.display.units import duration
from verl_comprl.platform.under_way import UnderWay, doing, under_way
from verl_comprl.platform.watchdog import Finding, Watchdog
from verl_comprl.trainer.watchdog.situation import manager_work, situation

PHASES = {
    "init": "start",
    "fit": "training",
    "prepare_step": "prompts",
    "on_sample_end": "pausing the actor's servers",
    "_compute_old_log_prob": "old log-probs",
    "_update_actor": "update of the actor",
    "on_step_end": "weight sync",
    "_save_checkpoint": "checkpoint",
    "_validate": "evaluation",
}
"""Methods of verl's trainer, and what they are called; what is in none of them counts as the one around it."""

WAITS = ("sample", "wait_for_sampleable")
"""Methods of verl's replay buffer that wait for rollouts."""

LONGEST_PERIOD = 15.0
"""Seconds between two looks, at most."""


def mark_phases(trainer: Any) -> None:
    """Let each phase of a trainer be under way while it runs (:mod:`verl_comprl.platform.under_way`)."""
    for name, phase in PHASES.items():
        _mark(trainer, name, phase)
    for name in WAITS:  # a user's own sampler may have others
        if hasattr(trainer.replay_buffer, name):
            _mark(trainer.replay_buffer, name, "rollouts")


def _mark(owner: Any, name: str, phase: str) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def marked(*arguments: Any, **options: Any) -> Any:
        with doing(phase):
            return method(*arguments, **options)

    # On the instance, so that it is around all that classes have put around verl's method.
    setattr(owner, name, marked)


@contextmanager
def watching(trainer: Any, announce: Callable[[str], None]) -> Iterator[None]:
    """Watch a run during the block, unless ``comprl.watchdog.after`` is 0.

    Args:
        trainer: The run's trainer, which has not been initialised yet.
        announce: Prints on the terminal.
    """
    settings = trainer.comprl.watchdog
    if not settings.after:
        yield
        return
    mark_phases(trainer)
    watch = Watch(trainer, Watchdog(settings.after, settings.factor), announce)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(min(settings.after / 4, LONGEST_PERIOD)):
            watch.look()

    thread = threading.Thread(target=look, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()  # not joined: it may be waiting for a process that hangs


class Watch:
    """Looks at a run and says what takes too long."""

    def __init__(self, trainer: Any, watchdog: Watchdog, announce: Callable[[str], None]) -> None:
        """Watch ``trainer``; the other arguments are those of :func:`watching`."""
        self._trainer, self._watchdog, self._announce = trainer, watchdog, announce
        self._failed = False

    def look(self) -> None:
        """Look once; never raises."""
        try:
            here = under_way()
            work = here + [item._replace(thread=0) for item in manager_work(self._trainer)]
            for finding in self._watchdog.look(_oldest(work)):
                self._say(finding, here)
        except Exception:  # a watchdog that fails must not end what it watches
            if not self._failed:
                print(f"the watchdog failed; it continues:\n{traceback.format_exc()}")
            self._failed = True

    def _say(self, finding: Finding, here: Iterable[UnderWay]) -> None:
        age = duration(finding.seconds)
        if finding.ended:
            self._print(f"watchdog: {finding.what}: resumed after {age}")
            return
        frame = sys._current_frames().get(next((item.thread for item in here if item.what == finding.what), 0))
        lines = [f"watchdog: {finding.what}: {age} so far, which is more than {duration(finding.limit)}"]
        lines += [f"  this process: {place(frame)}"] if frame else []
        others = [item for item in here if item.what != finding.what]
        lines += [f"  also here: {item.what} ({duration(item.seconds)})" for item in others]
        self._print("\n".join(lines))  # first: the processes that are asked next may be what hangs
        try:
            self._print("\n".join(f"  {line}" for line in situation(self._trainer)))
        finally:
            if frame:
                print(f"the watchdog found it here:\n{''.join(traceback.format_stack(frame))}")

    def _print(self, text: str) -> None:
        self._announce(text)
        if not is_verbose():  # to the log; indented lines belong to the one before
            print(text if text.startswith(" ") else f"{time.strftime('%H:%M:%S')} {text}")


def _oldest(work: Iterable[UnderWay]) -> dict[str, float]:
    ages: dict[str, float] = {}
    for item in work:
        ages[item.what] = max(item.seconds, ages.get(item.what, 0.0))
    return ages


def place(frame: FrameType) -> str:
    """Return the innermost line of verl or of this package in a stack: waits end in Ray or in Python's library."""
    calls = [(_short(call.filename), call) for call in traceback.extract_stack(frame)]
    ours = [pair for pair in calls if "/" in pair[0] and not pair[0].endswith(_WAITING)]
    file, call = (ours or calls)[-1]
    return f"{file}:{call.lineno} in {call.name}"


_WAITING = ("platform/waiting.py", "trainer/watchdog/watching.py")


def _short(file: str) -> str:
    """Return a path from verl or this package on, otherwise the name of the file."""
    parts = PurePath(file).parts
    start = next((index for index, part in enumerate(parts) if part in ("verl", "verl_comprl")), len(parts) - 1)
    return "/".join(parts[start:])
