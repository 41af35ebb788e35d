"""The stream consumer: the segments that its subscription's coordinator assigns to it, in order.

Order per key holds over splits and merges: the coordinator assigns a segment once all its ancestors
are acknowledged to their ends. A consumer has its segments for itself (Exclusive). If there are
more consumers than segments, several share a segment that has entry buckets (Key_Shared): each key
stays with one of them. When the sharing of a segment begins or ends, the consumer leaves the
segment, and consumes it anew.

A segment that goes to another consumer is *leaving*. The consumer delivers no more of its messages.
It closes the segment when the last message taken from it is acknowledged, or after `handover_ms`.
So the next consumer begins after the messages that were processed here.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from magnetar.sdk.acknowledger import Acknowledgeable
from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.consuming.topics_consumer import Members, TopicsAcknowledger, close_each
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import NotSupportedError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.assignment_session import AssignmentSession, Buckets
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.scalable.segments_consumer import (
    SegmentsConsumer,
    SegmentSource,
    check_durable,
)
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import ConsumerSettings, KeySharedPolicy, SubscriptionType
from magnetar.sdk.wire.topic_name import TopicName


class StreamMembers(Members):
    """Consumers of segments, including those that leave."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving: dict[str, TopicConsumer] = {}
        self._acknowledged: dict[str, tuple[int, int, int]] = {}
        """Place of the last acknowledged message of each segment."""

    def of(self, what: Acknowledgeable) -> TopicConsumer | None:
        """Return the consumer that a message came from, even if it is leaving."""
        if self.leaving and not isinstance(what, MessageId) and what.topic in self.leaving:
            return self.leaving[what.topic]
        return super().of(what)

    def note(self, what: Acknowledgeable) -> bool:
        """Record an acknowledgement; return whether a leaving consumer now has nothing more to wait
        for."""
        member = self.of(what)
        if member is None:
            return False
        place, known = _place(what), self._acknowledged.get(member.topic)
        if known is None or place > known:  # acknowledgements come in any order
            self._acknowledged[member.topic] = place
        return bool(self.leaving) and member.topic in self.leaving and self.is_done(member)

    def is_done(self, member: TopicConsumer) -> bool:
        """Return whether the last message that was taken of a segment is acknowledged."""
        taken, acknowledged = member.last_taken, self._acknowledged.get(member.topic)
        if taken is None:
            return True
        return acknowledged is not None and acknowledged >= (
            taken.ledger_id,
            taken.entry_id,
            taken.batch_index,
        )

    def forget(self, topic: str) -> None:
        """Drop the record of a segment that is not consumed here any more."""
        self._acknowledged.pop(topic, None)


class StreamAcknowledger(TopicsAcknowledger):
    """Acknowledges, and reports when a leaving segment has nothing more to wait for."""

    def __init__(self, members: StreamMembers, *, watches_timeouts: bool) -> None:
        super().__init__(members, watches_timeouts=watches_timeouts)
        self._noted = members
        self.waits_ended = asyncio.Event()
        """Set when a leaving segment has nothing more to wait for."""

    def add(self, what: Acknowledgeable) -> None:
        super().add(what)
        self._note(what)

    def add_many(self, what: Iterable[Acknowledgeable]) -> None:
        given = list(what)
        super().add_many(given)
        for each in given:
            self._note(each)

    def add_cumulative(self, what: Acknowledgeable) -> None:
        member = self._noted.of(what)
        if member is not None and not member._settings.subscription_type.keeps_order:
            raise NotSupportedError(
                f"{member.topic}: other consumers have keys of the segment, too: acknowledge what "
                "was processed instead of everything up to a message"
            )
        super().add_cumulative(what)
        self._note(what)

    async def confirm(self, what: Iterable[Acknowledgeable] = ()) -> None:
        given = list(what)
        await super().confirm(given)
        for each in given:
            self._note(each)

    def _note(self, what: Acknowledgeable) -> None:
        if self._noted.note(what):
            self.waits_ended.set()


class StreamConsumer(SegmentsConsumer):
    """A consumer of assigned segments, in order per key. Made by `Client.stream_consumer`."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        subscription: str,
        settings: ConsumerSettings,
        *,
        schema: Schema[object] | None = None,
    ) -> None:
        """
        Raises:
            NotSupportedError: settings that stream consumers do not have.
        """
        check_durable("stream consumer", settings)
        if settings.subscription_type is not SubscriptionType.EXCLUSIVE:
            raise NotSupportedError(
                f"stream consumer: expected no subscription type, got "
                f"{settings.subscription_type.value}; queue_consumer() shares messages"
            )
        super().__init__(
            context,
            name,
            subscription,
            settings,
            SegmentSource(self._start_session, lambda: tuple(self._session.assigned)),
            close_session=self._end_session,
            schema=schema,
        )
        self._session = AssignmentSession(
            context,
            name,
            subscription,
            self._name,
            may_create=settings.create_topic,
            on_change=self.look_soon,
        )
        self._waiting: asyncio.Task[None] | None = None
        self._until_s: dict[str, float] = {}
        """Times when leaving segments are closed, even without acknowledgements, in monotonic
        seconds."""
        self._buckets: dict[str, Buckets] = {}
        """Entry buckets by which segments are consumed, including segments that leave."""

    def _make_members(self) -> Members:
        self._stream_members = StreamMembers()
        return self._stream_members

    def _make_acknowledger(self) -> TopicsAcknowledger:
        self._stream_acknowledger = StreamAcknowledger(
            self._stream_members, watches_timeouts=bool(self._settings.ack_timeout_ms)
        )
        return self._stream_acknowledger

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

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Raise an error: see `_refuse`.

        Raises:
            NotSupportedError: always.
        """
        self._refuse("unsubscribe")

    def _refuse(self, call: str) -> NoReturn:
        """Refuse a call: a consumer has only some of the segments, and must not move those of
        others.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            f"{self.topic}: a stream consumer has only its own segments: use the admin interface "
            f"of scalable topics instead of {call}"
        )

    async def _start_session(self) -> None:
        await self._session.start()
        self._waiting = asyncio.create_task(
            self._wait_for_acknowledgements(), name=f"magnetar handover of {self.topic}"
        )

    async def _end_session(self) -> None:
        task, self._waiting = self._waiting, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._session.close()

    async def _wait_for_acknowledgements(self) -> None:
        while True:
            await self._stream_acknowledger.waits_ended.wait()
            self._stream_acknowledger.waits_ended.clear()
            self.look_soon()

    async def _apply(self, topics: list[TopicName]) -> None:
        """Consume the assigned segments, and leave the others as the module describes."""
        members = self._stream_members
        known = {*members.by_topic, *members.leaving}
        self._buckets = {each: buckets for each, buckets in self._buckets.items() if each in known}
        assigned = {str(each): buckets for each, buckets in self._session.assigned.items()}
        wanted = {
            topic
            for topic in map(str, topics)
            if self._buckets.get(topic) in (None, assigned.get(topic))
        }
        now_s = self._context.clock.monotonic_s()
        for topic in [each for each in members.by_topic if each not in wanted]:
            member = members.remove(topic)
            member.on_ready = None
            member.pause()
            members.leaving[topic] = member
            self._until_s[topic] = now_s + self._settings.handover_ms / 1000
        for topic in [each for each in members.leaving if each in wanted]:
            # It was assigned again before it was closed.
            self._take_back(topic)
        over = [
            topic
            for topic, member in members.leaving.items()
            if members.is_done(member) or now_s >= self._until_s[topic]
        ]
        closing = []
        for topic in over:
            closing.append(members.leaving.pop(topic))
            self._until_s.pop(topic)
            self._buckets.pop(topic, None)
            members.forget(topic)
        await close_each(closing)
        await super()._apply([each for each in topics if str(each) not in members.leaving])

    def _settings_for(self, topic: TopicName) -> ConsumerSettings:
        settings = super()._settings_for(topic)
        buckets = self._buckets[str(topic)] = self._session.assigned.get(topic, ())
        if not buckets:
            return settings
        return replace(
            settings,
            subscription_type=SubscriptionType.KEY_SHARED,
            key_shared=KeySharedPolicy(hash_ranges=buckets, entry_buckets=True),
        )

    def _take_back(self, topic: str) -> None:
        members = self._stream_members
        member = members.leaving.pop(topic)
        self._until_s.pop(topic)
        members.by_topic[topic] = member
        member.on_ready = lambda: self._on_member_ready(member)
        if not self._topics_queue.is_paused:
            member.resume()
        self._on_member_ready(member)

    async def _close_all(self) -> None:
        members = self._stream_members
        members.by_topic.update(members.leaving)
        members.leaving.clear()
        await super()._close_all()


def _place(what: Acknowledgeable) -> tuple[int, int, int]:
    """Return ledger, entry and index of the last message in an acknowledgement."""
    if isinstance(what, MessageBatch):
        return what.ledger_id, what.entry_id, max(-1, what.batch_size - 1)
    return what.ledger_id, what.entry_id, what.batch_index
