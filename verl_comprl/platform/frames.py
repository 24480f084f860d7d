"""Frames of other threads of this process."""

import gc
import sys
from types import FrameType


def frame_of(thread: int) -> FrameType | None:
    """Return the frame that a thread executes; None if there is no such thread.

    The garbage collector does not run meanwhile. Before Python 3.11.9, ``sys._current_frames`` makes objects while it
    holds the interpreter's lock of threads; a ``threading.local`` that is collected then takes that lock again, and the
    process stands still with all of its threads, out of reach of signals (python/cpython#106883).

    Args:
        thread: Identity of the thread, as ``threading.get_ident`` returns it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if was_enabled:
            gc.enable()
