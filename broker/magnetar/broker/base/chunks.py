"""Chunked messages: which entries are chunks, and of which message.

A message that is too large travels as several entries, which must all reach one consumer. Source:
protocol sheet section 8. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, split_payload

CHUNKS_TAG = b"\xd8\x01"
"""Protobuf tag of num_chunks_from_msg (field 27, a varint)."""
CHUNKS_FIRST = CHUNKS_TAG[0]
"""First byte of the tag: Python finds one byte among bytes several times as fast as two."""

_parse = MessageMetadata.FromString


class ChunkOf(NamedTuple):
    """Place of an entry in a chunked message."""

    uuid: str
    """Identifies the chunked message."""
    is_last: bool


def chunk_of(entry: bytes) -> ChunkOf | None:
    """Return the chunk that an entry is; None if it is no chunk or cannot be read."""
    metadata = chunk_metadata(entry)
    if metadata is None:
        return None
    return ChunkOf(metadata.uuid, metadata.chunk_id >= metadata.num_chunks_from_msg - 1)


def chunk_metadata(entry: bytes) -> MessageMetadata | None:
    """Return the metadata of a chunk; None if the entry is no chunk or cannot be read."""
    try:
        if entry[:2] == b"\x0e\x01":
            raw = entry[10 : 10 + int.from_bytes(entry[6:10], "big")]
            if CHUNKS_FIRST not in raw or CHUNKS_TAG not in raw:
                return None  # a field that is present has its tag here
            metadata = _parse(raw)
        else:
            metadata, _ = split_payload(entry)
        return metadata if metadata.num_chunks_from_msg > 1 and metadata.uuid else None
    except (DecodeError, MalformedPayloadError, UnicodeError):
        return None


def chunks_of(entries: Sequence[bytes], indexes: Iterable[int]) -> dict[int, ChunkOf]:
    """Return the chunks among the entries at these indexes, by index."""
    return {index: found for index in indexes if (found := chunk_of(entries[index])) is not None}
