"""Exact number of messages in a backlog. Pure.

It is the difference of the indexes of the backlog's first message and the log's last one, less the
messages acknowledged in between. The whole backlog must lie in one unbroken stretch of indexed
entries, and in few enough pieces to read. Otherwise the number is not known exactly, and no number
is returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.base.entry import messages_of
from magnetar.broker.base.entry_metadata import bare, metadata_in
from magnetar.broker.features.message_index.index_end import IndexEnd
from magnetar.cursors import AckRange, BatchAck, SubscriptionCursor
from magnetar.ledger.position import Position

PIECES_MAX: Final = 64
"""Ranges of single acknowledgements, and partly acknowledged batches, that are read for one
backlog: at most two entries each."""


@dataclass(frozen=True, slots=True)
class EntryFact:
    """Index and messages of a stored entry; neither ever changes."""

    index: int
    """Index of the entry's last message, or of the last message before an entry without any; -1 if
    there is none."""
    messages: int


def fact_of(stored: bytes, messages: int | None = None) -> EntryFact | None:
    """Return the facts about a stored entry; None if it has no index.

    `messages`: messages of the entry, if known.
    """
    found = metadata_in(stored)
    if found is None:
        return None
    count = messages_of(bare(stored)) if messages is None else messages
    return EntryFact(-1 if found.index is None else found.index, count)


@dataclass(frozen=True, slots=True)
class BacklogView:
    """A backlog at one moment."""

    first: Position
    """First entry that is not acknowledged."""
    ranges: Sequence[AckRange]
    """Acknowledged entries after the first one."""
    batches: Sequence[BatchAck]
    """Batches that are partly acknowledged."""
    end: IndexEnd

    def wanted(self) -> Iterator[Position]:
        """Yield the entries whose facts must be known."""
        yield self.first
        for each in self.ranges:
            yield Position(each.ledger_id, each.first_entry_id)
            if each.last_entry_id != each.first_entry_id:
                yield Position(each.ledger_id, each.last_entry_id)
        for batch in self.batches:
            yield Position(batch.ledger_id, batch.entry_id)


def view_of(cursor: SubscriptionCursor, end: IndexEnd) -> BacklogView | None:
    """Return the present backlog of a cursor; None if it is in too many pieces."""
    if cursor.range_count > PIECES_MAX or cursor.batch_count > PIECES_MAX:
        return None
    first = cursor.next_unacked(cursor.mark_delete)
    ranges = [
        each
        for each in cursor.ranges(PIECES_MAX)
        if Position(each.ledger_id, each.first_entry_id) > first
    ]
    return BacklogView(first, ranges, cursor.batches(PIECES_MAX), end)


def count_messages(view: BacklogView, facts: Mapping[Position, EntryFact | None]) -> int | None:
    """Return the unacknowledged messages of a backlog; None if the number is not known exactly.

    `facts`: facts about entries of the log; None for an entry without an index.
    """
    known = {position: facts.get(position) for position in view.wanted()}
    first = known[view.first]
    if first is None:
        return None
    begin = first.index - first.messages + 1
    if begin < view.end.unbroken_since:
        return None
    count = view.end.next - begin
    for each in view.ranges:
        low = known[Position(each.ledger_id, each.first_entry_id)]
        high = known[Position(each.ledger_id, each.last_entry_id)]
        if low is None or high is None:
            return None
        count -= high.index - low.index + low.messages
    for batch in view.batches:
        fact = known[Position(batch.ledger_id, batch.entry_id)]
        if fact is None:
            return None
        still_open = batch.remaining & ((1 << fact.messages) - 1)
        count -= fact.messages - still_open.bit_count()
    return max(0, count)
