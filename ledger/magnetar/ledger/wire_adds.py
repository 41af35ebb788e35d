"""ADDS: adds of many ledgers in one frame, and the outcomes of many in one reply. Bytes only.

Layout: docs/formats/bookie-frame.md. An add in such a frame has the contents of an ADD, preceded by
its ids. A reply names the adds that it answers, so one frame may get several replies.
"""

import struct
from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import NamedTuple

from magnetar.ledger.errors import BookieProtocolError

ADD_HEAD = struct.Struct(">qqI20s")
"""Ledger id, entry id, bytes of the entry block, master key. The block follows."""

SINGLE_ADD_HEAD = struct.Struct(">qqI20sII")
"""Head of an add, with the table of a block of one entry. The packet follows."""

SINGLE_TABLE_BYTES = SINGLE_ADD_HEAD.size - ADD_HEAD.size

PAIR_BYTES = 16
"""Ledger id and entry id, which identify an add. Each add in a frame begins with them."""

KEY_AT = 20
"""Offset of the key in an add; from there on, the add is the body of an ADD."""

ADDS_MAX = 128
"""Maximum number of adds in one frame. A bookie processes them in less than a millisecond, so other
connections wait no longer than that."""

NO_ID = -1
"""Ledger id and entry id in the header of a frame of ADDS."""

_U32 = struct.Struct(">I")
COUNT_BYTES = _U32.size


class Outcome(NamedTuple):
    """Body of a reply to ADDS."""

    pairs: list[bytes]
    """Ids of the adds that the reply answers."""
    text: bytes
    """Error text for people, for adds that failed."""


encode_count = _U32.pack
"""Encodes the number of adds, which begins the body of a request and of a reply."""


def count_of(body: bytes) -> int:
    """Return the number of adds in a body; 0 if the body is too short to say."""
    return _U32.unpack_from(body)[0] if len(body) >= COUNT_BYTES else 0


def encode_outcome(ids: Sequence[int], text: bytes = b"") -> bytes:
    """Encode a reply to ADDS. `ids`: ledger id, entry id, ledger id, entry id, ..."""
    pairs = array("q", ids)
    if byteorder == "little":
        pairs.byteswap()
    return b"".join((_U32.pack(len(ids) // 2), pairs.tobytes(), text))


def decode_outcome(body: bytes) -> Outcome:
    """Decode a reply to ADDS.

    Raises:
        BookieProtocolError: the body is too short for its number of adds.
    """
    count = count_of(body)
    end = COUNT_BYTES + PAIR_BYTES * count
    if len(body) < end:
        raise BookieProtocolError(f"a reply about {count} adds has {len(body)} bytes")
    return Outcome(
        [body[at : at + PAIR_BYTES] for at in range(COUNT_BYTES, end, PAIR_BYTES)], body[end:]
    )
