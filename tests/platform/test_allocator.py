"""Memory that is kept is not taken from the kernel again, and can be given back."""

import subprocess
import sys

import pytest

PAGE, ROUNDS = 4096, 20
MEGABYTES = 64

SCRIPT = f"""
import resource, sys
from verl_comprl.platform.allocator import give_back_freed_memory, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * {PAGE} // 2**20

def use():
    one, other = (bytearray(b"x" * ({MEGABYTES} << 20)) for _ in range(2))

if "keep" in sys.argv:
    assert keep_freed_memory()
use()
before = faults()
for _ in range({ROUNDS}):
    use()
print(faults() - before, resident())
held = bytearray(b"x" * (1 << 20))  # on top of what is free
give_back_freed_memory()
print(resident())
use()
"""


def measured(*arguments: str) -> tuple[int, int, int]:
    """Return page faults of repeated use, and resident megabytes after it and after they were given back."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    faults, after, given_back = map(int, done.stdout.split())
    return faults, after, given_back


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_kept_memory_is_used_again_and_can_be_given_back() -> None:
    usual, usual_after, _ = measured()
    kept, kept_after, given_back = measured("keep")
    assert usual > ROUNDS * MEGABYTES  # at least one for each huge page, or 256 for each megabyte
    assert kept < 100
    assert kept_after - usual_after > MEGABYTES
    assert kept_after - given_back > MEGABYTES
