"""Outgoing messages and the metadata that they carry. Pure."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from magnetar.sdk.wire.compression import Compression
from magnetar.sdk.wire.key_hashes import murmur3_hash
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandSend,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

_LOW_16 = 0xFFFF
_UINT64_MAX = (1 << 64) - 1
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message that an application sends. Interceptors get it, and routers choose by it."""

    payload: bytes
    """Payload; empty if `is_null`."""
    key: str | bytes | None = None
    """Key of the message. Bytes are sent as base64, and marked as such."""
    ordering_key: bytes | None = None
    """Used instead of `key` by Key_Shared subscriptions and for batches by key."""
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    deliver_at_ms: int | None = None
    """Earliest delivery, in ms since the epoch (Shared and Key_Shared). Such a message is not
    batched."""
    replicate_to: Sequence[str] | None = None
    """Clusters that get a copy, of those that the topic is replicated to; by default all of them.
    Such a message is not batched."""
    sequence_id: int | None = None
    """The application's own sequence id, above the one before; by default the next one."""
    is_null: bool = False
    """Whether the message is a tombstone: no value at all, which differs from an empty one."""
    is_null_key: bool = False
    """Whether a pair has no key (KEY_VALUE, SEPARATED)."""
    schema_version: bytes | None = None
    """Version of the topic's schema that encoded the message; None for the producer's schema, empty
    for no schema. A message with a version is not batched."""

    @property
    def is_plain(self) -> bool:
        """Whether the message has a payload and nothing else."""
        return (
            self.key is None
            and self.ordering_key is None
            and self.properties is None
            and self.event_time_ms is None
            and self.deliver_at_ms is None
            and not self.replicate_to
            and not self.is_null
            and not self.is_null_key
            and self.schema_version is None
        )

    @property
    def metadata_key(self) -> str:
        """The key as it is sent; empty if there is none."""
        key = self.key
        return base64.b64encode(key).decode() if isinstance(key, bytes) else key or ""

    def metadata(self) -> MessageMetadata | None:
        """Return the metadata beyond the payload, without the required fields, which the encoder
        adds; None if there are none.

        Raises:
            TypeError: a field has another type than declared; the text says which.
            ValueError: a time is out of range; the text says which.
        """
        if self.is_plain:
            return None
        try:
            if isinstance(self.replicate_to, str):  # Its letters are not clusters.
                raise TypeError
            return MessageMetadata(
                partition_key=None if self.key is None else self.metadata_key,
                partition_key_b64_encoded=True if isinstance(self.key, bytes) else None,
                ordering_key=self.ordering_key,
                properties=[KeyValue(key=k, value=v) for k, v in (self.properties or {}).items()],
                event_time=self.event_time_ms,
                deliver_at_time=self.deliver_at_ms,
                replicate_to=self.replicate_to,
                null_value=self.is_null or None,
                null_partition_key=self.is_null_key or None,
                schema_version=self.schema_version or None,
            )
        except (TypeError, AttributeError):
            raise TypeError(self._misfit()) from None
        except ValueError:
            if not 0 <= (self.event_time_ms or 0) <= _UINT64_MAX:
                raise ValueError(f"event_time_ms is out of range: {self.event_time_ms}") from None
            if not -_INT64_MAX <= (self.deliver_at_ms or 0) <= _INT64_MAX:
                raise ValueError(f"deliver_at_ms is out of range: {self.deliver_at_ms}") from None
            raise  # Text that is not Unicode.

    def _misfit(self) -> str:
        """Return the text that says which field has a wrong type."""
        if not isinstance(self.key, (str, bytes, type(None))):
            return f"key must be text or bytes, not {self.key!r}"
        if not isinstance(self.ordering_key, (bytes, type(None))):
            return f"ordering_key must be bytes, not {self.ordering_key!r}"
        for name in ("event_time_ms", "deliver_at_ms"):
            time = getattr(self, name)
            if not isinstance(time, (int, type(None))):
                return f"{name} must be whole milliseconds since 1970, not {time!r}"
        clusters = self.replicate_to or ()
        if isinstance(clusters, str) or not all(isinstance(each, str) for each in clusters):
            return f"replicate_to must be names of clusters, not {self.replicate_to!r:.200}"
        return f"properties must map text to text, not {self.properties!r:.200}"


def single_metadata(extra: MessageMetadata) -> bytes:
    """Encode a message's own metadata for a batch, without payload size and sequence id."""
    return SingleMessageMetadata(
        partition_key=extra.partition_key if extra.HasField("partition_key") else None,
        partition_key_b64_encoded=True if extra.partition_key_b64_encoded else None,
        ordering_key=extra.ordering_key if extra.HasField("ordering_key") else None,
        properties=extra.properties,
        event_time=extra.event_time if extra.HasField("event_time") else None,
        null_value=True if extra.null_value else None,
        null_partition_key=True if extra.null_partition_key else None,
    ).SerializePartialToString()


def outer_metadata(first: MessageMetadata) -> bytes:
    """Encode the keys of a batch's first message, by which brokers route the batch."""
    return MessageMetadata(
        partition_key=first.partition_key if first.HasField("partition_key") else None,
        partition_key_b64_encoded=True if first.partition_key_b64_encoded else None,
        ordering_key=first.ordering_key if first.HasField("ordering_key") else None,
    ).SerializePartialToString()


def entry_hash_of(extra: MessageMetadata) -> int | None:
    """Return the hash that chooses the entry bucket of a message; None if it has neither key.

    The hash is the lower 16 bits of Murmur3 of the key as it is sent. The upper bits choose the
    segment, so all messages of a key are in one bucket, whatever their ordering keys. Ordering keys
    count for messages without a key. Source: sheet of Pulsar 5, sections 1.5 and 3.5.
    """
    if extra.HasField("partition_key"):
        key = extra.partition_key.encode()
    elif extra.HasField("ordering_key"):
        key = extra.ordering_key
    else:
        return None
    return murmur3_hash(key) & _LOW_16


def entry_hash_fields(low: int, high: int) -> bytes:
    """Encode the lowest and the highest hash in an entry, by which brokers choose its bucket."""
    return MessageMetadata(entry_hash_min=low, entry_hash_max=high).SerializePartialToString()


def entry_hash_fields_of(extra: MessageMetadata) -> bytes:
    """Encode the hash of a single message's key for its entry; empty if it has no key."""
    entry_hash = entry_hash_of(extra)
    return b"" if entry_hash is None else entry_hash_fields(entry_hash, entry_hash)


TransactionId = tuple[int, int]
"""Most and least significant bits of the transaction's id."""


@lru_cache(maxsize=64)
def transaction_fields(transaction: TransactionId) -> tuple[bytes, bytes]:
    """Encode a transaction's id: for the metadata of a message or batch, and for its SEND."""
    most, least = transaction
    of_metadata = MessageMetadata(txnid_most_bits=most, txnid_least_bits=least)
    of_command = CommandSend(txnid_most_bits=most, txnid_least_bits=least)
    return of_metadata.SerializePartialToString(), of_command.SerializePartialToString()


def compression_fields(codec: Compression, uncompressed_bytes: int) -> bytes:
    """Encode the metadata fields of a compressed body."""
    return MessageMetadata(
        compression=codec.wire, uncompressed_size=uncompressed_bytes
    ).SerializePartialToString()
