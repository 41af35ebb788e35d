"""Broker entry metadata: the index and the time that a broker stores in front of a message.

Layout: docs/formats/entry-metadata.md. The *prefix* of an entry is 0x0e02, a size, and a
`BrokerEntryMetadata`. It lies outside the checksum of the message, and only the broker writes it.
One log may hold entries with and without a prefix. The rest of an entry behind its prefix is the
*bare* entry: the bytes that the client sent.

The index of an entry is that of its last message, counted over the messages of the topic. Beside
Pulsar's two fields there is one of ours, `unbroken_since`: every message from that index on is
stored, in entries that have an index. The difference of two such indexes is the number of messages
between them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from magnetar.sdk.wire.frames import ENTRY_METADATA_MAGIC

UNBROKEN_SINCE_FIELD: Final = 4001
"""Number of our field in `BrokerEntryMetadata`. Stored on disk, never renumber. Clients of Pulsar
skip fields that they do not know."""

PREFIX_BYTES_MAX: Final = 6 + 1 + 10 + 1 + 9 + 3 + 9
"""Largest prefix that a broker writes, in bytes: the head, and three numbers with their tags."""

INDEX_MAX: Final = (1 << 63) - 1
"""Largest index that is accepted from an entry: clients in Java read a signed number."""

_HEAD: Final = struct.Struct(">2sI")
_magic_of = itemgetter(slice(2))
_TIME_FIELD, _INDEX_FIELD = 1, 2
_TIME_TAG, _INDEX_TAG = b"\x08", b"\x10"


@dataclass(frozen=True, slots=True)
class EntryMetadata:
    """The fields of the prefix of an entry."""

    broker_time_ms: int | None = None
    """When a broker stored the entry, by its clock."""
    index: int | None = None
    """Index of the last message up to the end of the entry; None if no message precedes that
    end."""
    unbroken_since: int = 0


NOTHING: Final = EntryMetadata()


def varint(value: int) -> bytes:
    """Encode a number that is not negative, seven bits per byte, the lowest first (protobuf)."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SINCE_TAG: Final = varint(UNBROKEN_SINCE_FIELD << 3)


class PrefixEncoder:
    """Encodes the prefixes of entries that are stored at one time, in one unbroken stretch."""

    def __init__(self, broker_time_ms: int, *, unbroken_since: int) -> None:
        self._time = _TIME_TAG + varint(broker_time_ms)
        self._since = _SINCE_TAG + varint(unbroken_since) if unbroken_since else b""

    def encode(self, index: int) -> bytes:
        """Return an entry's prefix; `index` is that of the last message up to its end, or -1."""
        tail = _INDEX_TAG + varint(index) + self._since if index >= 0 else b""
        return _HEAD.pack(ENTRY_METADATA_MAGIC, len(self._time) + len(tail)) + self._time + tail


def prefix_size(entry: bytes) -> int:
    """Return the size of an entry's prefix in bytes; 0 if it has none that fits into the entry."""
    if not entry.startswith(ENTRY_METADATA_MAGIC) or len(entry) < _HEAD.size:
        return 0
    size: int = _HEAD.size + _HEAD.unpack_from(entry)[1]
    return size if size <= len(entry) else 0


def bare(entry: bytes) -> bytes:
    """Return the entry without its prefix: the bytes that the client sent."""
    size = prefix_size(entry)
    return entry[size:] if size else entry


def part_prefixes(entries: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes] | None]:
    """Return the bare entries and their prefixes, or None for the prefixes if no entry has one."""
    if ENTRY_METADATA_MAGIC not in map(_magic_of, entries):
        return entries, None
    sizes = list(map(prefix_size, entries))
    return (
        [entry[size:] for entry, size in zip(entries, sizes, strict=True)],
        [entry[:size] for entry, size in zip(entries, sizes, strict=True)],
    )


def metadata_in(entry: bytes) -> EntryMetadata | None:
    """Return the fields of an entry's prefix; None if it has no readable prefix."""
    size = prefix_size(entry)
    if not size:
        return None
    try:
        return _decode(entry[_HEAD.size : size])
    except (IndexError, ValueError):
        return None


def _decode(raw: bytes) -> EntryMetadata:
    """Decode the fields of a prefix.

    Raises:
        IndexError, ValueError: the bytes are not valid fields.
    """
    values: dict[int, int] = {}
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        match tag & 7:
            case 0:
                values[tag >> 3], at = _read_varint(raw, at)
            case 1:
                at += 8
            case 2:
                size, at = _read_varint(raw, at)
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError(f"a field of type {tag & 7}")
    if at != len(raw):
        raise ValueError("the last field is cut off")
    index = values.get(_INDEX_FIELD)
    since = values.get(UNBROKEN_SINCE_FIELD, 0)
    if index is not None and (index > INDEX_MAX or since > index + 1):
        raise ValueError(f"{index} is no index in a stretch from {since} on")
    return EntryMetadata(values.get(_TIME_FIELD), index, since)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
