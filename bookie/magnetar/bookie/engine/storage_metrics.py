"""What the storage of entries counts: caches, flushes, reads. Owned by the event loop.

All ledger directories of a bookie add up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.ledger.flight_recorder import FLUSH, RECORDER
from magnetar.ledger.metric_fields import (
    SIZE_BOUNDS_BYTES,
    Histogram,
    counter,
    counter_s,
    gauge,
    histogram,
)


class StorageSizes(NamedTuple):
    """What one storage holds in memory now."""

    ledgers: int
    write_cache_bytes: int
    read_cache_bytes: int
    read_cache_hits: int
    """Since it was opened."""


class FlushTimes(NamedTuple):
    """Seconds of one flush."""

    log_s: float
    """Entry log, its sync included."""
    index_s: float


@dataclass(slots=True)
class StorageMetrics:
    """Counted by `EntryStorage`, but for what is looked up when somebody asks."""

    ledgers: int = gauge("Ledgers that are known here.")
    write_cache_bytes: int = gauge("Memory of what is not flushed yet.")
    read_cache_bytes: int = gauge("Memory of what was read from entry logs.")

    memory_reads: int = counter("Reads that began in the write cache or the read cache.")
    read_cache_hits: int = counter("Looks into the read cache that found the entry.")
    ready_reads: int = counter("Other reads that did not have to wait: the page cache had them.")
    worker_reads: int = counter("Reads that the read worker did.")
    worker_read_s: Histogram = histogram("One of those, its wait for the worker included.")

    flushes: int = counter("Flushes of a write buffer.")
    flush_failures: int = counter("Flushes that failed; what they had stays in memory.")
    flush_s: Histogram = histogram("One flush: entry log and index, both synced.")
    flush_bytes: Histogram = histogram("Memory of the buffer that was flushed.", SIZE_BOUNDS_BYTES)
    flush_log_s: float = counter_s("Time of flushes that the entry logs took.")
    flush_index_s: float = counter_s("Time of flushes that the index took, ledger states included.")

    def on_flushed(self, seconds: float, size_bytes: int, times: FlushTimes) -> None:
        self.flushes += 1
        self.flush_s.observe(seconds)
        self.flush_bytes.observe(size_bytes)
        self.flush_log_s += times.log_s
        self.flush_index_s += times.index_s
        RECORDER.note(FLUSH, seconds, lambda: f"{size_bytes} bytes, index {times.index_s:.3f} s")

    def refresh(self, sizes: Iterable[StorageSizes]) -> None:
        """Take over what the storages hold now."""
        each = list(sizes)
        self.ledgers = sum(size.ledgers for size in each)
        self.write_cache_bytes = sum(size.write_cache_bytes for size in each)
        self.read_cache_bytes = sum(size.read_cache_bytes for size in each)
        self.read_cache_hits = sum(size.read_cache_hits for size in each)
