"""The part of a run that must be read for some of its packets, and its check. Pure."""

from typing import NamedTuple

from magnetar.bookie.entry_logs.entry_log import RunHead
from magnetar.bookie.entry_logs.packet_run import first_foreign
from magnetar.bookie.entry_logs.pieces import PIECE_BYTES, damaged_pieces


class PacketSpan(NamedTuple):
    """The packets at positions `start` up to `stop`, and the whole pieces that they touch."""

    start: int
    stop: int
    begin: int
    """Start of the pieces, relative to the first packet of the run."""
    size_bytes: int
    """Bytes to read from there."""


class Checked(NamedTuple):
    """Result of the check of a span."""

    packets: list[bytes]
    """The leading packets that are whole and belong to the right entries."""
    damaged: list[int]
    """Positions, in the run, of the damaged pieces, ascending."""


def span_of(head: RunHead, start: int, stop: int) -> PacketSpan:
    """Return the span to read for these packets, of which there is at least one."""
    offsets = head.offsets
    begin = offsets[start] // PIECE_BYTES * PIECE_BYTES
    end = min(-(-offsets[stop] // PIECE_BYTES) * PIECE_BYTES, offsets[-1])
    return PacketSpan(start, stop, begin, end - begin)


def check_span(
    head: RunHead, span: PacketSpan, data: bytes, ledger_id: int, entry_id: int
) -> Checked:
    """Check the data of a span; its entries are `entry_id`, `entry_id + 1`, ..."""
    start, stop, begin, size_bytes = span
    offsets = head.offsets
    first_piece = begin // PIECE_BYTES
    checksums = head.checksums[first_piece : first_piece + -(-size_bytes // PIECE_BYTES)]
    damaged = damaged_pieces(data, checksums, size_bytes)
    if damaged:
        damaged = [first_piece + at for at in damaged]
        whole_end = damaged[0] * PIECE_BYTES
        while stop > start and offsets[stop] > whole_end:
            stop -= 1
    bounds = [offset - begin for offset in offsets[start : stop + 1]]
    whole = first_foreign(data, bounds, ledger_id, range(entry_id, entry_id + stop - start))
    return Checked([data[bounds[at] : bounds[at + 1]] for at in range(whole)], damaged)
