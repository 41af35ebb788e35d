"""What the C library does with memory that the process has freed.

The replies and adds of a worker that copies are blocks of a megabyte that come and go. By itself
glibc gives them back to the system with every pause, and each page that is then touched anew costs
a fault and zeros: for a process that only passes such blocks on, more time than all its socket
calls. So some of what was freed is kept. It is a bound on what is kept free, not memory that is
taken. For bookies and brokers no gain was seen in what they publish, so they leave it as it is.

On the other hand glibc by itself gives back only what lies free at the end of a heap, and each
thread has one: a block that lives long keeps all the pages below it. So it is told, now and then,
to give back the pages in between.
"""

import ctypes
import os
from collections.abc import Callable

KEPT_BYTES = 64 << 20
"""Free memory at the end of a heap that is not given back."""

_BLOCK_BYTES_MAX = 32 << 20
"""Up to this size a block comes from the heap: the most that glibc allows."""
_STEP_BYTES = 16 << 20
"""By which a heap grows: a range of addresses, which takes memory when it is touched."""

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Keep up to `KEPT_BYTES` of freed memory for the next blocks; whether the C library can.

    Whoever sets one of glibc's variables (MALLOC_TRIM_THRESHOLD_ and so on) has decided already.
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
    """Return glibc's `malloc_trim`, None where the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


_malloc_trim = _find_malloc_trim()


def give_freed_memory_back() -> None:
    """Give all free pages of all heaps back to the system; without glibc nothing happens. Other
    threads of Python go on meanwhile."""
    if _malloc_trim is not None:
        _malloc_trim(0)
