"""The read cache: whole runs that were read from entry logs, the ones used last.

Reading a run for one of its entries is the read-ahead: who reads in order finds the rest of the run
here. Keyed by ledger and entry, not by place in a log, so that a run that moves needs no care.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass

from magnetar.bookie.entry_logs.packet_run import PacketRun

_OVERHEAD_BYTES = 512
_ENTRY_BYTES = 40
"""What the offset of an entry costs in memory."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run, of which only the ids from `first` to `last` count: a newer run has the others."""

    first: int
    last: int
    run: PacketRun

    @property
    def size_bytes(self) -> int:
        return len(self.run.data) + _ENTRY_BYTES * self.run.count + _OVERHEAD_BYTES


class ReadCache:
    """Runs by ledger and entry, bounded in bytes; the one that was not used for longest goes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[tuple[int, int], CachedRun] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        self.size_bytes = 0

    def find(self, ledger_id: int, entry_id: int) -> CachedRun | None:
        """The run that has the packet of the entry."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        at = bisect_right(firsts, entry_id)
        if at == 0:
            return None
        key = (ledger_id, firsts[at - 1])
        cached = self._runs[key]
        if entry_id > cached.last or not cached.run.holds(entry_id):
            return None
        self._runs.move_to_end(key)
        return cached

    def put(self, ledger_id: int, cached: CachedRun) -> None:
        """Keep a run, unless it would take more than half of the cache."""
        size_bytes = cached.size_bytes
        if 2 * size_bytes > self._bytes_max:
            return
        key = (ledger_id, cached.first)
        if key in self._runs:
            self._remove(key)
        self._runs[key] = cached
        insort(self._firsts.setdefault(ledger_id, []), cached.first)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            self._remove(next(iter(self._runs)))

    def drop(self, ledger_id: int) -> None:
        """Forget all runs of a ledger."""
        for first in self._firsts.get(ledger_id, [])[:]:
            self._remove((ledger_id, first))

    def _remove(self, key: tuple[int, int]) -> None:
        self.size_bytes -= self._runs.pop(key).size_bytes
        ledger_id, first = key
        firsts = self._firsts[ledger_id]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[ledger_id]
