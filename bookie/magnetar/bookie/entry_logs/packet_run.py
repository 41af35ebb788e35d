"""A run of entry packets of one ledger, in ascending order of entry id, in one buffer.

An `EntryBlock` in the write cache has this shape, with the table of packet lengths in the same
buffer. So have the packets of a run read from an entry log, whose head says where each begins. A
`PacketRun` gives access to single packets without taking the buffer apart: packets that are never
read cost nothing each.

`check_add` checks the packets of an add, at a fraction of a microsecond per entry. A bookie treats
packets as opaque but for their first three fields (rule 10.2): the ledger id must be the request's,
the entry ids ascend, and a LAC is below its entry's id. No I/O.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import lt
from struct import Struct, iter_unpack, pack, unpack_from

from magnetar.bookie.errors import BadAddError
from magnetar.ledger.wire import EntryBlock

ENTRY_ID_MAX = (1 << 63) - 1

PACKET_KEY = Struct(">qq")
"""Ledger id and entry id: the first 16 bytes of every packet."""

_BLOCK_TABLE_AT = 4
_SINGLE_PACKET_AT = 8
"""Offset of the packet in a block of one entry."""


class PacketRun:
    """Packets with strictly ascending ids. Immutable, but for offsets that are computed once."""

    __slots__ = ("_offsets", "_packets_at", "_table_at", "count", "data", "first", "ids", "last")

    def __init__(
        self,
        data: bytes,
        *,
        ids: Sequence[int],
        packets_at: int,
        table_at: int = -1,
        offsets: Sequence[int] | None = None,
    ) -> None:
        """`table_at` is the place of the lengths, `offsets` their sums: one of the two is
        needed."""
        count = len(ids)
        assert count > 0
        self.data = data
        self.count = count
        self.first = ids[0]
        self.last = ids[-1]
        self.ids: Sequence[int] | None = None
        """The ids if they have gaps; None if they are contiguous."""
        if self.last - self.first + 1 != count:
            self.ids = ids if isinstance(ids, array) else array("q", ids)
        self._table_at = table_at
        self._packets_at = packets_at
        self._offsets = offsets

    @property
    def packets_bytes(self) -> int:
        """Bytes of all packets together; they fill the end of the buffer."""
        return len(self.data) - self._packets_at

    def offsets(self) -> Sequence[int]:
        """Return the start of each packet in the buffer, and the end of the last one."""
        offsets = self._offsets
        if offsets is None:
            lengths = unpack_from(f">{self.count}I", self.data, self._table_at)
            # Two threads may both compute this while a buffer is flushed: they get the same list.
            offsets = self._offsets = list(accumulate(lengths, initial=self._packets_at))
        return offsets

    def length_table(self, start: int, stop: int) -> bytes:
        """Return the lengths (u32 each) of the packets at positions `start` up to `stop`."""
        if self._table_at < 0:
            offsets = self.offsets()[start : stop + 1]
            return pack(f">{stop - start}I", *[end - begin for begin, end in pairwise(offsets)])
        return self.data[self._table_at + 4 * start : self._table_at + 4 * stop]

    def packets_view(self, start: int, stop: int) -> memoryview:
        """Return the packets at positions `start` up to `stop`, not copied."""
        view = memoryview(self.data)
        if stop - start == self.count:
            return view[self._packets_at :]
        offsets = self.offsets()
        return view[offsets[start] : offsets[stop]]

    def id_at(self, position: int) -> int:
        return self.first + position if self.ids is None else self.ids[position]

    def holds(self, entry_id: int) -> bool:
        if not self.first <= entry_id <= self.last:
            return False
        if self.ids is None:
            return True
        return self.ids[bisect_left(self.ids, entry_id)] == entry_id

    def next_held(self, entry_id: int) -> int:
        """Return the smallest id in the run above `entry_id`; ENTRY_ID_MAX if there is none."""
        if entry_id >= self.last:
            return ENTRY_ID_MAX
        if entry_id < self.first:
            return self.first
        return entry_id + 1 if self.ids is None else self.ids[bisect_right(self.ids, entry_id)]

    def positions(self, entry_id: int, last: int) -> tuple[int, int]:
        """Return start and stop positions of the entries from `entry_id` up to a gap or `last`.

        The run must hold `entry_id`.
        """
        ids = self.ids
        if ids is None:
            start = entry_id - self.first
            return start, min(last, self.last) - self.first + 1
        start = stop = bisect_left(ids, entry_id)
        expected = entry_id
        while stop < self.count and ids[stop] == expected and expected <= last:
            stop += 1
            expected += 1
        return start, stop

    def take(self, entry_id: int, last: int, bytes_max: int) -> list[bytes]:
        """Return the packets of `entry_id` (held), `entry_id + 1`, ... up to a gap, `last` or
        `bytes_max`.

        The first packet is returned even if it alone exceeds `bytes_max`.
        """
        start, stop = self.positions(entry_id, last)
        offsets = self.offsets()
        stop = stop_within(offsets, start, stop, bytes_max)
        data = self.data
        return [
            data[begin:end]
            for begin, end in zip(offsets[start:stop], offsets[start + 1 : stop + 1], strict=True)
        ]


def block_run(block: EntryBlock, entry_ids: Sequence[int]) -> PacketRun:
    """Return the packets of a block from the wire or the journal as a run."""
    assert len(entry_ids) == len(block.lengths)
    if len(entry_ids) == 1:
        return _single_run(block.data, entry_ids[0])
    return PacketRun(
        block.data, ids=entry_ids, table_at=_BLOCK_TABLE_AT, packets_at=block.packets_offset
    )


def _single_run(data: bytes, entry_id: int) -> PacketRun:
    """Return the run of a block of one entry; setting its fields directly takes half the time."""
    run = PacketRun.__new__(PacketRun)
    run.data = data
    run.count = 1
    run.first = run.last = entry_id
    run.ids = run._offsets = None
    run._table_at = _BLOCK_TABLE_AT
    run._packets_at = _SINGLE_PACKET_AT
    return run


def stop_within(offsets: Sequence[int], start: int, stop: int, bytes_max: int) -> int:
    """Return the last position up to `stop` so that the packets from `start` fit into `bytes_max`.

    At least one packet is included.
    """
    limit = offsets[start] + bytes_max
    if offsets[stop] <= limit:
        return stop
    return max(start + 1, bisect_right(offsets, limit, start, stop) - 1)


def first_foreign(data: bytes, offsets: Sequence[int], ledger_id: int, ids: Sequence[int]) -> int:
    """Return the position of the first packet that does not begin with its ledger id and entry id.

    `len(ids)` if all do. `offsets` holds the start of each packet in `data` and the end of the
    last.
    """
    unpack = PACKET_KEY.unpack_from
    size = PACKET_KEY.size
    for position, entry_id in enumerate(ids):
        begin = offsets[position]
        if offsets[position + 1] - begin < size or unpack(data, begin) != (ledger_id, entry_id):
            return position
    return len(ids)


PACKET_BYTES_MIN = 32
"""Minimum bytes of a packet: the header. A digest adds 0 to 20 bytes; a bookie need not know."""

_HEAD = Struct(">qqq")


def check_add(ledger_id: int, first_entry_id: int, block: EntryBlock) -> tuple[Sequence[int], int]:
    """Return the entry ids of the block (a `range` if they are contiguous) and its highest LAC.

    Raises:
        BadAddError: the packets do not fit the request or each other.
    """
    lengths = block.lengths
    if len(lengths) == 1 and lengths[0] >= PACKET_BYTES_MIN:
        # The fast path for one entry, common in quiet ledgers. The code below names any error.
        found_ledger_id, entry_id, lac = _HEAD.unpack_from(block.data, _SINGLE_PACKET_AT)
        if ledger_id == found_ledger_id >= 0 and first_entry_id == entry_id > lac >= -1:
            return range(entry_id, entry_id + 1), lac
    if ledger_id < 0 or first_entry_id < 0:
        raise BadAddError(f"ledger id {ledger_id} and entry id {first_entry_id} must be >= 0")
    if min(lengths) < PACKET_BYTES_MIN:
        raise BadAddError(
            f"ledger {ledger_id}: a packet has {min(lengths)} bytes, "
            f"the least is {PACKET_BYTES_MIN}"
        )
    ledger_ids, entry_ids, lacs = zip(*_heads(block), strict=True)
    count = len(lengths)
    if ledger_ids.count(ledger_id) != count:
        raise BadAddError(f"an add to ledger {ledger_id} holds packets of another ledger")
    if entry_ids[0] != first_entry_id:
        raise BadAddError(
            f"ledger {ledger_id}: the request says first entry {first_entry_id}, "
            f"the packet says {entry_ids[0]}"
        )
    if not all(map(lt, entry_ids, entry_ids[1:])):
        raise BadAddError(f"ledger {ledger_id}: entry ids do not ascend from {first_entry_id} on")
    # Usually all packets of a request carry one LAC, from before the first of them.
    highest = max(lacs)
    if highest >= first_entry_id and not all(map(lt, lacs, entry_ids)):
        raise BadAddError(f"ledger {ledger_id}: an entry's LAC is not below the entry's id")
    if min(lacs) < -1:
        raise BadAddError(f"ledger {ledger_id}: LAC {min(lacs)}, the least is -1")
    if entry_ids[-1] - first_entry_id + 1 == count:
        return range(first_entry_id, first_entry_id + count), highest
    return entry_ids, highest


def _heads(block: EntryBlock) -> Sequence[tuple[int, int, int]]:
    """Return ledger id, entry id and LAC of each packet."""
    lengths, data, start = block.lengths, block.data, block.packets_offset
    size = lengths[0]
    if len(lengths) > 1 and lengths.count(size) == len(lengths):
        # Packets of one size: one call walks over all of them. (`struct` caches the format.)
        return list(iter_unpack(f">qqq{size - _HEAD.size}x", memoryview(data)[start:]))
    unpack = _HEAD.unpack_from
    return [unpack(data, at) for at in accumulate(lengths[:-1], initial=start)]
