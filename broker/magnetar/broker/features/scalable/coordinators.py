"""The coordinators of this broker: each divides the segments of a topic among a subscription.

Stream consumers, and checkpoint consumers of a group, register with the broker that owns the
topic's `persistent://` name, partitioned or not, and are told which segments are theirs. What a
coordinator knows is in memory alone. Assignments follow from names, layout, and which segments are
drained (`assignment.py`), so the next coordinator needs the registrations alone, and clients
register again when their connection ends.

A coordinator is there while it has consumers, or somebody registers. It ends when the topic's
bundle goes to another broker, or may have gone: the connections of its consumers are closed, and
they find the new one. It is on the list before ownership is checked, so that a loss meanwhile
reaches it.

While stream consumers have sealed segments, the owners of these are asked again and again whether
they are drained: the children wait for that.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from magnetar.broker.base.errors import (
    NotAllowedError,
    RequestError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.broker.cluster.ownership.protocol import Destination, Ownership, TopicHolder
from magnetar.broker.features.scalable.assignment import Assignment, SegmentAssignment
from magnetar.broker.features.scalable.layout import Change, Layout, Segment, change
from magnetar.broker.features.scalable.layouts import Layouts
from magnetar.ledger.backoff import backoff
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire.pulsar_pb2 import STREAM, ScalableConsumerType

_log = structlog.get_logger()

_DRAIN_LOOK_S = 0.1
"""Until sealed segments are looked at again; twice as long after each look that found nothing."""
_DRAIN_LOOK_S_MAX = 2.0
_DRAIN_LOOKS_AT_ONCE = 16
_HOLD_S_MAX = 30.0
"""For a seek of all segments: the broker that makes it may be gone."""

IsDrained = Callable[[TopicName, str], Awaitable[bool]]
"""Whether a segment is drained on a subscription; raises RequestError."""


async def _never_drained(_segment: TopicName, _subscription: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class GroupId:
    """The consumers among which a coordinator divides the segments of a topic."""

    topic: TopicName
    subscription: str
    kind: ScalableConsumerType
    """Stream consumers and checkpoint consumers of one name have nothing in common."""


class Member(Protocol):
    """A consumer's registration, seen from its coordinator."""

    @property
    def name(self) -> str:
        """Name of the consumer: within its group it is the consumer."""
        ...

    def tell(self, assignment: Assignment) -> None:
        """Send the consumer a new assignment."""
        ...

    def disconnect(self) -> None:
        """Close the connection: the consumer looks for its coordinator."""
        ...


class _Coordinator:
    """Of one group."""

    def __init__(
        self,
        group: GroupId,
        layouts: Layouts,
        clock: Clock,
        *,
        grace_s: float,
        is_drained: IsDrained,
    ) -> None:
        self._group = group
        self._layouts = layouts
        self._clock = clock
        self._grace_s = grace_s
        self._is_drained = is_drained
        self._layout: Layout | None = None
        self._assignment: SegmentAssignment[Member] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining: asyncio.Task[None] | None = None
        self._releasing: dict[frozenset[int], deque[asyncio.TimerHandle]] = {}
        """By the segments that are held back for a seek."""
        self._preparing = asyncio.Lock()
        self._drain_looks = 0
        """In a row that have found nothing."""
        self.registering = 0
        """Registrations under way: they need it, although it may have no consumer yet."""
        self.is_ended = False
        self.on_empty: Callable[[], None]
        self._followed = layouts.join(group.topic, self._look)

    @property
    def is_idle(self) -> bool:
        """Nobody needs it."""
        return not self.registering and not self._assignment

    @property
    def consumers(self) -> int:
        """That are registered, those that may come back included."""
        return len(self._assignment) if self._assignment is not None else 0

    async def prepare(self) -> None:
        """Know the layout, and which of its segments are drained.

        Raises:
            TopicNotFoundError: the topic is being deleted.
            BrokerMetadataError
        """
        layout = await self._followed.get()
        if layout is None or layout.is_ending:
            raise TopicNotFoundError(f"{self._group.topic} is being deleted")
        async with self._preparing:
            if self._assignment is not None or self.is_ended:
                return
            layout = self._followed.known or layout
            assignment: SegmentAssignment[Member] = SegmentAssignment(
                layout, grace_s=self._grace_s, is_ordered=self._group.kind == STREAM
            )
            # Before the first assignment: consumers that come back keep the children they had.
            while drained := await self._drained_of(assignment.undrained):
                assignment.drained(drained)
            if self.is_ended:
                return
            self._layout, self._assignment = layout, assignment
            self._look()  # There may be a newer one by now.
            self._watch_draining()

    def register(self, member: Member, *, consumers_max: int) -> Assignment:
        """Attach a consumer; the others are told what changes for them.

        Raises:
            NotAllowedError: there are too many.
        """
        assert self._assignment is not None, "prepare() comes first"
        if member.name not in self._assignment and len(self._assignment) >= consumers_max:
            raise NotAllowedError(
                f"subscription {self._group.subscription} of {self._group.topic} has "
                f"{len(self._assignment)} registered consumers; the limit is {consumers_max} "
                "(scalable_consumers_per_subscription_max of the broker)"
            )
        assignment, news = self._assignment.register(member.name, member)
        _tell(news)
        self._set_timer()
        return assignment

    def unregister(self, member: Member) -> None:
        if self._assignment is not None:
            _tell(self._assignment.unregister(member.name, member))
            self._set_timer()

    def detach(self, member: Member) -> None:
        if self._assignment is not None:
            self._assignment.detach(member.name, member, now_s=self._clock.monotonic_s())
            self._set_timer()

    def end(self) -> None:
        """End because this broker may not own the topic any more: consumers look for the owner."""
        members = self._assignment.attached if self._assignment is not None else []
        self.close()
        for member in members:
            member.disconnect()

    def close(self) -> None:
        """Forget all."""
        self.is_ended = True
        self._assignment = None
        self._layouts.leave(self._group.topic, self._look)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        for timers in self._releasing.values():
            for timer in timers:
                timer.cancel()
        self._releasing.clear()

    def hold_back(self, segment_ids: Collection[int]) -> None:
        """The subscription goes back on these segments: their descendants are taken back at once,
        and given again when these are drained. After some time it counts as gone back.

        Raises:
            ServiceNotReadyError: it is beginning, and may find them drained; a retry helps.
        """
        if self._assignment is None:
            raise ServiceNotReadyError(
                f"the coordinator of {self._group.topic} is beginning: seek again in a moment"
            )
        _tell(self._assignment.hold_back(segment_ids))
        loop, held = asyncio.get_running_loop(), frozenset(segment_ids)
        timer = loop.call_later(_HOLD_S_MAX, self.release, held)
        self._releasing.setdefault(held, deque()).append(timer)

    def release(self, segment_ids: Collection[int]) -> None:
        """The subscription has gone back, or has not."""
        held = frozenset(segment_ids)
        if timers := self._releasing.get(held):
            timers.popleft().cancel()  # The oldest: if a timer calls, it is that one.
            if not timers:
                del self._releasing[held]
        if self._assignment is not None:
            _tell(self._assignment.release(segment_ids))
            self._drain_looks = 0
            self._watch_draining()

    def _look(self) -> None:
        """The layout may have changed."""
        now = self._followed.known
        if self._assignment is None or self._layout is None:
            return
        what = change(self._layout, now)
        if what is Change.GONE:
            news = self._assignment.empty()
            self.on_empty()
            _tell(news)
        elif what is not Change.NONE and now is not None:
            self._layout = now
            _tell(self._assignment.change(now))
            self._drain_looks = 0
            self._watch_draining()

    # Sealed segments

    async def _drained_of(self, segments: Sequence[Segment]) -> list[int]:
        """The ids of those of these sealed segments that are drained."""
        limit = asyncio.Semaphore(_DRAIN_LOOKS_AT_ONCE)

        async def look(segment: Segment) -> bool:
            async with limit:
                try:
                    name = TopicName.parse(segment.topic)
                    return await self._is_drained(name, self._group.subscription)
                except RequestError as error:
                    _log.info("segment_not_looked_at", topic=segment.topic, error=str(error))
                    return False

        found: list[bool] = await asyncio.gather(*map(look, segments)) if segments else []
        return [each.id for each, is_it in zip(segments, found, strict=True) if is_it]

    async def _look_for_drained(self) -> bool:
        """Note which sealed segments are drained; whether there was a new one."""
        layout, assignment = self._layout, self._assignment
        if layout is None or assignment is None:
            return False
        moves = assignment.moves
        drained = await self._drained_of(assignment.undrained)
        if not drained or self._assignment is not assignment or self._layout is None:
            return False
        if layout.born_ms != self._layout.born_ms:
            return False  # The topic was created again meanwhile.
        if moves != assignment.moves:
            return False  # The subscription has gone back meanwhile.
        _tell(assignment.drained(drained))
        return True

    def _watch_draining(self) -> None:
        """Have sealed segments looked at, if there are any."""
        if self._draining is None and self._assignment is not None and self._assignment.undrained:
            self._draining = asyncio.get_running_loop().create_task(
                self._drain(), name=f"drain-{self._group.topic}"
            )

    async def _drain(self) -> None:
        try:
            while self._assignment is not None and self._assignment.undrained:
                self._drain_looks += 1
                pause_s = backoff(_DRAIN_LOOK_S, self._drain_looks, _DRAIN_LOOK_S_MAX)
                await asyncio.sleep(pause_s)
                while await self._look_for_drained():
                    self._drain_looks = 0
        finally:
            self._draining = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        expiry_s = self._assignment.next_expiry_s if self._assignment is not None else None
        if expiry_s is not None:
            wait_s = max(0.0, expiry_s - self._clock.monotonic_s())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._assignment is None:
            return
        _tell(self._assignment.expire(now_s=self._clock.monotonic_s()))
        self._set_timer()
        if self.is_idle:
            self.on_empty()


def _tell(news: Sequence[tuple[Member, Assignment]]) -> None:
    for member, assignment in news:
        member.tell(assignment)


class SegmentCoordinators:
    """Of one broker."""

    def __init__(
        self,
        layouts: Layouts,
        ownership: Ownership,
        clock: Clock,
        *,
        grace_ms: int,
        consumers_max: int,
        wait_ms: int,
        is_drained: IsDrained = _never_drained,
    ) -> None:
        """`grace_ms`: how long a consumer whose connection is lost keeps its segments.
        `consumers_max`: of one group. `wait_ms`: for this broker to own the topic. `is_drained`:
        asks the owner of a segment."""
        self._layouts = layouts
        self._ownership = ownership
        self._clock = clock
        self._grace_s = grace_ms / 1000
        self._consumers_max = consumers_max
        self._wait_s = wait_ms / 1000
        self._is_drained = is_drained
        self._coordinators: dict[GroupId, _Coordinator] = {}

    def __len__(self) -> int:
        """Groups that have a coordinator here."""
        return len(self._coordinators)

    def hold_back(self, topic: TopicName, subscription: str, segment_ids: Collection[int]) -> None:
        """A subscription goes back on sealed segments of a topic: hold their descendants back.

        Without a coordinator there is nothing to do: the next one looks for itself.

        Raises:
            ServiceNotReadyError: a retry helps.
        """
        coordinator = self._coordinators.get(GroupId(topic, subscription, STREAM))
        if coordinator is not None:
            coordinator.hold_back(segment_ids)

    def release(self, topic: TopicName, subscription: str, segment_ids: Collection[int]) -> None:
        """The subscription has gone back: its segments are given out until they are drained."""
        coordinator = self._coordinators.get(GroupId(topic, subscription, STREAM))
        if coordinator is not None:
            coordinator.release(segment_ids)

    def stream_consumers(self) -> dict[TopicName, int]:
        """Stream consumers that are registered here, those that may come back included, of each
        topic's subscription that has the most."""
        found: dict[TopicName, int] = {}
        for group, each in self._coordinators.items():
            if group.kind == STREAM:
                found[group.topic] = max(each.consumers, found.get(group.topic, 0))
        return found

    async def register(
        self, group: GroupId, member: Member, *, is_wanted: Callable[[], bool]
    ) -> Assignment | None:
        """Attach a consumer; returns its assignment. None: it is not `is_wanted` any more.

        From the return on, the member is told of changes, and of none before.

        Raises:
            ServiceNotReadyError: another broker owns the topic, or may; a retry helps.
            TopicNotFoundError: the topic is being deleted.
            NotAllowedError: the group has too many consumers.
            BrokerMetadataError
        """
        coordinator = self._coordinators.get(group) or self._open(group)
        coordinator.registering += 1
        try:
            await coordinator.prepare()
            tenure = await self._ownership.acquire(group.topic, timeout_s=self._wait_s)
            if coordinator.is_ended or not tenure.holds():
                raise ServiceNotReadyError(
                    f"the coordinator of {group.topic} has ended meanwhile, or moves to another "
                    "broker: look the topic up again"
                )
            if not is_wanted():
                return None
            return coordinator.register(member, consumers_max=self._consumers_max)
        finally:
            coordinator.registering -= 1
            self._forget_if_idle(group, coordinator)

    def unregister(self, group: GroupId, member: Member) -> None:
        """A consumer leaves: its segments go to others at once."""
        coordinator = self._coordinators.get(group)
        if coordinator is not None:
            coordinator.unregister(member)
            self._forget_if_idle(group, coordinator)

    def detach(self, group: GroupId, member: Member) -> None:
        """The connection of a consumer is lost: its segments stay its own for a while."""
        coordinator = self._coordinators.get(group)
        if coordinator is not None:
            coordinator.detach(member)

    # With the bundles of this broker

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Topics that have a coordinator here."""
        return list(dict.fromkeys(each.topic for each in self._coordinators if belongs(each.topic)))

    def end(self, topics: Sequence[TopicName]) -> None:
        """Another broker coordinates these topics from now on."""
        gone = set(topics)
        for group in [each for each in self._coordinators if each.topic in gone]:
            coordinator = self._coordinators.pop(group)
            _log.info(
                "segment_coordinator_ended",
                topic=str(group.topic),
                subscription=group.subscription,
            )
            coordinator.end()

    def _open(self, group: GroupId) -> _Coordinator:
        coordinator = _Coordinator(
            group,
            self._layouts,
            self._clock,
            grace_s=self._grace_s,
            is_drained=self._is_drained,
        )
        coordinator.on_empty = lambda: self._forget(group, coordinator)
        self._coordinators[group] = coordinator
        return coordinator

    def _forget_if_idle(self, group: GroupId, coordinator: _Coordinator) -> None:
        if coordinator.is_idle:
            self._forget(group, coordinator)

    def _forget(self, group: GroupId, coordinator: _Coordinator) -> None:
        if self._coordinators.get(group) is coordinator:
            del self._coordinators[group]
            coordinator.close()


class CoordinatedTopics:
    """The topics of this broker for ownership, and the coordinators, which go where these go."""

    def __init__(self, topics: TopicHolder, coordinators: SegmentCoordinators) -> None:
        self._topics = topics
        self._coordinators = coordinators

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Topics that are served or coordinated here."""
        names = [*self._topics.names_of(belongs), *self._coordinators.names_of(belongs)]
        return list(dict.fromkeys(names))

    async def hand_over(
        self, names: Sequence[TopicName], destination: Destination | None, *, timeout_s: float
    ) -> None:
        """Close topics in order, then end what is coordinated: clients look both up again."""
        await self._topics.hand_over(names, destination, timeout_s=timeout_s)
        self._coordinators.end(names)

    def drop(self, names: Sequence[TopicName], reason: str) -> None:
        """Stop serving and coordinating at once."""
        self._topics.drop(names, reason)
        self._coordinators.end(names)
