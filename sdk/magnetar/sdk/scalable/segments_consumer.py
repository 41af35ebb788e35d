"""A consumer of a topic's segments: what stream, queue and checkpoint consumers have in common.

It is a consumer of several topics, whose topics are segments. A layout or an assignment says which;
news of it are heard by a session, so looking again costs nothing, and is done often: what could
not be opened is tried again soon.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topic_source import TopicSource
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import BrokerUnavailableError, NotSupportedError, SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.scalable.scalable_producer import MANAGED_MARK
from magnetar.sdk.schema import Schema
from magnetar.sdk.session import until
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.stats import BrokerStats
from magnetar.sdk.wire.errors import ConsumerAssignError, ConsumerBusyError, TopicNotFoundError
from magnetar.sdk.wire.topic_name import TopicName

LOOK_MS_MAX = 1_000
"""Between two looks whether all segments are consumed that should be."""

_TAKEN = (ConsumerBusyError, ConsumerAssignError)
"""Refusals that end when the consumer before has let go."""


class SegmentSource:
    """A `TopicSource` whose topics a session knows."""

    def __init__(
        self, start: Callable[[], Awaitable[None]], topics: Callable[[], Sequence[TopicName]]
    ) -> None:
        """`start` starts the session; `topics` gives what it knows."""
        self._start, self._topics = start, topics
        self._is_started = False

    async def topics(self) -> list[TopicName]:
        """The segments to consume now."""
        return list(self._topics())

    async def watch(self) -> None:
        """Start the session, once.

        Raises:
            SdkError: it could not be.
        """
        if not self._is_started:
            await self._start()
            self._is_started = True

    def close(self) -> None:
        """The consumer closes the session."""


class SegmentsConsumer(TopicsConsumer):
    """See the module's text."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        subscription: str,
        settings: ConsumerSettings,
        source: TopicSource,
        *,
        close_session: Callable[[], Awaitable[None]],
        start: MessageId | None = None,
        schema: Schema[object] | None = None,
    ) -> None:
        """`close_session` ends the session behind `source`."""
        super().__init__(
            context,
            str(name),
            subscription,
            replace(settings, topics_update_ms=min(settings.topics_update_ms, LOOK_MS_MAX)),
            lambda _: source,
            first=name.whole,
            start=start,
            schema=schema,
        )
        self._close_session = close_session
        self._looking = asyncio.Lock()
        """Held while segments open and close: none is opened twice, or asked as it closes."""

    def look_soon(self) -> None:
        """There are news of the segments."""
        self._follower.look_soon()

    async def has_message_available(self) -> bool:
        """Whether there is a message behind the last one that was taken, in any segment.

        Raises:
            SdkError: a broker could not be asked.
        """
        async with self._looking:
            return await self._has_message_available()

    async def _has_message_available(self) -> bool:
        return await super().has_message_available()

    async def last_message_ids(self) -> dict[str, MessageId]:
        """The last message of each segment that is consumed; entry id -1 where there is none.

        Raises:
            SdkError: a broker could not be asked.
        """
        async with self._looking:
            return await super().last_message_ids()

    async def broker_stats(self) -> list[BrokerStats]:
        """What the brokers say of this consumer, segment by segment.

        Raises:
            SdkError: a broker could not be asked.
        """
        async with self._looking:
            return await super().broker_stats()

    async def _look(self) -> None:
        async with self._looking:
            await self._before_look()
            await super()._look()

    async def _before_look(self) -> None:
        """Learn what decides about the segments, beside the session."""

    async def _open(self) -> None:
        """Consume all segments, or none. A segment that another consumer still has, or that has
        just gone, is tried again within the operation timeout.

        Raises:
            SdkError: one of them cannot be consumed.
        """
        settings, clock = self._context.settings, self._context.clock
        deadline_s = clock.monotonic_s() + settings.operation_timeout_ms / 1000
        backoff = Backoff(
            min_s=settings.reconnect_delay_min_ms / 1000,
            max_s=LOOK_MS_MAX / 1000,
            random=self._context.random,
        )
        try:
            await self._source.watch()
            while True:
                try:
                    wanted = await self._source.topics()
                    missing = [each for each in wanted if str(each) not in self._members.by_topic]
                    await self._add(missing, self._start)
                    break
                except SdkError as error:
                    passes = error.retryable or isinstance(error, _TAKEN)
                    if not passes or clock.monotonic_s() >= deadline_s:
                        raise
                await asyncio.sleep(until(deadline_s, backoff.next_s(), clock))
        except BaseException:
            self._attachment.is_closing = True
            await asyncio.shield(self._close_all())
            raise
        self._follower.start()
        self.look_soon()  # The segments may be others by now.

    async def _make_member(
        self, topic: TopicName, queue_messages: int, start: MessageId | None
    ) -> TopicConsumer:
        try:
            return await super()._make_member(topic, queue_messages, start)
        except TopicNotFoundError as error:
            if not topic.is_segment:
                raise
            raise BrokerUnavailableError(
                f"{topic} is not there: expected a layout without it soon"
            ) from error

    def _settings_for(self, topic: TopicName) -> ConsumerSettings:
        settings = self._member_settings
        number = topic.segment_id if topic.is_segment else max(0, topic.partition_index)
        mark = {} if topic.is_segment else MANAGED_MARK
        return replace(
            settings,
            name=f"{settings.name}-seg-{number}",
            metadata={**settings.metadata, **mark},
        )

    def _is_at_end(self) -> bool:
        """Never: other segments may follow those that have ended."""
        return False

    async def _close_all(self) -> None:
        try:
            await super()._close_all()
        finally:
            await self._close_session()


def check_durable(kind: str, settings: ConsumerSettings) -> None:
    """Refuse settings that consumers of segments do not have.

    Raises:
        NotSupportedError: such a setting; says which.
    """
    if not settings.durable:
        raise NotSupportedError(
            f"{kind}: durable=False is not supported: use a checkpoint consumer, which has no "
            "subscription"
        )
    if settings.retry_topic:
        raise NotSupportedError(f"{kind}: retry_topic is not supported: use negative_acknowledge")
