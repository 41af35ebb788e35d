"""Reads of flushed entries, as the event loop sees them.

Reads that need not wait are made at once (`HotReads`), all others by a read worker. The caller has
looked into the write buffers before: their data is newer.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from magnetar.bookie.engine.hot_reads import HotReads
from magnetar.bookie.engine.read_cache import ReadCache
from magnetar.bookie.engine.read_lanes import ReadLanes
from magnetar.bookie.engine.run_reader import Loaded, RunReader, Wanted
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import StorageBusyError, StorageIOError

_SEQUENTIAL_LEDGERS_MAX = 4096
"""Ledgers whose last read is remembered, to tell reads in order from random reads."""
_HEADS_SHARE = 8
"""One part in 8 of the read cache's bytes is for heads of runs, the rest for whole runs."""

T = TypeVar("T")


class StoredReads:
    """The read cache, and the reads on workers. The event loop owns it."""

    def __init__(self, *, cache_bytes: int, pending_max: int) -> None:
        self.on_damage: Callable[[Damage], None] = _ignore
        heads_bytes = cache_bytes // _HEADS_SHARE
        self.cache = ReadCache(cache_bytes - heads_bytes)
        self._hot = HotReads(heads_bytes)
        self._next_reads: OrderedDict[int, int] = OrderedDict()
        self._pending_max = pending_max
        self._pending = 0
        self._age = 0
        """Grows when results of running reads must not be cached any more."""

    @property
    def size_bytes(self) -> int:
        """Bytes of memory used for runs and heads."""
        return self.cache.size_bytes + self._hot.size_bytes

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """Return packets that need no wait for the disk; None if a worker must read."""
        if self._next_reads.get(ledger_id) == first:
            return None  # in order: the whole run will be needed
        packets = self._hot.read(ledger_id, first, last, bytes_max)
        if packets is not None:
            self._note_read(ledger_id, first + len(packets))
        return packets

    async def read(
        self, lanes: ReadLanes, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[bytes] | None:
        """Return packets of one run; None if `first` is certainly not in the index.

        Raises:
            StorageBusyError: too many reads are waiting; this one was not begun.
            StorageIOError: the answer is in doubt.
        """
        wanted = Wanted(ledger_id, first, last, bytes_max, self._is_sequential(ledger_id, first))
        age = self._age
        lacks_file = self._hot.lacks_file
        loaded = await self.run(lanes, lambda reader: reader.read(wanted, lacks_file))
        if loaded is None:
            return None
        self._on_loaded(wanted, loaded, is_current=age == self._age)
        return loaded.packets

    async def run(self, lanes: ReadLanes, call: Callable[[RunReader], T]) -> T:
        """Run a read on a worker; limit the number of waiting reads, and report the damage they
        find.

        Raises:
            StorageBusyError: too many reads are waiting; this one was not begun.
            StorageIOError: the call failed.
        """
        if self._pending >= self._pending_max:
            raise StorageBusyError(
                f"{self._pending} reads wait for the disk, which is the limit: try again later"
            )
        self._pending += 1
        try:
            return await lanes.run(call)
        except StorageIOError as error:
            if error.damage is not None:
                self.on_damage(error.damage)
            raise
        finally:
            self._pending -= 1

    def forget_read(self, ledger_id: int) -> None:
        """Drop the ledger's cached runs, and do not cache running reads."""
        self.cache.drop(ledger_id)
        self.forget_places((ledger_id,))

    def forget_ledger(self, ledger_id: int) -> None:
        """Forget a deleted ledger."""
        self._next_reads.pop(ledger_id, None)
        self.forget_read(ledger_id)

    def forget_places(self, ledger_ids: Iterable[int]) -> None:
        """Forget the places of moved runs of these ledgers; their cached packets stay valid."""
        for ledger_id in ledger_ids:
            self._hot.drop(ledger_id)
        self._age += 1

    def forget_log(self, log_id: int) -> None:
        """Close the file of a removed log."""
        self._hot.forget_log(log_id)
        self._age += 1

    def close(self) -> None:
        self._age += 1
        self._hot.close()

    def _is_sequential(self, ledger_id: int, first: int) -> bool:
        return (
            self._next_reads.get(ledger_id) == first
            or self.cache.find(ledger_id, first - 1) is not None
        )

    def _on_loaded(self, wanted: Wanted, loaded: Loaded, *, is_current: bool) -> None:
        if loaded.damage is not None:
            self.on_damage(loaded.damage)
        if not is_current:
            if loaded.file is not None:
                loaded.file.close()
        elif loaded.run is not None:
            self.cache.put(wanted.ledger_id, loaded.run)
        elif loaded.known is not None:
            self._hot.learn(loaded.known, loaded.file)
        self._note_read(wanted.ledger_id, wanted.first + len(loaded.packets))

    def _note_read(self, ledger_id: int, next_id: int) -> None:
        next_reads = self._next_reads
        next_reads[ledger_id] = next_id
        next_reads.move_to_end(ledger_id)
        if len(next_reads) > _SEQUENTIAL_LEDGERS_MAX:
            next_reads.popitem(last=False)


def _ignore(damage: Damage) -> None:
    """Do nothing, while no listener is set."""
