"""A consumer of several topics: partitions of one, a list of them, or all that fit a pattern.

It has a consumer for each topic and partition, opens those that appear and closes those that go.
They share the bound on messages that lie here: each has an equal part of it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from magnetar.sdk.acknowledger import Acknowledgeable
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.dead_letters import DeadLetters
from magnetar.sdk.consuming.stats import BrokerStats, ConsumerStats
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topic_source import TopicSource, wait_topics
from magnetar.sdk.consuming.topics_parts import (
    Members,
    TopicsAcknowledger,
    TopicsAttachment,
    TopicsQueue,
    all_of,
)
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import NotSupportedError, SdkError, UnknownTopicError
from magnetar.sdk.following import Follower
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import ConsumerSettings, InitialPosition
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.topic_name import TopicName


class TopicsConsumer(Consumer):
    """A `Consumer` whose messages are of several topics; `Message.topic` says of which.

    Order is kept within a topic. Cumulative acknowledgement is up to the message in its own topic.
    An id tells its topic only among the partitions of one topic: elsewhere give messages.
    """

    def __init__(
        self,
        context: ClientContext,
        name: str,
        subscription: str,
        settings: ConsumerSettings,
        make_source: Callable[[Callable[[], None]], TopicSource],
        *,
        first: TopicName | None = None,
        start: MessageId | None = None,
        start_inclusive: bool = False,
        schema: Schema[object] | None = None,
    ) -> None:
        """`make_source` is given what to call when there are news. `first` names the topics of dead
        letters and retries; None: each topic has its own dead letters."""
        member_name = settings.name or f"{context.random.getrandbits(40):010x}"
        super().__init__(context, name, subscription, settings, member_name)
        self._start, self._start_inclusive = start, start_inclusive
        self._begins_with_newest = start_inclusive
        self._schema = schema
        self._members = Members()
        self._queue = self._topics_queue = TopicsQueue(self._members)
        self._acknowledger = TopicsAcknowledger(
            self._members, watches_timeouts=bool(settings.ack_timeout_ms)
        )
        self._attachment = TopicsAttachment(
            self._members, name=subscription, start=self._open, stop=self._close_all
        )
        self._source = make_source(lambda: self._follower.look_soon())
        self._follower = Follower(
            self._look,
            interval_s=settings.topics_update_ms / 1000,
            pause_min_s=context.settings.reconnect_delay_min_ms / 1000,
            random=context.random,
            name=f"topics of {name}",
        )
        if first is not None and (settings.dead_letters is not None or settings.retry_topic):
            self._letters = DeadLetters(
                context,
                first,
                subscription,
                settings.dead_letters,
                has_schema=schema is not None,
            )
        self._member_settings = replace(settings, name=member_name)

    # -- public, where several topics differ from one

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._members.by_topic)

    def resize_queue(self, messages_max: int) -> None:
        self._settings = replace(self._settings, receiver_queue_messages=messages_max)
        self._share_queue()

    async def has_message_available(self) -> bool:
        return any(await asyncio.gather(*(each.has_message_available() for each in self._members)))

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """Raises: NotSupportedError: there is one per topic."""
        raise NotSupportedError(f"{self.topic} is several topics: use last_message_ids()")

    async def last_message_ids(self) -> dict[str, MessageId]:
        members = list(self._members)
        ids = await asyncio.gather(*(each.last_message_id() for each in members))
        return {each.topic: message_id for each, message_id in zip(members, ids, strict=True)}

    def stats(self) -> ConsumerStats:
        mine = super().stats()
        connected = sum(each.is_connected for each in self._members)
        given_up = mine.given_up + sum(
            each.stats().given_up for each in self._members if self._letters is None
        )
        return replace(mine, topics=len(self._members), connected=connected, given_up=given_up)

    async def broker_stats(self) -> list[BrokerStats]:
        found = await asyncio.gather(*(each.broker_stats() for each in self._members))
        return [one for each in found for one in each]

    async def seek_each(self, positions: dict[str, MessageId]) -> None:
        """Move topics, each to an id of its own; topics by the names in `topics`.

        Raises:
            KeyError: a topic that is not consumed.
            SdkError: not known to be carried out.
        """
        members = [(self._members.by_topic[topic], at) for topic, at in positions.items()]
        await all_of(member.seek(at) for member, at in members)

    # -- schemas: each topic has versions of its own

    async def load_schemas(self, messages: Iterable[Message]) -> None:
        for message in messages:
            member = self._members.by_topic.get(message.topic)
            if member is not None:
                await member.load_schemas((message,))

    async def _take_readable(self) -> Message | None:
        while (member := self._members.next) is not None:
            try:
                message = await member._take_readable()
            except SdkError:
                if self._members.by_topic.get(member.topic) is not member:
                    continue  # The topic has gone meanwhile, which is no error of the others.
                raise
            if message is not None:
                self._members.took(member, 1)
                return message
        self._attachment.check_usable()
        return None

    def _take_more(self, result: list[Message], messages_max: int) -> None:
        if self._schema is None:
            self._queue.take_more(result, messages_max)
            return
        before = -1
        while before < len(result) < messages_max and (member := self._members.next) is not None:
            before = len(result)
            member._take_more(result, messages_max)
            self._members.took(member, max(1, len(result) - before))

    # -- topics come and go

    async def _acknowledge_in(
        self, transaction: Transaction, what: Acknowledgeable, *, cumulative: bool
    ) -> None:
        member = self._members.of(what)
        if member is None:
            # The transaction must not commit as if it had been acknowledged.
            raise UnknownTopicError(f"{what} is of a topic that is not consumed any more")
        await member._acknowledge_in(transaction, what, cumulative=cumulative)

    async def _open(self) -> None:
        """Open all topics, or none.

        Raises:
            SdkError: one of them cannot be consumed.
        """
        try:
            await self._source.watch()
            await self._add(await wait_topics(self._source, self._context), self._start)
        except BaseException:
            self._attachment.is_closing = True
            await self._close_all()
            raise
        self._follower.start()

    async def _look(self) -> None:
        """Watch first: what changes after the list was made is heard of."""
        await self._source.watch()
        await self._apply(await self._source.topics())

    async def _apply(self, topics: list[TopicName]) -> None:
        """Consume what there is; what is new from its beginning: nothing of it is older than us."""
        wanted = {str(each): each for each in topics}
        gone = [each for each in self._members.by_topic if each not in wanted]
        closing = [self._members.remove(topic) for topic in gone]
        for member in closing:
            member.on_ready = None
        await asyncio.gather(*(each.close() for each in closing), return_exceptions=True)
        added = [each for name, each in wanted.items() if name not in self._members.by_topic]
        try:
            self._member_settings = replace(
                self._member_settings, initial_position=InitialPosition.EARLIEST
            )
            await self._add(added, MessageId.EARLIEST if self._start is not None else None)
        finally:
            self._share_queue()

    async def _add(self, topics: Iterable[TopicName], start: MessageId | None) -> None:
        topics = list(topics)
        count = len(topics) + len(self._members)
        queue_messages = self._queue_messages(count)
        tasks = [
            asyncio.create_task(self._make_member(topic, queue_messages, start)) for topic in topics
        ]
        try:
            made = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            # Those that are ready must not keep the subscription: nobody else would close them.
            given_up = await asyncio.gather(*tasks, return_exceptions=True)
            ready = [each for each in given_up if isinstance(each, TopicConsumer)]
            closing = (each.close(flush=False) for each in ready)
            await asyncio.gather(*closing, return_exceptions=True)
            raise
        failures = [each for each in made if isinstance(each, BaseException)]
        for each in made:
            if isinstance(each, TopicConsumer):
                if self._attachment.is_closing:
                    await each.close(flush=False)
                    continue
                self._members.by_topic[each.topic] = each
                each.on_ready = partial(self._on_member_ready, each)
                each.on_active = self._on_member_active
                # What came in the read that brought the answer is there already.
                self._on_member_ready(each)
        told = [each.is_active for each in self._members if each.is_active is not None]
        self.is_active = any(told) if told else None
        if failures:
            raise failures[0]

    async def _make_member(
        self, topic: TopicName, queue_messages: int, start: MessageId | None
    ) -> TopicConsumer:
        settings = replace(self._member_settings, receiver_queue_messages=queue_messages)
        member = TopicConsumer(
            self._context,
            topic,
            self.subscription,
            self._context.next_consumer_id(),
            settings,
            start=start,
            start_inclusive=self._begins_with_newest,
            schema=self._schema,
            letters=self._letters,
        )
        if self._topics_queue.is_paused:
            member.pause()
        await member.start()
        return member

    def _queue_messages(self, topics: int) -> int:
        settings = self._settings
        part = settings.receiver_queue_messages_total // max(1, topics)
        return max(1, min(settings.receiver_queue_messages, part))

    def _share_queue(self) -> None:
        part = self._queue_messages(len(self._members))
        for each in self._members:
            each.resize_queue(part)

    def _on_member_ready(self, member: TopicConsumer) -> None:
        self._members.become_ready(member)
        self.reached_end = all(each.reached_end for each in self._members.by_topic.values())
        if self.reached_end:
            self._wake_all()
        elif self._waiters:
            self._waiters.wake()
        elif self.on_ready is not None:
            self.on_ready()

    def _on_member_active(self, is_active: bool) -> None:
        self.is_active = any(each.is_active for each in self._members)
        if self.on_active is not None:
            self.on_active(self.is_active)

    def _end_parts(self) -> None:
        """The members end theirs."""

    async def _close_all(self) -> None:
        self._source.close()
        await self._follower.close()
        members = list(self._members)
        for each in members:
            each.on_ready = None
        await asyncio.gather(*(each.close() for each in members), return_exceptions=True)
