"""Broker entry metadata: the index and the time that a broker stores in front of a message.

Layout: docs/formats/entry-metadata.md. The *prefix* of an entry is 0x0e02, a size, and a
`BrokerEntryMetadata`. It lies outside the checksum of the message, and the broker alone writes it.
Entries with and without a prefix may follow each other in one log. What stands behind the prefix is
the *bare* entry: the bytes that the client sent.

The index of an entry is that of its last message, counted over the messages of the topic. Beside
Pulsar's two fields there is one of ours, `unbroken_since`: every message from that index on is
stored, in entries that have an index. Two indexes from there on tell how many messages lie between.
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
"""Largest prefix that is written: its head, and three numbers, each behind its tag."""

INDEX_MAX: Final = (1 << 63) - 1
"""Largest index that is taken from an entry: Java's clients read a signed number."""

_HEAD: Final = struct.Struct(">2sI")
_magic_of = itemgetter(slice(2))
_TIME_FIELD, _INDEX_FIELD = 1, 2
_TIME_TAG, _INDEX_TAG = b"\x08", b"\x10"


@dataclass(frozen=True, slots=True)
class EntryMetadata:
    """What the prefix of an entry says."""

    broker_time_ms: int | None = None
    """When a broker stored the entry, by its clock."""
    index: int | None = None
    """Index of the last message of the entry; None: no message comes before its end."""
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
        """Return the prefix of an entry whose last message has this index; -1: there is none."""
        tail = _INDEX_TAG + varint(index) + self._since if index >= 0 else b""
        return _HEAD.pack(ENTRY_METADATA_MAGIC, len(self._time) + len(tail)) + self._time + tail


def prefix_size(entry: bytes) -> int:
    """Bytes of the prefix of an entry; 0: it has none, or one that does not fit into the entry."""
    if not entry.startswith(ENTRY_METADATA_MAGIC) or len(entry) < _HEAD.size:
        return 0
    size: int = _HEAD.size + _HEAD.unpack_from(entry)[1]
    return size if size <= len(entry) else 0


def bare(entry: bytes) -> bytes:
    """The entry without its prefix: what the client sent."""
    size = prefix_size(entry)
    return entry[size:] if size else entry


def part_prefixes(entries: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes] | None]:
    """Return the bare entries and their prefixes; None: not one of them has a prefix."""
    if ENTRY_METADATA_MAGIC not in map(_magic_of, entries):
        return entries, None
    sizes = list(map(prefix_size, entries))
    return (
        [entry[size:] for entry, size in zip(entries, sizes, strict=True)],
        [entry[:size] for entry, size in zip(entries, sizes, strict=True)],
    )


def metadata_in(entry: bytes) -> EntryMetadata | None:
    """Return what the prefix of an entry says; None: it has none that can be read."""
    size = prefix_size(entry)
    if not size:
        return None
    try:
        return _decode(entry[_HEAD.size : size])
    except (IndexError, ValueError):
        return None


def _decode(raw: bytes) -> EntryMetadata:
    """
    Raises:
        IndexError, ValueError: these are no fields.
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
