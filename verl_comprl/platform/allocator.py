"""Memory of a training engine on the CPU: what an update has freed is kept for the next one."""

import os

from verl_comprl.platform.detection import uses_cpu

_KEEPING = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30)}
"""Of glibc, read when a process starts. Otherwise each large tensor is taken from the kernel and given back at once, so
that every update touches new pages: a quarter of the processor time of a small model's. One arena, since the others
take from the kernel whatever is larger than 64 MB."""


def engine_variables() -> dict[str, str]:
    """Return the environment variables of a training engine's process, without those that the user has set.

    No other process needs them, and each keeps about as much as it has used at most.
    """
    return {name: value for name, value in _KEEPING.items() if name not in os.environ} if uses_cpu() else {}
