"""The tail cache: the newest entries of each topic, so that tailing consumers cost no reads.

Durable runs are added in log order, but only while the topic has subscriptions or is copied to
other clusters. Runs that were read behind the tail are inserted in their place, for other
subscriptions that soon read there. Runs are dropped when the slowest connected cursor has passed
them. When the pool, which all topics of the broker share, is over its bound, the oldest go first.
Cached entries are keyed by position and immutable. All are at or below the log's last confirmed
position (rule 7.1 of the managed ledger), because only confirmed entries are inserted.
"""

from bisect import bisect_right
from collections import OrderedDict

from magnetar.broker.topic.run import Run
from magnetar.ledger.position import Position

# Evicted runs stay as empty slots at the front of the lists until this many have accumulated.
_COMPACT_AT = 256


class TailCachePool:
    """Memory that the tail caches of all topics share. Evicts the oldest run of any topic."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.inserted_entries = 0
        self.evicted_entries = 0
        self.hits = 0
        """Lookups that found the entry."""
        self.misses = 0
        self._runs: OrderedDict[Run, TailCache] = OrderedDict()

    def add(self, run: Run, cache: "TailCache") -> None:
        self._runs[run] = cache
        self.size_bytes += run.size_bytes
        self.inserted_entries += len(run.entries)
        while self.size_bytes > self.bytes_max:
            oldest, owner = next(iter(self._runs.items()))
            owner.evict(oldest)

    def remove(self, run: Run) -> None:
        del self._runs[run]
        self.evicted_entries += len(run.entries)
        self.size_bytes -= run.size_bytes


class TailCache:
    """The cached tail of one topic: runs in log order, not necessarily without gaps."""

    def __init__(self, pool: TailCachePool) -> None:
        self._pool = pool
        self._runs: list[Run | None] = []
        self._starts: list[tuple[int, int]] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._runs) - self._head

    def add(self, run: Run) -> None:
        """Add a run that follows everything in the cache."""
        start = (run.ledger_id, run.first_entry_id)
        assert not self._starts or start > self._starts[-1]
        if run.size_bytes > self._pool.bytes_max:
            return
        self._runs.append(run)
        self._starts.append(start)
        self._pool.add(run, self)

    def insert(self, run: Run) -> None:
        """Insert a run in its place; do nothing if the cache has one of its entries already."""
        if run.size_bytes > self._pool.bytes_max:
            return
        at = bisect_right(self._starts, run.first, self._head)
        before = self._runs[at - 1] if at > self._head else None
        behind = self._runs[at] if at < len(self._runs) else None
        if before is not None and before.last >= run.first:
            return
        if behind is not None and behind.first <= run.last:
            return
        self._runs.insert(at, run)
        self._starts.insert(at, run.first)
        self._pool.add(run, self)

    def next_start(self, position: Position) -> Position | None:
        """Return where the next run after the position begins; None if there is no such run."""
        at = bisect_right(self._starts, position, self._head)
        return Position(*self._starts[at]) if at < len(self._starts) else None

    def find(self, position: Position) -> Run | None:
        """Return the run that holds the entry at `position`; None if the cache has none."""
        at = bisect_right(self._starts, position, self._head) - 1
        run = self._runs[at] if at >= self._head else None
        if run is None or run.index_of(position) < 0:
            self._pool.misses += 1
            return None
        self._pool.hits += 1
        return run

    def evict_through(self, position: Position) -> None:
        """Drop the runs that lie wholly at or before `position`."""
        while self._head < len(self._runs):
            run = self._runs[self._head]
            assert run is not None
            if (run.ledger_id, run.last_entry_id) > position:
                return
            self.evict_first()

    def evict(self, run: Run) -> None:
        """Drop a run that is in this cache."""
        at = bisect_right(self._starts, run.first, self._head) - 1
        assert self._runs[at] is run
        if at == self._head:
            self.evict_first()
            return
        self._pool.remove(run)
        del self._runs[at]
        del self._starts[at]

    def evict_first(self) -> None:
        """Drop the oldest run."""
        run = self._runs[self._head]
        assert run is not None
        self._pool.remove(run)
        self._runs[self._head] = None
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._runs):
            del self._runs[: self._head]
            del self._starts[: self._head]
            self._head = 0

    def clear(self) -> None:
        """Drop everything."""
        while self._head < len(self._runs):
            self.evict_first()
