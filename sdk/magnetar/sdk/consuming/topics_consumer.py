"""Consumer of several topics: the partitions of one, a list, or all topics that match a pattern.

It has a consumer for each topic and partition, opens consumers for new ones and closes those of
removed ones. They share the bound on queued messages in equal parts.

Its queue, its acknowledger and its attachment each spread over the consumers of the topics.
Messages stay in the queue of their topic until the application takes them. So a cancelled call has
taken nothing, a seek leaves nothing behind, and permits are counted by topic.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from magnetar.sdk.acknowledger import Acknowledgeable
from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.consuming.dead_letters import DeadLetters
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topic_source import TopicSource, wait_topics
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    CorruptMessageError,
    NotSupportedError,
    SdkError,
    UnknownTopicError,
)
from magnetar.sdk.following import Follower
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import ConsumerSettings, InitialPosition
from magnetar.sdk.stats import BrokerStats, ConsumerStats
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.topic_name import TopicName

TURN_MESSAGES = 64
"""Messages taken from one topic before the next one's turn."""


class TopicsConsumer(Consumer[Any]):
    """A `Consumer` of several topics; `Message.topic` names the topic of each message.

    Order is kept within a topic. A cumulative acknowledgement covers messages of the same topic
    only. A message id identifies its topic only among the partitions of one topic: in other cases
    pass messages.
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
        """Create the consumer without connecting.

        `make_source` gets the function to call when topics have changed. `first` names the dead
        letter and retry topics; None: each topic has its own dead letter topic.
        """
        member_name = settings.name or f"{context.random.getrandbits(40):010x}"
        super().__init__(context, name, subscription, settings, member_name)
        self._start, self._start_inclusive = start, start_inclusive
        self._begins_with_newest = start_inclusive
        self._schema = schema
        self._members = self._make_members()
        self._queue = self._topics_queue = TopicsQueue(self._members)
        self._acknowledger = self._make_acknowledger()
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

    def _make_members(self) -> "Members":
        return Members()

    def _make_acknowledger(self) -> "TopicsAcknowledger":
        return TopicsAcknowledger(
            self._members, watches_timeouts=bool(self._settings.ack_timeout_ms)
        )

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
        """Refuse: each topic has its own.

        Raises:
            NotSupportedError: always; use `last_message_ids`.
        """
        raise NotSupportedError(
            f"the consumer of {self.topic} has several topics: use last_message_ids()"
        )

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

    # -- schemas: each topic has versions of its own

    async def load_schemas(self, messages: Iterable[Message[Any]]) -> None:
        for message in messages:
            member = self._members.by_topic.get(message.topic)
            if member is not None:
                await member.load_schemas((message,))

    async def _take_readable(self) -> Message[Any] | None:
        while (member := self._members.next) is not None:
            try:
                message = await member._take_readable()
            except SdkError:
                if self._members.by_topic.get(member.topic) is not member:
                    continue  # The topic was removed meanwhile, which is no error of the others.
                raise
            if message is not None:
                self._members.took(member, 1)
                return message
        self._attachment.check_usable()
        return None

    def _take_more(self, result: list[Message[Any]], messages_max: int) -> None:
        if self._schema is None:
            self._queue.take_more(result, messages_max)
            return
        before = -1
        while before < len(result) < messages_max and (member := self._members.next) is not None:
            before = len(result)
            member._take_more(result, messages_max)
            self._members.took(member, max(1, len(result) - before))

    # -- dead letters: with a pattern each topic has its own

    async def give_up(self, message: Message[Any]) -> None:
        member = self._members.by_topic.get(message.topic)
        if self._letters is not None or self._settings.dead_letters is None:
            await super().give_up(message)
        elif member is None:
            raise _unknown_topic(message)
        else:
            await member.give_up(message)

    # -- topics come and go

    async def _acknowledge_in(
        self, transaction: Transaction, what: Acknowledgeable, *, cumulative: bool
    ) -> None:
        member = self._members.of(what)
        if member is None:
            # The transaction must not commit as if the message had been acknowledged.
            raise _unknown_topic(what)
        await member._acknowledge_in(transaction, what, cumulative=cumulative)

    async def _open(self) -> None:
        """Open all topics, or none.

        Raises:
            SdkError: one of the topics cannot be consumed.
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
        """Refresh the topics. Watch first, so that changes after the list are reported."""
        await self._source.watch()
        await self._apply(await self._source.topics())

    async def _apply(self, topics: list[TopicName]) -> None:
        """Consume exactly these topics; new ones from their beginning, as they came later."""
        wanted = {str(each): each for each in topics}
        gone = [each for each in self._members.by_topic if each not in wanted]
        closing = [self._members.remove(topic) for topic in gone]
        for member in closing:
            member.on_ready = None
        await close_each(closing)
        added = [each for name, each in wanted.items() if name not in self._members.by_topic]
        try:
            self._member_settings = replace(
                self._member_settings, initial_position=InitialPosition.EARLIEST
            )
            await self._add(added, MessageId.EARLIEST if self._start is not None else None)
        finally:
            self._share_queue()
        # The last topic without an end may have been removed, or the last one with an end.
        had_ended, self.reached_end = self.reached_end, self._is_at_end()
        if self.reached_end and not had_ended:
            self._wake_all()

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
            # Runs to its end even if the caller is cancelled again: consumers that are ready must
            # not keep the subscription, and nothing else would close them.
            await asyncio.shield(_close_made(tasks))
            raise
        if self._attachment.is_closing:
            await asyncio.shield(_close_made(tasks))
            made = [each for each in made if isinstance(each, BaseException)]
        failures = [each for each in made if isinstance(each, BaseException)]
        for each in made:
            if isinstance(each, TopicConsumer):
                self._members.by_topic[each.topic] = each
                each.on_ready = partial(self._on_member_ready, each)
                each.on_active = self._on_member_active
                # Messages may have come in the same read as the broker's answer.
                self._on_member_ready(each)
        told = [each.is_active for each in self._members if each.is_active is not None]
        self.is_active = any(told) if told else None
        if failures:
            raise failures[0]

    async def _make_member(
        self, topic: TopicName, queue_messages: int, start: MessageId | None
    ) -> TopicConsumer:
        settings = replace(self._settings_for(topic), receiver_queue_messages=queue_messages)
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

    def _settings_for(self, _topic: TopicName) -> ConsumerSettings:
        """Return the settings of the consumer of one topic, except its queue size."""
        return self._member_settings

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
        self.reached_end = self._is_at_end()
        if self.reached_end:
            self._wake_all()
        elif self._waiters:
            self._waiters.wake()
        elif self.on_ready is not None:
            self.on_ready()

    def _is_at_end(self) -> bool:
        """Whether no more messages will come, because all topics have ended. Without topics it is
        false: others may appear."""
        members = self._members.by_topic.values()
        return bool(members) and all(each.reached_end for each in members)

    def _on_member_active(self, is_active: bool) -> None:
        self.is_active = any(each.is_active for each in self._members)
        if self.on_active is not None:
            self.on_active(self.is_active)

    def _end_parts(self) -> None:
        """Do nothing: the members end their own parts."""

    async def _close_all(self) -> None:
        self._source.close()
        await self._follower.close()
        members = list(self._members)
        for each in members:
            each.on_ready = None
        await close_each(members)


async def _close_made(making: Iterable["asyncio.Task[TopicConsumer]"]) -> None:
    """Close consumers that are not needed any more, as soon as they are made."""
    made = await asyncio.gather(*making, return_exceptions=True)
    ready = [each for each in made if isinstance(each, TopicConsumer)]
    await asyncio.gather(*(each.close(flush=False) for each in ready), return_exceptions=True)


async def close_each(members: Iterable[TopicConsumer]) -> None:
    """Close consumers of topics; all of them, even if the caller is cancelled."""
    closing = (each.close() for each in members)
    await asyncio.shield(asyncio.gather(*closing, return_exceptions=True))


def _unknown_topic(what: Acknowledgeable) -> UnknownTopicError:
    return UnknownTopicError(f"{what} belongs to a topic that this consumer no longer consumes")


class Members:
    """Consumers of the topics, by topic, and the order in which messages are taken from them."""

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicConsumer] = {}
        self._ready: dict[TopicConsumer, None] = {}
        self._taken = 0

    def __iter__(self) -> Iterator[TopicConsumer]:
        return iter(list(self.by_topic.values()))

    def __len__(self) -> int:
        return len(self.by_topic)

    def become_ready(self, member: TopicConsumer) -> None:
        """Queue a member that may have a message to take."""
        self._ready[member] = None

    def remove(self, topic: str) -> TopicConsumer:
        """Remove a topic and return its consumer, which the caller closes."""
        member = self.by_topic.pop(topic)
        self._ready.pop(member, None)
        return member

    @property
    def next(self) -> TopicConsumer | None:
        """The member whose turn it is and that has something to take; None if no member has."""
        while self._ready:
            member = next(iter(self._ready))
            if member._queue.has_some or member._queue.has_entries:
                return member
            del self._ready[member]
            self._taken = 0
        return None

    def took(self, member: TopicConsumer, count: int) -> None:
        """Count messages taken from a member; after `TURN_MESSAGES` it is the next one's turn."""
        self._taken += count
        if self._taken >= TURN_MESSAGES:
            self._ready.pop(member, None)
            self._ready[member] = None
            self._taken = 0

    def of(self, what: Acknowledgeable) -> TopicConsumer | None:
        """Return the consumer that a message came from; None if its topic was removed.

        Raises:
            UnknownTopicError: the id does not identify its topic.
        """
        members = self.by_topic
        if not isinstance(what, MessageId):
            return members.get(what.topic)
        if len(members) == 1:
            return next(iter(members.values()))
        parents = {TopicName.parse(topic).partitioned for topic in members}
        if len(parents) == 1 and what.partition >= 0:
            found = members.get(str(parents.pop().partition(what.partition)))
            if found is not None:
                return found
        raise UnknownTopicError(
            f"id {what} does not say which of {len(members)} topics it belongs to: pass the "
            "message itself"
        )


class TopicsQueue:
    """Queued messages of all topics, taken in turn."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._corrupt: CorruptMessageError | None = None
        self.is_paused = False

    @property
    def received_messages(self) -> int:
        return sum(each._queue.received_messages for each in self._members)

    @property
    def received_bytes(self) -> int:
        return sum(each._queue.received_bytes for each in self._members)

    @property
    def has_some(self) -> bool:
        return self._members.next is not None

    @property
    def has_entries(self) -> bool:
        return self._corrupt is not None or self._members.next is not None

    @property
    def last_taken(self) -> MessageId | None:
        return None  # each topic has its own

    def has_message(self) -> bool:
        return any(each.has_queued() for each in self._members)

    def take(self) -> Message[Any] | None:
        self._raise_corrupt()
        members = self._members
        while (member := members.next) is not None:
            message = member._queue.take()
            if message is not None:
                members.took(member, 1)
                return message
        return None

    def take_more(self, messages: list[Message[Any]], messages_max: int) -> None:
        members = self._members
        while len(messages) < messages_max and (member := members.next) is not None:
            before = len(messages)
            until = min(messages_max, before + TURN_MESSAGES)
            member._queue.take_more(messages, until)
            members.took(member, max(1, len(messages) - before))
            if len(messages) == before and member._queue.has_entries:
                return  # the next message is corrupt: the next call raises the error

    def take_batches(self, entries_max: int) -> list[MessageBatch]:
        self._raise_corrupt()
        members = self._members
        result: list[MessageBatch] = []
        while len(result) < entries_max and (member := members.next) is not None:
            try:
                batches = member._queue.take_batches(entries_max - len(result))
            except CorruptMessageError as error:
                if not result:
                    raise
                # The entries taken of other topics must not be lost for it.
                self._corrupt = error
                return result
            result += batches
            members.took(member, max(1, sum(each.count for each in batches)))
            if not batches:
                return result
        return result

    def is_current(self, what: Message[Any] | MessageBatch) -> bool:
        member = self._members.by_topic.get(what.topic)
        return member is not None and member._queue.is_current(what)

    def put_back(self, messages: Sequence[Message[Any]]) -> None:
        by_topic: dict[str, list[Message[Any]]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for topic, some in by_topic.items():
            member = self._members.by_topic.get(topic)
            if member is not None:
                member._queue.put_back(some)
                self._members.become_ready(member)

    def pause(self) -> None:
        self.is_paused = True
        for each in self._members:
            each.pause()

    def resume(self) -> None:
        self.is_paused = False
        for each in self._members:
            each.resume()

    def clear(self) -> None:
        """Do nothing: the members clear their queues when they close."""

    def _raise_corrupt(self) -> None:
        error, self._corrupt = self._corrupt, None
        if error is not None:
            raise error


class TopicsAcknowledger:
    """Passes each message to the acknowledger of its topic."""

    def __init__(self, members: Members, *, watches_timeouts: bool) -> None:
        self._members = members
        self._watches_timeouts = watches_timeouts

    @property
    def acknowledged(self) -> int:
        return sum(each._acknowledger.acknowledged for each in self._members)

    @property
    def negatively_acknowledged(self) -> int:
        return sum(each._acknowledger.negatively_acknowledged for each in self._members)

    @property
    def timed_out(self) -> int:
        return sum(each._acknowledger.timed_out for each in self._members)

    @property
    def watches_timeouts(self) -> bool:
        return self._watches_timeouts

    def add(self, what: Acknowledgeable) -> None:
        member = self._members.of(what)
        if member is not None:
            member._acknowledger.add(what)

    def add_many(self, what: Iterable[Acknowledgeable]) -> None:
        for member, some in self._by_member(what):
            member._acknowledger.add_many(some)

    def add_cumulative(self, what: Acknowledgeable) -> None:
        member = self._members.of(what)
        if member is not None:
            member._acknowledger.add_cumulative(what)

    def resume_id(self, last: MessageId) -> MessageId:
        member = self._members.of(last)
        return last if member is None else member._acknowledger.resume_id(last)

    def add_negative(self, what: Acknowledgeable) -> None:
        member = self._members.of(what)
        if member is not None:
            member._acknowledger.add_negative(what)

    def redeliver(self, what: Iterable[Acknowledgeable]) -> None:
        for member, some in self._by_member(what):
            member._acknowledger.redeliver(some)

    def redeliver_all(self) -> None:
        for each in self._members:
            each._acknowledger.redeliver_all()

    def track(self, messages: Iterable[Message[Any] | MessageBatch]) -> None:
        if self._watches_timeouts:
            for message in messages:
                member = self._members.by_topic.get(message.topic)
                if member is not None:
                    member._acknowledger.track((message,))

    def flush(self) -> None:
        for each in self._members:
            each._acknowledger.flush()

    async def confirm(self, what: Iterable[Acknowledgeable] = ()) -> None:
        grouped = dict(self._by_member(what))
        # Waiting acknowledgements of other topics are sent, too, as with one topic.
        for each in self._members:
            grouped.setdefault(each, [])
        await all_of(member._acknowledger.confirm(some) for member, some in grouped.items())

    def close(self) -> None:
        """Do nothing: the members close their acknowledgers."""

    def _by_member(
        self, what: Iterable[Acknowledgeable]
    ) -> list[tuple[TopicConsumer, list[Acknowledgeable]]]:
        grouped: dict[TopicConsumer, list[Acknowledgeable]] = {}
        for one in what:
            member = self._members.of(one)
            if member is not None:
                grouped.setdefault(member, []).append(one)
        return list(grouped.items())


class TopicsAttachment:
    """The attachments of all topics."""

    def __init__(
        self,
        members: Members,
        *,
        name: str,
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self._members = members
        self._name = name
        self._start = start
        self._stop = stop
        self.is_closing = False

    @property
    def is_attached(self) -> bool:
        return all(each.is_connected for each in self._members)

    def check_usable(self) -> None:
        if self.is_closing:
            raise AlreadyClosedError(f"the consumer of {self._name} is closed")
        for each in self._members.by_topic.values():
            each._attachment.check_usable()

    async def start(self) -> None:
        await self._start()

    async def close(self) -> None:
        await self._stop()

    async def seek(self, message_id: MessageId) -> None:
        if message_id in (MessageId.EARLIEST, MessageId.LATEST):
            await all_of(each.seek(message_id) for each in self._members)
        else:
            member = self._members.of(message_id)
            if member is not None:
                await member.seek(message_id)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        await all_of(each.seek_to_time(publish_time_ms) for each in self._members)

    async def unsubscribe(self, *, force: bool) -> None:
        await all_of(each.unsubscribe(force=force) for each in self._members)


async def all_of(calls: Iterable[Awaitable[None]]) -> None:
    """Wait for all calls, even if some fail.

    Raises:
        SdkError: the first error.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, SdkError):
            raise result
    for result in results:
        if isinstance(result, BaseException):
            raise result
