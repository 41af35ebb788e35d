"""Chunked messages: which entries are chunks, of which message.

A message that is too large travels as several entries, which must all reach the same consumer.
Source: protocol sheet section 8. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, split_payload

CHUNKS_TAG = b"\xd8\x01"
"""The protobuf tag of num_chunks_from_msg (field 27, a varint)."""
CHUNKS_FIRST = CHUNKS_TAG[0]
"""A byte that is found among bytes several times as fast."""

_parse = MessageMetadata.FromString


class ChunkOf(NamedTuple):
    """An entry's place in a chunked message."""

    uuid: str
    """Names the message."""
    is_last: bool


def chunk_of(entry: bytes) -> ChunkOf | None:
    """None: the entry is no chunk, or cannot be read."""
    metadata = chunk_metadata(entry)
    if metadata is None:
        return None
    return ChunkOf(metadata.uuid, metadata.chunk_id >= metadata.num_chunks_from_msg - 1)


def chunk_metadata(entry: bytes) -> MessageMetadata | None:
    """None: the entry is no chunk, or cannot be read."""
    try:
        if entry[:2] == b"\x0e\x01":
            raw = entry[10 : 10 + int.from_bytes(entry[6:10], "big")]
            if CHUNKS_FIRST not in raw or CHUNKS_TAG not in raw:
                return None  # a field that is there has its tag there
            metadata = _parse(raw)
        else:
            metadata, _ = split_payload(entry)
        return metadata if metadata.num_chunks_from_msg > 1 and metadata.uuid else None
    except (DecodeError, MalformedPayloadError, UnicodeError):
        return None


def chunks_of(entries: Sequence[bytes], indexes: Iterable[int]) -> dict[int, ChunkOf]:
    """The chunks among the entries at these indexes, by index."""
    return {index: found for index in indexes if (found := chunk_of(entries[index])) is not None}
