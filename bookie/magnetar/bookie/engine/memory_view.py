"""What the memory of the storage says about entries: both write buffers and the read cache.

The newest word counts: the active buffer before the one being flushed, both before the read cache.
Nothing here waits or gives control away, so that one look sees one moment. The event loop owns it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.bookie.engine.read_cache import ReadCache
from magnetar.bookie.engine.write_cache import WriteBuffer
from magnetar.bookie.entry_logs.packet_run import PacketRun
from magnetar.bookie.requests.entry_list import IdSource, run_source


class Looked(NamedTuple):
    """What memory says about an entry."""

    run: PacketRun | None
    """The run to read it from; None if it is not in memory."""
    ceiling: int
    """The first id behind it that must not be read from there, or from disk: newer data has it."""
    is_deleted: bool
    """The ledger was deleted: what the index has of it does not count."""


class MemoryView:
    """The buffers and the cache, side by side."""

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
        """Look for an entry, newest first."""
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
        """Packets of `first`, `first + 1`, ... as far as they are here; None if `first` is not."""
        return self.read_from(self.look(ledger_id, first), ledger_id, first, last, bytes_max)

    def read_from(
        self, looked: Looked, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[bytes] | None:
        """Packets as `read` gives them; `looked` is what `look` has just said about `first`."""
        run, ceiling, _ = looked
        if run is None:
            return None
        # A `last` below `first` comes from a careless caller: at least one packet, all the same.
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
        """One packet; None if it is not here."""
        run, _, _ = self.look(ledger_id, entry_id)
        return None if run is None else run.take(entry_id, entry_id, 0)[0]

    def last_entry_id(self, ledger_id: int) -> tuple[int, bool]:
        """The highest entry in the buffers, -1 if none; and whether the ledger was deleted: then
        what is older than the buffers does not count."""
        entry_id = -1
        for buffer in self.buffers:
            entry_id = max(entry_id, buffer.last_entry_id(ledger_id))
            if ledger_id in buffer.deleted:
                return entry_id, True
        return entry_id, False

    def id_sources(self, ledger_id: int, first: int) -> tuple[list[IdSource], bool]:
        """The ids from `first` on in the buffers; and whether the ledger was deleted, as above."""
        sources: list[IdSource] = []
        for buffer in self.buffers:
            runs = buffer.ledgers.get(ledger_id)
            if runs is not None:
                sources += [run_source(run) for run in runs.runs if run.last >= first]
            if ledger_id in buffer.deleted:
                return sources, True
        return sources, False
