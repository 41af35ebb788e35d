"""The producer as applications see it: of one topic, or of all partitions of one.

`magnetar.sdk.producing` has the two kinds; `Client.producer` looks which one a topic needs.
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
"""Called with the sends that receipts arrived for in one network read, and the monotonic time."""


class Producer(ABC, Generic[T]):
    """Sends messages to one topic. Made by `Client.producer`."""

    topic: str
    """Full name of the topic."""
    on_confirmed: OnConfirmed | None = None
    """For measuring: see `OnConfirmed`. Must not raise."""
    _values: ValueEncoder[T]

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Producer {self.name} of {self.topic}, {state}, {self.pending_messages} pending>"

    @property
    @abstractmethod
    def name(self) -> str:
        """The producer's name: ours, or the one that the broker made up."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether what is sent now goes to a broker now."""

    @property
    @abstractmethod
    def last_sequence_id(self) -> int:
        """Sequence id of the last message that was sent; -1 before the first."""

    @property
    @abstractmethod
    def last_stored_sequence_id(self) -> int:
        """Sequence id of the last message that is stored, of those of this name that the broker
        remembers (deduplication), or that had their receipts since; -1 if there is none."""

    @property
    @abstractmethod
    def pending_messages(self) -> int:
        """Messages without receipt, those of the open batch included."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Payload bytes without receipt."""

    @property
    @abstractmethod
    def topic_epoch(self) -> int | None:
        """Of an exclusive producer: how many had exclusive access to the topic before it."""

    @abstractmethod
    def stats(self) -> ProducerStats:
        """Sums since the producer was made."""

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
        transaction: Transaction | None = None,
    ) -> MessageId:
        """Send a message and wait until it is stored; waits for room first if need be.

        None is stored as no value at all: a tombstone for compaction. A key of bytes travels as
        base64. `sequence_id` is for deduplication: above that of the message before; by default
        the next one. The id of a message that the broker knew already is -1:-1. In a transaction
        nobody sees it before that is committed, and a batch holds messages of one transaction
        only. A cancelled call takes nothing back: the message may be stored all the same.

        Raises:
            SendTimeoutError: no receipt in time; the outcome is unknown.
            SchemaValueError: the value does not fit the schema.
            ValueError: a sequence id that is not above those under way.
            TransactionEndedError: the transaction has ended.
            MessageTooLargeError, AlreadyClosedError, CryptoKeyError, ServiceError
        """
        message = self._values.message(
            value, key, ordering_key, properties, event_time_ms, deliver_at_ms, sequence_id
        )
        return await self.send_message(message, transaction)

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
        on_sent: OnSent | None = None,
    ) -> None:
        """Send a message without waiting.

        `on_sent` is called with its id, or with the error; without it, an error is raised by the
        next `flush`.

        Raises:
            PendingLimitError: too much is under way already, or others wait to send before.
            SchemaValueError, ValueError, MessageTooLargeError, AlreadyClosedError, CryptoKeyError
        """
        message = self._values.message(
            value, key, ordering_key, properties, event_time_ms, deliver_at_ms, sequence_id
        )
        self.send_message_nowait(message, on_sent)

    @abstractmethod
    async def send_message(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> MessageId:
        """`send` of a message whose value is encoded already."""

    @abstractmethod
    def send_message_nowait(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        """`send_nowait` of a message whose value is encoded already."""

    @abstractmethod
    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        """Send a body that is compressed or encrypted already, as `metadata` says, by itself.

        What a producer adds (its name, sequence id, publish time) must not be in `metadata`; a
        schema version goes before the producer's own, an empty one says that there is none.

        Raises:
            PendingLimitError, MessageTooLargeError, AlreadyClosedError: as `send_nowait`.
        """

    @abstractmethod
    async def send_entry(
        self, body: bytes, *, messages: int, sequence_id: int, extra: bytes = b""
    ) -> None:
        """Send an entry that is encoded already, under a sequence id of the caller's.

        `body` is that of a batch of `messages` messages before compression; with 0 it is the
        payload of a message that travels by itself. `extra` holds serialized fields of its
        `MessageMetadata`. A batch has the ids from `sequence_id` on, one for each message; they
        must be above those of everything under way. Waits for room; receipts are waited for, and
        errors raised, by `flush`. With one that fails all behind it fail, and nothing is sent.

        Raises:
            MessageTooLargeError, AlreadyClosedError, CryptoKeyError
            SdkError: an entry before it has failed.
            ValueError: a sequence id that is not above those under way.
        """

    @abstractmethod
    async def send_many(self, values: Sequence[T | None]) -> None:
        """Send many messages, in order, and return when all are under way: the fastest way.

        With batching they go into batches of `batch_messages_max`, the last one shorter. Waits
        for room as needed, and has others wait until it is done: what is sent later comes behind
        it. Receipts are waited for, and errors raised, by `flush`.

        Raises:
            MessageTooLargeError: of the payloads, those before the large one were sent.
            SchemaValueError: a value does not fit the schema; nothing was sent.
            AlreadyClosedError
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything that was sent so far has its receipt or its error.

        Raises:
            SdkError: the first error, since the last flush, of a message that nobody watched.
        """

    @abstractmethod
    async def close(self, *, flush: bool = True) -> None:
        """Flush, tell the broker, and end. Without `flush` what is pending fails at once.

        Raises:
            SdkError: as `flush`; the producer is closed all the same.
        """
