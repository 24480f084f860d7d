"""Memory that a training engine has freed is used again, and not taken from the kernel anew."""

import os
import subprocess
import sys

import pytest

from verl_comprl.platform.allocator import engine_variables

MEGABYTES, ROUNDS = 64, 20

# In a thread that is not the first one, as Ray calls a worker.
SCRIPT = f"""
import resource, threading

def use():
    one, other = (bytearray(b"x" * ({MEGABYTES} << 20)) for _ in range(2))

def measure():
    use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({ROUNDS}):
        use()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


def page_faults(variables: dict[str, str]) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's variables")
def test_what_was_freed_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert page_faults({}) > ROUNDS * MEGABYTES  # at least one for each huge page, or 256 for each megabyte
    assert page_faults(engine_variables()) < 100


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert "MALLOC_MMAP_MAX_" in engine_variables() and "MALLOC_ARENA_MAX" not in engine_variables()


def test_a_gpu_run_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    assert engine_variables() == {}
