"""Ends a run that has lost a process of the actor while its main thread waits where it does not look at them.

In a weight sync, for example, or for TransferQueue, whose client waits for a dead controller without a limit.
"""

import time
from collections.abc import Callable

from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors

GRACE_SECONDS = 15.0
"""Seconds that the main thread has to notice a death by itself, and to stop watching (``stoppable``)."""


class Deaths:
    """Looks at the processes of a run; what has died counts when the run has not noticed it for a while."""

    def __init__(self, vital: VitalActors, end: Callable[[str], None], seconds: float = GRACE_SECONDS) -> None:
        """Watch what ``vital`` does.

        Args:
            vital: The run's.
            end: Ends the run with a reason.
            seconds: From the first look that finds a death.
        """
        self._vital, self._end, self._seconds = vital, end, seconds
        self._found: float | None = None

    def look(self) -> None:
        """Look once, without waiting."""
        try:
            self._vital.check()
            self._found = None
        except ProcessLost as lost:
            now = time.monotonic()
            self._found = now if self._found is None else self._found
            if now - self._found >= self._seconds:
                self._end(f"{lost}\nthe next start resumes from the latest checkpoint, if there is one")
