"""Frames of other threads, also where the garbage collector is about to run."""

import gc
import subprocess
import sys
import threading

import pytest

from verl_comprl.platform.frames import frame_of

COLLECTS = """
import gc
import os
import sys
import threading

from verl_comprl.platform.frames import frame_of

gate = threading.Event()
for _ in range(30):
    threading.Thread(target=gate.wait, daemon=True).start()
gc.disable()
gc.collect()
for _ in range(5):
    cycle = threading.local()
    cycle.itself = cycle
del cycle
gc.set_threshold(gc.get_count()[0] + 10)  # reached by the frames of the threads
gc.enable()
{call}
print("done", flush=True)
os._exit(0)  # the threads wait
"""


def collects_during(call: str, seconds: float) -> str:
    """Return what a process prints in which garbage is collected while frames are looked up."""
    command = [sys.executable, "-c", COLLECTS.format(call=call)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds).stdout


def test_a_collection_of_garbage_meanwhile_does_not_stop_the_process() -> None:
    assert collects_during("frame_of(threading.get_ident())", 120) == "done\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 11, 9), reason="Python has mended it in 3.11.9")
def test_python_alone_would_stop_it() -> None:
    """Once Python 3.11.9 is the oldest that is supported, this and ``gc.disable`` can go."""
    with pytest.raises(subprocess.TimeoutExpired):
        collects_during("sys._current_frames()", 10)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        frame = frame_of(threading.get_ident())
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert frame is not None and frame.f_code is frame_of.__code__


def test_a_thread_that_has_ended_has_no_frame() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert frame_of(thread.ident or 0) is None
