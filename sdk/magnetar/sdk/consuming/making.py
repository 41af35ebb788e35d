"""Making consumers and readers: of one topic, or of several where that is what was asked for."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.dead_letters import DeadLetters
from magnetar.sdk.consuming.policies import KeySharedPolicy
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topic_pattern import TopicPattern
from magnetar.sdk.consuming.topic_source import (
    GivenTopics,
    MatchingTopics,
    TopicSource,
    wait_topics,
)
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from magnetar.sdk.context import ClientContext, Closable
from magnetar.sdk.errors import NotSupportedError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.reader import Reader
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import ConsumerSettings, InitialPosition, ReaderSettings
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import TopicName

Topics = str | Sequence[str] | re.Pattern[str]
"""A topic, several, or a pattern for their names."""


class ConsumerMaking:
    """Of one client."""

    def __init__(self, context: ClientContext, opened: Callable[[Closable], None]) -> None:
        """`opened` is told of everything that has to be closed with the client."""
        self._context = context
        self._opened = opened

    async def consumer(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings,
        schema: Schema[object] | None = None,
    ) -> Consumer:
        """Raises: see `Client.consumer`."""
        # For a subscription that is not durable brokers go by the start alone.
        start = settings.start_message_id
        if start is None and not settings.durable:
            earliest = settings.initial_position is InitialPosition.EARLIEST
            start = MessageId.EARLIEST if earliest else MessageId.LATEST
        return await self._start(
            await self._make(topic, subscription, settings, start, settings.start_inclusive, schema)
        )

    async def reader(
        self,
        topic: Topics,
        start: MessageId,
        settings: ReaderSettings,
        schema: Schema[object] | None = None,
    ) -> Reader:
        """Raises: see `Client.reader`."""
        suffix = f"{self._context.random.getrandbits(40):010x}"
        consumer = await self._make(
            topic,
            f"reader-{suffix}",
            ConsumerSettings(
                name=settings.name,
                durable=False,
                initial_position=InitialPosition.LATEST,
                key_shared=KeySharedPolicy(hash_ranges=settings.hash_ranges),
                receiver_queue_messages=settings.receiver_queue_messages,
                receiver_queue_messages_total=settings.receiver_queue_messages_total,
                topics_update_ms=settings.topics_update_ms,
                key_reader=settings.key_reader,
                crypto_failure_action=settings.crypto_failure_action,
                verify_checksum=settings.verify_checksum,
                decompressed_bytes_max=settings.decompressed_bytes_max,
                read_compacted=settings.read_compacted,
            ),
            start,
            settings.start_inclusive,
            schema,
        )
        return Reader(await self._start(consumer))

    async def _start(self, consumer: Consumer) -> Consumer:
        await consumer.start()
        self._opened(consumer)
        return consumer

    async def _make(
        self,
        topic: Topics,
        subscription: str,
        settings: ConsumerSettings,
        start: MessageId | None,
        start_inclusive: bool,
        schema: Schema[object] | None,
    ) -> Consumer:
        context = self._context
        if isinstance(topic, re.Pattern):
            pattern = TopicPattern.parse(topic)
            if settings.retry_topic:
                raise NotSupportedError("retry_topic needs topics by name, not a pattern")
            # Who consumes what is there must not bring back what was deleted.
            settings = replace(settings, create_topic=False)
            several = partial(MatchingTopics, context.lookup, pattern, context.next_consumer_id())
            return self._several(
                topic.pattern, subscription, settings, several, None, start, start_inclusive, schema
            )
        names = [TopicName.parse(each) for each in ([topic] if isinstance(topic, str) else topic)]
        if not names:
            raise TopicNameError("no topic at all: give at least one")
        first = names[0]
        if settings.retry_topic:
            letters = DeadLetters(context, first, subscription, settings.dead_letters)
            names.append(letters.retry_topic)
        source = GivenTopics(context.lookup, names)
        if len(names) == 1 and await wait_topics(source, context) == names:
            context.remember_plain(first)
            return TopicConsumer(
                context,
                first,
                subscription,
                context.next_consumer_id(),
                settings,
                start=start,
                start_inclusive=start_inclusive,
                schema=schema,
            )
        only = str(first) if len(names) == 1 else f"{first} and {len(names) - 1} more"
        return self._several(
            only, subscription, settings, lambda _: source, first, start, start_inclusive, schema
        )

    def _several(
        self,
        name: str,
        subscription: str,
        settings: ConsumerSettings,
        make_source: Callable[[Callable[[], None]], TopicSource],
        first: TopicName | None,
        start: MessageId | None,
        start_inclusive: bool,
        schema: Schema[object] | None,
    ) -> TopicsConsumer:
        if start is not None and start not in (MessageId.EARLIEST, MessageId.LATEST):
            raise NotSupportedError(
                f"{name}: an id to start at is of one topic: start at EARLIEST or LATEST, and seek"
            )
        return TopicsConsumer(
            self._context,
            name,
            subscription,
            settings,
            make_source,
            first=first,
            start=start,
            start_inclusive=start_inclusive,
            schema=schema,
        )
