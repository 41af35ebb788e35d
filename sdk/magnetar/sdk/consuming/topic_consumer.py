"""Consumer of one topic or one partition."""

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
    """A `Consumer` of one topic: makes its parts, and handles the events of its connection."""

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
        """Create the consumer without connecting.

        `start`: the first position of a reader. `letters`: the dead letters of the parent consumer.
        """
        name = settings.name or f"{context.random.getrandbits(40):010x}"
        super().__init__(context, str(topic), subscription, settings, name)
        if start is not None and start_inclusive:
            start = start.first_chunk or start  # After its last chunk it would never be complete.
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
        self._letters = letters = letters or self._make_letters(topic)
        self._opening = EntryOpening(
            source,
            settings,
            acks=acks,
            giver=self,
            letters=letters,
            has_waited=lambda: self._at_broker.is_attached and queue.has_waited(),
            is_empty=lambda: not queue.has_some,
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
        """Topics and partitions that are consumed now."""
        return (self.topic,)

    async def load_schemas(self, messages: Iterable[Message[Any]]) -> None:
        """Get the schema definitions that `value` of these messages needs.

        Only for messages from `take_nowait` or `receive_batches`; the other calls do it before they
        return a message.

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

    @property
    def position(self) -> MessageId | None:
        """Where another reader continues: behind this id, or where this one begins. Its
        `first_chunk`, if any, is where that reader must begin, so that chunked messages which began
        before the id come whole."""
        last = self.last_taken
        if last is None:
            return self._at_broker.begins_at
        return self._own_acknowledger.resume_id(last)

    def resize_queue(self, messages_max: int) -> None:
        """Set how many messages the broker may send ahead from now on."""
        self._receiver_queue.resize(messages_max)

    async def has_message_available(self) -> bool:
        """Whether there is a message after the last one that was taken.

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
            # Only the broker knows that position, or where other clients moved the subscription.
            if mark_delete is None:
                return self._at_broker.begins_at == MessageId.EARLIEST
            return mark_delete.entry < last.entry
        if start.batch_index < 0:
            start, last = start.entry, last.entry
        return start < last or (self._start_inclusive and start == last)

    async def start(self) -> None:
        """Subscribe. The client calls this once."""
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
        """Move the subscription: the next message is `message_id`, or the next one that exists.

        With LATEST, a reader with `start_inclusive` moves to the newest message.

        Raises:
            SdkError: the broker did not confirm it.
        """
        if message_id == MessageId.LATEST and self._begins_with_newest:
            newest, _ = await self.last_ids()
            if newest.entry_id >= 0:
                message_id = newest
        await super().seek(message_id)

    async def broker_stats(self) -> list[BrokerStats]:
        """Return the broker's statistics of this consumer.

        Raises:
            SdkError
        """
        return [BrokerStats.of(self.topic, await self._at_broker.stats())]

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """Return the topic's last message, and the subscription's mark-delete position if known."""
        return await self._at_broker.last_ids()

    async def last_message_ids(self) -> dict[str, MessageId]:
        """Return the last message of the topic by its name; entry id -1 if the topic has none.

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
        """Take the next message, after getting the definition of its schema version.

        The definition is requested before the message is taken: a cancelled call has taken nothing.
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
        """Append queued messages, up to the first whose schema version has to be requested."""
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
        """Queue the messages of one network read; called by the connection."""
        if not self._at_broker.is_attached:
            return
        self._receiver_queue.extend(messages)
        if self._opening.has_dead(messages):
            self._receiver_queue.open_ahead()
        if self._waiters:
            self._waiters.wake()
        elif self.on_ready is not None:
            self.on_ready()

    def on_active_change(self, is_active: bool) -> None:
        """Handle a change of the active consumer of the subscription; called by the connection."""
        self.is_active = is_active
        if not is_active:
            self._own_acknowledger.end_deliveries()
        if self.on_active is not None:
            self.on_active(is_active)
        if self._settings.on_active_change is not None:
            self._settings.on_active_change(self.topic, is_active)

    def on_end_of_topic(self) -> None:
        """Handle the end of a terminated topic; called by the connection. See `reached_end`."""
        self.reached_end = True
        self._wake_all()

    def on_session_lost(self, connection: Connection) -> None:
        """Handle a closed consumer or a broken connection; called by the connection."""
        self._at_broker.lose(connection)
        # Other clients cannot move a reader, which continues where it was.
        if self._settings.durable or self._receiver_queue.is_held:
            self.on_moved()

    def on_moved(self) -> None:
        """Handle a possible move of the subscription: the end of the topic is reported anew."""
        if self.reached_end:
            self.reached_end = False
            if self.on_ready is not None:
                self.on_ready()

    def on_attachment_failed(self) -> None:
        """Handle the final end of the attachment: wake all waiting calls."""
        self._wake_all()
