"""An LRU cache of objects that cover ranges of entries of ledgers. Pure.

Keyed by ledger and entry, not by a place in a log, so that moved runs need no care (B26).
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Ranged(Protocol):
    """An object that covers the entries `first` to `last` of a ledger."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Bytes that the object takes in memory; must not change."""
        ...


R = TypeVar("R", bound=Ranged)


class RangeCache(Generic[R]):
    """An LRU cache, bounded in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ranges: OrderedDict[tuple[int, int], R] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        self.size_bytes = 0

    def find(self, ledger_id: int, entry_id: int) -> R | None:
        """Return the last range that begins at or before the entry, if it contains the entry."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        at = bisect_right(firsts, entry_id)
        if at == 0:
            return None
        key = (ledger_id, firsts[at - 1])
        found = self._ranges[key]
        if entry_id > found.last:
            return None
        self._ranges.move_to_end(key)
        return found

    def put(self, ledger_id: int, ranged: R) -> None:
        """Add a range, unless it would take more than half of the cache."""
        size_bytes = ranged.size_bytes
        if 2 * size_bytes > self._bytes_max:
            return
        key = (ledger_id, ranged.first)
        if key in self._ranges:
            self._remove(key)
        self._ranges[key] = ranged
        insort(self._firsts.setdefault(ledger_id, []), ranged.first)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            self._remove(next(iter(self._ranges)))

    def drop(self, ledger_id: int) -> None:
        """Remove all ranges of a ledger."""
        for first in self._firsts.get(ledger_id, [])[:]:
            self._remove((ledger_id, first))

    def _remove(self, key: tuple[int, int]) -> None:
        self.size_bytes -= self._ranges.pop(key).size_bytes
        ledger_id, first = key
        firsts = self._firsts[ledger_id]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[ledger_id]
