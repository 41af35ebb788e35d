"""ADDS: adds of many ledgers in one frame, and the outcomes of many in one reply. Bytes only.

Layout: docs/formats/bookie-frame.md. An add in such a frame is what an ADD says, with its ids in
front; a reply names those that it is about, so that their outcomes may come in several replies.
"""

import struct
from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import NamedTuple

from magnetar.ledger.errors import BookieProtocolError

ADD_HEAD = struct.Struct(">qqI20s")
"""Ledger id, entry id, bytes of the entry block, master key: the block follows."""

SINGLE_ADD_HEAD = struct.Struct(">qqI20sII")
"""The head of an add with the table of a block of one entry: its packet follows."""

SINGLE_TABLE_BYTES = SINGLE_ADD_HEAD.size - ADD_HEAD.size

PAIR_BYTES = 16
"""Ledger id and entry id: what names an add. An add in a frame begins with them."""

KEY_AT = 20
"""Where the key begins in an add: from there on it is the body of an ADD."""

ADDS_MAX = 128
"""Adds in one frame, at most: to obey it takes a bookie less than a millisecond, and no other
connection waits longer."""

NO_ID = -1
"""Ledger id and entry id in the header of a frame of ADDS."""

_U32 = struct.Struct(">I")
COUNT_BYTES = _U32.size


class Outcome(NamedTuple):
    """Body of a reply to ADDS."""

    pairs: list[bytes]
    """Of the adds that it is about."""
    text: bytes
    """For people; of those that failed."""


encode_count = _U32.pack
"""What the body of a request, and that of a reply, begins with: how many adds follow."""


def count_of(body: bytes) -> int:
    """How many adds a body says it is about; 0 of one that is too short to say so."""
    return _U32.unpack_from(body)[0] if len(body) >= COUNT_BYTES else 0


def encode_outcome(ids: Sequence[int], text: bytes = b"") -> bytes:
    """`ids`: ledger id, entry id, ledger id, entry id, ..."""
    pairs = array("q", ids)
    if byteorder == "little":
        pairs.byteswap()
    return b"".join((_U32.pack(len(ids) // 2), pairs.tobytes(), text))


def decode_outcome(body: bytes) -> Outcome:
    """
    Raises:
        BookieProtocolError: too short for the adds that it counts.
    """
    count = count_of(body)
    end = COUNT_BYTES + PAIR_BYTES * count
    if len(body) < end:
        raise BookieProtocolError(f"a reply about {count} adds has {len(body)} bytes")
    return Outcome(
        [body[at : at + PAIR_BYTES] for at in range(COUNT_BYTES, end, PAIR_BYTES)], body[end:]
    )
