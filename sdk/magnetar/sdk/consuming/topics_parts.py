"""The parts of a consumer of several topics: each spreads over the consumers of the topics.

Messages stay in the queue of their topic until the application takes them, so a call that is
cancelled has taken nothing, a seek leaves nothing behind, and credit is that of each topic.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from magnetar.sdk.acknowledger import Acknowledgeable
from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.errors import (
    AlreadyClosedError,
    CorruptMessageError,
    SdkError,
    UnknownTopicError,
)
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.topic_name import TopicName

TURN_MESSAGES = 64
"""Messages taken from one topic before it is the turn of the next."""


class Members:
    """The consumers of the topics, by topic, and whose turn it is."""

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicConsumer] = {}
        self._ready: dict[TopicConsumer, None] = {}
        self._taken = 0

    def __iter__(self) -> Iterator[TopicConsumer]:
        return iter(list(self.by_topic.values()))

    def __len__(self) -> int:
        return len(self.by_topic)

    def become_ready(self, member: TopicConsumer) -> None:
        """It may have something to take."""
        self._ready[member] = None

    def remove(self, topic: str) -> TopicConsumer:
        """Take a topic out; its consumer is for the caller to close."""
        member = self.by_topic.pop(topic)
        self._ready.pop(member, None)
        return member

    @property
    def next(self) -> TopicConsumer | None:
        """The one whose turn it is and that has something; None: nobody has."""
        while self._ready:
            member = next(iter(self._ready))
            if member._queue.has_some or member._queue.has_entries:
                return member
            del self._ready[member]
            self._taken = 0
        return None

    def took(self, member: TopicConsumer, count: int) -> None:
        """So many messages were taken of it."""
        self._taken += count
        if self._taken >= TURN_MESSAGES:
            self._ready.pop(member, None)
            self._ready[member] = None
            self._taken = 0

    def of(self, what: Acknowledgeable) -> TopicConsumer | None:
        """Whose message it is; None: of a topic that is gone, there is nobody to be told.

        Raises:
            UnknownTopicError: an id does not tell.
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
            f"id {what} does not say which of {len(members)} topics it is of: give the message"
        )


class TopicsQueue:
    """Messages of all topics, in turn."""

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
        return None  # there is one per topic

    def has_message(self) -> bool:
        return any(each.has_queued() for each in self._members)

    def take(self) -> Message | None:
        self._raise_corrupt()
        members = self._members
        while (member := members.next) is not None:
            message = member._queue.take()
            if message is not None:
                members.took(member, 1)
                return message
        return None

    def take_more(self, messages: list[Message], messages_max: int) -> None:
        members = self._members
        while len(messages) < messages_max and (member := members.next) is not None:
            before = len(messages)
            until = min(messages_max, before + TURN_MESSAGES)
            member._queue.take_more(messages, until)
            members.took(member, max(1, len(messages) - before))
            if len(messages) == before and member._queue.has_entries:
                return  # it is corrupt, and for the next call to raise

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
                # What was taken of other topics is not to be lost for it.
                self._corrupt = error
                return result
            result += batches
            members.took(member, max(1, sum(each.count for each in batches)))
            if not batches:
                return result
        return result

    def is_current(self, what: Message | MessageBatch) -> bool:
        member = self._members.by_topic.get(what.topic)
        return member is not None and member._queue.is_current(what)

    def put_back(self, messages: Sequence[Message]) -> None:
        by_topic: dict[str, list[Message]] = {}
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
        """The members clear theirs when they close."""

    def _raise_corrupt(self) -> None:
        error, self._corrupt = self._corrupt, None
        if error is not None:
            raise error


class TopicsAcknowledger:
    """Hands each message to the acknowledger of its topic."""

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

    def track(self, messages: Iterable[Message | MessageBatch]) -> None:
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
        # What waits of other topics goes too, as with one topic.
        for each in self._members:
            grouped.setdefault(each, [])
        await all_of(member._acknowledger.confirm(some) for member, some in grouped.items())

    def close(self) -> None:
        """The members close theirs."""

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
    """All topics at their brokers."""

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
    """Wait for all, whatever becomes of them. Raises: SdkError: the first of their errors."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, SdkError):
            raise result
    for result in results:
        if isinstance(result, BaseException):
            raise result
