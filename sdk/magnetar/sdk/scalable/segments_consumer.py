"""A consumer of a topic's segments: the common part of stream, queue and checkpoint consumers.

It is a consumer of several topics, which are segments. A layout or an assignment names them. A
session receives the changes, so looking again costs nothing and is done often: a segment that could
not be opened is retried soon.
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
"""Longest time, in milliseconds, between two checks that all wanted segments are consumed."""

_TAKEN = (ConsumerBusyError, ConsumerAssignError)
"""Refusals that end when the previous consumer has released the segment."""


class SegmentSource:
    """A `TopicSource` whose topics come from a session."""

    def __init__(
        self, start: Callable[[], Awaitable[None]], topics: Callable[[], Sequence[TopicName]]
    ) -> None:
        """`start` starts the session; `topics` returns its topics."""
        self._start, self._topics = start, topics
        self._is_started = False

    async def topics(self) -> list[TopicName]:
        """Return the segments to consume now."""
        return list(self._topics())

    async def watch(self) -> None:
        """Start the session, once.

        Raises:
            SdkError: the session could not be started.
        """
        if not self._is_started:
            await self._start()
            self._is_started = True

    def close(self) -> None:
        """Do nothing: the consumer closes the session."""


class SegmentsConsumer(TopicsConsumer):
    """A consumer of several segments, named by a session."""

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
        """`close_session` ends the session of `source`."""
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
        """Held while segments open and close: none is opened twice, or queried while it closes."""

    def look_soon(self) -> None:
        """Look at the segments soon: they have changed."""
        self._follower.look_soon()

    async def has_message_available(self) -> bool:
        """Return whether any segment has a message after the last one that was taken.

        Raises:
            SdkError: a request to a broker failed.
        """
        async with self._looking:
            return await self._has_message_available()

    async def _has_message_available(self) -> bool:
        return await super().has_message_available()

    async def last_message_ids(self) -> dict[str, MessageId]:
        """Return the last message of each consumed segment; entry id -1 if a segment is empty.

        Raises:
            SdkError: a request to a broker failed.
        """
        async with self._looking:
            return await super().last_message_ids()

    async def broker_stats(self) -> list[BrokerStats]:
        """Return the brokers' statistics of this consumer, segment by segment.

        Raises:
            SdkError: a request to a broker failed.
        """
        async with self._looking:
            return await super().broker_stats()

    async def _look(self) -> None:
        async with self._looking:
            await self._before_look()
            await super()._look()

    async def _before_look(self) -> None:
        """Update what determines the segments, beside the session."""

    async def _open(self) -> None:
        """Consume all segments, or none.

        A segment that another consumer still has, or that has just gone, is retried within the
        operation timeout.

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
        self.look_soon()  # The segments may have changed.

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
        """Return False: other segments may follow those that have ended."""
        return False

    async def _close_all(self) -> None:
        try:
            await super()._close_all()
        finally:
            await self._close_session()


def check_durable(kind: str, settings: ConsumerSettings) -> None:
    """Refuse settings that consumers of segments do not have.

    Raises:
        NotSupportedError: such a setting; the error names it.
    """
    if not settings.durable:
        raise NotSupportedError(
            f"{kind}: durable=False is not supported: use a checkpoint consumer, which has no "
            "subscription"
        )
    if settings.retry_topic:
        raise NotSupportedError(f"{kind}: retry_topic is not supported: use negative_acknowledge")
