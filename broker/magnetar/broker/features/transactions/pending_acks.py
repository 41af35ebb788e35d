"""Acknowledgements in transactions that have not ended: the core, for one subscription. Pure.

Until its transaction ends, such an acknowledgement holds a message back, as if it were
acknowledged: no consumer gets it, and no other transaction may acknowledge it. A commit applies the
acknowledgement, an abort gives the message back. The subscription's dispatcher uses `HeldCursor` as
its cursor, where messages held back are acknowledged. The real cursor is saved as before: a
mark-delete position never moves over a message that is only held back.

ack_set words are those of the wire: 64 messages each, bit 1 = still open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from magnetar.broker.features.transactions.errors import TransactionConflictError
from magnetar.broker.features.transactions.ids import EndedTransactions, TransactionId
from magnetar.cursors import BATCH_SIZE_MAX, SubscriptionCursor, bits_from_words
from magnetar.ledger.position import Position

_WORDS_PER_ACK = 64
"""Words of an ack_set that count as one more acknowledgement: they take as much memory."""

Words = tuple[int, ...]
"""Words of an ack_set; () is the whole entry."""


class Ack(NamedTuple):
    """One acknowledgement of an entry, or of messages in it."""

    position: Position
    words: Words = ()
    batch_size: int = 0
    """Messages in the entry, if the client sent the number and acknowledges a part; else 0."""


@dataclass(slots=True)
class PendingAcks:
    """Acknowledgements of one transaction."""

    individual: dict[Position, Ack] = field(default_factory=dict)
    cumulative: Ack | None = None
    is_ending: bool = False
    """Whether they are being applied: one more would be answered, and then be forgotten."""


class PendingAckState:
    """Acknowledgements of all open transactions on a subscription."""

    def __init__(self) -> None:
        self.transactions: dict[TransactionId, PendingAcks] = {}
        self.ended = EndedTransactions()
        self._holders: dict[Position, list[tuple[TransactionId, Ack]]] = {}
        self._words = 0
        """Words of all individual acknowledgements that are held."""

    def __len__(self) -> int:
        return len(self._holders) + (self.cumulative is not None)

    @property
    def weight(self) -> int:
        """Number that the limit applies to: acknowledged entries, plus more for long ack_sets."""
        return len(self) + self._words // _WORDS_PER_ACK

    @property
    def cumulative(self) -> tuple[TransactionId, Ack] | None:
        """The transaction that acknowledges cumulatively, and up to where; there is never a
        second."""
        for txn, pending in self.transactions.items():
            if pending.cumulative is not None:
                return txn, pending.cumulative
        return None

    # Checking

    def check(self, txn: TransactionId, ack: Ack, cursor: SubscriptionCursor) -> None:
        """Check that a transaction may acknowledge an entry, or messages in it.

        Raises:
            TransactionConflictError
        """
        position, words, _ = ack
        if cursor.is_acked(position):
            raise TransactionConflictError(f"{position} is acknowledged already")
        is_open = cursor.remaining_words(position)
        if words and is_open and _indexes(ack) & ~bits_from_words(is_open):
            raise TransactionConflictError(f"messages of {position} are acknowledged already")
        for holder, held in self._holders.get(position, ()):
            if holder == txn:
                # The same message, delivered twice. A client that has processed both copies in one
                # transaction must not commit both. So a repeated acknowledgement fails as well.
                if _repeats(ack, held):
                    raise _acked_before(position, txn)
            elif not words or not held.words or _indexes(ack) & _indexes(held):
                raise TransactionConflictError(
                    f"{position} is acknowledged by transaction {holder}, which has not ended"
                )
        found = self.cumulative
        if found is None or position > found[1].position:
            return
        if found[0] != txn:
            raise TransactionConflictError(
                f"transaction {found[0]}, which has not ended, acknowledges through "
                f"{found[1].position}"
            )
        if _is_covered(ack, found[1]):
            raise _acked_before(position, txn)

    def check_cumulative(self, txn: TransactionId, ack: Ack, cursor: SubscriptionCursor) -> None:
        """Check that no other open transaction holds a cumulative acknowledgement.

        Raises:
            TransactionConflictError
        """
        found = self.cumulative
        if found is not None and found[0] != txn:
            raise TransactionConflictError(
                f"transaction {found[0]}, which has not ended, acknowledges through "
                f"{found[1].position}"
            )
        if found is not None and _is_covered(ack, found[1]):
            raise _acked_before(ack.position, txn)
        if ack.position <= cursor.mark_delete:
            raise TransactionConflictError(f"{ack.position} is acknowledged already")
        for position, holders in self._holders.items():
            other = next((holder for holder, _ in holders if holder != txn), None)
            if other is not None and position <= ack.position:
                raise TransactionConflictError(
                    f"{position} is acknowledged by transaction {other}, which has not ended"
                )

    # Changes

    def add(self, txn: TransactionId, acks: Sequence[Ack]) -> None:
        pending = self.transactions.setdefault(txn, PendingAcks())
        for ack in acks:
            before = pending.individual.get(ack.position)
            if before is not None:
                ack = _merged(before, ack)
                holders = self._holders[ack.position]
                holders[:] = [each for each in holders if each[0] != txn]
                self._words -= len(before.words)
            self._words += len(ack.words)
            pending.individual[ack.position] = ack
            self._holders.setdefault(ack.position, []).append((txn, ack))

    def add_cumulative(self, txn: TransactionId, ack: Ack) -> None:
        pending = self.transactions.setdefault(txn, PendingAcks())
        before = pending.cumulative
        if before is None or before.position <= ack.position:
            pending.cumulative = ack

    def end(self, txn: TransactionId) -> PendingAcks:
        """Remove a transaction; return what it held."""
        pending = self.transactions.pop(txn, None) or PendingAcks()
        for position, ack in pending.individual.items():
            self._words -= len(ack.words)
            holders = self._holders[position]
            holders[:] = [each for each in holders if each[0] != txn]
            if not holders:
                del self._holders[position]
        return pending

    # Questions

    def holds(self, position: Position) -> bool:
        """Whether one transaction holds back the entry as a whole."""
        if any(not held.words for _, held in self._holders.get(position, ())):
            return True
        found = self.cumulative
        if found is None:
            return False
        ack = found[1]
        return position < ack.position or (position == ack.position and not ack.words)

    def through(self) -> Position | None:
        """Return the position up to which everything is held back, or None."""
        found = self.cumulative
        if found is None:
            return None
        position, words, _ = found[1]
        return Position(position.ledger_id, position.entry_id - 1) if words else position

    def words_of(self, position: Position) -> Words:
        """Return the messages of the entry that no transaction holds back; () is all of them."""
        words: Words = ()
        for _, held in self._holders.get(position, ()):
            words = _both(words, held.words)
        found = self.cumulative
        if found is not None and found[1].position == position:
            words = _both(words, found[1].words)
        return words

    def touches(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether anything of the range may be held back."""
        through = self.cumulative
        if through is not None and Position(ledger_id, first) <= through[1].position:
            return True
        holders = self._holders
        if len(holders) <= last - first:
            return any(
                each.ledger_id == ledger_id and first <= each.entry_id <= last for each in holders
            )
        return any(Position(ledger_id, each) in holders for each in range(first, last + 1))

    # Snapshots

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
        open_ones = [
            [
                txn.most,
                txn.least,
                [dump_ack(each) for each in pending.individual.values()],
                None if pending.cumulative is None else dump_ack(pending.cumulative),
            ]
            for txn, pending in self.transactions.items()
        ]
        return {"open": open_ones, "ended": self.ended.dump()}

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> "PendingAckState":
        self = cls()
        self.ended = EndedTransactions.load(stored["ended"])
        for most, least, individual, cumulative in stored["open"]:
            txn = TransactionId(most, least)
            if txn in self.ended:
                continue  # Its end precedes this snapshot in the log.
            self.add(txn, [load_ack(each) for each in individual])
            if cumulative is not None:
                self.add_cumulative(txn, load_ack(cumulative))
        return self


def dump_ack(ack: Ack) -> list[Any]:
    """Return an acknowledgement as JSON: ledger, entry, words, batch size."""
    return [*ack.position, list(ack.words), ack.batch_size]


def load_ack(stored: Sequence[Any]) -> Ack:
    ledger_id, entry_id, words, batch_size = stored
    return Ack(Position(ledger_id, entry_id), tuple(words), batch_size)


def weight_of(acks: Sequence[Ack]) -> int:
    """Return what acknowledgements add to `PendingAckState.weight`."""
    return len(acks) + sum(len(each.words) for each in acks) // _WORDS_PER_ACK


def _indexes(ack: Ack) -> int:
    """Return the acknowledged messages of a batch as bits. Without a batch size from the client,
    those behind the last open one cannot be known."""
    is_open = bits_from_words(ack.words)
    size = min(ack.batch_size, BATCH_SIZE_MAX) or is_open.bit_length()
    return ~is_open & ((1 << size) - 1)


def _repeats(ack: Ack, held: Ack) -> bool:
    """Whether an acknowledgement adds nothing to another one of the same entry."""
    return not held.words or (bool(ack.words) and not _indexes(ack) & ~_indexes(held))


def _is_covered(ack: Ack, cumulative: Ack) -> bool:
    """Whether an acknowledgement adds nothing to a cumulative one."""
    if ack.position == cumulative.position:
        return _repeats(ack, cumulative)
    return ack.position < cumulative.position


def _acked_before(position: Position, txn: TransactionId) -> TransactionConflictError:
    return TransactionConflictError(f"{position}: transaction {txn} has acknowledged it before")


def repeated_in(acks: Sequence[Ack]) -> Position | None:
    """Return the first entry that one request acknowledges again without adding anything, or
    None."""
    seen: dict[Position, Ack] = {}
    for ack in acks:
        before = seen.get(ack.position)
        if before is not None and _repeats(ack, before):
            return ack.position
        seen[ack.position] = ack if before is None else _merged(before, ack)
    return None


def _both(one: Words, other: Words) -> Words:
    """Return what is open in both; words that are missing at the end have nothing open."""
    if not one or not other:
        return one or other
    return tuple(a & b for a, b in zip(one, other, strict=False))


def _merged(before: Ack, ack: Ack) -> Ack:
    if not before.words or not ack.words:
        return Ack(ack.position)
    return Ack(ack.position, _both(before.words, ack.words), max(before.batch_size, ack.batch_size))


def load_all(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, PendingAckState]:
    """Return the state of each subscription in a snapshot."""
    return {name: PendingAckState.load(each) for name, each in stored.items()}


class HeldCursor(SubscriptionCursor):
    """View of a cursor in which messages that transactions hold back are acknowledged."""

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
        while self.is_acked(found):
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
