"""A subscription's cursor as its dispatcher sees it: what transactions hold back is acknowledged.

It shares the state of the real cursor and changes nothing of how that is saved: a mark-delete
position never moves over a message that is only held back.
"""

from collections.abc import Sequence

from magnetar.broker.features.transactions.pending_acks import PendingAckState
from magnetar.cursors import SubscriptionCursor
from magnetar.ledger.position import Position


class HeldCursor(SubscriptionCursor):
    """A view of a cursor."""

    def __init__(self, cursor: SubscriptionCursor, pending: PendingAckState) -> None:
        super().__init__(cursor.name, cursor._state)
        self._cursor = cursor
        self._pending = pending

    @property
    def is_durable(self) -> bool:
        return self._cursor.is_durable

    @property
    def persisted_mark_delete(self) -> Position | None:
        return self._cursor.persisted_mark_delete

    @property
    def mark_delete(self) -> Position:
        through = self._pending.through()
        mark_delete = self._cursor.mark_delete
        return mark_delete if through is None else max(mark_delete, through)

    @property
    def has_holes(self) -> bool:
        return bool(len(self._pending)) or self._cursor.has_holes

    def is_acked(self, position: Position) -> bool:
        if self._cursor.is_acked(position) or self._pending.holds(position):
            return True
        words = self.remaining_words(position)
        return bool(words) and not any(words)

    def is_untouched(self, ledger_id: int, first: int, last: int) -> bool:
        if len(self._pending) and self._pending.touches(ledger_id, first, last):
            return False
        return self._cursor.is_untouched(ledger_id, first, last)

    def next_unacked(self, position: Position) -> Position:
        through = self._pending.through()
        if through is not None and position < through:
            position = through
        found = self._cursor.next_unacked(position)
        while self._pending.holds(found):
            found = self._cursor.next_unacked(found)
        return found

    def remaining_words(self, position: Position) -> tuple[int, ...]:
        words, held = self._cursor.remaining_words(position), self._pending.words_of(position)
        if not words or not held:
            return words or held
        return tuple(one & other for one, other in zip(words, held, strict=False))

    async def persist(self) -> None:
        await self._cursor.persist()

    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        await self._cursor.reset(position, words)

    async def close(self) -> None:
        await self._cursor.close()

    async def delete(self) -> None:
        await self._cursor.delete()

    def _changed(self) -> None:
        self._cursor._changed()
