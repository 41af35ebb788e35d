"""A compacted ledger for reading: entries by the positions that they have in the topic.

It is opened when somebody reads. A place in it is found by binary search; who reads on goes on
without one, because where each read ended is remembered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from magnetar.broker.features.compaction.record import NO_LEDGER, CompactionRecord, unpack
from magnetar.ledger.position import Position

_PLACES_MAX = 4096


class StoredEntries(Protocol):
    """A closed ledger; `LedgerReader` is one."""

    @property
    def last_add_confirmed(self) -> int: ...

    async def read(self, first: int, last: int, *, bytes_max: int = ...) -> list[bytes]: ...


class CompactedLedger:
    """What is left of a topic up to its horizon."""

    def __init__(
        self, record: CompactionRecord, open_ledger: Callable[[int], Awaitable[StoredEntries]]
    ) -> None:
        self.ledger_id = record.ledger_id
        self.horizon = Position(*record.horizon)
        self._open_ledger = open_ledger
        self._opening = asyncio.Lock()
        self._ledger: StoredEntries | None = None
        self._places: dict[Position, int] = {}
        """Index of the first entry behind a position."""

    async def read_behind(
        self, after: Position, *, entries_max: int, bytes_max: int
    ) -> list[tuple[Position, bytes]]:
        """Entries behind a position of the topic, in order: at least one, or none if there is none.

        Raises:
            LedgerError, UnreadableRecordError: they cannot be read now.
        """
        if self.ledger_id == NO_LEDGER:
            return []
        ledger = await self._opened()
        first = self._places.get(after)
        if first is None:
            first = await self._find(ledger, after)
        last = min(ledger.last_add_confirmed, first + entries_max - 1)
        if first > last:
            return []
        found = [unpack(each) for each in await ledger.read(first, last, bytes_max=bytes_max)]
        self._remember(found[-1][0], first + len(found))
        return found

    async def last(self) -> tuple[Position, bytes] | None:
        """The last entry; None if there is none.

        Raises:
            As `read_behind`.
        """
        if self.ledger_id == NO_LEDGER:
            return None
        ledger = await self._opened()
        end = ledger.last_add_confirmed
        return unpack((await ledger.read(end, end))[0]) if end >= 0 else None

    async def _opened(self) -> StoredEntries:
        async with self._opening:
            if self._ledger is None:
                self._ledger = await self._open_ledger(self.ledger_id)
            return self._ledger

    async def _find(self, ledger: StoredEntries, after: Position) -> int:
        low, high = 0, ledger.last_add_confirmed + 1
        if after < Position(0, 0):
            return 0
        while low < high:
            middle = (low + high) // 2
            position, _ = unpack((await ledger.read(middle, middle, bytes_max=1))[0])
            if position <= after:
                low = middle + 1
            else:
                high = middle
        self._remember(after, low)
        return low

    def _remember(self, after: Position, index: int) -> None:
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        self._places[after] = index
