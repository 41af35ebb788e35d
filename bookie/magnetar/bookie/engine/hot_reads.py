"""Reads of few packets that the operating system has in memory: made at once, on the event loop.

A read that goes to a worker and back costs more than the read itself, if the page cache has it. So
the places of packets in runs that were read before are remembered, and the system is asked for the
bytes under the condition that it need not wait for the disk. If anything is missing, or not as it
should be, the answer is None, and the read takes the long way over index and worker. The event loop
owns all of this.
"""

from dataclasses import dataclass

from magnetar.bookie.engine.range_cache import RangeCache
from magnetar.bookie.entry_logs.entry_log import RunHead, StoredRun
from magnetar.bookie.entry_logs.open_files import OpenFiles
from magnetar.bookie.entry_logs.packet_run import stop_within
from magnetar.bookie.entry_logs.packet_span import check_span, span_of
from magnetar.ledger.ports import File

_READ_BYTES_MAX = 64 << 10
"""Copying and checking this much takes about 20 us; what is larger goes to the worker."""
_FILES_MAX = 32
_OVERHEAD_BYTES = 960
"""The objects and the places in the cache's tables, as measured."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """Where the packets of a run lie; only the ids from `first` to `last` count."""

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
    """Heads of runs, and open files, for reads without a worker."""

    def __init__(self, bytes_max: int) -> None:
        self._known: RangeCache[KnownRun] = RangeCache(bytes_max)
        self._files = OpenFiles(_FILES_MAX)

    @property
    def size_bytes(self) -> int:
        """Memory in use for the heads."""
        return self._known.size_bytes

    def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """The packets of `first`, `first + 1`, ... of one run, at least one; None: not this way."""
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
        # Damage goes the long way too, which can tell of it.
        packets, damaged = check_span(head, span, data, ledger_id, first)
        return packets if packets and not damaged else None

    def lacks_file(self, log_id: int) -> bool:
        """Whether `learn` should be given an open file of the log."""
        return log_id not in self._files

    def learn(self, known: KnownRun, file: File | None) -> None:
        """Remember where the packets of a run lie; the file belongs to us from now on."""
        self._known.put(known.stored.ledger_id, known)
        if file is None:
            return
        self._files.put(known.stored.location.log_id, file)

    def drop(self, ledger_id: int) -> None:
        """Runs of the ledger are elsewhere now, or gone."""
        self._known.drop(ledger_id)

    def forget_log(self, log_id: int) -> None:
        """Close the file of a log that is removed."""
        self._files.forget(log_id)

    def close(self) -> None:
        self._files.close()
