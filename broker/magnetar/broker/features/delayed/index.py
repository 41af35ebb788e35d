"""Index of the due times of one topic's positions, without I/O. Pure.

A *record* is 24 bytes: due time (ms since the epoch), ledger, entry, each 64 bits big-endian, so
records compare as bytes. New records gather in a *tail*, a heap. A tail that is large enough
becomes a *bucket*: its records in order of time, cut into *segments*. A stored bucket keeps in
memory only its next segment, and the due time at which each segment begins.

`withheld` has a bit per position. It tells whether an entry is withheld at all.
"""

import heapq
import struct
from collections.abc import Sequence

from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.ledger.position import Position

RECORD = struct.Struct(">QQQ")
_HIGH, _LOW = 128, 64
_MASK = (1 << 64) - 1
_TAIL_BYTES = 60
"""Memory of one record in the tail: a number of 192 bits, and its place in a list."""


class Bucket:
    """Records in order of due time."""

    def __init__(
        self,
        segments: Sequence[bytes | None],
        starts_ms: Sequence[int],
        *,
        records: int,
        last: Position,
        ledger_id: int | None = None,
    ) -> None:
        """Create a bucket.

        Args:
            segments: the records; None for a segment that is not in memory.
            starts_ms: due time of the first record of each segment.
            last: the highest position in the bucket.
            ledger_id: ledger that stores the bucket; None if it is not stored.
        """
        self.segments = list(segments)
        self.starts_ms = list(starts_ms)
        """Due time of each segment's first record; for the next segment, of its first remaining
        record."""
        self.records = records
        self.last = last
        self.ledger_id = ledger_id
        self.next_segment = 0
        self._offset = 0

    @property
    def is_exhausted(self) -> bool:
        return self.next_segment >= len(self.segments)

    @property
    def next_due_ms(self) -> int | None:
        return None if self.is_exhausted else self.starts_ms[self.next_segment]

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments in memory."""
        return sum(len(each) for each in self.segments if each is not None)

    def whole(self) -> list[bytes]:
        """Drop the used segments of a bucket that is not stored; return the remaining ones.

        Records that are taken out after this call are stored, too, which is harmless.
        """
        del self.segments[: self.next_segment], self.starts_ms[: self.next_segment]
        self.next_segment = 0
        return [each for each in self.segments if each is not None]

    def load(self, segment: int, data: bytes) -> None:
        """Keep a segment that was read, unless it is already used up."""
        if segment >= self.next_segment:
            self.segments[segment] = data

    def unload(self, *, but_next: bool) -> None:
        """Drop the segments that can be read again. `but_next`: keep the next one."""
        if self.ledger_id is not None:
            for at in range(self.next_segment + but_next, len(self.segments)):
                self.segments[at] = None

    def take_due(self, cutoff_ms: int, count_max: int, taken: list[Position]) -> bool:
        """Take out the records due by `cutoff_ms`, in order, up to `count_max` in `taken`.

        Return False if the next segment must be loaded first.
        """
        while not self.is_exhausted and self.starts_ms[self.next_segment] <= cutoff_ms:
            segment = self.segments[self.next_segment]
            if segment is None:
                return False
            while self._offset < len(segment):
                due_ms, ledger_id, entry_id = RECORD.unpack_from(segment, self._offset)
                if due_ms > cutoff_ms or len(taken) >= count_max:
                    self.starts_ms[self.next_segment] = due_ms
                    return True
                taken.append(Position(ledger_id, entry_id))
                self._offset += RECORD.size
            self.segments[self.next_segment] = None
            self.next_segment += 1
            self._offset = 0
        return True


class DelayedIndex:
    """The withheld positions of one topic, and when they are due."""

    def __init__(self, *, segment_records: int) -> None:
        self.withheld = PositionSet()
        self.buckets: list[Bucket] = []
        self._tail: list[int] = []
        self._segment_records = segment_records

    @property
    def tail_records(self) -> int:
        return len(self._tail)

    @property
    def size_bytes(self) -> int:
        """Bytes of the remaining records, in memory or in ledgers, and of the bitmaps."""
        records = len(self._tail) + sum(each.records for each in self.buckets)
        return records * RECORD.size + self.withheld.size_bytes

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of the index in memory, with the overhead of the records in the tail."""
        loaded = sum(each.size_bytes for each in self.buckets)
        return len(self._tail) * _TAIL_BYTES + loaded + self.withheld.size_bytes

    @property
    def next_due_ms(self) -> int | None:
        """Earliest due time, ms since the epoch; None if the index is empty."""
        dues = [each.next_due_ms for each in self.buckets]
        if self._tail:
            dues.append(self._tail[0] >> _HIGH)
        return min((each for each in dues if each is not None), default=None)

    def add(self, due_ms: int, position: Position) -> None:
        """Withhold an entry until `due_ms`, unless it is already withheld."""
        if self.withheld.add(position):
            ledger_id, entry_id = position
            heapq.heappush(self._tail, due_ms << _HIGH | ledger_id << _LOW | entry_id)

    def seal(self) -> Bucket:
        """Turn the tail, which must not be empty, into a bucket in memory; return the bucket."""
        records = sorted(self._tail)
        self._tail = []
        step = self._segment_records
        parts = [records[at : at + step] for at in range(0, len(records), step)]
        bucket = Bucket(
            [b"".join([each.to_bytes(RECORD.size, "big") for each in part]) for part in parts],
            [part[0] >> _HIGH for part in parts],
            records=len(records),
            last=max(map(_position, records)),
        )
        self.buckets.append(bucket)
        return bucket

    def restore(self, bucket: Bucket, segments: Sequence[bytes], *, cutoff_ms: int) -> None:
        """Withhold what a stored bucket holds beyond `cutoff_ms`, and keep the bucket."""
        add = self.withheld.add
        for at, segment in enumerate(segments):
            bucket.load(at, segment)
            for due_ms, ledger_id, entry_id in RECORD.iter_unpack(segment):
                if due_ms > cutoff_ms:
                    add(Position(ledger_id, entry_id))
        bucket.take_due(cutoff_ms, bucket.records, [])
        self.buckets.append(bucket)

    def take_due(self, cutoff_ms: int, count_max: int) -> tuple[list[Position], list[Bucket]]:
        """Take out the positions due by `cutoff_ms`, and the buckets that must first load.

        `count_max` limits the positions; more may be due then.
        """
        taken: list[Position] = []
        missing: list[Bucket] = []
        limit = cutoff_ms + 1 << _HIGH
        while self._tail and self._tail[0] < limit and len(taken) < count_max:
            taken.append(_position(heapq.heappop(self._tail)))
        for bucket in self.buckets:
            if len(taken) >= count_max:
                break
            if not bucket.take_due(cutoff_ms, count_max, taken):
                missing.append(bucket)
        discard = self.withheld.discard
        return [each for each in taken if discard(each)], missing

    def unload(self, segments_max: int) -> None:
        """Keep at most `segments_max` segments of stored buckets in memory, those due first."""
        loaded = [
            each
            for each in self.buckets
            if each.ledger_id is not None
            and not each.is_exhausted
            and each.segments[each.next_segment] is not None
        ]
        loaded.sort(key=lambda each: each.starts_ms[each.next_segment])
        for bucket in loaded[segments_max:]:
            bucket.unload(but_next=False)

    def forget_before(self, first: Position) -> None:
        """Forget withheld positions of ledgers before `first`, where the log now begins."""
        self.withheld.discard_ledgers_before(first.ledger_id)


def _position(record: int) -> Position:
    return Position(record >> _LOW & _MASK, record & _MASK)
