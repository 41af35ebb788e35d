"""Frames of the Pulsar binary protocol and their payloads: bytes in, commands out, and back.

Layout: docs/formats/pulsar-frame.md. A frame is a size (u32), the size of the command (u32), the
`BaseCommand`, and for SEND and MESSAGE a payload: everything from the 0x0e01 magic on. The payload
is returned as one bytes object and never re-encoded, because a broker stores it as it is.
`FrameDecoder` does not read the payload, and does no I/O.

A payload is, in order: optionally 0x0e02, size (u32), BrokerEntryMetadata; optionally 0x0e01,
CRC32C (u32) of all that follows; metadata size (u32); MessageMetadata; body. `magnetar.sdk.batch`
reads the body of a batch.
"""

import struct

import google_crc32c
from google.protobuf.message import DecodeError

from magnetar.sdk.wire.errors import (
    FrameTooLargeError,
    MalformedFrameError,
    MalformedPayloadError,
    PayloadChecksumError,
    UnknownCommandError,
)
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

MESSAGE_BYTES_MAX = 5 * 1024 * 1024
"""Largest message by default; a broker announces its own limit in CONNECTED."""

FRAME_SLACK_BYTES = 10 * 1024
"""Room for command and metadata above the message limit: a chunk fills the limit with payload."""

FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + FRAME_SLACK_BYTES

MESSAGES_PER_ENTRY_MAX = 1 << 20
"""Most messages counted for one entry: a false count must neither use up a consumer's permits, nor
return more of them than the broker took."""

CHECKSUM_MAGIC = b"\x0e\x01"
ENTRY_METADATA_MAGIC = b"\x0e\x02"

_SIZES = struct.Struct(">II")
_U32 = struct.Struct(">I")
_two_u32_at = struct.Struct(">II").unpack_from
_crc32c = google_crc32c.value
_parse_metadata = MessageMetadata.FromString
_parse = BaseCommand.FromString
_HOT_MESSAGE = b"\x08\x09\x4a"
_HOT = (b"\x08\x06\x32", b"\x08\x07\x3a", _HOT_MESSAGE)
"""First bytes of SEND, SEND_RECEIPT and MESSAGE: the type, and the tag of the command's field."""

COMMAND_FIELDS: dict[int, str] = {
    field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.number > 1
}
"""Name of the `BaseCommand` field for each command type. Types and field numbers are equal."""


KNOWN_MAX = 4096
"""Prefixes that a decoder remembers; at this bound it forgets all. Each producer and consumer of a
connection has its own prefix, and gets new ones as its sequence ids grow longer."""


def _skip_varint(raw: bytes, at: int) -> int:
    while raw[at] >= 0x80:
        at += 1
    return at + 1


def _complete_prefix(raw: bytes) -> bytes | None:
    """Return the start of a hot command that proves its required fields; None for other commands.

    SEND and SEND_RECEIPT: type, length, producer_id, tag of sequence_id. MESSAGE: type, length,
    consumer_id, length of message_id, ledgerId, tag of entryId. Any parseable command that starts
    with the same bytes has the same fields, as the lengths are among these bytes. (The ids inside a
    receipt's message_id are not checked: missing ones would read as 0.)
    """
    kind = raw[:3]
    if kind not in _HOT:
        return None
    try:
        at = _skip_varint(raw, 3)
        if raw[at] != 0x08:
            return None
        at = _skip_varint(raw, at + 1)
        if kind == _HOT_MESSAGE:
            if raw[at] != 0x12:
                return None
            at = _skip_varint(raw, at + 1)
            if raw[at] != 0x08:
                return None
            at = _skip_varint(raw, at + 1)
        return raw[: at + 1] if raw[at] == 0x10 else None
    except IndexError:
        return None


def parse_command(raw: bytes) -> BaseCommand:
    """Parse a command that `FrameDecoder.split` returned.

    Raises:
        MalformedFrameError, UnknownCommandError: the connection must be closed.
    """
    command = _parse_any(raw)
    _check_complete(command)
    return command


def _parse_any(raw: bytes) -> BaseCommand:
    try:
        return _parse(raw)
    except DecodeError as error:
        raise MalformedFrameError(f"no command: {error}") from error


def _check_complete(command: BaseCommand) -> None:
    if not command.HasField("type"):
        raise UnknownCommandError("a command of a type that is not known here")
    name = COMMAND_FIELDS[command.type]
    if not command.HasField(name):
        raise MalformedFrameError(f"a command says it is {name} but does not hold one")
    if not command.IsInitialized():
        raise MalformedFrameError(f"a {name} command lacks a required field")


class FrameDecoder:
    """Decodes a byte stream into commands. One per connection; do not feed it again after an
    error."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """Start with no bytes.

        `frame_bytes_max` bounds the size field, which counts all of a frame but its first four
        bytes.
        """
        self.frame_bytes_max = frame_bytes_max
        self._pending = bytearray()
        self._wanted = 0
        # Starts of commands that were found complete: the check takes longer than parsing.
        self._known: set[bytes] = set()
        self._widths: tuple[int, ...] = ()
        """Sizes of the known prefixes; there are very few."""

    def feed(self, data: bytes) -> list[tuple[BaseCommand, bytes]]:
        """Return the commands completed by `data`, in order, each with its payload (empty for
        most).

        Raises:
            FrameTooLargeError, MalformedFrameError, UnknownCommandError: the connection must be
                closed. Commands before the bad one in the same read are lost with it.
        """
        return [(self._known_command(raw), payload) for raw, payload in self.split(data)]

    def split(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Split bytes into whole frames: each command unparsed, with its payload. For callers that
        parse most commands by hand.

        A large frame arrives in many reads. They are joined, and examined again only when the frame
        is whole, so the cost stays linear in its size.

        Raises:
            FrameTooLargeError, MalformedFrameError: the connection must be closed.
        """
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._wanted:
                return []
            data = bytes(pending)
            pending.clear()
        frames: list[tuple[bytes, bytes]] = []
        frame_bytes_max = self.frame_bytes_max
        sizes_at = _SIZES.unpack_from
        at, end = 0, len(data)
        while end - at >= 8:
            total, command_size = sizes_at(data, at)
            if total > frame_bytes_max:
                raise FrameTooLargeError(f"a frame of {total} bytes; allowed are {frame_bytes_max}")
            body = at + 8 + command_size
            stop = at + 4 + total
            if body > stop:
                raise MalformedFrameError(
                    f"a frame of {total} bytes cannot hold a command of {command_size}"
                )
            if stop > end:
                break
            frames.append((data[at + 8 : body], data[body:stop]))
            at = stop
        if at < end:
            pending += data[at:] if at else data
            self._wanted = 4 + sizes_at(pending)[0] if end - at >= 8 else 8
        return frames

    def _known_command(self, raw: bytes) -> BaseCommand:
        command = _parse_any(raw)
        for width in self._widths:
            if raw[:width] in self._known:
                return command
        _check_complete(command)
        self._learn(raw)
        return command

    def _learn(self, raw: bytes) -> None:
        prefix = _complete_prefix(raw)
        if prefix is None:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
            self._widths = ()
        self._known.add(prefix)
        if len(prefix) not in self._widths:
            self._widths = (*self._widths, len(prefix))

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished frame; at most the frame limit and one read."""
        return len(self._pending)


def encode_command(command: BaseCommand) -> bytes:
    """Return a frame without payload."""
    raw = command.SerializeToString()
    return _SIZES.pack(4 + len(raw), len(raw)) + raw


def encode_payload_command(command: BaseCommand, payload: bytes) -> bytes:
    """Return a frame with its payload: the bytes from the 0x0e01 magic on, as `feed` returned
    them."""
    raw = command.SerializeToString()
    return b"".join((_SIZES.pack(4 + len(raw) + len(payload), len(raw)), raw, payload))


def checksum(data: bytes) -> int:
    """Return the CRC32C (Castagnoli) of the data."""
    value: int = _crc32c(data)
    return value


def check_checksum(payload: bytes) -> bool:
    """Whether the payload matches its checksum; true if it has none."""
    at = 0
    if payload[:2] == ENTRY_METADATA_MAGIC:
        at = _after_entry_metadata(payload)
    if payload[at : at + 2] != CHECKSUM_MAGIC:
        return True
    if len(payload) < at + 6:
        return False
    expected: int = _U32.unpack_from(payload, at + 2)[0]
    return bool(_crc32c(payload[at + 6 :]) == expected)


def split_payload(payload: bytes) -> tuple[MessageMetadata, int]:
    """Return the metadata and the offset of the body. The checksum is not verified here.

    Raises:
        MalformedPayloadError: the payload is truncated, or has no valid metadata.
    """
    at, body = _metadata_span(payload)
    try:
        metadata = _parse_metadata(payload[at:body])
    except DecodeError as error:
        raise MalformedPayloadError(f"no message metadata: {error}") from error
    return metadata, body


def open_payload(payload: bytes) -> tuple[MessageMetadata, int]:
    """Verify the checksum; return the metadata and the offset of the body.

    Raises:
        PayloadChecksumError: the checksum does not match.
        MalformedPayloadError: the payload is truncated, or has no valid metadata.
    """
    if payload[:2] == CHECKSUM_MAGIC and len(payload) >= 10:
        expected, size = _two_u32_at(payload, 2)
        if _crc32c(payload[6:]) != expected:
            raise PayloadChecksumError("the checksum does not match")
        body = 10 + size
        if body <= len(payload):
            try:
                return _parse_metadata(payload[10:body]), body
            except DecodeError as error:
                raise MalformedPayloadError(f"no message metadata: {error}") from error
    elif not check_checksum(payload):
        raise PayloadChecksumError("the checksum does not match")
    return split_payload(payload)


def broker_entry_metadata(payload: bytes) -> BrokerEntryMetadata | None:
    """Return the metadata that the broker put before the message; None if there is none.

    Raises:
        MalformedPayloadError: the prefix is truncated or not decodable.
    """
    if payload[:2] != ENTRY_METADATA_MAGIC:
        return None
    end = _after_entry_metadata(payload)
    try:
        return BrokerEntryMetadata.FromString(payload[6:end])
    except DecodeError as error:
        raise MalformedPayloadError(f"no broker entry metadata: {error}") from error


def encode_payload(metadata: bytes, body: bytes) -> bytes:
    """Return magic, checksum, metadata size, serialized `MessageMetadata`, and body."""
    checked = b"".join((_U32.pack(len(metadata)), metadata, body))
    return b"".join((CHECKSUM_MAGIC, _U32.pack(_crc32c(checked)), checked))


def extend_metadata(payload: bytes, added: MessageMetadata) -> bytes:
    """Return the payload with more fields in its metadata, under a new checksum.

    The caller has verified the old checksum. Broker entry metadata are dropped. Nothing is encoded
    anew: added fields may stand last, where they take precedence (protobuf). So the sender's fields
    stay, including those unknown here.

    Raises:
        MalformedPayloadError: the payload is truncated.
    """
    at, body = _metadata_span(payload)
    return encode_payload(payload[at:body] + added.SerializePartialToString(), payload[body:])


def messages_in(payload: bytes) -> int:
    """Return the number of messages in an entry, which is its cost in permits; 1 without a batch.

    A batch that states more than `MESSAGES_PER_ENTRY_MAX` costs that many.

    Raises:
        MalformedPayloadError: see `split_payload`.
    """
    metadata, _ = split_payload(payload)
    return min(max(1, metadata.num_messages_in_batch), MESSAGES_PER_ENTRY_MAX)


def _metadata_span(payload: bytes) -> tuple[int, int]:
    """Return the offsets of the serialized metadata, and of the body after them."""
    at = 0
    if payload[:2] == ENTRY_METADATA_MAGIC:
        at = _after_entry_metadata(payload)
    if payload[at : at + 2] == CHECKSUM_MAGIC:
        at += 6
    if len(payload) < at + 4:
        raise MalformedPayloadError(f"a payload of {len(payload)} bytes ends in its headers")
    size: int = _U32.unpack_from(payload, at)[0]
    at += 4
    body = at + size
    if body > len(payload):
        raise MalformedPayloadError(
            f"metadata of {size} bytes in a payload of {len(payload)} bytes"
        )
    return at, body


def _after_entry_metadata(payload: bytes) -> int:
    """Return the offset after the broker entry metadata."""
    if len(payload) < 6:
        raise MalformedPayloadError("a payload that ends in its broker entry metadata")
    size: int = _U32.unpack_from(payload, 2)[0]
    if 6 + size > len(payload):
        raise MalformedPayloadError(
            f"broker entry metadata of {size} bytes in a payload of {len(payload)} bytes"
        )
    return 6 + size
