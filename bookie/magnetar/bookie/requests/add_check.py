"""Checks on the packets of an ADD request, at a fraction of a microsecond per entry. No I/O.

A bookie takes packets as opaque but for their first three fields (rule 10.2): the ledger id must be
the request's, the entry ids ascend, and a LAC is below its entry's id.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from operator import lt

from magnetar.bookie.errors import BadAddError
from magnetar.ledger.wire import EntryBlock

PACKET_BYTES_MIN = 32
"""The header alone: a digest takes 0 to 20 bytes, and a bookie need not know which."""

_HEAD = struct.Struct(">qqq")
_SINGLE_AT = 8
"""Where the packet of a block of one entry begins."""


def check_add(ledger_id: int, first_entry_id: int, block: EntryBlock) -> tuple[Sequence[int], int]:
    """The entry ids of the block (a `range` if they are contiguous) and its highest LAC.

    Raises:
        BadAddError: the packets do not fit the request or each other.
    """
    lengths = block.lengths
    if len(lengths) == 1 and lengths[0] >= PACKET_BYTES_MIN:
        # One entry, as ledgers that get few have it. What is wrong with it is said below.
        found_ledger_id, entry_id, lac = _HEAD.unpack_from(block.data, _SINGLE_AT)
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
    """Ledger id, entry id and LAC of each packet."""
    lengths, data, start = block.lengths, block.data, block.packets_offset
    size = lengths[0]
    if len(lengths) > 1 and lengths.count(size) == len(lengths):
        # Packets of one size: one call walks over all of them. (`struct` caches the format.)
        return list(struct.iter_unpack(f">qqq{size - _HEAD.size}x", memoryview(data)[start:]))
    unpack = _HEAD.unpack_from
    return [unpack(data, at) for at in accumulate(lengths[:-1], initial=start)]
