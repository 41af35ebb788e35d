"""Checksums of packets: one CRC32C per piece of 4 KiB, so that a part of a run can be checked.

Pure. A read of one packet checks only the pieces that the packet touches.
"""

from array import array
from collections.abc import Sequence

import google_crc32c

PIECE_BYTES = 4096


def piece_count(size_bytes: int) -> int:
    """Return the number of pieces of `size_bytes`; the last one may be shorter."""
    return -(-size_bytes // PIECE_BYTES)


def piece_checksums(data: bytes) -> "array[int]":
    """Return the CRC32C of each piece of `data`."""
    crc = google_crc32c.value
    return array("I", [crc(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)])


def damaged_pieces(data: bytes, checksums: Sequence[int], size_bytes: int) -> list[int]:
    """Return the positions of the pieces of `data` that do not match their checksums, ascending.

    `data` should have `size_bytes`; pieces that it is too short for count as damaged.
    """
    found = piece_checksums(data)
    if len(data) == size_bytes and found == checksums:
        return []
    whole = len(data) // PIECE_BYTES if len(data) < size_bytes else len(found)
    return [
        at for at in range(piece_count(size_bytes)) if at >= whole or found[at] != checksums[at]
    ]


def stretches(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Group ascending positions into stretches of neighbours: start and end (exclusive) of each."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found
