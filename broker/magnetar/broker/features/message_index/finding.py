"""Search for the entry that holds the message with an index: a binary search over the log.

Indexes grow along the log. Entries without an index may lie between: a step that meets such an
entry continues to the next one that has an index.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.features.message_index.lag import EntryFact, fact_of
from magnetar.broker.topic.positions import ListedLog, entries_in, nth_position
from magnetar.ledger.position import Position

READS_MAX: Final = 1_000
"""Reads of one search, at most. A log whose entries all have an index takes one read per
halving."""

_READ_ENTRIES = 500
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexedEntry:
    """An entry found by the index of a message."""

    position: Position
    index: int
    """Index of the entry's last message."""
    messages: int

    def batch_index_of(self, index: int) -> int:
        """Return the place of a message in a batch; -1 for no batch, or another entry's message."""
        place = index - (self.index - self.messages + 1)
        return place if self.messages > 1 and 0 <= place < self.messages else -1


async def find_index(log: ListedLog, index: int) -> IndexedEntry | None:
    """Return the first entry whose last message has this index or a higher one.

    If the message itself was trimmed, that is the next entry. Return None if there is no such
    entry.

    Raises:
        LedgerError: an entry cannot be read now.
        BrokerPersistenceError: the log has too many entries without an index, or was trimmed.
    """
    return await _Search(log, index).run()


class _Search:
    def __init__(self, log: ListedLog, index: int) -> None:
        self._log = log
        self._index = index
        self._reads = 0

    async def run(self) -> IndexedEntry | None:
        low, high = 0, entries_in(self._log)
        best: IndexedEntry | None = None
        while low < high:
            middle = (low + high) // 2
            number, found = await self._next_indexed(middle, high)
            if found is not None and found.index < self._index:
                low = number + 1
            else:
                best = found or best
                high = middle
        return best

    async def _next_indexed(self, at: int, stop: int) -> tuple[int, IndexedEntry | None]:
        """Return number and facts of the first entry with an index, from `at` on, before `stop`."""
        entries_max = 1
        while at < stop:
            start = nth_position(self._log, at)
            self._reads += 1
            if self._reads > READS_MAX:
                raise BrokerPersistenceError(
                    f"the message with index {self._index} was not found by {READS_MAX} reads: "
                    "too many entries of the log have no index"
                )
            first, entries = await self._log.read_range(
                start, entries_max=min(entries_max, stop - at), bytes_max=_READ_BYTES
            )
            if first != start or not entries:
                raise BrokerPersistenceError(
                    f"the log was trimmed at {start} during the search for index {self._index}: "
                    "try again"
                )
            entries_max = _READ_ENTRIES
            for offset, entry in enumerate(entries):
                fact: EntryFact | None = fact_of(entry)
                if fact is not None:
                    position = Position(first.ledger_id, first.entry_id + offset)
                    return at + offset, IndexedEntry(position, fact.index, fact.messages)
            at += len(entries)
        return at, None
