"""Memory of a training engine on the CPU: what an update has freed is kept for the next one.

glibc takes large tensors from the kernel one by one and gives each back at once, so that every update touches new pages:
a quarter of its time (``benchmarks.update_memory``). Other C libraries are left as they are.
"""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameters of ``mallopt`` (malloc.h)."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, until :func:`give_back_freed_memory`; returns whether that was possible."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    # Everything from the heap, of which nothing is given back: -1 is the largest number of bytes.
    return bool(library.mallopt(M_MMAP_MAX, 0) and library.mallopt(M_TRIM_THRESHOLD, -1))


def give_back_freed_memory() -> None:
    """Give free pages back to the kernel, also those between pages that are used."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
