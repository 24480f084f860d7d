"""Signals that stop a run, and processes that are kept from one of them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run; not that of a closed terminal where it is ignored, as ``nohup`` does."""
    hung_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


@contextmanager
def out_of_reach_of_terminal() -> Iterator[None]:
    """Let what is started in the block ignore SIGHUP, as Ray is to: a closed terminal sends it to all of its processes.

    A run that saves and leaves then needs them to the end. Ray lets its daemons ignore Ctrl-C alone.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may change it
        yield
        return
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous or signal.SIG_DFL)
