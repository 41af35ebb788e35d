"""Coordinators of segments: who may register, who is told, and when a coordinator ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.base.errors import (
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.broker.cluster.ownership.protocol import Tenure
from magnetar.broker.cluster.ownership.sole_owner import SoleOwner
from magnetar.broker.features.scalable import coordinators
from magnetar.broker.features.scalable.assignment import Assignment
from magnetar.broker.features.scalable.coordinators import (
    CoordinatedTopics,
    GroupId,
    SegmentCoordinators,
)
from magnetar.broker.features.scalable.layout import Hold, Layout, Segment
from magnetar.broker.features.scalable.layouts import Layouts
from magnetar.broker.features.scalable.record_layouts import PartitionLayouts
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.scalable.watched_store import WatchedPartitions, WatchedStore
from tests.waiting import settle, until

_TOPIC = TopicName.parse("persistent://public/default/t")
_STREAM = GroupId(_TOPIC, "s", pb.STREAM)
_CHECKPOINT = GroupId(_TOPIC, "s", pb.CHECKPOINT)


class _Member:
    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[Assignment] = []
        self.is_connected = True

    def tell(self, assignment: Assignment) -> None:
        self.told.append(assignment)

    def disconnect(self) -> None:
        self.is_connected = False


class _Owner(SoleOwner):
    """The only broker, until a test says that it owns nothing."""

    def __init__(self) -> None:
        super().__init__(lambda: "pulsar://here:6650")
        self.gate: asyncio.Event | None = None
        self.is_owner = True

    async def acquire(self, topic: TopicName, *, timeout_s: float) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        if not self.is_owner:
            raise ServiceNotReadyError(f"{topic} is served elsewhere")
        tenure: Tenure = await super().acquire(topic, timeout_s=timeout_s)
        return tenure


class _Scene:
    def __init__(self, *, partitions: int = 4, **settings: int) -> None:
        self.store = WatchedStore()
        self.partitions = WatchedPartitions(self.store)
        self.partitions.set(_TOPIC, partitions)
        source = PartitionLayouts(self.store, self.partitions)
        self.layouts = Layouts([source], SystemClock())
        self.owner = _Owner()
        known: dict[str, Any] = {"grace_ms": 60_000, "consumers_max": 10, "wait_ms": 1000}
        known.update(settings)
        self.coordinators = SegmentCoordinators(self.layouts, self.owner, SystemClock(), **known)

    async def register(self, name: str, group: GroupId = _STREAM) -> tuple[_Member, list[int]]:
        member = _Member(name)
        assignment = await self.coordinators.register(group, member, is_wanted=lambda: True)
        assert assignment is not None
        assert member.told == []
        return member, [each.id for each in assignment.segments]


async def test_a_second_consumer_takes_its_share_and_the_first_is_told() -> None:
    scene = _Scene()
    first, had = await scene.register("a")
    _, has = await scene.register("b")
    assert (had, has) == ([0, 1, 2, 3], [1, 3])
    assert [[each.id for each in told.segments] for told in first.told] == [[0, 2]]


async def test_stream_and_checkpoint_consumers_of_one_name_share_nothing() -> None:
    scene = _Scene()
    await scene.register("a", _STREAM)
    _, has = await scene.register("b", _CHECKPOINT)
    assert has == [0, 1, 2, 3]
    assert len(scene.coordinators) == 2


async def test_growth_is_told_to_consumers() -> None:
    scene = _Scene(partitions=1)
    member, _ = await scene.register("a")
    scene.partitions.set(_TOPIC, 3)
    await settle()
    assert [(told.epoch, len(told.segments)) for told in member.told] == [(3, 3)]


async def test_a_topic_that_is_deleted_leaves_its_consumers_without_segments() -> None:
    scene = _Scene()
    member, _ = await scene.register("a")
    scene.partitions.set(_TOPIC, 0)
    await settle()
    assert [told.segments for told in member.told] == [()]
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)
    scene.coordinators.unregister(_STREAM, member)
    _, has = await scene.register("a")
    assert has == [0]


async def test_nobody_registers_with_a_topic_that_is_being_deleted() -> None:
    scene = _Scene()
    scene.partitions.set(_TOPIC, 4, is_deleted=True)
    with pytest.raises(TopicNotFoundError, match="being deleted"):
        await scene.register("a")
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)


async def test_the_last_consumer_that_leaves_ends_the_coordinator() -> None:
    scene = _Scene()
    member, _ = await scene.register("a")
    scene.coordinators.unregister(_STREAM, member)
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)
    assert scene.store.watches == {}


async def test_a_consumer_that_stays_away_is_given_up_after_its_time() -> None:
    scene = _Scene(grace_ms=1)
    gone, _ = await scene.register("a")
    stays, _ = await scene.register("b")
    scene.coordinators.detach(_STREAM, gone)
    assert stays.told == []
    await until(lambda: bool(stays.told), "the segments of the other one come")
    assert [len(told.segments) for told in stays.told] == [4]
    scene.coordinators.detach(_STREAM, stays)
    await until(lambda: len(scene.coordinators) == 0, "the coordinator ends")


async def test_consumers_at_the_limit_register_and_one_more_is_refused() -> None:
    scene = _Scene(consumers_max=2)
    await scene.register("a")
    await scene.register("b")
    with pytest.raises(NotAllowedError, match="scalable_consumers_per_subscription_max"):
        await scene.register("c")
    await scene.register("b")  # one that is known is none more


async def test_a_broker_that_does_not_own_the_topic_says_so_and_keeps_nothing() -> None:
    scene = _Scene()
    scene.owner.is_owner = False
    with pytest.raises(ServiceNotReadyError, match="elsewhere"):
        await scene.register("a")
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)


async def test_a_loss_while_somebody_registers_is_not_missed() -> None:
    scene = _Scene()
    scene.owner.gate = asyncio.Event()
    registering = asyncio.ensure_future(scene.register("a"))
    await settle()
    assert scene.coordinators.names_of(lambda _: True) == [_TOPIC]
    scene.coordinators.end([_TOPIC])
    scene.owner.gate.set()
    with pytest.raises(ServiceNotReadyError, match="look the topic up again"):
        await registering
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)


async def test_who_has_left_meanwhile_is_not_registered() -> None:
    scene = _Scene()
    found = await scene.coordinators.register(_STREAM, _Member("a"), is_wanted=lambda: False)
    assert found is None
    assert len(scene.coordinators) == 0


def _parent_and_children(*holds: Hold) -> Layout:
    """Segment 0 was split into 1 and 2."""
    topic = str(_TOPIC)
    parent = Segment(0, 0, 65535, topic, children=(1, 2), created_epoch=1, sealed_epoch=2)
    children = [Segment(each, 0, 65535, topic, parents=(0,), created_epoch=2) for each in (1, 2)]
    return Layout(2, (parent, *children), born_ms=5, holds=holds)


class _Record:
    """The layout of a scalable topic: as it is stored, and as it was heard of last."""

    def __init__(self) -> None:
        self.stored = self.known = _parent_and_children()
        self.on_change: Callable[[], None] = lambda: None

    def follow(self, topic: TopicName, on_change: Callable[[], None]) -> "_Record":
        self.on_change = on_change
        return self

    async def get(self) -> Layout:
        return self.known

    async def reread(self) -> Layout:
        if self.known != self.stored:
            self.known = self.stored
            self.on_change()
        return self.known

    def close(self) -> None:
        return None


class _HeldScene:
    """A coordinator of a topic whose segment 0 is drained, but for seeks."""

    def __init__(self) -> None:
        self.record = _Record()
        self.ended: list[tuple[int, int]] = []
        self.is_drained = True

        async def is_drained(segment: TopicName, subscription: str) -> bool:
            return self.is_drained

        async def end_hold(topic: TopicName, hold_id: int, created_ms: int) -> None:
            self.ended.append((hold_id, created_ms))

        self.coordinators = SegmentCoordinators(
            Layouts([self.record], SystemClock()),
            _Owner(),
            SystemClock(),
            grace_ms=60_000,
            consumers_max=10,
            wait_ms=1000,
            is_drained=is_drained,
            end_hold=end_hold,
        )

    async def register(self, member: _Member) -> list[int]:
        found = await self.coordinators.register(_STREAM, member, is_wanted=lambda: True)
        assert found is not None
        return [each.id for each in found.segments]


_HOLD = Hold(7, "s", None)


async def test_children_are_taken_back_before_a_seek_is_told_that_they_are() -> None:
    scene, member = _HeldScene(), _Member("a")
    assert await scene.register(member) == [1, 2]
    scene.record.stored = _parent_and_children(_HOLD)
    await scene.coordinators.hold_back(_TOPIC, "s")
    assert [[each.id for each in told.segments] for told in member.told] == [[0]]
    scene.record.stored = _parent_and_children()
    await scene.record.reread()
    await until(lambda: len(member.told) == 2, "the children are given again")
    assert [each.id for each in member.told[1].segments] == [1, 2]
    assert scene.ended == []
    scene.coordinators.end([_TOPIC])


async def test_a_coordinator_that_begins_knows_of_a_seek_that_nobody_has_told_it_of() -> None:
    scene = _HeldScene()
    scene.record.stored = _parent_and_children(_HOLD)
    assert await scene.register(_Member("a")) == [0]
    scene.coordinators.end([_TOPIC])


async def test_a_seek_of_another_subscription_holds_nothing_back() -> None:
    scene = _HeldScene()
    scene.record.stored = _parent_and_children(Hold(7, "other", None))
    assert await scene.register(_Member("a")) == [1, 2]
    scene.coordinators.end([_TOPIC])


async def test_a_seek_that_does_not_end_is_given_up_and_leaves_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinators, "_HOLD_S_MAX", 0.01)
    scene, member = _HeldScene(), _Member("a")
    scene.record.stored = _parent_and_children(_HOLD)
    assert await scene.register(member) == [0]
    await until(lambda: bool(member.told), "the children are given")
    assert [each.id for each in member.told[0].segments] in ([0], [1, 2])
    await until(lambda: [each.id for each in member.told[-1].segments] == [1, 2], "both of them")
    assert scene.ended == [(7, 5)]
    scene.coordinators.end([_TOPIC])


class _Topics:
    """Topics of a broker, as ownership sees them."""

    def __init__(self, *names: TopicName) -> None:
        self.names = list(names)
        self.ended: list[TopicName] = []

    def names_of(self, belongs: Any) -> list[TopicName]:
        return [name for name in self.names if belongs(name)]

    async def hand_over(self, names: Any, destination: Any, *, timeout_s: float) -> None:
        self.ended += names

    def drop(self, names: Any, reason: str) -> None:
        self.ended += names


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_consumers_are_disconnected_when_the_topic_goes_to_another_broker(
    is_dropped: bool,
) -> None:
    scene = _Scene()
    member, _ = await scene.register("a")
    other = TopicName.parse("persistent://public/default/other")
    topics = _Topics(other)
    both = CoordinatedTopics(topics, scene.coordinators)
    names = both.names_of(lambda _: True)
    assert names == [other, _TOPIC]
    if is_dropped:
        both.drop(names, "the lease is gone")
    else:
        await both.hand_over(names, None, timeout_s=1)
    assert topics.ended == names
    assert not member.is_connected
    assert (len(scene.coordinators), len(scene.layouts)) == (0, 0)


async def test_a_topic_that_is_served_and_coordinated_is_listed_once() -> None:
    scene = _Scene()
    await scene.register("a")
    await scene.register("a", _CHECKPOINT)
    both = CoordinatedTopics(_Topics(_TOPIC), scene.coordinators)
    assert both.names_of(lambda _: True) == [_TOPIC]
