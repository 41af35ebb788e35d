"""Entries read for another cluster, in order: skipped, sent, or receipted. Pure.

The mark only moves past an entry when everything before it is done: there are no holes. The
position of the last receipted copy is stored with the mark. After a restart, the next copy names it
as the one before. Both are of one moment.

Source: geo-replication sheet, sections 17 (row 9) and 18.7.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from magnetar.broker.features.replication.source_marks import START
from magnetar.ledger.position import Position


class _Entry(NamedTuple):
    """One pending entry."""

    position: Position
    size: int
    """Bytes that were sent; 0 if the entry was skipped."""
    published_ms: int = 0
    """Publish time by its producer's clock, ms since the epoch; 0 if unknown."""


class SendWindow:
    """The pending entries of one cluster."""

    def __init__(self, *, mark: Position, sent: Position, entries_max: int, bytes_max: int) -> None:
        """Begin a window without pending entries.

        Args:
            mark: position up to which everything is done.
            sent: last copy that the other cluster has receipted; `START` if none.
        """
        self.mark = mark
        self.receipted = sent
        """Last copy that the other cluster has receipted."""
        self.previous = sent
        """Last copy that was sent; the next one names it."""
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._under_way: deque[_Entry] = deque()
        self._sent_entries = 0
        self._sent_bytes = 0
        self._receipted_ms = 0

    @property
    def oldest_published_ms(self) -> int:
        """Publish time of the oldest pending copy, else of the last receipted one; 0 if unknown."""
        return self._under_way[0].published_ms if self._under_way else self._receipted_ms

    @property
    def has_room(self) -> bool:
        """Whether one more entry may be sent. If none is pending, an entry of any size may be."""
        return self._sent_entries < self._entries_max and self._sent_bytes < self._bytes_max

    @property
    def is_empty(self) -> bool:
        """Whether no copy is pending."""
        return not self._sent_entries

    def skip(self, position: Position) -> None:
        """Note that the next entry is not sent."""
        if self._under_way:
            self._under_way.append(_Entry(position, 0))
        else:
            self.mark = position

    def send(self, position: Position, size: int, published_ms: int = 0) -> None:
        """Note that the next entry is sent."""
        self._under_way.append(_Entry(position, size, published_ms))
        self._sent_entries += 1
        self._sent_bytes += size
        self.previous = position

    @property
    def awaited(self) -> Position | None:
        """Copy whose receipt comes next; None if no copy is pending."""
        return self._under_way[0].position if self._under_way else None

    def receipt(self) -> None:
        """Note the receipt of the awaited copy."""
        under_way = self._under_way
        position, size, self._receipted_ms = under_way.popleft()
        self._sent_entries -= 1
        self._sent_bytes -= size
        self.mark = self.receipted = position
        while under_way and not under_way[0].size:
            self.mark = under_way.popleft().position


SENT_LEDGER, SENT_ENTRY = "geo.sent.ledger", "geo.sent.entry"
"""Names under which the cursor stores `receipted`, beside the mark."""


def sent_properties(receipted: Position) -> dict[str, int]:
    """Return the properties that the cursor stores beside the mark."""
    if receipted == START:
        return {}
    return {SENT_LEDGER: receipted.ledger_id, SENT_ENTRY: receipted.entry_id}


def sent_in(properties: Mapping[str, int]) -> Position:
    """Return the last receipted copy that the cursor stores; `START` if there was none."""
    if SENT_LEDGER not in properties:
        return START
    return Position(properties[SENT_LEDGER], properties[SENT_ENTRY])
