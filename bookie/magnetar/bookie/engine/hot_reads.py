"""Reads of few packets that are in the page cache: made at once, on the event loop.

For data in the page cache, the way to a worker and back costs more than the read itself. So the
places of packets in runs that were read before are remembered, and the bytes are read on condition
that the read does not wait for the disk. If anything is missing or wrong, the result is None, and
the read takes the normal way over index and worker. The event loop owns all of this.
"""

from dataclasses import dataclass

from magnetar.bookie.engine.range_cache import RangeCache
from magnetar.bookie.entry_logs.entry_log import RunHead, StoredRun
from magnetar.bookie.entry_logs.open_files import OpenFiles
from magnetar.bookie.entry_logs.packet_run import stop_within
from magnetar.bookie.entry_logs.packet_span import check_span, span_of
from magnetar.ledger.ports import File

_READ_BYTES_MAX = 64 << 10
"""Largest read made here: copying and checking 64 KiB takes about 20 us; the worker does larger
ones."""
_FILES_MAX = 32
_OVERHEAD_BYTES = 960
"""Measured bytes of the objects and of their places in the cache's tables."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """Places of the packets of a run; only the ids from `first` to `last` count."""

    stored: StoredRun
    head: RunHead

    @property
    def first(self) -> int:
        return self.stored.first

    @property
    def last(self) -> int:
        return self.stored.last

    @property
    def size_bytes(self) -> int:
        head = self.head
        tables = len(head.offsets) + len(head.checksums)
        if head.differences is not None:
            tables += len(head.differences)
        return 4 * tables + _OVERHEAD_BYTES


class HotReads:
    """Heads of runs and open files, for reads without a worker."""

    def __init__(self, bytes_max: int) -> None:
        self._known: RangeCache[KnownRun] = RangeCache(bytes_max)
        self._files = OpenFiles(_FILES_MAX)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory used for the heads."""
        return self._known.size_bytes

    def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """Return packets `first`, `first + 1`, ... of one run, at least one; None if a worker must
        read."""
        known = self._known.find(ledger_id, first)
        if known is None:
            return None
        location, head = known.stored.location, known.head
        file = self._files.get(location.log_id)
        if file is None or not head.holds(first):
            return None
        start, stop = head.positions(first, min(last, known.last))
        stop = stop_within(head.offsets, start, stop, bytes_max)
        span = span_of(head, start, stop)
        if span.size_bytes > _READ_BYTES_MAX:
            return None
        offset = location.offset + head.tables_bytes + span.begin
        data = file.pread_now(span.size_bytes, offset)
        if data is None:
            return None
        # Damage takes the normal way, too, which reports it.
        packets, damaged = check_span(head, span, data, ledger_id, first)
        return packets if packets and not damaged else None

    def lacks_file(self, log_id: int) -> bool:
        """Return whether `learn` should get an open file of the log."""
        return log_id not in self._files

    def learn(self, known: KnownRun, file: File | None) -> None:
        """Remember the places of a run's packets; takes ownership of the file."""
        self._known.put(known.stored.ledger_id, known)
        if file is None:
            return
        self._files.put(known.stored.location.log_id, file)

    def drop(self, ledger_id: int) -> None:
        """Forget the ledger's runs, which have moved or are gone."""
        self._known.drop(ledger_id)

    def forget_log(self, log_id: int) -> None:
        """Close the file of a log that is removed."""
        self._files.forget(log_id)

    def close(self) -> None:
        self._files.close()
