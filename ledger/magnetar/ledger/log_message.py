"""Messages of a log that is used without a broker: their ids, and their encoding in an entry. Pure.

An entry is a batch of messages, back to back. A message is a payload with an optional key and
optional headers; the log does not interpret any of them. The ids that one log gives strictly
increase.

Layout: docs/formats/log-message.md. Source: managed ledger, section 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.ledger.errors import MessageTooLargeError, UnknownMessageFormatError
from magnetar.ledger.position import Position

MAGIC = 0xD1
"""Version 1 of the layout. Stored on disk: never renumber this byte or the attributes."""

MESSAGES_MAX = 1 << 16
"""Maximum number of messages in one entry."""
ENTRY_BYTES_MAX = 5 << 20
KEY_BYTES_MAX = 64 << 10
HEADERS_MAX = 1024
"""Maximum number of headers of one message."""

_HAS_KEY = 0x01
_HAS_HEADERS = 0x02
_MUST_KNOW = 0x0F
"""Attribute bits that a reader must know; it refuses unknown ones, and ignores other bits."""

_VARINT_MAX = (1 << 32) - 1


class MessageId(NamedTuple):
    """The id of a message. Tuples compare lexicographically, which is log order."""

    ledger_id: int
    entry_id: int
    batch_index: int

    @property
    def position(self) -> Position:
        """The entry that holds the message."""
        return Position(self.ledger_id, self.entry_id)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a log: its bytes, with a key and headers from the application."""

    payload: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Encode messages as one entry.

    Raises:
        ValueError: there is no message.
        MessageTooLargeError: a limit of the format is exceeded.
    """
    if not messages:
        raise ValueError("an entry holds at least one message")
    if len(messages) > MESSAGES_MAX:
        raise MessageTooLargeError(f"{len(messages)} messages; an entry holds {MESSAGES_MAX}")
    parts: list[bytes] = []
    for message in messages:
        _encode(message, parts)
    size = sum(map(len, parts))
    if size > ENTRY_BYTES_MAX:
        raise MessageTooLargeError(
            f"{len(messages)} messages take {size} bytes; an entry holds {ENTRY_BYTES_MAX}: "
            f"append fewer at once"
        )
    return b"".join(parts)


def _encode(message: Message, parts: list[bytes]) -> None:
    key, headers = message.key, message.headers
    attributes = (_HAS_KEY if key is not None else 0) | (_HAS_HEADERS if headers else 0)
    parts.append(bytes((MAGIC, attributes)))
    if key is not None:
        if len(key) > KEY_BYTES_MAX:
            raise MessageTooLargeError(f"a key of {len(key)} bytes; allowed are {KEY_BYTES_MAX}")
        parts += (_varint(len(key)), key)
    parts += (_varint(len(message.payload)), message.payload)
    if headers:
        if len(headers) > HEADERS_MAX:
            raise MessageTooLargeError(f"{len(headers)} headers; allowed are {HEADERS_MAX}")
        parts.append(_varint(len(headers)))
        for name, value in headers:
            encoded = name.encode()
            parts += (_varint(len(encoded)), encoded, _varint(len(value)), value)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def decode_messages(entry: bytes) -> list[Message]:
    """Decode the messages of an entry, in batch order.

    Raises:
        UnknownMessageFormatError: the bytes are not messages of a known version.
    """
    if len(entry) > ENTRY_BYTES_MAX:
        raise UnknownMessageFormatError(f"{len(entry)} bytes; an entry holds {ENTRY_BYTES_MAX}")
    messages: list[Message] = []
    source = _Source(entry)
    while not source.is_at_end:
        if len(messages) == MESSAGES_MAX:
            raise UnknownMessageFormatError(f"more than {MESSAGES_MAX} messages in an entry")
        messages.append(_decode(source))
    if not messages:
        raise UnknownMessageFormatError("an empty entry holds no message")
    return messages


def _decode(source: "_Source") -> Message:
    magic = source.byte()
    if magic != MAGIC:
        raise UnknownMessageFormatError(
            f"magic {magic:#04x} at byte {source.at - 1}, expected {MAGIC:#04x}: a newer release "
            f"wrote it, or it is no message"
        )
    attributes = source.byte()
    unknown = attributes & _MUST_KNOW & ~(_HAS_KEY | _HAS_HEADERS)
    if unknown:
        raise UnknownMessageFormatError(
            f"attributes {unknown:#04x} at byte {source.at - 1}: written by a newer release"
        )
    key = source.sized(KEY_BYTES_MAX, "a key") if attributes & _HAS_KEY else None
    payload = source.sized(ENTRY_BYTES_MAX, "a payload")
    headers: list[tuple[str, bytes]] = []
    if attributes & _HAS_HEADERS:
        count = source.varint()
        if not 1 <= count <= HEADERS_MAX:
            raise UnknownMessageFormatError(f"{count} headers; allowed are 1 to {HEADERS_MAX}")
        for _ in range(count):
            name = source.sized(ENTRY_BYTES_MAX, "a header")
            try:
                headers.append((name.decode(), source.sized(ENTRY_BYTES_MAX, "a header")))
            except UnicodeDecodeError as error:
                raise UnknownMessageFormatError(f"a header key is not UTF-8: {error}") from error
    return Message(payload, key, tuple(headers))


class _Source:
    """Reads values from the front of an entry."""

    __slots__ = ("_entry", "at")

    def __init__(self, entry: bytes) -> None:
        self._entry = entry
        self.at = 0

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self._entry)

    def byte(self) -> int:
        if self.at >= len(self._entry):
            raise UnknownMessageFormatError(f"a message is cut off at byte {self.at}")
        self.at += 1
        return self._entry[self.at - 1]

    def varint(self) -> int:
        start, number, shift = self.at, 0, 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise UnknownMessageFormatError(f"the number at byte {start} is too long")
        if number > _VARINT_MAX or (byte == 0 and shift > 7):
            raise UnknownMessageFormatError(f"the number at byte {start} is not as it should be")
        return number

    def sized(self, size_max: int, what: str) -> bytes:
        size = self.varint()
        if size > size_max:
            raise UnknownMessageFormatError(f"{what} of {size} bytes; allowed are {size_max}")
        end = self.at + size
        if end > len(self._entry):
            raise UnknownMessageFormatError(f"{what} of {size} bytes is cut off")
        value = self._entry[self.at : end]
        self.at = end
        return value
