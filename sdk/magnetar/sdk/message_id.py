"""Message ids: positions of messages in their topics."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from google.protobuf.message import DecodeError

from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData

_MASK_64 = (1 << 64) - 1
_SIGN_64 = 1 << 63
_LAST = _SIGN_64 - 1


def signed(value: int) -> int:
    """Read an unsigned 64-bit number from the wire as signed: an id of -1 is sent as 2^64-1."""
    return value - (1 << 64) if value >= _SIGN_64 else value


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """Ledger and entry, and the index within the entry if the entry is a batch.

    Ids of one topic are ordered as its messages are. `batch_index` is -1 for an entry that is no
    batch; such an id orders before all ids within a batch of the entry. `partition` is -1 if the
    topic is no partition, and is compared last. `batch_size` (0 if unknown) and `first_chunk` take
    no part in comparisons.
    """

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1
    batch_size: int = field(default=0, compare=False)
    first_chunk: "MessageId | None" = field(default=None, compare=False)
    """Id of the first chunk of a chunked message, whose own id is that of the last chunk. None
    otherwise."""

    EARLIEST: ClassVar["MessageId"]
    """Before the first message of any topic."""
    LATEST: ClassVar["MessageId"]
    """After the last message of any topic."""

    def __str__(self) -> str:
        parts = [str(self.ledger_id), str(self.entry_id)]
        if self.partition >= 0 or self.batch_index >= 0:
            parts.append(str(self.partition))
        if self.batch_index >= 0:
            parts.append(str(self.batch_index))
        return ":".join(parts)

    @property
    def entry(self) -> Self:
        """Id of the whole entry."""
        if self.batch_index < 0:
            return self
        return type(self)(self.ledger_id, self.entry_id, -1, self.partition)

    def to_data(self) -> MessageIdData:
        """Return the protobuf message; fields that are -1 or absent are left out, as other clients
        do."""
        return MessageIdData(
            ledgerId=self.ledger_id & _MASK_64,
            entryId=self.entry_id & _MASK_64,
            partition=self.partition if self.partition >= 0 else None,
            batch_index=self.batch_index if self.batch_index >= 0 else None,
            batch_size=self.batch_size or None,
            first_chunk_message_id=None if self.first_chunk is None else self.first_chunk.to_data(),
        )

    @classmethod
    def from_data(cls, data: MessageIdData) -> Self:
        return cls(
            signed(data.ledgerId),
            signed(data.entryId),
            data.batch_index,
            data.partition,
            data.batch_size,
            cls.from_data(data.first_chunk_message_id)
            if data.HasField("first_chunk_message_id")
            else None,
        )

    def to_bytes(self) -> bytes:
        """Return the serialized `MessageIdData`, the bytes that Pulsar clients exchange."""
        return self.to_data().SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse bytes from `to_bytes`, of this client or another.

        Raises:
            MalformedPayloadError: the bytes are no message id.
        """
        try:
            parsed = MessageIdData.FromString(data)
        except DecodeError as error:
            raise MalformedPayloadError(f"not a message id: {error}") from error
        if not parsed.IsInitialized():
            raise MalformedPayloadError("a message id without ledger or entry")
        return cls.from_data(parsed)


MessageId.EARLIEST = MessageId(-1, -1)
MessageId.LATEST = MessageId(_LAST, _LAST)
