"""Reads behind the tail, for all subscriptions of a topic: an entry that several of them want soon
is read once.

A range that was read goes into the topic's cache, where it stays until everybody who is connected
has passed it, or the pool needs the room. Who wants an entry that is just being read waits for that
read, and a read ends where something begins that is there or under way already. There is a task per
range read, none per entry or subscription.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.position import Position


class ReadableLog(Protocol):
    """What dispatch needs of a log; `ManagedLog` is one."""

    @property
    def last_confirmed(self) -> Position: ...

    @property
    def terminated(self) -> Position | None:
        """The last entry of a log that takes no more; None while it does."""
        ...

    def first_position(self) -> Position: ...

    def next_position(self, position: Position, /) -> Position: ...

    def entries_between(self, lower: Position, upper: Position, /) -> int: ...

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]: ...


@dataclass(frozen=True, slots=True)
class _Read:
    """One that is under way: of at most these entries. `done` has what was found."""

    first: Position
    last: Position
    done: asyncio.Future[Run | None]


class RangeReads:
    """Reads of one topic. Not thread safe; everything happens on the event loop."""

    def __init__(self, log: ReadableLog, cache: TailCache, settings: BrokerSettings) -> None:
        self._log = log
        self.cache = cache
        self.settings = settings
        self._under_way: list[_Read] = []

    async def read(self, start: Position) -> Run | None:
        """The run that holds the confirmed entry at `start`, or what comes next if that is gone.

        None: there is nothing any more.

        Raises:
            LedgerError: as `ManagedLog.read_range`.
        """
        while (run := self.cache.find(start)) is None:
            read = self._covering(start)
            if read is None:
                return await self._read(start)
            run = await asyncio.shield(read.done)
            if run is not None and run.index_of(start) >= 0:
                break  # whether or not the cache had room for it
            # It ended before this entry, failed, or was given up: look again.
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
        """The last entry to read from here on."""
        end = start.entry_id + self.settings.read_ahead_entries
        for begin in (self.cache.next_start(start), *(each.first for each in self._under_way)):
            if begin is not None and begin.ledger_id == start.ledger_id and begin > start:
                end = min(end, begin.entry_id)
        return Position(start.ledger_id, end - 1)
