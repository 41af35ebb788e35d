"""Settings of the C library for memory that the process has freed.

A copying worker allocates and frees blocks of a megabyte for replies and adds. By default glibc
returns them to the system at every pause. Each page touched again then costs a fault and zeroing:
for a process that only forwards such blocks, that is more time than all its socket calls. So some
freed memory is kept. The setting bounds the free memory that is kept; it takes none. Bookies and
brokers showed no gain in publish rates, so they keep the default.

In the other direction, glibc by default returns only memory that lies free at the end of a heap,
and each thread has a heap: a long-lived block keeps all pages below it. So the process asks glibc
from time to time to return the pages in between.
"""

import ctypes
import os
from collections.abc import Callable

KEPT_BYTES = 64 << 20
"""Free memory at the end of a heap that is not returned to the system."""

_BLOCK_BYTES_MAX = 32 << 20
"""Largest block that comes from the heap: the most that glibc allows."""
_STEP_BYTES = 16 << 20
"""Growth step of a heap: a range of addresses, which takes memory only when it is touched."""

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Keep up to `KEPT_BYTES` of freed memory for the next blocks. Return whether that is in
    effect.

    A variable of glibc (MALLOC_TRIM_THRESHOLD_ and so on) in the environment overrides this.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # not glibc
    wanted = (
        (_M_MMAP_THRESHOLD, _BLOCK_BYTES_MAX),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_TOP_PAD, _STEP_BYTES),
    )
    is_set = [mallopt(parameter, value) == 1 for parameter, value in wanted]
    return all(is_set)


def _find_malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`; None if the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


_malloc_trim = _find_malloc_trim()


def give_freed_memory_back() -> None:
    """Return all free pages of all heaps to the system; without glibc, do nothing. Other Python
    threads run meanwhile."""
    if _malloc_trim is not None:
        _malloc_trim(0)
