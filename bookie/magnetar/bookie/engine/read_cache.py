"""The read cache: whole runs that were read from entry logs, the ones used last.

Reading a run for one of its entries is the read-ahead: who reads in order finds the rest of the run
here.
"""

from dataclasses import dataclass

from magnetar.bookie.engine.range_cache import RangeCache
from magnetar.bookie.entry_logs.packet_run import PacketRun

_OVERHEAD_BYTES = 660
"""The objects and the places in the cache's tables, as measured."""
_ENTRY_BYTES = 4
"""The place of an entry's packet; that of a run with gaps takes 8 more for its id."""


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
    """Runs by ledger and entry."""

    def find(self, ledger_id: int, entry_id: int) -> CachedRun | None:
        """The run that has the packet of the entry."""
        cached = super().find(ledger_id, entry_id)
        return cached if cached is not None and cached.run.holds(entry_id) else None
