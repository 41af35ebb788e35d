"""A view of the storage's memory: both write buffers and the read cache.

The newest data counts: the active buffer before the one being flushed, both before the read cache.
Nothing here awaits, so that one look sees one moment. The event loop owns it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.bookie.engine.read_cache import ReadCache
from magnetar.bookie.engine.write_cache import WriteBuffer
from magnetar.bookie.entry_logs.packet_run import PacketRun
from magnetar.bookie.requests.entry_list import IdSource, run_source


class Looked(NamedTuple):
    """Result of a look for an entry in memory."""

    run: PacketRun | None
    """The run that holds the entry; None if it is not in memory."""
    ceiling: int
    """The next id that must be read neither from this run nor from disk: newer data has it."""
    is_deleted: bool
    """Whether the ledger was deleted, so that its entries in the index do not count."""


class MemoryView:
    """The write buffers and the read cache together."""

    def __init__(self, read_cache: ReadCache) -> None:
        self.active = WriteBuffer()
        self.flushing: WriteBuffer | None = None
        self.read_cache = read_cache
        self.read_cache_hits = 0

    @property
    def buffers(self) -> Sequence[WriteBuffer]:
        """The buffers, newest first."""
        return (self.active,) if self.flushing is None else (self.active, self.flushing)

    def look(self, ledger_id: int, entry_id: int) -> Looked:
        """Look for an entry, in the newest data first."""
        ceiling = 1 << 63
        for buffer in self.buffers:
            found = buffer.find(ledger_id, entry_id)
            if found.ceiling < ceiling:
                ceiling = found.ceiling
            is_deleted = ledger_id in buffer.deleted
            if found.run is not None or is_deleted:
                return Looked(found.run, ceiling, is_deleted)
        cached = self.read_cache.find(ledger_id, entry_id)
        if cached is None:
            return Looked(None, ceiling, False)
        self.read_cache_hits += 1
        return Looked(cached.run, min(ceiling, cached.last + 1), False)

    def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """Return packets `first`, `first + 1`, ... as far as they are in memory; None if `first` is
        not."""
        return self.read_from(self.look(ledger_id, first), ledger_id, first, last, bytes_max)

    def read_from(
        self, looked: Looked, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[bytes] | None:
        """Return packets as `read` does; `looked` is the result of `look` for `first`."""
        run, ceiling, _ = looked
        if run is None:
            return None
        # A careless caller may pass a `last` below `first`: return at least one packet all the
        # same.
        packets = run.take(first, max(first, min(last, ceiling - 1)), bytes_max)
        entry_id = first + len(packets)
        if entry_id > last:
            return packets
        left = bytes_max - sum(map(len, packets))
        while entry_id <= last and left > 0:
            run, ceiling, _ = self.look(ledger_id, entry_id)
            if run is None:
                break
            more = run.take(entry_id, min(last, ceiling - 1), left)
            if len(more[0]) > left:
                break
            packets += more
            entry_id += len(more)
            left -= sum(map(len, more))
        return packets

    def packet(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Return one packet; None if it is not in memory."""
        run, _, _ = self.look(ledger_id, entry_id)
        return None if run is None else run.take(entry_id, entry_id, 0)[0]

    def last_entry_id(self, ledger_id: int) -> tuple[int, bool]:
        """Return the highest entry in the buffers, -1 if none, and whether the ledger was deleted.

        If it was deleted, data older than the buffers does not count.
        """
        entry_id = -1
        for buffer in self.buffers:
            entry_id = max(entry_id, buffer.last_entry_id(ledger_id))
            if ledger_id in buffer.deleted:
                return entry_id, True
        return entry_id, False

    def id_sources(self, ledger_id: int, first: int) -> tuple[list[IdSource], bool]:
        """Return the ids from `first` on in the buffers, and whether the ledger was deleted.

        If it was deleted, data older than the buffers does not count.
        """
        sources: list[IdSource] = []
        for buffer in self.buffers:
            runs = buffer.ledgers.get(ledger_id)
            if runs is not None:
                sources += [run_source(run) for run in runs.runs if run.last >= first]
            if ledger_id in buffer.deleted:
                return sources, True
        return sources, False
