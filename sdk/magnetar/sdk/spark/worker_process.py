"""What an executor's Python process does once, whatever it reads.

A worker reads many slices, one after the other. What it has imported by its second task stays for
good: `gc.freeze` takes it out of every later round of the garbage collector, which costs a third of
the time otherwise, since each slice makes very many objects. At the first task that would be too
early: not everything is imported before the first batch.

And it keeps the memory that it has: blocks and batches of a megabyte come and go a hundred times a
second, and the C library would give each back to the system and fetch it again, page by page. On a
virtual machine that costs more than what is done with them.
"""

import ctypes
import gc
import os

_IDLE = 20
"""One more than the highest niceness there is: only what nobody else wants."""

_GC_THRESHOLD = 100_000
"""New objects before a collection. Rows go by their reference counts, without the collector."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt(3)."""
_MAPPED_FROM_BYTES = 32 << 20
"""Only what is larger goes back at once: as far as mallopt lets it be raised."""
_KEPT_BYTES_MAX = 64 << 20
"""Of what is freed at the end of the heap."""

_tasks = 0
_settled = 0


def settle_worker(niceness: int) -> None:
    """Called at the start of each task; `niceness` as in `ReadSettings`."""
    global _tasks, _settled
    _tasks += 1
    if _tasks == 1:
        gc.set_threshold(_GC_THRESHOLD, 50, 100)
        _keep_memory()
    elif _tasks == 2:
        gc.collect()
        gc.freeze()
    if niceness > _settled:
        _give_way(niceness)
        _settled = niceness


def _keep_memory() -> None:
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library, with rules of its own
    set_option(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def _give_way(niceness: int) -> None:
    """Let others have the processor first. A process can do that once, and cannot take it back."""
    if niceness >= _IDLE and hasattr(os, "SCHED_IDLE"):
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
        except OSError:
            niceness = _IDLE - 1  # not allowed here: as low as an ordinary process goes
    try:
        os.nice(min(niceness, _IDLE - 1))
    except OSError:
        pass  # no reason not to read
