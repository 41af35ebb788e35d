"""A received message. Everything beyond its payload is read from the metadata on demand."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, cast

from typing_extensions import TypeVar

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schema import Schema
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

T_co = TypeVar("T_co", default=bytes, covariant=True)
"""Type of the values that a schema decodes; bytes without a schema."""


class Entry(Protocol):
    """The entry that a message came in."""

    @property
    def topic(self) -> str: ...
    @property
    def ledger_id(self) -> int: ...
    @property
    def entry_id(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def redelivery_count(self) -> int: ...
    @property
    def metadata(self) -> MessageMetadata: ...
    @property
    def schema(self) -> Schema[object] | None: ...
    @property
    def first_chunk(self) -> MessageId | None: ...
    @property
    def round(self) -> object: ...


@dataclass(frozen=True, slots=True)
class EntryHead:
    """What messages need to know of their entry, without its payload."""

    topic: str
    ledger_id: int
    entry_id: int
    partition: int
    batch_size: int
    redelivery_count: int
    metadata: MessageMetadata
    schema: Schema[object] | None
    first_chunk: MessageId | None
    round: object


class Message(Generic[T_co]):
    """A received message. `data` is the payload as the producer sent it."""

    __slots__ = ("_entry", "_index", "_single", "data")

    def __init__(
        self, data: bytes, entry: Entry, index: int, single: SingleMessageMetadata | None
    ) -> None:
        """Take a message out of its entry.

        `single` and an `index` from 0 on for a message of a batch; None and -1 otherwise.
        """
        self.data = data
        self._entry = entry
        self._index = index
        self._single = single

    def __repr__(self) -> str:
        return f"<Message {self.message_id} of {self.topic}, {len(self.data)} bytes>"

    @property
    def ledger_id(self) -> int:
        return self._entry.ledger_id

    @property
    def entry_id(self) -> int:
        return self._entry.entry_id

    @property
    def batch_index(self) -> int:
        """Index within the batch; -1 if the message was sent alone."""
        return self._index

    @property
    def batch_size(self) -> int:
        """Number of messages in the batch; 0 if the message was sent alone."""
        return self._entry.batch_size

    def value(self) -> T_co:
        """Return `data` decoded by the consumer's schema; without a schema, `data` itself.

        Returns None for a message whose producer sent no value (see `is_null`), whatever the type
        says. For a KEY_VALUE schema with SEPARATED encoding, such a message gives a `KeyValue` that
        has the key alone.

        Raises:
            SchemaValueError: the payload does not fit the schema.
            SchemaVersionError: the definition that the message was written with is not known here.
        """
        schema = self._entry.schema
        value: object = None
        if schema is None:
            value = None if self.is_null else self.data
        elif self.is_null:
            value = schema.decode_null(self.schema_version, self.key_bytes)
        else:
            value = schema.decode(self.data, self.schema_version, self.key_bytes)
        return cast("T_co", value)

    @property
    def schema_version(self) -> bytes:
        """Version of the topic's schema that encoded the message; empty if none did."""
        return self._entry.metadata.schema_version

    @property
    def key_bytes(self) -> bytes | None:
        """The key as bytes, decoded from base64 if the producer gave bytes; None if there is
        none."""
        key = None if self.is_null_key else self.given_key
        return key.encode() if isinstance(key, str) else key

    @property
    def given_key(self) -> str | bytes | None:
        """The key as the producer gave it, text or bytes, for sending the message on."""
        own = self._own
        if not own.HasField("partition_key"):
            return None
        key = own.partition_key
        if not own.partition_key_b64_encoded:
            return key
        try:
            return base64.b64decode(key, validate=True)
        except ValueError:
            return key  # marked as base64 but is not: the text is all there is

    @property
    def id(self) -> MessageId:
        """The message's id, by a shorter name than `message_id`."""
        return self.message_id

    @property
    def message_id(self) -> MessageId:
        entry = self._entry
        return MessageId(
            entry.ledger_id,
            entry.entry_id,
            self._index,
            entry.partition,
            entry.batch_size,
            entry.first_chunk,
        )

    @property
    def round(self) -> object:
        """Identity of the delivery round, changed each time that everything is redelivered; see
        `ReceiverQueue.is_current`."""
        return self._entry.round

    @property
    def topic(self) -> str:
        return self._entry.topic

    @property
    def producer_name(self) -> str:
        return self._entry.metadata.producer_name

    @property
    def sequence_id(self) -> int:
        """Sequence id that the producer gave to this message."""
        if self._single is None:
            return self._entry.metadata.sequence_id
        if self._single.HasField("sequence_id"):
            return self._single.sequence_id
        return self._entry.metadata.sequence_id + self._index

    @property
    def publish_time_ms(self) -> int:
        """Time at which the producer sent the message, in ms since the epoch; a batch has one
        time."""
        return self._entry.metadata.publish_time

    @property
    def event_time_ms(self) -> int:
        """Time that the application gave, in ms since the epoch; 0 if it gave none."""
        return self._own.event_time

    @property
    def key(self) -> str | None:
        own = self._own
        return own.partition_key if own.HasField("partition_key") else None

    @property
    def ordering_key(self) -> bytes | None:
        own = self._own
        return own.ordering_key if own.HasField("ordering_key") else None

    @property
    def properties(self) -> Mapping[str, str]:
        return {pair.key: pair.value for pair in self._own.properties}

    @property
    def is_encrypted(self) -> bool:
        """Whether the producer encrypted the message and it was not decrypted. `data` is then the
        whole entry, perhaps a batch."""
        return bool(self._entry.metadata.encryption_keys)

    @property
    def metadata(self) -> MessageMetadata:
        """Metadata of the message's entry; has the keys and the compression of an encrypted one."""
        return self._entry.metadata

    @property
    def is_null(self) -> bool:
        """Whether the message is a tombstone: the producer sent no value at all."""
        return self._own.null_value

    @property
    def is_null_key(self) -> bool:
        """Whether the producer sent a pair without a key (KEY_VALUE, SEPARATED)."""
        return self._own.null_partition_key

    @property
    def redelivery_count(self) -> int:
        """How often the broker delivered the message before (Shared subscriptions)."""
        return self._entry.redelivery_count

    @property
    def _own(self) -> MessageMetadata | SingleMessageMetadata:
        return self._entry.metadata if self._single is None else self._single


def detached(message: Message[T_co]) -> Message[T_co]:
    """Return a copy of a message that does not keep its entry's payload, perhaps a large batch, in
    memory."""
    entry = message._entry
    head = EntryHead(
        topic=entry.topic,
        ledger_id=entry.ledger_id,
        entry_id=entry.entry_id,
        partition=entry.partition,
        batch_size=entry.batch_size,
        redelivery_count=entry.redelivery_count,
        metadata=entry.metadata,
        schema=entry.schema,
        first_chunk=entry.first_chunk,
        round=entry.round,
    )
    return Message(message.data, head, message._index, message._single)
