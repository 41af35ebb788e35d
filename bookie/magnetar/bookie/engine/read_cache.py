"""The read cache: whole runs that were read from entry logs, evicted by last use.

Reading a whole run for one of its entries is the read-ahead: a reader that goes in order finds the
rest of the run here.
"""

from dataclasses import dataclass

from magnetar.bookie.engine.range_cache import RangeCache
from magnetar.bookie.entry_logs.packet_run import PacketRun

_OVERHEAD_BYTES = 660
"""Measured bytes of the objects and of their places in the cache's tables."""
_ENTRY_BYTES = 4
"""Bytes for the place of an entry's packet; in a run with gaps, its id takes 8 more."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run, of which only the ids from `first` to `last` count: a newer run has the others."""

    first: int
    last: int
    run: PacketRun

    @property
    def size_bytes(self) -> int:
        run = self.run
        entry_bytes = _ENTRY_BYTES if run.ids is None else _ENTRY_BYTES + 8
        return len(run.data) + entry_bytes * run.count + _OVERHEAD_BYTES


class ReadCache(RangeCache[CachedRun]):
    """Cached runs by ledger and entry."""

    def find(self, ledger_id: int, entry_id: int) -> CachedRun | None:
        """Return the run that has the packet of the entry; None if it is not cached."""
        cached = super().find(ledger_id, entry_id)
        return cached if cached is not None and cached.run.holds(entry_id) else None
