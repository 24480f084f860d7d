"""A request to stop a run, which ends verl's waiting for rollouts too.

A step spends most of its time there, in a loop without a limit: an environment that hangs must not keep a run from
stopping. ``stoppable`` leaves the run. This module imports nothing of verl, so the launcher may import it first.
"""

from collections.abc import Callable
from typing import Any


class RunInterrupted(Exception):
    """The run was asked to stop and has left; the message names its checkpoint."""


class WaitingStopped(Exception):
    """Raised in a replay buffer that waits for rollouts, when the run was asked to stop."""


class StopRequest:
    """Whether a run was asked to stop; may be set by a signal handler."""

    def __init__(self) -> None:
        """Start without a request."""
        self.made = False

    def interrupts(self, buffer: Any, check: Callable[[], None] = lambda: None) -> None:
        """Let a request end the waiting of verl's replay ``buffer`` with :class:`WaitingStopped`.

        A user's own sampler that does not wait in verl's way is left alone; a request then waits for its batch.

        Args:
            buffer: The replay buffer.
            check: Called while it waits; what it raises ends the waiting, too.
        """
        wait = getattr(buffer, "_wait_for_next_poll", None)
        if wait is None:
            return

        def wait_unless_stopped(*arguments: Any) -> float:
            if self.made:
                raise WaitingStopped
            check()
            return wait(*arguments)

        buffer._wait_for_next_poll = wait_unless_stopped
