"""What was read for another cluster, in its order: what was skipped, sent, and receipted. Pure.

The mark only moves over entries of which everything before is done: there are no holes. With it
goes the place of the last copy that was receipted, which the next copy after a restart names as the
one before it. Both are of one moment.

Source: geo-replication sheet, sections 17 (row 9) and 18.7.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from magnetar.broker.features.replication.source_marks import START
from magnetar.ledger.position import Position


class _Entry(NamedTuple):
    """One entry under way."""

    position: Position
    size: int
    """Bytes that were sent; 0: it was skipped."""
    published_ms: int = 0
    """When it was published, by its producer's clock; 0: unknown."""


class SendWindow:
    """The entries under way to one cluster."""

    def __init__(self, *, mark: Position, sent: Position, entries_max: int, bytes_max: int) -> None:
        """
        Args:
            mark: everything up to it is done.
            sent: the last copy that the other side has receipted; `START`: none.
        """
        self.mark = mark
        self.receipted = sent
        """The last copy that the other side has receipted."""
        self.previous = sent
        """The last copy that was sent: the next one names it."""
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._under_way: deque[_Entry] = deque()
        self._sent_entries = 0
        self._sent_bytes = 0
        self._receipted_ms = 0

    @property
    def oldest_published_ms(self) -> int:
        """Publish time of the oldest copy under way, or else of the last that was receipted; 0:
        unknown."""
        return self._under_way[0].published_ms if self._under_way else self._receipted_ms

    @property
    def has_room(self) -> bool:
        """Whether one more entry may be sent. An entry of any size may, if nothing is under way."""
        return self._sent_entries < self._entries_max and self._sent_bytes < self._bytes_max

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._sent_entries

    def skip(self, position: Position) -> None:
        """The entry that comes next is not sent."""
        if self._under_way:
            self._under_way.append(_Entry(position, 0))
        else:
            self.mark = position

    def send(self, position: Position, size: int, published_ms: int = 0) -> None:
        """The entry that comes next is sent."""
        self._under_way.append(_Entry(position, size, published_ms))
        self._sent_entries += 1
        self._sent_bytes += size
        self.previous = position

    @property
    def awaited(self) -> Position | None:
        """The copy whose receipt comes next; None: none is under way."""
        return self._under_way[0].position if self._under_way else None

    def receipt(self) -> None:
        """The copy that is awaited was receipted."""
        under_way = self._under_way
        position, size, self._receipted_ms = under_way.popleft()
        self._sent_entries -= 1
        self._sent_bytes -= size
        self.mark = self.receipted = position
        while under_way and not under_way[0].size:
            self.mark = under_way.popleft().position


SENT_LEDGER, SENT_ENTRY = "geo.sent.ledger", "geo.sent.entry"
"""Names under which the cursor keeps `receipted`, beside the mark."""


def sent_properties(receipted: Position) -> dict[str, int]:
    """What the cursor keeps beside the mark."""
    if receipted == START:
        return {}
    return {SENT_LEDGER: receipted.ledger_id, SENT_ENTRY: receipted.entry_id}


def sent_in(properties: Mapping[str, int]) -> Position:
    """The last copy that was receipted, as the cursor says it; `START`: none was."""
    if SENT_LEDGER not in properties:
        return START
    return Position(properties[SENT_LEDGER], properties[SENT_ENTRY])
