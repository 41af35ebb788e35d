"""The consumer of one topic, or of one partition."""

from collections.abc import Iterable
from typing import Any

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.acknowledger import Acknowledgeable, Acknowledger
from magnetar.sdk.batch import EntrySource
from magnetar.sdk.connection import Connection
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consumer_attachment import ConsumerAttachment
from magnetar.sdk.consuming.dead_letters import DeadLetters
from magnetar.sdk.consuming.entry_opening import EntryOpening
from magnetar.sdk.context import ClientContext
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.receiver_queue import Delivery, ReceiverQueue
from magnetar.sdk.schema import Schema
from magnetar.sdk.schema_versions import load_versions
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.stats import BrokerStats
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.topic_name import TopicName


class TopicConsumer(Consumer[Any]):
    """A `Consumer` whose parts are those of one topic, and what the connection tells it."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        subscription: str,
        consumer_id: int,
        settings: ConsumerSettings,
        *,
        start: MessageId | None = None,
        start_inclusive: bool = False,
        schema: Schema[object] | None = None,
        letters: DeadLetters | None = None,
    ) -> None:
        """`start` is for readers: where a subscription that is not durable begins. `letters`: those
        of the consumer of several topics that this one is a part of."""
        name = settings.name or f"{context.random.getrandbits(40):010x}"
        super().__init__(context, str(topic), subscription, settings, name)
        if start is not None and start_inclusive:
            start = start.first_chunk or start  # Behind its last chunk it would never be whole.
        self._start, self._start_inclusive = start, start_inclusive
        self._begins_with_newest = start_inclusive
        self._schema = None if schema is None else schema.for_topic()
        acks = AckGrouping(
            batch_index_ack=settings.batch_index_ack,
            shares_entries=not settings.subscription_type.keeps_order,
        )
        source = EntrySource(
            self.topic,
            topic.partition_index,
            settings.verify_checksum,
            settings.decompressed_bytes_max,
            self._schema,
            acks.leave_out,
        )
        self._queue = self._receiver_queue = queue = self._make_queue(source, acks)
        if start is not None and start not in (MessageId.EARLIEST, MessageId.LATEST):
            queue.skip = (start, start_inclusive)
        acknowledger = self._make_acknowledger(consumer_id, acks, queue)
        self._acknowledger = self._own_acknowledger = acknowledger
        self._owns_letters = letters is None
        letters = letters or self._make_letters(topic)
        self._letters = letters
        self._opening = EntryOpening(
            source,
            settings,
            acks=acks,
            giver=self,
            letters=letters,
            clock=context.clock,
            acknowledge=lambda entries: acknowledger.add_many(MessageId(*e) for e in entries),
            ask_later=acknowledger.ask_later,
        )
        queue.open_entry = self._opening.open
        queue.on_cleared = self._opening.chunks.clear
        self._at_broker = ConsumerAttachment(
            context,
            topic,
            subscription,
            consumer_id,
            settings,
            consumer=self,
            name=self._name,
            queue=queue,
            acknowledger=acknowledger,
            start=start,
            schema=None if self._schema is None else self._schema.info,
        )
        self._attachment = self._at_broker

    def _make_queue(self, source: EntrySource, acks: AckGrouping) -> ReceiverQueue:
        return ReceiverQueue(
            source,
            acks,
            messages_max=self._settings.receiver_queue_messages,
            is_reader=not self._settings.durable,
            grant=lambda messages: self._at_broker.grant(messages),
        )

    def _make_acknowledger(
        self, consumer_id: int, acks: AckGrouping, queue: ReceiverQueue
    ) -> Acknowledger:
        return Acknowledger(
            consumer_id,
            self.topic,
            self._settings,
            acks,
            queue,
            clock=self._context.clock,
            connection=lambda: self._at_broker.connection,
        )

    def _make_letters(self, topic: TopicName) -> DeadLetters | None:
        policy = self._settings.dead_letters
        if policy is None:
            return None
        has_schema = self._schema is not None
        return DeadLetters(self._context, topic, self.subscription, policy, has_schema=has_schema)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics and partitions that are consumed now."""
        return (self.topic,)

    async def load_schemas(self, messages: Iterable[Message[Any]]) -> None:
        """Get the definitions that `value` of these messages needs, if they came by `take_nowait`
        or `receive_batches`; the other calls do it before they give a message.

        Raises:
            BrokerUnavailableError, OperationTimeoutError: the broker could not be asked.
        """
        schema = self._schema
        if schema is not None:
            missing = [
                message.schema_version
                for message in messages
                if schema.is_missing(message.schema_version)
            ]
            if missing:
                connection = await self._context.find_any()
                await load_versions(connection, self.topic, schema, missing)

    def resize_queue(self, messages_max: int) -> None:
        """Let the broker send so many messages ahead from now on."""
        self._receiver_queue.resize(messages_max)

    async def has_message_available(self) -> bool:
        """Whether there is a message behind the last one that was taken.

        Raises:
            SdkError: the broker could not be asked.
        """
        if self.has_queued():
            return True
        last, mark_delete = await self.last_ids()
        if last.entry_id < 0:
            return False
        if self._receiver_queue.has_opened(last):
            return self.has_queued()
        taken, start = self.last_taken, self._start
        if taken is not None:
            return taken < last
        if start is None or start in (MessageId.EARLIEST, MessageId.LATEST):
            # Only the broker knows where that is, or where others have moved the subscription.
            if mark_delete is None:
                return self._at_broker.begins_at == MessageId.EARLIEST
            return mark_delete.entry < last.entry
        if start.batch_index < 0:
            start, last = start.entry, last.entry
        return start < last or (self._start_inclusive and start == last)

    async def start(self) -> None:
        """Called once by the client."""
        await super().start()
        if self._start != MessageId.LATEST:
            return
        try:
            if self._begins_with_newest:
                await self.seek(MessageId.LATEST)
            else:
                await self._at_broker.settle_start()
        except BaseException:
            await self.close(flush=False)
            raise

    async def seek(self, message_id: MessageId) -> None:
        """Move the subscription: the next message will be that one (or the next that exists).

        A reader with `start_inclusive` goes to the newest message with LATEST.

        Raises:
            SdkError: not known to be carried out.
        """
        if message_id == MessageId.LATEST and self._begins_with_newest:
            newest, _ = await self.last_ids()
            if newest.entry_id >= 0:
                message_id = newest
        await super().seek(message_id)

    async def broker_stats(self) -> list[BrokerStats]:
        """What the brokers say of this consumer, topic by topic.

        Raises:
            SdkError
        """
        return [BrokerStats.of(self.topic, await self._at_broker.stats())]

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """The last message of the topic, and the subscription's mark-delete position if known."""
        return await self._at_broker.last_ids()

    async def last_message_ids(self) -> dict[str, MessageId]:
        """The last message of each topic; entry id -1 where there is none.

        Raises:
            SdkError
        """
        return {self.topic: await self.last_message_id()}

    async def _acknowledge_in(
        self, transaction: Transaction, what: Acknowledgeable, *, cumulative: bool
    ) -> None:
        await transaction.join_subscription(self.topic, self.subscription)
        await self._own_acknowledger.acknowledge_in(transaction.id, what, cumulative=cumulative)

    def _end_parts(self) -> None:
        self._acknowledger.close()
        self._opening.close()

    async def _take_readable(self) -> Message[Any] | None:
        """`_take`, with the definition of the message's schema version got first.

        It is asked for before the message is taken: a call that is cancelled has taken nothing.
        """
        assert self._schema is not None
        asked: bytes | None = None
        version = self._receiver_queue.next_schema_version()
        while version is not None and version != asked and self._schema.is_missing(version):
            connection = await self._context.find_any()
            await load_versions(connection, self.topic, self._schema, (version,))
            asked, version = version, self._receiver_queue.next_schema_version()
        return self._take()

    def _take_more(self, result: list[Message[Any]], messages_max: int) -> None:
        """Append what lies here, up to a message whose schema version has to be asked for."""
        if self._schema is None:
            self._queue.take_more(result, messages_max)
            return
        while len(result) < messages_max:
            version = self._receiver_queue.next_schema_version()
            if version is None or self._schema.is_missing(version):
                return
            self._queue.take_more(result, len(result) + 1)

    # -- from the connection and the attachment

    def on_messages(self, messages: list[Delivery]) -> None:
        """From the connection: what one network read brought."""
        if not self._at_broker.is_attached:
            return
        self._receiver_queue.extend(messages)
        if self._opening.has_dead(messages):
            self._receiver_queue.open_all()
        if self._waiters:
            self._waiters.wake()
        elif self.on_ready is not None:
            self.on_ready()

    def on_active_change(self, is_active: bool) -> None:
        """From the connection: another consumer of the subscription took over, or this one."""
        self.is_active = is_active
        if not is_active:
            self._own_acknowledger.end_deliveries()
        if self.on_active is not None:
            self.on_active(is_active)
        if self._settings.on_active_change is not None:
            self._settings.on_active_change(self.topic, is_active)

    def on_end_of_topic(self) -> None:
        """From the connection: see `reached_end`."""
        self.reached_end = True
        self._wake_all()

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: the broker closed the consumer, or the connection broke."""
        self._at_broker.lose(connection)
        # Nobody else moves a reader, which goes on where it was.
        if self._settings.durable or self._receiver_queue.is_held:
            self.on_moved()

    def on_moved(self) -> None:
        """From the attachment: the subscription was moved, perhaps. The end is told anew."""
        if self.reached_end:
            self.reached_end = False
            if self.on_ready is not None:
                self.on_ready()

    def on_attachment_failed(self) -> None:
        """From the attachment: it is over for good."""
        self._wake_all()
