"""The acknowledgements of a subscription: the pure core of a cursor.

Everything at or before the *mark-delete position* is acknowledged. Above it are individually
acknowledged entries and, for partly acknowledged batches, a bit set of the batch indexes that are
still open. Acknowledging the entry that follows the mark-delete position moves it over all entries
connected to it, across ledger borders and empty ledgers.

Invariants:
- the entry right after the mark-delete position is not acknowledged;
- an acknowledged entry has no bit set, and a bit set is never empty;
- the mark-delete position moves back only by `reset`;
- (L, last) and (next ledger, -1) mean the same (rule 4.1 of the managed ledger). Either may be the
  mark-delete position: compare it through `is_acked`, `is_caught_up` or the log's arithmetic.

Acknowledgements of entries that do not exist (never written, trimmed away) are ignored: they would
make the backlog wrong for ever. No I/O, no clock, no logging here.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from magnetar.cursors.entry_set import EntrySet
from magnetar.ledger.position import Position

_U64_MASK = (1 << 64) - 1

BATCH_SIZE_MAX = 1 << 20
"""Most messages that an entry can have, whatever a client claims."""

WORDS_MAX = BATCH_SIZE_MAX // 64
"""Most words of an ack_set."""

# How far ahead to probe for the end of a closed ledger: one request to the log then serves this
# many later acknowledgements.
_PROBE_ENTRIES = 1024


class LogShape(Protocol):
    """The existing positions of a log, as cursors need them; `ManagedLog` implements it."""

    @property
    def last_confirmed(self) -> Position:
        """The last readable entry; (ledger, -1) if there is none."""
        ...

    def first_position(self) -> Position:
        """Return the first existing entry, or the next append if the log is empty."""
        ...

    def next_position(self, position: Position, /) -> Position:
        """Return the entry after `position`, past empty ledgers; at the end, the next append."""
        ...

    def entries_between(self, after: Position, through: Position, /) -> int:
        """Return the number of entries in (after, through]."""
        ...


class AckRange(NamedTuple):
    """Consecutive acknowledged entries of one ledger, both ends included."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


class BatchAck(NamedTuple):
    """A partly acknowledged batch. Bit i of `remaining` is set if batch index i is still open."""

    ledger_id: int
    entry_id: int
    remaining: int


@dataclass(frozen=True, slots=True)
class AckSnapshot:
    """A copy of the state, with ranges and batches in log order.

    `ranges_dropped` and `batches_dropped` count the ones that exceeded the limits of the snapshot.
    Their messages are delivered again if this snapshot is ever restored.
    """

    mark_delete: Position
    ranges: tuple[AckRange, ...] = ()
    batches: tuple[BatchAck, ...] = ()
    ranges_dropped: int = 0
    batches_dropped: int = 0


def bits_from_words(words: Sequence[int]) -> int:
    """Join ack_set words (int64, word 0 first) to one unsigned bit set."""
    unsigned = [word & _U64_MASK for word in words]
    return int.from_bytes(struct.pack(f"<{len(unsigned)}Q", *unsigned), "little")


def words_from_bits(bits: int) -> tuple[int, ...]:
    """Split a bit set into ack_set words (int64, word 0 first), without trailing zero words."""
    count = (bits.bit_length() + 63) // 64
    return struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little"))


def _bytes_of(bits: int) -> int:
    return (bits.bit_length() + 7) // 8


class AckState:
    """Acknowledgements of one subscription on one log. One owner, no locking, not thread safe."""

    __slots__ = (
        "_acked",
        "_batch_bytes",
        "_batches",
        "_individual_count",
        "_known_last",
        "_mark",
        "_shape",
    )

    def __init__(self, shape: LogShape, mark_delete: Position) -> None:
        """Start with everything through `mark_delete` acknowledged.

        A position that does not exist (any more) counts as the nearest later one, and one beyond
        the end of the log as the end.
        """
        self._shape = shape
        self._acked: dict[int, EntrySet] = {}  # by ledger; no empty sets
        self._batches: dict[int, dict[int, int]] = {}  # ledger -> entry -> remaining bits
        self._batch_bytes = 0
        self._individual_count = 0
        self._known_last: dict[int, int] = {}  # ledger -> id of an entry known to exist
        self._mark = self._mark_through(mark_delete)

    # Reading

    @property
    def mark_delete(self) -> Position:
        """The mark-delete position: everything at or before it is acknowledged."""
        return self._mark

    @property
    def individual_count(self) -> int:
        """Number of acknowledged entries above the mark-delete position."""
        return self._individual_count

    @property
    def batch_count(self) -> int:
        """Number of partly acknowledged batches."""
        return sum(map(len, self._batches.values()))

    @property
    def batch_bytes(self) -> int:
        """Bytes of the bit sets of all partly acknowledged batches."""
        return self._batch_bytes

    @property
    def range_count(self) -> int:
        """Runs of acknowledged entries above the mark-delete position. O(entries / 1024)."""
        return sum(entries.run_count() for entries in self._acked.values())

    @property
    def has_holes(self) -> bool:
        """Whether entries above the mark-delete position need filtering on dispatch."""
        return bool(self._acked or self._batches)

    @property
    def backlog_entries(self) -> int:
        """Number of entries not yet acknowledged, partly acknowledged batches included."""
        self._follow_trimming()
        last = self._shape.last_confirmed
        if self._mark >= last:
            return 0
        return self._shape.entries_between(self._mark, last) - self._individual_count

    @property
    def is_caught_up(self) -> bool:
        """Whether every entry of the log is acknowledged."""
        return self._shape.next_position(self._mark) > self._shape.last_confirmed

    def is_acked(self, position: Position) -> bool:
        """Return whether the entry is acknowledged as a whole."""
        if position <= self._mark:
            return True
        entries = self._acked.get(position[0])
        return entries is not None and position[1] in entries

    def is_untouched(self, ledger_id: int, first: int, last: int) -> bool:
        """Return whether no entry from `first` to `last` of a ledger is acknowledged, even in part.

        False may also mean that it would take too long to find out.
        """
        if (ledger_id, first) <= self._mark or self._batches.get(ledger_id):
            return False
        entries = self._acked.get(ledger_id)
        return entries is None or entries.is_disjoint(first, last)

    def next_unacked(self, position: Position) -> Position:
        """Return the first entry after `position` that is not acknowledged.

        At the end of the log that is the next append. Skips 1024 acknowledged entries at a time.
        """
        following = self._shape.next_position(max(position, self._mark))
        while (entries := self._acked.get(following.ledger_id)) is not None:
            absent = entries.first_absent(following.entry_id)
            if absent == following.entry_id:
                break
            following = self._shape.next_position(Position(following.ledger_id, absent - 1))
        return following

    def remaining_words(self, position: Position) -> tuple[int, ...]:
        """Return ack_set words of the open batch indexes; () if none was acknowledged by index."""
        bits = self.remaining_bits(position)
        return words_from_bits(bits) if bits else ()

    def remaining_bits(self, position: Position) -> int:
        """Return the open batch indexes as bits; 0 if none was acknowledged by index."""
        batches = self._batches.get(position[0])
        return batches.get(position[1], 0) if batches else 0

    # Acknowledging

    def ack(self, position: Position) -> bool:
        """Acknowledge one entry. Return False if it was acknowledged already, or does not exist."""
        ledger_id, entry_id = position
        mark = self._mark
        if position <= mark or not self._exists(position):
            return False
        if self._batches:
            self._drop_batch(ledger_id, entry_id)
        if ledger_id == mark[0] and entry_id == mark[1] + 1:
            self._mark = Position(ledger_id, entry_id)
            if self._acked:
                self._advance()
            return True
        entries = self._acked.get(ledger_id)
        if entries is None:
            entries = self._acked[ledger_id] = EntrySet()
        if not entries.add(entry_id):
            return False
        self._individual_count += 1
        if entry_id == 0:  # may follow the mark-delete position across a ledger border
            self._advance()
        return True

    def ack_many(self, positions: Iterable[Position]) -> int:
        """Acknowledge entries; return the number of new ones."""
        return sum(map(self.ack, positions))

    def ack_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> int:
        """Acknowledge the existing entries of a range of one ledger; return how many were new."""
        if ledger_id == self._mark.ledger_id:
            first_entry_id = max(first_entry_id, self._mark.entry_id + 1)
        first_entry_id = max(first_entry_id, 0)
        if (
            ledger_id < self._mark.ledger_id
            or first_entry_id > last_entry_id
            or not self._exists(Position(ledger_id, first_entry_id))
        ):
            return 0
        last_entry_id = self._last_existing(ledger_id, first_entry_id, last_entry_id)
        entries = self._acked.setdefault(ledger_id, EntrySet())
        added = entries.add_range(first_entry_id, last_entry_id)
        self._individual_count += added
        self._drop_batches(ledger_id, first_entry_id, last_entry_id)
        self._advance()
        return added

    def ack_cumulative(
        self, position: Position, words: Sequence[int] = (), batch_size: int = 0
    ) -> bool:
        """Acknowledge everything through `position`; return False if that changed nothing.

        With ack_set words: acknowledge everything before the entry, and in the entry the indexes
        whose bit is 0. A position beyond the last confirmed entry is ignored: such an entry was
        never delivered.
        """
        if position <= self._mark or position > self._shape.last_confirmed:
            return False
        if not words:
            exists = self._exists(position)
            return self._move_mark(position if exists else self._mark_through(position))
        moved = self._move_mark(self._mark_before(position))
        before = self.remaining_words(position)
        acked = self.ack_batch(position, words, batch_size)
        return moved or acked or before != self.remaining_words(position)

    def ack_batch(
        self,
        position: Position,
        words: Sequence[int],
        batch_size: int = 0,
        *,
        batch_bytes_max: int | None = None,
    ) -> bool:
        """Acknowledge batch indexes of one entry; return whether the whole entry is acknowledged.

        `words` are ack_set words, bit 1 = still open; they are AND-ed with the stored ones.
        `batch_size` is the number of messages in the entry; bits beyond it are ignored. If it is 0
        (unknown), the first words are taken as they are, up to the most messages of an entry.

        `batch_bytes_max`: ignore the indexes if the entry has no bit set yet, and those of other
        entries have that many bytes already.
        """
        if self.is_acked(position):
            return True
        if not self._exists(position):
            return False
        ledger_id, entry_id = position
        remaining = bits_from_words(words[:WORDS_MAX])  # a client may send millions
        if 0 < batch_size < remaining.bit_length():  # a client may send any size
            remaining &= (1 << batch_size) - 1
        batches = self._batches.get(ledger_id)
        stored = batches.get(entry_id) if batches else None
        if stored is not None:
            remaining &= stored
        if not remaining:
            return self.ack(position)
        if stored is None and batch_bytes_max is not None and self._batch_bytes >= batch_bytes_max:
            return False
        if batches is None:
            batches = self._batches[ledger_id] = {}
        batches[entry_id] = remaining
        self._batch_bytes += _bytes_of(remaining) - _bytes_of(stored or 0)
        return False

    def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        """Seek: make `position` the next entry to deliver, and discard acknowledgements above it.

        A position that does not exist becomes the next existing one. A position beyond the end
        means the entries written from now on. Words (ack_set) mark passed indexes of the entry.
        """
        self._acked.clear()
        self._batches.clear()
        self._batch_bytes = 0
        self._individual_count = 0
        self._mark = self._mark_before(position)
        if words and self._exists(position):
            self.ack_batch(position, words)

    def move_behind(self, before: Position) -> bool:
        """Move to the place right before `before`, if the position is further back; return whether
        it moved. The entries in between must be acknowledged, or gone."""
        return self._move_mark(Position(before[0], before[1] - 1))

    # Saving and restoring

    def snapshot(
        self, *, ranges_max: int | None = None, batches_max: int | None = None
    ) -> AckSnapshot:
        """Return a copy of the state, without the highest ranges and batches beyond the limits."""
        ranges: list[AckRange] = []
        ranges_dropped = 0
        for ledger_id in sorted(self._acked):
            if len(ranges) == ranges_max:
                break
            for first, last in self._acked[ledger_id].runs():
                if len(ranges) == ranges_max:
                    break
                ranges.append(AckRange(ledger_id, first, last))
        if len(ranges) == ranges_max:
            ranges_dropped = self.range_count - ranges_max
        batches: list[BatchAck] = []
        for ledger_id in sorted(self._batches):
            room = None if batches_max is None else batches_max - len(batches)
            of_ledger = self._batches[ledger_id]
            batches += [
                BatchAck(ledger_id, entry_id, of_ledger[entry_id])
                for entry_id in sorted(of_ledger)[:room]
            ]
        return AckSnapshot(
            self._mark,
            tuple(ranges),
            tuple(batches),
            ranges_dropped,
            self.batch_count - len(batches),
        )

    @classmethod
    def restore(cls, shape: LogShape, snapshot: AckSnapshot) -> "AckState":
        """Return the state of a snapshot on the present log.

        The mark-delete position is clamped to the log. Acknowledgements of entries that no longer
        exist are dropped.
        """
        state = cls(shape, snapshot.mark_delete)
        for ledger_id, first, last in snapshot.ranges:
            state.ack_range(ledger_id, first, last)
        for ledger_id, entry_id, remaining in snapshot.batches:
            position = Position(ledger_id, entry_id)
            if remaining and not state.is_acked(position):
                state.ack_batch(position, words_from_bits(remaining))
        return state

    # Helpers

    def _exists(self, position: Position) -> bool:
        ledger_id, entry_id = position
        if entry_id < 0:
            return False
        if entry_id <= self._known_last.get(ledger_id, -1):
            return True
        last = self._shape.last_confirmed
        if position > last:
            return False
        if ledger_id == last.ledger_id:
            self._known_last[ledger_id] = last.entry_id
            return True
        for known in (entry_id + _PROBE_ENTRIES, entry_id):
            probed = Position(ledger_id, known)
            if self._shape.next_position(Position(ledger_id, known - 1)) == probed:
                self._known_last[ledger_id] = known
                return True
        return False

    def _last_existing(self, ledger_id: int, first: int, last: int) -> int:
        """Return the last existing entry of the ledger in [first, last]; `first` must exist."""
        if self._exists(Position(ledger_id, last)):
            return last
        while last - first > 1:
            middle = (first + last) // 2
            if self._exists(Position(ledger_id, middle)):
                first = middle
            else:
                last = middle
        return first

    def _mark_through(self, position: Position) -> Position:
        """Return the mark-delete position that means "everything at or before `position`"."""
        first = self._shape.first_position()
        if position < first:
            return Position(first.ledger_id, first.entry_id - 1)
        last = self._shape.last_confirmed
        if position >= self._shape.next_position(last):
            return last
        if self._exists(position):
            return Position(*position)
        following = self._shape.next_position(position)
        return Position(following.ledger_id, following.entry_id - 1)

    def _mark_before(self, position: Position) -> Position:
        """Return the mark-delete position that makes `position` the next entry."""
        return self._mark_through(Position(position[0], max(position[1] - 1, -1)))

    def _move_mark(self, mark: Position) -> bool:
        """Move the mark-delete position forward, and drop the acknowledgements that it covers."""
        if mark <= self._mark:
            return False
        crossed = mark.ledger_id != self._mark.ledger_id
        self._mark = mark
        if crossed:
            self._forget_ledgers()
        if mark.entry_id >= 0:
            entries = self._acked.get(mark.ledger_id)
            if entries is not None:
                self._individual_count -= entries.discard_range(0, mark.entry_id)
                if not entries.count:
                    del self._acked[mark.ledger_id]
            self._drop_batches(mark.ledger_id, 0, mark.entry_id)
        self._advance()
        return True

    def _advance(self) -> None:
        """Move the mark-delete position over the acknowledged entries that follow it."""
        ledger_id, entry_id = self._mark
        while self._acked:
            entries = self._acked.get(ledger_id)
            if entries is not None:
                absent = entries.first_absent(entry_id + 1)
                if absent > entry_id + 1:
                    self._individual_count -= entries.discard_range(entry_id + 1, absent - 1)
                    entry_id = absent - 1
                if entries.count:
                    break  # a gap in this ledger
                del self._acked[ledger_id]
            following = self._shape.next_position(Position(ledger_id, entry_id))
            if following.ledger_id == ledger_id or not self.is_acked(following):
                break
            ledger_id, entry_id = following.ledger_id, following.entry_id - 1
        crossed = ledger_id != self._mark.ledger_id
        self._mark = Position(ledger_id, entry_id)
        if crossed:
            self._forget_ledgers()

    def _follow_trimming(self) -> None:
        """Move forward if the ledgers below the mark-delete position are gone: only durable cursors
        hold trimming back."""
        first = self._shape.first_position()
        if self._mark.ledger_id < first.ledger_id:
            # Only forward: (L, last) and (next, -1) are the same place.
            self._move_mark(Position(first.ledger_id, first.entry_id - 1))

    def _forget_ledgers(self) -> None:
        """Drop the state of ledgers before the one of the mark-delete position."""
        ledger_id = self._mark.ledger_id
        for passed in [known for known in self._acked if known < ledger_id]:
            self._individual_count -= self._acked.pop(passed).count
        for passed in [known for known in self._batches if known < ledger_id]:
            self._batch_bytes -= sum(map(_bytes_of, self._batches.pop(passed).values()))
        for passed in [known for known in self._known_last if known < ledger_id]:
            del self._known_last[passed]

    def _drop_batch(self, ledger_id: int, entry_id: int) -> None:
        batches = self._batches.get(ledger_id)
        if batches is not None and (dropped := batches.pop(entry_id, 0)):
            self._batch_bytes -= _bytes_of(dropped)
            if not batches:
                del self._batches[ledger_id]

    def _drop_batches(self, ledger_id: int, first: int, last: int) -> None:
        batches = self._batches.get(ledger_id)
        if batches is None:
            return
        if last - first < len(batches):
            dropped = [batches.pop(each, 0) for each in range(first, last + 1)]
        else:
            known = [each for each in batches if first <= each <= last]
            dropped = [batches.pop(each) for each in known]
        self._batch_bytes -= sum(map(_bytes_of, dropped))
        if not batches:
            del self._batches[ledger_id]
