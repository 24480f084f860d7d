"""Says on the terminal and in train.log which part of a run waits for what, when that takes too long.

Owns the thread that looks, and which of the trainer's methods are phases. ``platform.watchdog`` decides when,
``situation`` asks the other processes where they stand, ``ending`` ends a run that hangs.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import PurePath
from types import FrameType
from typing import Any, TypeVar

from verl_comprl.display.quiet import is_verbose
from verl_comprl.display.units import duration
from verl_comprl.platform.frames import frame_of
from verl_comprl.platform.under_way import UnderWay, doing, gets_on, under_way
from verl_comprl.platform.watchdog import Finding, Watchdog
from verl_comprl.trainer.watchdog.deaths import Deaths
from verl_comprl.trainer.watchdog.ending import Ending
from verl_comprl.trainer.watchdog.liveness import LOOK_SECONDS
from verl_comprl.trainer.watchdog.situation import manager_work, situation

T = TypeVar("T")

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

_GROUPS = ("partitions", "pending_keys", "running_keys", "finished_keys", "failure_keys")
"""Attributes of verl's replay buffer: rows and prompts, by partition, as it has last seen them."""

LONGEST_PERIOD = 15.0
"""Seconds between two looks, at most."""


def mark_phases(trainer: Any) -> None:
    """Let each phase of a trainer be under way while it runs (:mod:`verl_comprl.platform.under_way`)."""
    for name, phase in PHASES.items():
        _mark(trainer, name, phase)
    for name in WAITS:  # a user's own sampler may have others
        if hasattr(trainer.replay_buffer, name):
            _mark(trainer.replay_buffer, name, "rollouts")
    _mark_progress(trainer.replay_buffer)


def _mark(owner: Any, name: str, phase: str) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def marked(*arguments: Any, **options: Any) -> Any:
        with doing(phase):
            return method(*arguments, **options)

    # On the instance, so that it is around all that classes have put around verl's method.
    setattr(owner, name, marked)


def _mark_progress(buffer: Any) -> None:
    """Let rows and prompts that come and go show that rollouts which take long get on."""
    wait: Callable[..., Any] | None = getattr(buffer, "_wait_for_next_poll", None)
    if wait is None:
        return
    before: list[int] = []

    @wraps(wait)
    def marked(*arguments: Any, **options: Any) -> Any:
        groups = [getattr(buffer, name, {}) for name in _GROUPS]  # a user's own sampler may have others
        now = [len(keys) for group in groups for keys in group.values()]
        if now != before:
            gets_on()
        before[:] = now
        return wait(*arguments, **options)

    buffer._wait_for_next_poll = marked


@contextmanager
def watching(trainer: Any, announce: Callable[[str], None]) -> Iterator[None]:
    """Watch a run during the block, unless ``comprl.watchdog.after`` is 0; to be entered by the main thread.

    Args:
        trainer: The run's trainer, which has not been initialised yet.
        announce: Prints on the terminal.

    Raises:
        RunHung: If a phase of the main thread hangs, and ``comprl.watchdog.end_after`` is not 0; or if it waits for
            something else while a process of the actor has died.
    """
    settings = trainer.comprl.watchdog
    if not settings.after:
        yield
        return
    mark_phases(trainer)
    ending = Ending(announce)
    watch = Watch(trainer, Watchdog(settings.after, settings.factor, settings.end_after), announce, ending.end)
    deaths = Deaths(trainer.vital, ending.end)
    ended = threading.Event()

    def look(once: Callable[[], None], period: float) -> None:
        while not ended.wait(period):
            once()

    looks = (
        (watch.look, min(settings.after / 4, LONGEST_PERIOD)),
        (lambda: watch.guarded(deaths.look, None), LOOK_SECONDS),
    )
    for arguments in looks:
        threading.Thread(target=look, args=arguments, name="watchdog", daemon=True).start()
    try:
        with ending.allowed():
            yield
    finally:
        ended.set()  # not joined: it may be waiting for a process that hangs


class Watch:
    """Looks at a run, says what takes too long, and ends the run if its main thread hangs."""

    def __init__(
        self,
        trainer: Any,
        watchdog: Watchdog,
        announce: Callable[[str], None],
        end: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Watch ``trainer``; the other arguments are those of :func:`watching`, and what ends the run."""
        self._trainer, self._watchdog, self._announce, self._end = trainer, watchdog, announce, end
        self._of_manager: list[UnderWay] = []
        """What the experience manager worked on when it last said so: if it hangs, that has not ended."""
        self._failed: set[int] = set()
        """Threads that have said that they failed."""

    def look(self) -> None:
        """Look once; never raises."""
        here = under_way()
        if (found := self.guarded(lambda: manager_work(self._trainer), None)) is not None:
            self._of_manager = [item._replace(thread=0) for item in found]
        findings = self.guarded(lambda: self._watchdog.look(_oldest(here + self._of_manager)), [])
        # First of all, and each by itself: that other processes cannot be asked must not keep a hang from being ended.
        if hung := self._watchdog.hung(_stalled(here)):
            return self._end(self.guarded(lambda: self._reason(hung, here), f"{hung.what} hangs"))
        for finding in findings:
            self.guarded(lambda finding=finding: self._say(finding, here), None)

    def guarded(self, function: Callable[[], T], otherwise: T) -> T:
        """Return what ``function`` returns, or ``otherwise`` if it fails, which a thread prints the first time."""
        try:
            return function()
        except Exception:  # whatever it is: a watchdog that fails must not end what it watches
            if (thread := threading.get_ident()) not in self._failed:
                print(f"the watchdog failed; it continues:\n{traceback.format_exc()}")
            self._failed.add(thread)
            return otherwise

    def _reason(self, hung: Finding, here: Iterable[UnderWay]) -> str:
        """Return the error with which the run ends."""
        frame = _frame(hung, here)
        beyond = hung.seconds - hung.limit
        lines = [
            f"{hung.what} hangs: nothing has moved for {duration(hung.seconds)}, {duration(beyond)} longer than the "
            "watchdog finds too long (comprl.watchdog.end_after)"
        ]
        lines += [f"  this process: {place(frame)}"] if frame else []
        lines += [f"  {line}" for line in self.guarded(lambda: list(situation(self._trainer)), [])]
        lines.append("the next start resumes from the latest checkpoint, if there is one")
        return "\n".join(lines)

    def _say(self, finding: Finding, here: Iterable[UnderWay]) -> None:
        age = duration(finding.seconds)
        if finding.ended:
            self._print(f"watchdog: {finding.what}: resumed after {age}")
            return
        frame = _frame(finding, here)
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


def _frame(finding: Finding, here: Iterable[UnderWay]) -> FrameType | None:
    """Return where the thread stands that does the work; None if it is another process."""
    return frame_of(next((item.thread for item in here if item.what == finding.what), 0))


def _stalled(here: Iterable[UnderWay]) -> dict[str, float]:
    """Return for how long work of the main thread without a limit of its own has not got on.

    The other threads train the extractor and keep the experience, of which a run can do without.
    """
    main = threading.main_thread().ident
    return {item.what: item.stalled for item in here if item.thread == main and item.stalled is not None}


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
