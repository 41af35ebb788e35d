"""The messages of an entry as compaction needs them: keys, tombstones, and the rest of a batch.

A *tombstone* is a message with a key that has no payload, or that is marked as a null value: it
removes the key. An *opaque* entry is kept whole, because its messages cannot be read: an encrypted
or damaged batch. In a batch that lost messages, the others keep their indexes. A removed message
stays as an empty one with the mark `compacted_out`, and the batch lists the remaining indexes.

Source: protocol sheet, sections 4 and 8. Pure.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from google.protobuf.message import DecodeError

from magnetar.sdk.wire import (
    MalformedPayloadError,
    MessageMetadata,
    encode_payload,
    split_payload,
)
from magnetar.sdk.wire.batches import check_batch_size, decode_batch
from magnetar.sdk.wire.compression import Compression, compress, decompress
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

_U32 = struct.Struct(">I")
_CODECS = {int(codec.wire): codec for codec in Compression}
_GONE = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_GONE_ITEM = _U32.pack(len(_GONE)) + _GONE


class Kind(Enum):
    """How an entry is compacted."""

    OPAQUE = auto()
    """Kept whole: its messages cannot be read."""
    INTERNAL = auto()
    """A marker that a broker wrote: dropped."""
    SINGLE = auto()
    CHUNK = auto()
    """A part of a message: all parts are kept, or none."""
    BATCH = auto()


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """One message of an entry. `index` is -1 if the entry is no batch."""

    index: int
    key: str | None
    is_tombstone: bool


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """An entry, decoded as far as possible."""

    kind: Kind
    metadata: MessageMetadata
    messages: Sequence[KeyedMessage] = ()
    """Messages of the entry, without those that an earlier compaction removed."""
    items: Sequence[tuple[SingleMessageMetadata, bytes]] = ()
    """All messages of a batch, removed ones included."""
    decompressed_bytes: int = 0
    """Bytes that decoding the entry has decompressed."""

    @property
    def chunk_of(self) -> str:
        """Id of the chunked message that this chunk belongs to."""
        uuid: str = self.metadata.uuid
        return uuid

    @property
    def is_first_chunk(self) -> bool:
        return bool(self.metadata.chunk_id == 0)

    @property
    def is_last_chunk(self) -> bool:
        return bool(self.metadata.chunk_id == self.metadata.num_chunks_from_msg - 1)


def open_entry(entry: bytes, *, batch_bytes_max: int) -> OpenedEntry:
    """Decode an entry.

    A batch is opaque if it has more than `batch_bytes_max` uncompressed bytes, or more messages
    than `check_batch_size` allows with this bound.
    """
    try:
        metadata, body_at = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return OpenedEntry(Kind.OPAQUE, MessageMetadata())
    if metadata.HasField("marker_type"):
        return OpenedEntry(Kind.INTERNAL, metadata)
    if not metadata.HasField("num_messages_in_batch"):
        kind = Kind.CHUNK if metadata.num_chunks_from_msg > 1 else Kind.SINGLE
        return OpenedEntry(kind, metadata, [_single(metadata, len(entry) - body_at)])
    if metadata.encryption_keys:
        return OpenedEntry(Kind.OPAQUE, metadata)
    count, size_bytes = metadata.num_messages_in_batch, 0
    try:
        check_batch_size(count, memory_bytes_max=batch_bytes_max)
        if metadata.compression and metadata.uncompressed_size <= batch_bytes_max:
            size_bytes = metadata.uncompressed_size
        body = decompress(
            metadata.compression,
            entry[body_at:],
            size=metadata.uncompressed_size,
            bytes_max=batch_bytes_max,
        )
        items = decode_batch(body, count, memory_bytes_max=batch_bytes_max)
    except MalformedPayloadError:
        return OpenedEntry(Kind.OPAQUE, metadata, decompressed_bytes=size_bytes)
    messages = [
        KeyedMessage(
            index,
            single.partition_key if single.HasField("partition_key") else None,
            is_tombstone=single.null_value or not data,
        )
        for index, (single, data) in enumerate(items)
        if not single.compacted_out
    ]
    return OpenedEntry(Kind.BATCH, metadata, messages, items, size_bytes)


def _single(metadata: MessageMetadata, body_bytes: int) -> KeyedMessage:
    if metadata.compression and not metadata.encryption_keys:
        body_bytes = metadata.uncompressed_size
    return KeyedMessage(
        -1,
        metadata.partition_key if metadata.HasField("partition_key") else None,
        is_tombstone=metadata.null_value or not body_bytes,
    )


def rest_of_batch(
    entry: bytes, opened: OpenedEntry, is_kept: Callable[[KeyedMessage], bool]
) -> tuple[bytes | None, int]:
    """Return a batch with its kept messages only, and the number of messages that it loses now.

    Return the entry unchanged if it loses none; None if no message remains.
    """
    kept = [message.index for message in opened.messages if is_kept(message)]
    lost = len(opened.messages) - len(kept)
    if not lost:
        return entry, 0
    if not kept:
        return None, lost
    parts: list[bytes] = []
    left = set(kept)
    for index, (single, data) in enumerate(opened.items):
        if index in left:
            head = single.SerializeToString()
            parts += (_U32.pack(len(head)), head, data)
        else:
            parts.append(_GONE_ITEM)
    body = b"".join(parts)
    metadata = MessageMetadata()
    metadata.CopyFrom(opened.metadata)
    if metadata.compression:
        metadata.uncompressed_size = len(body)
        body = compress(_CODECS[metadata.compression], body)
    elif metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(body)
    del metadata.compacted_batch_indexes[:]
    metadata.compacted_batch_indexes.extend(kept)
    return encode_payload(metadata.SerializeToString(), body), lost


def last_index_of(entry: bytes) -> int:
    """Return the index of the last message left in a compacted batch; -1 for no batch."""
    try:
        metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    if metadata.compacted_batch_indexes:
        return int(metadata.compacted_batch_indexes[-1])
    return max(0, int(metadata.num_messages_in_batch) - 1)
