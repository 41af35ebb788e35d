"""The coordinators of this broker: each divides the segments of a topic among a subscription.

Stream consumers, and checkpoint consumers of a group, register with the broker that owns the
topic's `persistent://` name, partitioned or not, and learn their segments there. A coordinator
keeps its state only in memory. Assignments follow from names, layout, and which segments are
drained (`assignment.py`). So the next coordinator needs only the registrations, and clients
register again when their connection ends.

A coordinator exists while it has consumers or registrations under way. It ends when the topic's
bundle goes to another broker, or may have gone: it closes the connections of its consumers, and
they find the new one. It is listed before ownership is checked, so that a loss in between reaches
it.

While stream consumers have sealed segments, the coordinator keeps asking the segments' owners
whether they are drained, since the children wait for that.

A subscription that moves back is named in the topic's record, as a hold. A coordinator reads the
record after this broker has become the owner, with everything stored before, and again on request.
So no coordinator assigns children of a segment that is moving. A hold that does not end, because
the broker that seeks is gone, is given up after some time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from magnetar.broker.features.scalable.layout import Change, Hold, Layout, Segment, change
from magnetar.broker.features.scalable.layouts import Layouts
from magnetar.ledger.backoff import backoff
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire.pulsar_pb2 import STREAM, ScalableConsumerType

_log = structlog.get_logger()

_DRAIN_LOOK_S = 0.1
"""Pause in seconds before sealed segments are checked again. It doubles with each check that finds
none drained."""
_DRAIN_LOOK_S_MAX = 2.0
_DRAIN_LOOKS_AT_ONCE = 16
_HOLD_S_MAX = 30.0
"""Longest time for a seek, in seconds, from when a coordinator learns of it: the broker that makes
it may be gone."""

IsDrained = Callable[[TopicName, str], Awaitable[bool]]
"""Returns whether a segment is drained on a subscription; raises RequestError."""


EndHold = Callable[[TopicName, int, int], Awaitable[None]]
"""Removes a hold of a topic that was created at the given time; raises RequestError."""


async def _nothing_to_end(_topic: TopicName, _hold_id: int, _created_ms: int) -> None:
    return None


async def _never_drained(_segment: TopicName, _subscription: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class GroupId:
    """Identifies the consumers among which a coordinator divides the segments of a topic."""

    topic: TopicName
    subscription: str
    kind: ScalableConsumerType
    """Consumer type. Stream and checkpoint consumers of one name have nothing in common."""


class Member(Protocol):
    """A consumer's registration, seen from its coordinator."""

    @property
    def name(self) -> str:
        """Name of the consumer, which identifies it within its group."""
        ...

    def tell(self, assignment: Assignment) -> None:
        """Send the consumer a new assignment."""
        ...

    def disconnect(self) -> None:
        """Close the connection, so that the consumer looks up its coordinator."""
        ...


class _Coordinator:
    """Coordinator of one group."""

    def __init__(
        self,
        group: GroupId,
        layouts: Layouts,
        clock: Clock,
        *,
        grace_s: float,
        is_drained: IsDrained,
        end_hold: EndHold,
    ) -> None:
        self._group = group
        self._layouts = layouts
        self._clock = clock
        self._grace_s = grace_s
        self._is_drained = is_drained
        self._end_hold = end_hold
        self._layout: Layout | None = None
        self._assignment: SegmentAssignment[Member] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining: asyncio.Task[None] | None = None
        self._holds: dict[int, asyncio.TimerHandle] = {}
        """Holds of the subscription that are in effect, by id; the timer gives one up."""
        self._given_up: dict[int, asyncio.Task[None] | None] = {}
        """Holds that are no longer in effect, though the record has them, with the tasks that
        remove them there."""
        self._preparing = asyncio.Lock()
        self._drain_looks = 0
        """Successive checks that found no drained segment."""
        self.registering = 0
        """Registrations under way, which need the coordinator even without consumers."""
        self.is_ended = False
        self.on_empty: Callable[[], None]
        self._followed = layouts.join(group.topic, self._look)

    @property
    def is_idle(self) -> bool:
        """Whether it has no consumers and no registrations under way."""
        return not self.registering and not self._assignment

    @property
    def consumers(self) -> int:
        """Number of registered consumers, including detached ones."""
        return len(self._assignment) if self._assignment is not None else 0

    async def prepare(self) -> None:
        """Read the layout, its drained segments, and the holds of the subscription.

        The caller makes sure that this broker owns the topic. A seek stores its hold in the record
        before it notifies the owner of that moment, so a later owner finds the hold there.

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
            layout = await self._followed.reread() or layout
            if self.is_ended:
                return
            assignment: SegmentAssignment[Member] = SegmentAssignment(
                layout,
                grace_s=self._grace_s,
                is_ordered=self._group.kind == STREAM,
                held=self._held(layout),
            )
            # Before the first assignment, so that consumers that come back keep the children they
            # had.
            while drained := await self._drained_of(assignment.undrained):
                assignment.drained(drained)
            if self.is_ended:
                return
            self._layout, self._assignment = layout, assignment
            self._look()  # The layout may have changed since.
            self._watch_draining()

    def register(self, member: Member, *, consumers_max: int) -> Assignment:
        """Attach a consumer, and notify the others of what changes for them.

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
        """End because this broker may not own the topic any more, and disconnect the consumers."""
        members = self._assignment.attached if self._assignment is not None else []
        self.close()
        for member in members:
            member.disconnect()

    def close(self) -> None:
        """Drop all state."""
        self.is_ended = True
        self._assignment = None
        self._layouts.leave(self._group.topic, self._look)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        self._forget_holds()

    def _forget_holds(self) -> None:
        for timer in self._holds.values():
            timer.cancel()
        self._holds.clear()
        for task in self._given_up.values():
            if task is not None:
                task.cancel()
        self._given_up.clear()

    async def hold_back(self) -> None:
        """Read the holds that are in the topic's record by now. Descendants of segments on which
        the subscription moves back are withdrawn at once, and assigned again when these are
        drained.

        Raises:
            BrokerMetadataError
        """
        async with self._preparing:  # A prepare() under way may have read the record before.
            if not self.is_ended:
                await self._followed.reread()
                self._look()

    def _held(self, layout: Layout) -> dict[int, int | None]:
        """Return the holds of this subscription that are in effect; each is for a limited time
        only."""
        there = {
            each.id: each for each in layout.holds if each.subscription == self._group.subscription
        }
        for gone in self._holds.keys() - there.keys():
            self._holds.pop(gone).cancel()
        for gone in self._given_up.keys() - there.keys():
            del self._given_up[gone]
        loop = asyncio.get_running_loop()
        for each in there.values():
            if each.id not in self._holds and each.id not in self._given_up:
                give_up = partial(self._give_up, each, layout.born_ms)
                self._holds[each.id] = loop.call_later(_HOLD_S_MAX, give_up)
        return {each: there[each].segment_id for each in self._holds}

    def _give_up(self, hold: Hold, born_ms: int | None) -> None:
        """Treat a hold as ended because the seek has not ended in time, and remove it from the
        record."""
        del self._holds[hold.id]
        self._given_up[hold.id] = None
        _log.warning(
            "hold_given_up", topic=str(self._group.topic), subscription=self._group.subscription
        )
        if born_ms is not None:
            self._given_up[hold.id] = asyncio.get_running_loop().create_task(
                self._remove(hold, born_ms), name=f"end-hold-{self._group.topic}"
            )
        self._look()

    async def _remove(self, hold: Hold, born_ms: int) -> None:
        try:
            await self._end_hold(self._group.topic, hold.id, born_ms)
        except RequestError as error:  # The record drops it if there are too many.
            _log.warning("hold_not_removed", topic=str(self._group.topic), error=str(error))

    def _look(self) -> None:
        """Apply changes of the layout or of the holds."""
        now = self._followed.known
        if self._assignment is None or self._layout is None:
            return
        what = change(self._layout, now)
        if what is Change.GONE:
            news = self._assignment.empty()
            self.on_empty()
            _tell(news)
        elif now is not None:
            if what is Change.REPLACED:
                self._forget_holds()  # Hold ids of another topic.
            moves = self._assignment.moves
            _tell(self._assignment.change(now, self._held(now)))
            if what is not Change.NONE or moves != self._assignment.moves:
                self._layout = now
                self._drain_looks = 0
                self._watch_draining()

    # Sealed segments

    async def _drained_of(self, segments: Sequence[Segment]) -> list[int]:
        """Return the ids of those sealed segments that are drained."""
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
        """Note which sealed segments are drained; return whether there was a new one."""
        layout, assignment = self._layout, self._assignment
        if layout is None or assignment is None:
            return False
        moves = assignment.moves
        drained = await self._drained_of(assignment.undrained)
        if not drained or self._assignment is not assignment or self._layout is None:
            return False
        if layout.born_ms != self._layout.born_ms:
            return False  # The topic was deleted and created again in between.
        if moves != assignment.moves:
            return False  # The subscription has moved back in between.
        _tell(assignment.drained(drained))
        return True

    def _watch_draining(self) -> None:
        """Begin to check sealed segments, if there are any."""
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
                try:
                    while await self._look_for_drained():
                        self._drain_looks = 0
                except Exception:  # noqa: BLE001 - a defect must not end all further looks
                    _log.exception("drained_segments_not_found", topic=str(self._group.topic))
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
    """The segment coordinators of one broker."""

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
        end_hold: EndHold = _nothing_to_end,
    ) -> None:
        """`grace_ms`: how long a consumer whose connection is lost keeps its segments.
        `consumers_max`: limit per group. `wait_ms`: how long to wait until this broker owns the
        topic. `is_drained`: asks the owner of a segment. `end_hold`: removes a hold left by a dead
        broker."""
        self._layouts = layouts
        self._ownership = ownership
        self._clock = clock
        self._grace_s = grace_ms / 1000
        self._consumers_max = consumers_max
        self._wait_s = wait_ms / 1000
        self._is_drained = is_drained
        self._end_hold = end_hold
        self._coordinators: dict[GroupId, _Coordinator] = {}

    def __len__(self) -> int:
        """Return the number of groups that have a coordinator here."""
        return len(self._coordinators)

    async def hold_back(self, topic: TopicName, subscription: str) -> None:
        """Withdraw descendants of segments on which, by the topic's record, a subscription moves
        back.

        Without a coordinator there is nothing to do: the next one reads the record itself.

        Raises:
            BrokerMetadataError
        """
        coordinator = self._coordinators.get(GroupId(topic, subscription, STREAM))
        if coordinator is not None:
            await coordinator.hold_back()

    def stream_consumers(self) -> dict[TopicName, int]:
        """Return, for each topic, the largest number of stream consumers that are registered here
        on one subscription, including detached ones."""
        found: dict[TopicName, int] = {}
        for group, each in self._coordinators.items():
            if group.kind == STREAM:
                found[group.topic] = max(each.consumers, found.get(group.topic, 0))
        return found

    async def register(
        self, group: GroupId, member: Member, *, is_wanted: Callable[[], bool]
    ) -> Assignment | None:
        """Attach a consumer; return its assignment, or None if it is not `is_wanted` any more.

        The member is notified of changes from the return on, and of none before.

        Raises:
            ServiceNotReadyError: another broker owns the topic, or may; a retry helps.
            TopicNotFoundError: the topic is being deleted.
            NotAllowedError: the group has too many consumers.
            BrokerMetadataError
        """
        coordinator = self._coordinators.get(group) or self._open(group)
        coordinator.registering += 1
        try:
            tenure = await self._ownership.acquire(group.topic, timeout_s=self._wait_s)
            await coordinator.prepare()
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
        """Remove a consumer that leaves; its segments go to others at once."""
        coordinator = self._coordinators.get(group)
        if coordinator is not None:
            coordinator.unregister(member)
            self._forget_if_idle(group, coordinator)

    def detach(self, group: GroupId, member: Member) -> None:
        """Detach a consumer that lost its connection; it keeps its segments for the grace
        period."""
        coordinator = self._coordinators.get(group)
        if coordinator is not None:
            coordinator.detach(member)

    # With the bundles of this broker

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Return topics that have a coordinator here."""
        return list(dict.fromkeys(each.topic for each in self._coordinators if belongs(each.topic)))

    def end(self, topics: Sequence[TopicName]) -> None:
        """End the coordinators of these topics, which another broker coordinates from now on."""
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
            end_hold=self._end_hold,
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
    """The topics of this broker, as ownership sees them, and their coordinators, which move
    along."""

    def __init__(self, topics: TopicHolder, coordinators: SegmentCoordinators) -> None:
        self._topics = topics
        self._coordinators = coordinators

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Return topics that are served or coordinated here."""
        names = [*self._topics.names_of(belongs), *self._coordinators.names_of(belongs)]
        return list(dict.fromkeys(names))

    async def hand_over(
        self, names: Sequence[TopicName], destination: Destination | None, *, timeout_s: float
    ) -> None:
        """Close topics in order, then end their coordinators; clients look both up again."""
        await self._topics.hand_over(names, destination, timeout_s=timeout_s)
        self._coordinators.end(names)

    def drop(self, names: Sequence[TopicName], reason: str) -> None:
        """Stop serving and coordinating at once."""
        self._topics.drop(names, reason)
        self._coordinators.end(names)
