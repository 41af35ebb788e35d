"""Frames of the bookie protocol: a fixed header, then a body that depends on the operation.

Layout: docs/formats/bookie-frame.md and docs/formats/entry.md. This module encodes and decodes
frames. It knows nothing of ledgers, quorums or sockets. Operations and status codes are numbers on
the wire and are never renumbered.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate
from typing import NamedTuple

from magnetar.ledger.errors import BookieProtocolError, BookieVersionError

MAGIC = 0x4D42
VERSION = 1

HEADER = struct.Struct(">IHBBBBQqq")
"""Fields: length, magic, version, op, flags, status, request id, ledger id, entry id."""

HEADER_BYTES = HEADER.size
MASTER_KEY_BYTES = 20
FRAME_BYTES_MAX = 8 << 20
"""Larger than any batch of adds (see `LedgerSettings.add_frame_bytes_max`) or the largest entry."""

ADD_BYTES_MAX = 6 << 20
"""Payload bytes that fit into one ADD frame, with room for packet headers and the length table."""

RESPONSE = 0x80
"""Set in the op byte of every response."""

PACKET_HEADER = struct.Struct(">qqqq")
"""The first 32 bytes of an entry packet: ledger id, entry id, last add confirmed, length."""

_LENGTH_BYTES = 4
_READ_BODY = struct.Struct(">qI")
_U32 = struct.Struct(">I")
_ONE = _U32.pack(1)
_SINGLE_AT = 8
"""Offset of the packet in a block of one entry."""


class Op(IntEnum):
    """Operations. Not stored, but exchanged between versions: never renumber."""

    ADD = 1
    READ = 2
    READ_LAC = 3
    WRITE_LAC = 4
    LIST_ENTRIES = 5
    INFO = 6
    AUTH = 7
    ADDS = 8


class Flag(IntFlag):
    """Request flags, and the one response flag."""

    RECOVERY = 1
    """On ADD: written by a recoverer or re-replicator; accepted by a fenced ledger."""
    FENCE = 2
    """On READ and READ_LAC: fence the ledger durably before answering."""
    FENCED = 4
    """On responses: the ledger is durably fenced on this bookie."""
    LONG_POLL = 8
    """On READ_LAC: answer when the LAC exceeds the one in the body, or when the time is up."""


class Status(IntEnum):
    """Result of a request."""

    OK = 0
    NO_SUCH_LEDGER = 1
    NO_SUCH_ENTRY = 2
    FENCED = 3
    READ_ONLY = 4
    UNAUTHORIZED = 5
    BAD_REQUEST = 6
    BAD_VERSION = 7
    IO_ERROR = 8
    TOO_MANY_REQUESTS = 9
    UNKNOWN_LEDGER_STATE = 10
    WRONG_BOOKIE = 11


class Frame(NamedTuple):
    """One frame. `op` has the RESPONSE bit removed; `status` is 0 in requests."""

    op: int
    is_response: bool
    flags: int
    status: int
    request_id: int
    ledger_id: int
    entry_id: int
    body: bytes


class EntryBlock(NamedTuple):
    """Several entry packets of one ledger, in ascending entry order, in one buffer.

    ADD requests, READ responses, journals and entry logs have the same bytes: count (u32), that
    many packet lengths (u32 each), then the packets themselves.
    """

    lengths: tuple[int, ...]
    data: bytes
    """The whole block, including its length table."""

    @property
    def packets_offset(self) -> int:
        return 4 + 4 * len(self.lengths)

    def packets(self) -> list[bytes]:
        """Return the packets as separate bytes objects."""
        at = self.packets_offset
        data = self.data
        ends = accumulate(self.lengths, initial=at)
        starts = list(ends)
        return [data[starts[i] : starts[i + 1]] for i in range(len(self.lengths))]


def encode_frame(
    op: int,
    *,
    request_id: int,
    ledger_id: int,
    entry_id: int = -1,
    flags: int = 0,
    status: int = 0,
    body: bytes = b"",
) -> bytes:
    """Encode a frame with its body in a single buffer."""
    length = HEADER_BYTES - _LENGTH_BYTES + len(body)
    header = HEADER.pack(length, MAGIC, VERSION, op, flags, status, request_id, ledger_id, entry_id)
    return header + body


def encode_header(
    op: int, body_bytes: int, *, request_id: int, ledger_id: int, entry_id: int, flags: int
) -> bytes:
    """Encode the header alone, for a body that is written after it without being copied."""
    return HEADER.pack(
        HEADER_BYTES - _LENGTH_BYTES + body_bytes,
        MAGIC,
        VERSION,
        op,
        flags,
        0,
        request_id,
        ledger_id,
        entry_id,
    )


def encode_block(packets: Sequence[bytes]) -> EntryBlock:
    """Pack entry packets, already in ascending entry order, into one block."""
    lengths = tuple(map(len, packets))
    table = struct.pack(f">{1 + len(lengths)}I", len(lengths), *lengths)
    return EntryBlock(lengths, b"".join((table, *packets)))


def decode_block(data: bytes) -> EntryBlock:
    """Decode a block, and check its length table against its size.

    Raises:
        BookieProtocolError: the block is empty or truncated, or the lengths do not add up to it.
    """
    if data.startswith(_ONE) and len(data) > _SINGLE_AT:
        (length,) = _U32.unpack_from(data, 4)
        if _SINGLE_AT + length == len(data):
            return EntryBlock((length,), data)
    if len(data) < 4:
        raise BookieProtocolError(f"entry block of {len(data)} bytes has no count")
    (count,) = _U32.unpack_from(data)
    table_bytes = 4 + 4 * count
    if count == 0 or len(data) < table_bytes:
        raise BookieProtocolError(f"entry block says {count} entries but holds {len(data)} bytes")
    lengths = struct.unpack_from(f">{count}I", data, 4)
    if table_bytes + sum(lengths) != len(data):
        raise BookieProtocolError(
            f"entry block of {len(data)} bytes: its {count} entries claim "
            f"{table_bytes + sum(lengths)}"
        )
    return EntryBlock(lengths, data)


def encode_read_body(*, last_entry_id: int, bytes_max: int, master_key: bytes = b"") -> bytes:
    """Encode the body of READ: last entry id (i64), reply limit in bytes (u32), key or nothing."""
    return _READ_BODY.pack(last_entry_id, bytes_max) + master_key


def decode_read_body(body: bytes) -> tuple[int, int, bytes]:
    """Decode the body of READ: last entry id, reply limit in bytes, master key (empty if none)."""
    if len(body) not in (_READ_BODY.size, _READ_BODY.size + MASTER_KEY_BYTES):
        raise BookieProtocolError(f"READ body has {len(body)} bytes")
    last_entry_id, bytes_max = _READ_BODY.unpack_from(body)
    return last_entry_id, bytes_max, body[_READ_BODY.size :]


def _foreign_header(data: bytes, at: int) -> BookieProtocolError | BookieVersionError:
    """Return the error for a header that this release cannot read."""
    _, magic, version, op, _, _, request_id, ledger_id, entry_id = HEADER.unpack_from(data, at)
    if magic == MAGIC:
        return BookieVersionError(
            f"a frame of the bookie protocol in version {version}; this release speaks "
            f"version {VERSION}",
            op=op,
            request_id=request_id,
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    return BookieProtocolError(
        f"expected magic {MAGIC:#06x} version {VERSION}, got {magic:#06x} version {version}"
    )


class FrameDecoder:
    """Turns bytes into frames. One decoder per connection; do not use it again after an error."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._wanted = _LENGTH_BYTES

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order.

        A large frame arrives in many reads. Its chunks are kept until it is whole, and only this
        frame is joined: later bytes of `data` are not copied a second time.

        Raises:
            BookieProtocolError: a frame is too large, too small or of another protocol.
            BookieVersionError: a frame has an unknown version. The header is the same in all
                versions.
        """
        frames: list[Frame] = []
        at, end = 0, len(data)
        if self._chunks:
            missing = self._wanted - self._buffered
            if missing > end:
                self._chunks.append(data)
                self._buffered += end
                return frames
            if len(self._chunks[0]) < HEADER_BYTES:
                data = b"".join((*self._chunks, data))
                end = len(data)
            else:
                frames.append(self._join(memoryview(data)[:missing]))
                at = missing
            self._chunks.clear()
            self._buffered = 0
        while end - at >= HEADER_BYTES:
            length, magic, version, op, flags, status, request_id, ledger_id, entry_id = (
                HEADER.unpack_from(data, at)
            )
            if magic != MAGIC or version != VERSION:
                raise _foreign_header(data, at)
            if not HEADER_BYTES - _LENGTH_BYTES <= length <= self._frame_bytes_max:
                raise BookieProtocolError(
                    f"frame of {length} bytes; allowed up to {self._frame_bytes_max}"
                )
            stop = at + _LENGTH_BYTES + length
            if stop > end:
                break
            frames.append(
                Frame(
                    op & ~RESPONSE,
                    op >= RESPONSE,
                    flags,
                    status,
                    request_id,
                    ledger_id,
                    entry_id,
                    data[at + HEADER_BYTES : stop],
                )
            )
            at = stop
        if at < end:
            rest = data[at:] if at else data
            self._chunks.append(rest)
            self._buffered = len(rest)
            self._wanted = (
                _LENGTH_BYTES + _U32.unpack_from(rest)[0]
                if len(rest) >= HEADER_BYTES
                else HEADER_BYTES
            )
        return frames

    def _join(self, last: memoryview) -> Frame:
        """Join a frame from its chunks, the first with the whole header, and its last part."""
        first = self._chunks[0]
        _, _, _, op, flags, status, request_id, ledger_id, entry_id = HEADER.unpack_from(first)
        body = b"".join((memoryview(first)[HEADER_BYTES:], *self._chunks[1:], last))
        return Frame(
            op & ~RESPONSE, op >= RESPONSE, flags, status, request_id, ledger_id, entry_id, body
        )
