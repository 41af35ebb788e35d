"""The live packets of a run, to which the index still points, and the run made of them. Pure.

Only the index decides what is live: an entry that was stored again has its record elsewhere, and a
deleted ledger has no records. Copying only live packets keeps the newest copy of an entry the
newest even for a reader of the logs alone. It also lets a run with a damaged part be copied as soon
as that part was healed.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import pack
from typing import NamedTuple

from magnetar.bookie.entry_logs.entry_log import (
    RunHead,
    RunLocation,
    encode_run_head,
    rebind_run_head,
)
from magnetar.bookie.entry_logs.pieces import PIECE_BYTES, damaged_pieces, piece_checksums

Positions = list[tuple[int, int]]
"""Stretches of positions in a run, start and stop (exclusive) of each, ascending."""


class CopiedRun(NamedTuple):
    """A run at its new place."""

    head: bytes
    packets: bytes
    location: RunLocation

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.packets)


def positions_of(head: RunHead, stretches: Sequence[tuple[int, int]]) -> Positions:
    """Return the positions of the entries in these stretches of ids (first and last, ascending)."""
    ids = head.ids
    found: Positions = []
    for first, last in stretches:
        start, stop = bisect_left(ids, first), bisect_right(ids, last)
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return found


def damaged_ids(head: RunHead, packets: bytes, positions: Positions) -> tuple[int, int] | None:
    """Return first and last id of the damaged packets at these positions; None if none is damaged.

    `packets` is the packets area as it was read.
    """
    damaged = damaged_pieces(packets, head.checksums, head.packets_bytes)
    if not damaged:
        return None
    first = last = None
    offsets, ids = head.offsets, head.ids
    for start, stop in positions:
        for at in range(start, stop):
            begin, end = offsets[at] // PIECE_BYTES, max(offsets[at], offsets[at + 1] - 1)
            hit = bisect_left(damaged, begin)
            if hit < len(damaged) and damaged[hit] <= end // PIECE_BYTES:
                first = ids[at] if first is None else first
                last = ids[at]
    return None if first is None or last is None else (first, last)


def copy_run(
    head: RunHead, head_bytes: bytes, packets: bytes, positions: Positions, *, log_id: int, at: int
) -> CopiedRun:
    """Return the run of the packets at these positions (at least one), for `at` of a log.

    `head_bytes` are header and tables as they were read. The packets were verified.
    """
    if positions == [(0, head.entries)]:
        rebound = rebind_run_head(head_bytes, log_id=log_id, offset=at)
        return CopiedRun(rebound, packets, head.location(log_id, at))
    ids, offsets = head.ids, head.offsets
    kept = array("q", [ids[each] for start, stop in positions for each in range(start, stop)])
    lengths = [
        offsets[each + 1] - offsets[each]
        for start, stop in positions
        for each in range(start, stop)
    ]
    length_table = pack(f">{len(lengths)}I", *lengths)
    packets = b"".join(packets[offsets[start] : offsets[stop]] for start, stop in positions)
    has_gaps = kept[-1] - kept[0] + 1 != len(kept)
    encoded = encode_run_head(
        log_id=log_id,
        offset=at,
        ledger_id=head.ledger_id,
        first=kept[0],
        last=kept[-1],
        length_table=length_table,
        gap_ids=kept if has_gaps else None,
        checksums=piece_checksums(packets),
    )
    size_bytes = len(encoded) + len(packets)
    return CopiedRun(encoded, packets, RunLocation(log_id, at, size_bytes, len(kept), has_gaps))
