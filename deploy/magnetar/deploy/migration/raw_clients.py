"""A consumer and a producer of whole entries, as they are stored.

Applications get messages; a migration moves entries: a batch stays a batch, and nothing is
decompressed or decrypted. Both clients end with the connection; the caller then makes new ones.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from magnetar.deploy.migration.subscriptions import PartOfBatch
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import BrokerUnavailableError, SdkError, ServiceError, service_error
from magnetar.sdk.wire import (
    BaseCommand,
    MessageMetadata,
    TopicName,
    check_checksum,
    encode_payload_command,
    split_payload,
)
from magnetar.sdk.wire import pulsar_pb2 as pb

ACKS_AT_ONCE: Final = 1_000
"""Most ids in one acknowledgement."""


class RawEntry(NamedTuple):
    """An entry as it was delivered."""

    position: Position
    payload: bytes
    metadata: MessageMetadata
    words: tuple[int, ...]
    """The ack_set; empty if no message of the entry is acknowledged."""

    @property
    def messages(self) -> int:
        """Number of messages in the entry."""
        return max(1, self.metadata.num_messages_in_batch)


class RawConsumer:
    """One consumer, from `attach` to its loss."""

    def __init__(
        self, connection: Connection, consumer_id: int, on_news: Callable[[], None]
    ) -> None:
        """Make a consumer that is not attached. `on_news` is called when entries have arrived, or
        the consumer is lost."""
        self._connection = connection
        self._id = consumer_id
        self._on_news = on_news
        self._entries: deque[RawEntry] = deque()
        self._failure: SdkError | None = None

    async def attach(
        self,
        topic: TopicName,
        subscription: str,
        *,
        is_durable: bool = True,
        start: Position | None = None,
    ) -> None:
        """Subscribe, Exclusive. A subscription that does not exist begins at the first message.

        Args:
            start: the first entry of a subscription that is not durable.

        Raises:
            SdkError: the broker refuses it, or the connection is lost.
        """
        connection = self._connection
        request_id = connection.next_request_id()
        connection.consumers[self._id] = self
        command = pb.CommandSubscribe(
            topic=str(topic),
            subscription=subscription,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=self._id,
            request_id=request_id,
            consumer_name=subscription,
            durable=is_durable,
            initialPosition=pb.CommandSubscribe.Earliest,
            force_topic_creation=False,
        )
        if start is not None:
            command.start_message_id.CopyFrom(
                pb.MessageIdData(ledgerId=start.ledger_id, entryId=start.entry_id)
            )
        try:
            await connection.request(
                request_id, BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=command)
            )
        except ServiceError:
            connection.consumers.pop(self._id, None)
            raise
        except BaseException:
            # The broker may have made the consumer all the same: it must not keep the subscription
            # taken, or the next attempts would all be refused.
            connection.consumers.pop(self._id, None)
            if connection.is_open:
                connection.send(self._close_command(connection.next_request_id()))
            raise

    def check(self) -> None:
        """Check that the consumer is not lost.

        Raises:
            SdkError: the consumer is lost.
        """
        if self._failure is not None:
            raise self._failure

    def flow(self, messages: int) -> None:
        """Permit the broker to send that many more messages."""
        command = pb.CommandFlow(consumer_id=self._id, messagePermits=messages)
        self._connection.send(BaseCommand(type=BaseCommand.FLOW, flow=command))

    @property
    def has_entries(self) -> bool:
        """Whether entries wait to be taken."""
        return bool(self._entries)

    def take(self) -> RawEntry:
        """Return the oldest waiting entry."""
        return self._entries.popleft()

    async def last_position(self) -> Position:
        """Return the position of the topic's last entry; `EARLIEST` if it has none.

        Raises:
            SdkError: the connection is lost.
        """
        request_id = self._connection.next_request_id()
        command = pb.CommandGetLastMessageId(consumer_id=self._id, request_id=request_id)
        answer = await self._connection.request(
            request_id,
            BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=command),
        )
        found = answer.getLastMessageIdResponse.last_message_id
        return position_of(found) if position_of(found).entry_id >= 0 else EARLIEST

    def acknowledge_through(self, position: Position) -> None:
        """Acknowledge all entries up to a position. The broker does not answer."""
        self._connection.send(
            BaseCommand(
                type=BaseCommand.ACK,
                ack=pb.CommandAck(
                    consumer_id=self._id,
                    ack_type=pb.CommandAck.Cumulative,
                    message_id=[_id_of(position)],
                ),
            )
        )

    async def acknowledge(
        self, positions: Iterable[Position], parts: "Iterable[tuple[Position, PartOfBatch]]"
    ) -> None:
        """Acknowledge entries one by one, and messages of batches; return when the broker has
        accepted all.

        Raises:
            SdkError: the broker does not accept them.
        """
        ids: list[pb.MessageIdData] = []
        for position in positions:
            ids.append(_id_of(position))
            if len(ids) == ACKS_AT_ONCE:
                await self._acknowledge(ids)
                ids = []
        for position, part in parts:
            message_id = _id_of(position)
            message_id.ack_set.extend(part.words)
            message_id.batch_size = part.messages
            ids.append(message_id)
            if len(ids) == ACKS_AT_ONCE:
                await self._acknowledge(ids)
                ids = []
        if ids:
            await self._acknowledge(ids)

    async def _acknowledge(self, ids: "Sequence[pb.MessageIdData]") -> None:
        request_id = self._connection.next_request_id()
        command = pb.CommandAck(
            consumer_id=self._id,
            ack_type=pb.CommandAck.Individual,
            message_id=ids,
            request_id=request_id,
        )
        answer = await self._connection.request(
            request_id, BaseCommand(type=BaseCommand.ACK, ack=command)
        )
        if answer.ackResponse.HasField("error"):
            raise service_error(answer.ackResponse.error, str(answer.ackResponse.message))

    async def close(self) -> None:
        """Close the consumer; unacknowledged entries will be delivered again."""
        connection = self._connection
        if connection.consumers.pop(self._id, None) is None or not connection.is_open:
            return
        request_id = connection.next_request_id()
        try:
            await connection.request(request_id, self._close_command(request_id))
        except SdkError:
            return  # it is gone either way

    def _close_command(self, request_id: int) -> BaseCommand:
        command = pb.CommandCloseConsumer(consumer_id=self._id, request_id=request_id)
        return BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=command)

    # From the connection

    def on_messages(self, messages: list[tuple[pb.CommandMessage, bytes]]) -> None:
        """Take arrived entries."""
        for command, payload in messages:
            position = position_of(command.message_id)
            try:
                if not check_checksum(payload):
                    raise BrokerUnavailableError("its checksum does not match")
                metadata, _ = split_payload(payload)
            except SdkError as error:
                self._fail(
                    BrokerUnavailableError(
                        f"{self._connection.name} sent the entry at {position} damaged: {error}"
                    )
                )
                return
            self._entries.append(RawEntry(position, payload, metadata, tuple(command.ack_set)))
        self._on_news()

    def on_active_change(self, is_active: bool) -> None:
        """Do nothing: an Exclusive consumer is always active."""

    def on_end_of_topic(self) -> None:
        """Do nothing: a terminated topic still delivers its entries."""

    def on_session_lost(self, connection: Connection) -> None:
        """Fail: the connection is lost, or the broker has closed the consumer."""
        reason = connection.failure or BrokerUnavailableError(
            f"{connection.name} has closed the consumer"
        )
        self._fail(reason)

    def _fail(self, error: SdkError) -> None:
        if self._failure is None:
            self._failure = error
            self._on_news()


class Receipt(NamedTuple):
    """The target's confirmation that it stored a copy: the places of the entry on both sides."""

    source: Position
    target: Position


class RawProducer:
    """One producer of copies, from `attach` to its loss."""

    def __init__(
        self,
        connection: Connection,
        producer_id: int,
        on_receipts: Callable[[Sequence[Receipt]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._id = producer_id
        self._on_receipts = on_receipts
        self._on_lost = on_lost
        self._failure: SdkError | None = None

    async def attach(self, topic: TopicName, name: str) -> None:
        """Create the producer at the target. The broker answers once no write of a former producer
        of that name is under way.

        Raises:
            SdkError: the broker refuses it, or the connection is lost.
        """
        connection = self._connection
        request_id = connection.next_request_id()
        connection.producers[self._id] = self
        command = pb.CommandProducer(
            topic=str(topic),
            producer_id=self._id,
            request_id=request_id,
            producer_name=name,
            user_provided_producer_name=True,
        )
        try:
            await connection.request(
                request_id, BaseCommand(type=BaseCommand.PRODUCER, producer=command)
            )
        except BaseException:
            self.detach()
            raise

    @property
    def bytes_max(self) -> int:
        """The largest payload that the target takes."""
        return self._connection.message_bytes_max

    def check(self) -> None:
        """Check that the producer is not lost.

        Raises:
            SdkError: the producer is lost, or a copy was refused.
        """
        if self._failure is not None:
            raise self._failure

    def send(self, entry: bytes, metadata: MessageMetadata) -> None:
        """Send a copy."""
        command = pb.CommandSend(
            producer_id=self._id,
            sequence_id=metadata.sequence_id,
            num_messages=max(1, metadata.num_messages_in_batch),
        )
        if metadata.HasField("highest_sequence_id"):
            command.highest_sequence_id = metadata.highest_sequence_id
        if metadata.num_chunks_from_msg > 1:
            command.is_chunk = True
        self._connection.write(
            [encode_payload_command(BaseCommand(type=BaseCommand.SEND, send=command), entry)]
        )

    def detach(self) -> None:
        """Close the producer."""
        connection = self._connection
        if connection.producers.pop(self._id, None) is None or not connection.is_open:
            return
        command = pb.CommandCloseProducer(
            producer_id=self._id, request_id=connection.next_request_id()
        )
        connection.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=command))

    # From the connection

    def on_receipts(self, receipts: list[pb.CommandSendReceipt]) -> None:
        """Take receipts for stored copies. They name copies by their places at the source."""
        self._on_receipts(
            [
                Receipt(
                    Position(each.sequence_id, each.highest_sequence_id),
                    position_of(each.message_id),
                )
                for each in receipts
            ]
        )

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Fail: the target refused a copy, and accepts none after it."""
        self.fail(service_error(error.error, str(error.message)))

    def on_session_lost(self, connection: Connection) -> None:
        """Fail: the connection is lost, or the broker has closed the producer."""
        self.fail(
            connection.failure
            or BrokerUnavailableError(f"{connection.name} has closed the producer")
        )

    def fail(self, error: SdkError) -> None:
        """End the producer; `check` raises the error."""
        if self._failure is None:
            self._failure = error
            self._on_lost()


def position_of(message_id: pb.MessageIdData) -> Position:
    """Return the position in a message id. The position before the first entry arrives as a large
    unsigned number."""
    return Position(_signed(message_id.ledgerId), _signed(message_id.entryId))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _id_of(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
