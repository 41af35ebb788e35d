"""Range reads behind the tail, shared by all subscriptions of a topic.

An entry that several subscriptions need soon is read once. A range that was read goes into the
topic's cache, where it stays until all connected subscriptions have passed it, or the pool needs
the room. A subscription that needs an entry of a running read waits for that read. A read ends
where cached or already requested entries begin. There is a task per range read, none per entry or
subscription.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.position import Position


class ReadableLog(Protocol):
    """Interface of a log for dispatch; `ManagedLog` implements it."""

    @property
    def last_confirmed(self) -> Position: ...

    @property
    def terminated(self) -> Position | None:
        """Last entry of a terminated log; None if the log is not terminated."""
        ...

    def first_position(self) -> Position: ...

    def next_position(self, position: Position, /) -> Position: ...

    def entries_between(self, lower: Position, upper: Position, /) -> int: ...

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]: ...


@dataclass(frozen=True, slots=True)
class _Read:
    """A running read of at most these entries. `done` gets what was found."""

    first: Position
    last: Position
    done: asyncio.Future[Run | None]


class RangeReads:
    """Range reads of one topic. Not thread-safe; all methods run on the event loop."""

    def __init__(self, log: ReadableLog, cache: TailCache, settings: BrokerSettings) -> None:
        self._log = log
        self.cache = cache
        self.settings = settings
        self._under_way: list[_Read] = []

    async def read(self, start: Position) -> Run | None:
        """Return the run that holds the confirmed entry at `start`; if that is trimmed, the next
        one.

        None: the log has no more entries.

        Raises:
            LedgerError: as `ManagedLog.read_range`.
        """
        while (run := self.cache.find(start)) is None:
            read = self._covering(start)
            if read is None:
                return await self._read(start)
            run = await asyncio.shield(read.done)
            if run is not None and run.index_of(start) >= 0:
                break  # even if the cache had no room for it
            # The read ended before this entry, failed, or was cancelled: look again.
        return run

    def _covering(self, position: Position) -> _Read | None:
        for read in self._under_way:
            if read.first <= position <= read.last:
                return read
        return None

    async def _read(self, start: Position) -> Run | None:
        last = self._end_of(start)
        read = _Read(start, last, asyncio.get_running_loop().create_future())
        self._under_way.append(read)
        run: Run | None = None
        try:
            first, entries = await self._log.read_range(
                start,
                entries_max=last.entry_id - start.entry_id + 1,
                bytes_max=self.settings.read_ahead_bytes,
            )
            if entries:
                run = Run.of_stored(first.ledger_id, first.entry_id, entries)
                self.cache.insert(run)
            return run
        finally:
            self._under_way.remove(read)
            read.done.set_result(run)

    def _end_of(self, start: Position) -> Position:
        """Return the last entry to read from `start` on."""
        end = start.entry_id + self.settings.read_ahead_entries
        for begin in (self.cache.next_start(start), *(each.first for each in self._under_way)):
            if begin is not None and begin.ledger_id == start.ledger_id and begin > start:
                end = min(end, begin.entry_id)
        return Position(start.ledger_id, end - 1)
