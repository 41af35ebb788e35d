"""Bodies of READ_LAC, WRITE_LAC and LIST_ENTRIES: encoding and decoding.

Layout: docs/formats/bookie-frame.md. The packets inside are not checked here, but by `digest.py`.
"""

import struct
from typing import NamedTuple

from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire import MASTER_KEY_BYTES, EntryBlock, decode_block

LAC_PACKET_HEADER = struct.Struct(">qq")
"""Fields: ledger id, last add confirmed. The first 16 bytes of a LAC packet."""

LAC_PACKET_BYTES_MAX = LAC_PACKET_HEADER.size + 20
"""Size with the longest digest."""

ENTRY_LIST_BYTES_MAX = 64 << 10
"""Largest bitmap in one reply to LIST_ENTRIES, in bytes: half a million ids."""

_LONG_POLL_BODY = struct.Struct(">qII")
_ENTRY_LIST_HEAD = struct.Struct(">qq")
_U32 = struct.Struct(">I")


class LongPoll(NamedTuple):
    """Body of a READ_LAC with the flag LONG_POLL."""

    previous_lac: int
    """The LAC that the client knows already."""
    wait_ms: int
    entries_bytes_max: int
    """Maximum bytes of entries that the reply may carry; 0: none."""
    master_key: bytes = b""
    """Master key of the ledger; see `read_key`."""


def encode_long_poll(poll: LongPoll) -> bytes:
    """Encode: previous LAC (i64), wait in ms (u32), limit for the entries in bytes (u32), and the
    master key of 20 bytes or nothing."""
    *numbers, key = poll
    return _LONG_POLL_BODY.pack(*numbers) + key


def decode_long_poll(body: bytes) -> LongPoll:
    """Decode the body of a long poll.

    Raises:
        BookieProtocolError: neither 16 nor 36 bytes.
    """
    key = _key_behind(body, _LONG_POLL_BODY, "long poll")
    previous_lac, wait_ms, entries_bytes_max = _LONG_POLL_BODY.unpack_from(body)
    return LongPoll(previous_lac, wait_ms, entries_bytes_max, key)


class LacReply(NamedTuple):
    """Body of an OK reply to READ_LAC. The packets are as the bookie stores them, unchecked."""

    last_packet: bytes
    """Packet of the last stored entry; empty if there is none, or if the explicit LAC is higher."""
    explicit_packet: bytes
    """LAC packet with the highest explicit LAC; empty if there is none."""
    block: EntryBlock | None
    """Entries behind the previous LAC of a long poll; None if the reply carries none."""


def encode_lac_reply(last_packet: bytes, explicit_packet: bytes, block: bytes = b"") -> bytes:
    """Encode: u32 n, n bytes, u32 m, m bytes, entry block or nothing."""
    return b"".join(
        (
            _U32.pack(len(last_packet)),
            last_packet,
            _U32.pack(len(explicit_packet)),
            explicit_packet,
            block,
        )
    )


def decode_lac_reply(body: bytes) -> LacReply:
    """Decode the body of an OK reply to READ_LAC.

    Raises:
        BookieProtocolError: the lengths do not add up to the body, or the block is malformed.
    """
    parts: list[bytes] = []
    at = 0
    for _ in range(2):
        if len(body) - at < 4:
            raise BookieProtocolError(f"READ_LAC reply of {len(body)} bytes is truncated")
        size = _U32.unpack_from(body, at)[0]
        at += 4
        if len(body) - at < size:
            raise BookieProtocolError(
                f"READ_LAC reply of {len(body)} bytes claims a packet of {size} at {at}"
            )
        parts.append(body[at : at + size])
        at += size
    last_packet, explicit_packet = parts
    return LacReply(
        last_packet, explicit_packet, decode_block(body[at:]) if at < len(body) else None
    )


def decode_write_lac(body: bytes) -> tuple[bytes, bytes]:
    """Decode the body of WRITE_LAC: master key and LAC packet.

    Raises:
        BookieProtocolError: too short or too long for both.
    """
    packet_bytes = len(body) - MASTER_KEY_BYTES
    if not LAC_PACKET_HEADER.size <= packet_bytes <= LAC_PACKET_BYTES_MAX:
        raise BookieProtocolError(f"WRITE_LAC body has {len(body)} bytes")
    return body[:MASTER_KEY_BYTES], body[MASTER_KEY_BYTES:]


class EntryList(NamedTuple):
    """One page of the entry ids that a bookie holds of a ledger: body of a LIST_ENTRIES reply."""

    first_entry_id: int
    """Id of the bitmap's first bit, which is set; -1 if the bitmap is empty."""
    next_entry_id: int
    """Id from which to continue, behind the bitmap; -1 if the bookie holds none there."""
    bitmap: bytes
    """Bit `i % 8` of byte `i // 8` says whether the bookie holds `first_entry_id + i`."""

    def entry_ids(self) -> list[int]:
        """Return the ids, ascending."""
        first = self.first_entry_id
        return [
            first + 8 * at + bit
            for at, byte in enumerate(self.bitmap)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        ]


def encode_entry_list(page: EntryList) -> bytes:
    """Encode: first id (i64), next id (i64), bitmap."""
    return _ENTRY_LIST_HEAD.pack(page.first_entry_id, page.next_entry_id) + page.bitmap


def decode_entry_list(body: bytes) -> EntryList:
    """Decode the body of a LIST_ENTRIES reply.

    Raises:
        BookieProtocolError: truncated, impossible ids, or a bitmap that does not match them.
    """
    if not _ENTRY_LIST_HEAD.size <= len(body) <= _ENTRY_LIST_HEAD.size + ENTRY_LIST_BYTES_MAX:
        raise BookieProtocolError(f"LIST_ENTRIES reply has {len(body)} bytes")
    first, after = _ENTRY_LIST_HEAD.unpack_from(body)
    bitmap = body[_ENTRY_LIST_HEAD.size :]
    if bitmap:
        last_byte = first + 8 * (len(bitmap) - 1)
        is_good = first >= 0 and bitmap[0] & 1 == 1 and (after == -1 or after > last_byte)
    else:
        is_good = first == -1 <= after
    if not is_good:
        raise BookieProtocolError(
            f"LIST_ENTRIES reply: ids from {first}, next {after}, bitmap of {len(bitmap)} bytes"
        )
    return EntryList(first, after, bitmap)


def encode_list_entries(bitmap_bytes_max: int, *, master_key: bytes = b"") -> bytes:
    """Encode the body of LIST_ENTRIES: bitmap limit in bytes (u32), master key or nothing."""
    return _U32.pack(bitmap_bytes_max) + master_key


def decode_list_entries(body: bytes) -> tuple[int, bytes]:
    """Decode the body of LIST_ENTRIES: limit of the bitmap in bytes, master key (empty if none).

    Raises:
        BookieProtocolError: neither 4 nor 24 bytes.
    """
    key = _key_behind(body, _U32, "LIST_ENTRIES")
    return int(_U32.unpack_from(body)[0]), key


def _key_behind(body: bytes, head: struct.Struct, what: str) -> bytes:
    """Return the master key that follows the head of a body; empty if there is none.

    Raises:
        BookieProtocolError: the body is neither the head alone nor the head and a key.
    """
    if len(body) not in (head.size, head.size + MASTER_KEY_BYTES):
        raise BookieProtocolError(f"{what} body has {len(body)} bytes")
    return body[head.size :]
