"""The checkpoint consumer: reads a whole topic without a subscription.

The application stores its position, as a `Checkpoint`. A reader of its own (Exclusive, not durable)
reads each segment. Children of a split or merge are opened when all their parents were read to
their ends, so order per key holds.
"""

from typing import NoReturn

from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topics_consumer import Members
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import BrokerUnavailableError, NotSupportedError
from magnetar.sdk.message import T_co
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.reader import Reader
from magnetar.sdk.scalable.checkpoint import Checkpoint
from magnetar.sdk.scalable.layout import Layout
from magnetar.sdk.scalable.layout_session import LayoutSession
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.scalable.reading_order import ReadingOrder
from magnetar.sdk.scalable.segments_consumer import SegmentsConsumer, SegmentSource
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import ReaderSettings
from magnetar.sdk.wire.errors import TopicNotFoundError
from magnetar.sdk.wire.topic_name import TopicName


class _ReadMembers(Members):
    """Readers of segments; reports when one may have reached its end."""

    def __init__(self, consumer: "CheckpointReading") -> None:
        super().__init__()
        self._consumer = consumer

    def took(self, member: TopicConsumer, count: int) -> None:
        """Count messages that were taken from a reader."""
        super().took(member, count)
        if not member._queue.has_some:
            self._consumer.on_emptied(member)


class CheckpointReading(SegmentsConsumer):
    """The consumer underneath a `CheckpointConsumer`."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        start: Checkpoint,
        settings: ReaderSettings,
        *,
        schema: Schema[object] | None = None,
    ) -> None:
        """
        Raises:
            NotSupportedError: settings that checkpoint consumers do not have.
        """
        if settings.start_inclusive:
            raise NotSupportedError(
                "checkpoint consumer: start_inclusive is not supported: a checkpoint says what was "
                "read already"
            )
        self._start_checkpoint = start
        self._layouts = LayoutSession(context, name, may_create=True, on_change=self._on_layout)
        self._order: ReadingOrder | None = None
        self._ids: dict[str, int] = {}
        """Segment ids by topic."""
        super().__init__(
            context,
            name,
            f"reader-{context.random.getrandbits(40):010x}",
            settings.for_consumer(),
            SegmentSource(self._start_session, self._readable),
            close_session=self._layouts.close,
            start=MessageId.EARLIEST,  # A reader; each segment has its own start.
            schema=schema,
        )

    def checkpoint(self) -> Checkpoint:
        """Return how far the application has taken messages."""
        read: dict[int, MessageId] = {}
        for member in self._members:
            position = member.position
            if position is not None:
                read[self._ids[member.topic]] = position
        return self._known_order.checkpoint(read)

    def on_emptied(self, member: TopicConsumer) -> None:
        """Look again soon if an emptied segment is sealed: that may be its end."""
        if self._known_order.is_sealed(self._ids[member.topic]):
            self.look_soon()

    async def has_message_available(self) -> bool:
        """Return whether any segment has a message after the last one that was taken.

        Raises:
            SdkError: a request to a broker failed.
        """
        async with self._looking:
            while True:
                asked = set(self._members.by_topic)
                if await self._has_message_available():
                    return True
                await self._finish_read()
                readable = self._readable()
                if asked >= {str(each) for each in readable}:
                    return False
                await self._apply(readable)

    async def _start_session(self) -> None:
        await self._layouts.start()
        self._order = ReadingOrder(self._layouts.layout, self._start_checkpoint)

    @property
    def _known_order(self) -> ReadingOrder:
        assert self._order is not None, "the consumer has not been started"
        return self._order

    def _readable(self) -> list[TopicName]:
        segments = self._known_order.readable
        self._ids.update({str(each.topic): each.id for each in segments})
        return [each.topic for each in segments]

    def _make_members(self) -> Members:
        return _ReadMembers(self)

    def _on_layout(self, layout: Layout) -> None:
        if self._order is not None:
            self._order.change(layout)
            self._ids = {
                topic: number
                for topic, number in self._ids.items()
                if number in layout.by_id or topic in self._members.by_topic
            }
            self.look_soon()

    async def _before_look(self) -> None:
        """Find segments that were read to their ends."""
        await self._finish_read()

    async def _finish_read(self) -> bool:
        """Record which segments were read to their ends; return whether there was one."""
        order, found = self._known_order, False
        for member in self._members:
            number = self._ids[member.topic]
            if not order.is_sealed(number) or member.has_queued():
                continue
            is_over = member.reached_end or not await member.has_message_available()
            # During the request to the broker, messages may have come and the layout changed.
            if is_over and not member.has_queued() and order.is_sealed(number):
                order.finish(number)
                found = True
        return found

    async def _make_member(
        self, topic: TopicName, queue_messages: int, start: MessageId | None
    ) -> TopicConsumer:
        order, number = self._known_order, self._ids[str(topic)]
        begins = order.start_of(number)
        try:
            member = await super()._make_member(topic, queue_messages, begins)
        except (BrokerUnavailableError, TopicNotFoundError) as error:
            cause = error.__cause__ or error
            if not isinstance(cause, TopicNotFoundError) or not order.is_sealed(number):
                raise
            order.finish(number)  # Nothing is left to read.
            raise BrokerUnavailableError(f"{topic} is gone: reading goes on behind it") from error
        if begins == MessageId.LATEST:
            settled = member._at_broker.begins_at
            if settled is None or settled == MessageId.LATEST:
                await member.close()
                raise BrokerUnavailableError(
                    f"{topic}: its broker does not say where its latest message is"
                )
            order.settle(number, settled)
        return member


class CheckpointConsumer(Reader[T_co]):
    """Reads a topic from a checkpoint on. Made by `Client.checkpoint_consumer`."""

    def __init__(self, reading: CheckpointReading) -> None:
        super().__init__(reading)
        self._reading = reading

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<CheckpointConsumer of {self.topic}, {state}>"

    @property
    def consumer(self) -> Consumer[T_co]:
        """Raise an error: messages taken directly would be in no checkpoint.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(f"{self.topic}: read by the checkpoint consumer itself")

    def checkpoint(self) -> Checkpoint:
        """Return how far the topic was read: up to the last message that a call has returned.

        The next consumer begins there, from the stored `to_bytes()`.
        """
        return self._reading.checkpoint()

    async def last_message_id(self) -> MessageId:
        """Raise an error: each segment has a last message; see `last_message_ids`.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            f"{self.topic} has a last message in each segment: use last_message_ids()"
        )

    async def seek(self, message_id: MessageId) -> None:
        """Raise an error: see `_refuse`.

        Raises:
            NotSupportedError: always.
        """
        self._refuse("seek")

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Raise an error: see `_refuse`.

        Raises:
            NotSupportedError: always.
        """
        self._refuse("seek_to_time")

    def _refuse(self, call: str) -> NoReturn:
        """Refuse to move this consumer.

        Raises:
            NotSupportedError: only a new consumer can begin elsewhere.
        """
        raise NotSupportedError(
            f"{self.topic}: {call} is not supported: make another checkpoint consumer that begins "
            "at the checkpoint"
        )
