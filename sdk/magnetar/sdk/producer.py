"""Producer API, for one topic or all its partitions.

`magnetar.sdk.producing` has the two kinds; `Client.producer` chooses between them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent, PendingSend
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schema import T
from magnetar.sdk.stats import ProducerStats
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

OnConfirmed = Callable[[Sequence[PendingSend], float], None]
"""Called with the sends confirmed by one network read, and the monotonic time in seconds."""


class Producer(ABC, Generic[T]):
    """Sends messages to one topic. Made by `Client.producer`."""

    topic: str
    """Full name of the topic."""
    on_confirmed: OnConfirmed | None = None
    """Called with confirmed sends, for measurements; see `OnConfirmed`. Must not raise."""
    _values: ValueEncoder[T]

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Producer {self.name} of {self.topic}, {state}, {self.pending_messages} pending>"

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the producer, given by the application or chosen by the broker."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether messages sent now reach a broker now."""

    @property
    @abstractmethod
    def last_sequence_id(self) -> int:
        """Sequence id of the last message sent; -1 before the first."""

    @property
    @abstractmethod
    def last_stored_sequence_id(self) -> int:
        """Sequence id of the last stored message of this producer name; -1 if none is known.

        Known are the messages that the broker remembers (deduplication), and those with a receipt
        since.
        """

    @property
    @abstractmethod
    def pending_messages(self) -> int:
        """Number of messages without a receipt, including those of the open batch."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Payload bytes without a receipt."""

    @property
    @abstractmethod
    def topic_epoch(self) -> int | None:
        """Number of producers with exclusive access before this one; None if not exclusive."""

    @abstractmethod
    def stats(self) -> ProducerStats:
        """Return totals since the producer was made."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def send(
        self,
        value: T | None,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] | None = None,
        transaction: Transaction | None = None,
    ) -> MessageId:
        """Send a message and wait until it is stored; first wait for room if necessary.

        A message that the broker knew already has the id -1:-1. Cancelling the call does not
        withdraw the message: it may be stored all the same.

        Args:
            value: None is stored as no value at all, a tombstone for compaction.
            key: a key of bytes is sent as base64.
            sequence_id: for deduplication, above that of the message before; default: the next one.
            replicate_to: clusters that get a copy, of those that the topic is replicated to;
                default: all. `["__local__"]`: none. The message is not batched.
            transaction: consumers see the message only after the commit. A batch holds messages of
                one transaction only.

        Raises:
            SendTimeoutError: no receipt in time; the outcome is unknown.
            SchemaValueError: the value does not fit the schema.
            ValueError: the sequence id is not above those of pending messages, or a number is out
                of range.
            TransactionEndedError: the transaction has ended.
            MessageTooLargeError, AlreadyClosedError, CryptoKeyError, ServiceError
        """
        try:
            message = self._values.message(
                value,
                key,
                ordering_key,
                properties,
                event_time_ms,
                deliver_at_ms,
                sequence_id,
                replicate_to,
            )
            return await self.send_message(message, transaction)
        except Exception as error:
            if transaction is not None:
                transaction.fail(error)
            raise

    def send_nowait(
        self,
        value: T | None,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] | None = None,
        on_sent: OnSent | None = None,
    ) -> None:
        """Send a message without waiting.

        `on_sent` is called with its id, or with the error. Without `on_sent`, the next `flush`
        raises the error.

        Raises:
            PendingLimitError: too much is pending already, or other calls wait to send before.
            SchemaValueError, ValueError, MessageTooLargeError, AlreadyClosedError, CryptoKeyError
        """
        message = self._values.message(
            value,
            key,
            ordering_key,
            properties,
            event_time_ms,
            deliver_at_ms,
            sequence_id,
            replicate_to,
        )
        self.send_message_nowait(message, on_sent)

    @abstractmethod
    async def send_message(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> MessageId:
        """Send a message with an encoded value, and wait until it is stored; see `send`."""

    @abstractmethod
    def send_message_nowait(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        """Send a message with an encoded value, without waiting; see `send_nowait`."""

    @abstractmethod
    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        """Send a body that is compressed or encrypted already, as `metadata` says, unbatched.

        `metadata` must not have the fields that a producer adds (its name, sequence id, publish
        time). A schema version in it replaces the producer's own; an empty one means no schema.

        Raises:
            PendingLimitError: too much is pending already, or other calls wait to send before.
            MessageTooLargeError, AlreadyClosedError
        """

    @abstractmethod
    async def send_entry(
        self, body: bytes, *, messages: int, sequence_id: int, extra: bytes = b""
    ) -> None:
        """Send an encoded entry under a sequence id that the caller gives.

        `body` is the body of a batch of `messages` messages before compression; with 0 `messages`
        it is the payload of a message that is sent alone. `extra` holds serialized fields of its
        `MessageMetadata`. A batch has the ids from `sequence_id` on, one for each message; they
        must be above those of all pending messages. The call waits for room. `flush` waits for
        receipts and raises errors. If one entry fails, all entries after it fail, and none of
        those is sent.

        Raises:
            MessageTooLargeError, AlreadyClosedError, CryptoKeyError
            SdkError: an entry before it has failed.
            ValueError: the sequence id is not above those of pending messages.
        """

    @abstractmethod
    async def send_many(self, values: Sequence[T | None]) -> None:
        """Send many messages in order, and return when all are pending: the fastest way.

        With batching they are sent in batches of `batch_messages_max`, the last one shorter. The
        call waits for room as needed. Other calls wait until it is done: what they send comes
        after it. `flush` waits for receipts and raises errors.

        Raises:
            MessageTooLargeError: a payload is too large; those before it were sent.
            SchemaValueError: a value does not fit the schema; nothing was sent.
            AlreadyClosedError
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything that was sent so far has its receipt or its error.

        Raises:
            SdkError: the first error since the last flush of a message without a callback.
        """

    @abstractmethod
    async def close(self, *, flush: bool = True) -> None:
        """Flush, and close the producer. Without `flush` pending messages fail at once.

        Raises:
            SdkError: a message without a callback failed; the producer is closed all the same.
        """
