"""Scalable topics on a real embedded metadata store: changes, crashes between their steps, ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    ConflictError,
    ServiceNotReadyError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.cluster.partitions import PartitionedTopics
from magnetar.broker.features.scalable import (
    RecordLayouts,
    ScalableTopicRecord,
    ScalableTopics,
    scalable_topics,
)
from magnetar.broker.features.scalable.scalable_topics import durable_subscriptions
from magnetar.broker.policies.records import read_record
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topics.creation import TopicCreation
from magnetar.cursors import copy_cursor
from magnetar.cursors.node import CursorNode, cursor_path, decode_node, encode_node
from magnetar.ledger.errors import NoNodeError
from magnetar.ledger.managed_log.log_deletion import DELETED
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.position import EARLIEST
from magnetar.sdk.wire import TopicName
from tests.unit.broker.memory_log import ManualClock
from tests.waiting import until

TOPIC = TopicName.parse("persistent://public/default/t")
_STEPS = ("begin", "prepare", "seal", "carry")
"""A crash comes right after one of them."""


class Owners:
    """Owners of segments: remember what they were asked, and fail as often as a test says."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.sealed: list[TopicName] = []
        self.opened: list[TopicName] = []
        """Children that were to be opened ahead."""
        self.is_slow = False
        """Whether opening anything ahead takes for ever."""
        self.opens_nothing = False
        self.deleted: list[TopicName] = []
        self.subscribed: list[tuple[int, str]] = []
        self.failures = 0
        self.used_up: set[TopicName] = set()
        """Sealed segments that nobody needs any more."""
        self.gained: dict[TopicName, list[str]] = {}
        """Subscriptions that are made on a segment right before it is sealed."""
        self.steps: list[str] = []
        """Of seeks, in their order."""
        self.order: list[str] = []
        """Of children that were to be opened, and seals."""
        self.on_unsubscribe: Callable[[], Awaitable[None]] | None = None
        """Called once, before a subscription is deleted."""
        self.on_sealed: Callable[[], Awaitable[None]] | None = None
        """Called once, between a seal and its answer."""

    async def seal(self, segment: TopicName) -> Sequence[str]:
        self._fail()
        for name in self.gained.pop(segment, ()):
            await have_cursor(self._store, segment, name)
        self.sealed.append(segment)
        self.order.append("seal")
        names = await durable_subscriptions(self._store, segment)
        on_sealed, self.on_sealed = self.on_sealed, None
        if on_sealed is not None:
            await on_sealed()
        return names

    async def open_ahead(self, segment: TopicName) -> None:
        self.opened.append(segment)
        self.order.append("open")
        if self.is_slow:
            await asyncio.Event().wait()
        if self.opens_nothing:
            raise ServiceNotReadyError("its owner is not there")

    async def delete(self, segment: TopicName) -> None:
        self._fail()
        self.deleted.append(segment)

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        self.subscribed.append((segment.segment_id, subscription))

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        return False

    async def classic_clients(self, segment: TopicName) -> int:
        return 0

    async def unsubscribe(self, segment: TopicName, subscription: str, *, is_forced: bool) -> bool:
        self._fail()
        path = cursor_path(naming.log_path(segment), subscription)
        on_unsubscribe, self.on_unsubscribe = self.on_unsubscribe, None
        if on_unsubscribe is not None:
            await on_unsubscribe()
        try:
            await self._store.delete(path)
        except NoNodeError:
            return False
        return True

    async def seek(self, segment: TopicName, subscription: str, publish_ms: int | None) -> bool:
        self.steps.append(f"seek {segment.segment_id} {await self.holds()}")
        self._fail()
        return subscription in await durable_subscriptions(self._store, segment)

    async def hold_back(self, topic: TopicName, subscription: str) -> None:
        assert (topic, subscription) == (TOPIC, "s")
        self._fail()
        self.steps.append(f"hold back {await self.holds()}")

    async def holds(self) -> list[int | None]:
        """The segments that the topic's record holds back just now; None: all."""
        found = await read_record(
            self._store, ScalableTopicRecord, naming.scalable_topic_path(TOPIC)
        )
        assert found is not None
        return [each.segment for each in found[0].holds]

    async def is_used_up(self, segment: TopicName) -> bool:
        self._fail()
        return segment in self.used_up

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ServiceNotReadyError("its owner is not there")


class Scene:
    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.owners = Owners(store)
        self.clock = ManualClock()
        self.logs = PartitionedTopics(store, partitions_max=8, clock=self.clock)
        self.topics = self.broker()

    def broker(self) -> ScalableTopics:
        """One more broker."""
        made = ScalableTopics(self.store, self.logs, self.clock, segments_max=8)
        made.owners = self.owners
        return made

    async def create(self, segments: int = 1) -> None:
        await self.topics.create(TOPIC, segments, {"team": "a"}, is_taken=self.is_taken)
        for each in (await self.record()).segments:
            await self.logs.create_log(each.name_in(TOPIC))

    async def is_taken(self) -> bool:
        return await self.store.exists(naming.log_path(TOPIC)) is not None

    async def record(self) -> ScalableTopicRecord:
        return await self.topics.get(TOPIC)

    async def name(self, segment_id: int) -> TopicName:
        found = (await self.record()).find(segment_id)
        assert found is not None
        return found.name_in(TOPIC)

    async def active(self) -> list[int]:
        return [each.id for each in (await self.record()).active]

    async def subscriptions(self, segment_id: int) -> list[str]:
        return await durable_subscriptions(self.store, await self.name(segment_id))


async def have_cursor(store: MetadataStore, segment: TopicName, name: str) -> None:
    node = CursorNode(epoch=3, mark_delete=(5, 6), properties={"a": "b"})
    await store.create(cursor_path(naming.log_path(segment), name), encode_node(node))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield Scene(store)
    await store.close()


async def test_a_topic_is_created_and_listed_and_its_name_is_taken(scene: Scene) -> None:
    await scene.create(2)
    record = await scene.record()
    assert (record.epoch, len(record.active), record.properties) == (1, 2, {"team": "a"})
    assert await scene.topics.names("public/default") == ["topic://public/default/t"]
    with pytest.raises(TopicConflictError, match="is a scalable topic"):
        await scene.create()


async def test_no_scalable_topic_has_the_name_of_a_plain_one(scene: Scene) -> None:
    await scene.logs.create_log(TOPIC)
    with pytest.raises(TopicConflictError, match="not scalable"):
        await scene.create()
    assert await scene.topics.find(TOPIC) is None


async def test_a_plain_topic_that_appears_at_the_creation_keeps_the_name(scene: Scene) -> None:
    answers = iter((False, True))

    async def is_taken() -> bool:
        return next(answers)

    with pytest.raises(TopicConflictError):
        await scene.topics.create(TOPIC, 1, is_taken=is_taken)
    assert await scene.topics.find(TOPIC) is None


async def test_a_topic_that_was_published_to_at_its_creation_is_not_given_up(scene: Scene) -> None:
    segment = TOPIC.segment(0, start=0, end=0xFFFF)
    answers = iter((False, True))

    async def is_taken() -> bool:
        is_second = next(answers)
        if is_second:
            await scene.logs.create_log(segment)
        return is_second

    await scene.topics.create(TOPIC, 1, is_taken=is_taken)
    assert await scene.active() == [0]
    assert await scene.topics.segment(segment) is not None


class _CrashError(BaseException):
    """The broker is gone."""


async def _crash_while_giving_way(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    """Create the topic beside a plain one of its name; the broker goes before it has decided which
    one stays."""
    answers = iter((False, True))

    async def is_taken() -> bool:
        return next(answers)

    async def crash(*_: object) -> None:
        raise _CrashError

    with patch.context() as patched:
        patched.setattr(scene.topics, "_settle", crash)
        with pytest.raises(_CrashError):
            await scene.topics.create(TOPIC, 1, is_taken=is_taken)
    await scene.logs.create_log(TOPIC)


def _creation(scene: Scene) -> TopicCreation:
    async def exists(_: TopicName) -> bool:
        return await scene.is_taken()

    return TopicCreation(
        cast(PolicyRegistry, None),
        exists=exists,
        names=cast(Any, None),
        partitioned=scene.logs,
        scalable=scene.broker(),
    )


async def test_a_topic_that_was_used_is_there_again_after_a_crash_while_it_gave_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = TOPIC.segment(0, start=0, end=0xFFFF)
    await scene.logs.create_log(segment)
    await _crash_while_giving_way(scene, monkeypatch)
    assert await scene.topics.segment(segment) is None
    await _creation(scene).have_scalable(TOPIC, may_create=False)
    assert await scene.active() == [0]
    assert await scene.topics.segment(segment) is not None
    with pytest.raises(TopicConflictError, match="not scalable"):
        await scene.create()


async def test_a_topic_that_was_not_used_is_gone_after_a_crash_while_it_gave_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _crash_while_giving_way(scene, monkeypatch)
    with pytest.raises(TopicNotFoundError, match="is not scalable"):
        await _creation(scene).have_scalable(TOPIC, may_create=False)
    assert await scene.topics.find(TOPIC) is None


async def test_marks_of_a_broker_that_crashed_while_its_topic_gave_way_count_as_no_use(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = TOPIC.segment(0, start=0, end=0xFFFF)
    await _crash_while_giving_way(scene, monkeypatch)
    await scene.logs.create_log(segment, {DELETED: "true"})
    with pytest.raises(TopicNotFoundError, match="is not scalable"):
        await _creation(scene).have_scalable(TOPIC, may_create=False)
    assert await scene.topics.find(TOPIC) is None
    assert await scene.store.exists(naming.log_path(segment)) is None


async def test_a_topic_that_gave_way_at_a_crash_is_deleted_for_good_if_that_is_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.logs.create_log(TOPIC.segment(0, start=0, end=0xFFFF))
    await _crash_while_giving_way(scene, monkeypatch)
    created_ms = await scene.topics.delete_segments(TOPIC)
    record = await scene.topics.find_settled(TOPIC)
    assert record is not None
    assert record.is_deleted
    await scene.topics.forget(TOPIC, created_ms)
    assert await scene.topics.find(TOPIC) is None


async def test_a_name_that_a_topic_left_at_a_crash_can_be_given_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _crash_while_giving_way(scene, monkeypatch)
    await scene.store.delete(naming.log_path(TOPIC))
    await scene.create()
    assert await scene.active() == [0]


async def test_a_split_carries_all_durable_subscriptions_to_the_children(scene: Scene) -> None:
    await scene.create()
    parent = await scene.name(0)
    await have_cursor(scene.store, parent, "s")
    await have_cursor(scene.store, parent, "pulsar.dedup")
    scene.owners.gained[parent] = ["late"]
    await scene.topics.split(TOPIC, 0)
    assert scene.owners.sealed == [parent]
    assert await scene.active() == [1, 2]
    for child in (1, 2):
        assert await scene.subscriptions(child) == ["late", "s"]
        path = cursor_path(naming.log_path(await scene.name(child)), "s")
        node = decode_node((await scene.store.get(path)).value)
        assert node.mark_delete == (EARLIEST.ledger_id, EARLIEST.entry_id)
        assert node.properties == {"a": "b"}


async def test_children_are_loaded_before_publishing_stands_still(scene: Scene) -> None:
    await scene.create()
    await scene.topics.split(TOPIC, 0)
    assert scene.owners.opened == [await scene.name(1), await scene.name(2)]
    assert scene.owners.order == ["open", "open", "seal"]


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_split_does_without_children_that_cannot_be_loaded(
    scene: Scene, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalable_topics, "_AHEAD_S_MAX", 0.05)
    await scene.create()
    scene.owners.is_slow = is_slow
    scene.owners.opens_nothing = not is_slow
    await scene.topics.split(TOPIC, 0)
    assert len(scene.owners.opened) == 2
    assert await scene.active() == [1, 2]


async def test_who_takes_a_change_over_does_not_wait_for_children_to_be_loaded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parents may be sealed already."""
    await scene.create()
    first = scene.broker()
    monkeypatch.setattr(first, "finish", _crash)
    with pytest.raises(_CrashError):
        await first.split(TOPIC, 0)
    await scene.broker().finish(TOPIC)
    assert (await scene.active(), scene.owners.opened) == ([1, 2], [])


async def test_a_subscription_that_is_made_anew_before_the_seal_is_in_the_children(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was deleted when it was to be carried does not count as carried."""
    await scene.create()
    parent = await scene.name(0)
    await have_cursor(scene.store, parent, "s")
    scene.owners.gained[parent] = ["s"]

    async def copy_late(
        store: MetadataStore, one: str, other: str, name: str, *, now_ms: int
    ) -> bool:
        if not scene.owners.sealed:
            with suppress(NoNodeError):  # of the other child
                await store.delete(cursor_path(one, name))
        return await copy_cursor(store, one, other, name, now_ms=now_ms)

    monkeypatch.setattr(scalable_topics, "copy_cursor", copy_late)
    await scene.topics.split(TOPIC, 0)
    for child in (1, 2):
        assert await scene.subscriptions(child) == ["s"]


async def test_a_merge_unites_the_subscriptions_of_both_parents(scene: Scene) -> None:
    await scene.create(2)
    await have_cursor(scene.store, await scene.name(0), "one")
    await have_cursor(scene.store, await scene.name(1), "other")
    await scene.topics.merge(TOPIC, 1, 0)
    assert await scene.active() == [2]
    assert await scene.subscriptions(2) == ["one", "other"]
    assert set(scene.owners.sealed) == {await scene.name(0), await scene.name(1)}


async def test_a_parent_that_is_not_sealed_leaves_the_layout_as_it_was(scene: Scene) -> None:
    await scene.create(2)
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.merge(TOPIC, 0, 1)
    record = await scene.record()
    assert (record.epoch, await scene.active()) == (1, [0, 1])
    assert record.change is not None
    with pytest.raises(ConflictError, match="under way"):
        await scene.topics.split(TOPIC, 0)
    await scene.broker().finish(TOPIC)
    assert await scene.active() == [2]


@pytest.mark.parametrize("step", _STEPS)
async def test_a_change_is_finished_by_another_broker_wherever_the_first_one_crashed(
    scene: Scene, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.create()
    await have_cursor(scene.store, await scene.name(0), "s")
    first = scene.broker()
    if step == "begin":
        monkeypatch.setattr(first, "finish", _crash)
    else:
        original = getattr(first, f"_{step}")
        calls = 0

        async def crash_after(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            await original(*arguments)
            if step != "carry" or calls == 2:  # Subscriptions are carried before the seal, too.
                raise _CrashError

        monkeypatch.setattr(first, f"_{step}", crash_after)
    with pytest.raises(_CrashError):
        await first.split(TOPIC, 0)
    record = await scene.record()
    assert (record.epoch, await scene.active()) == (1, [0])
    assert record.change is not None
    await scene.broker().finish(TOPIC)
    record = await scene.record()
    assert (record.epoch, record.change, await scene.active()) == (2, None, [1, 2])
    for child in (1, 2):
        assert await scene.subscriptions(child) == ["s"]


async def _crash(_topic: TopicName, *, is_first: bool = False) -> None:
    raise _CrashError


async def test_a_split_is_counted_with_its_time_and_its_stall_and_the_record_says_so(
    scene: Scene,
) -> None:
    await scene.create()
    clock = scene.topics._clock
    assert isinstance(clock, ManualClock)

    async def pause() -> None:
        clock.advance(700)

    scene.owners.on_sealed = pause
    await scene.topics.split(TOPIC, 0)
    await scene.topics.merge(TOPIC, 1, 2)
    counts = scene.topics.counts
    assert (counts.splits, counts.merges, counts.failures) == (1, 1, 0)
    assert (counts.seconds, counts.stall_s_max) == (0.7, 0.7)
    record = await scene.record()
    assert (record.splits, record.merges) == (1, 1)
    assert record.last_change is not None
    assert (record.last_change.kind, record.last_change.stalled_ms) == ("MERGE", 0)


async def test_the_stall_of_a_change_that_was_taken_over_counts_from_its_begin(
    scene: Scene,
) -> None:
    await scene.create()
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.split(TOPIC, 0)
    other = scene.broker()
    clock = other._clock
    assert isinstance(clock, ManualClock)
    clock.advance(5_000)
    await other.finish(TOPIC)
    assert scene.topics.counts.failures == 1
    assert (other.counts.stall_s_max, other.counts.seconds) == (5.0, 5.0)
    record = await scene.record()
    assert record.last_change is not None
    assert record.last_change.stalled_ms == 5_000


async def test_brokers_that_finish_a_change_side_by_side_commit_it_once(scene: Scene) -> None:
    await scene.create()
    await have_cursor(scene.store, await scene.name(0), "s")
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.split(TOPIC, 0)
    brokers = [scene.broker() for _ in range(4)]
    await asyncio.gather(*(each.finish(TOPIC) for each in brokers))
    record = await scene.record()
    assert (record.epoch, await scene.active()) == (2, [1, 2])
    assert await scene.subscriptions(1) == await scene.subscriptions(2) == ["s"]


async def test_of_splits_at_once_one_succeeds_and_the_others_are_told(scene: Scene) -> None:
    await scene.create(4)
    brokers = [scene.broker() for _ in range(4)]
    results = await asyncio.gather(
        *(each.split(TOPIC, number) for number, each in enumerate(brokers)), return_exceptions=True
    )
    failed = [each for each in results if each is not None]
    assert all(isinstance(each, ConflictError) for each in failed)
    record = await scene.record()
    assert record.epoch == 1 + len(results) - len(failed)


async def test_a_subscription_that_was_deleted_in_a_child_does_not_come_back(scene: Scene) -> None:
    """A broker that is slow with a change finds that others have finished it."""
    await scene.create()
    await have_cursor(scene.store, await scene.name(0), "s")

    async def meanwhile() -> None:
        await scene.broker().finish(TOPIC)
        assert await scene.subscriptions(1) == ["s"]
        await scene.store.delete(cursor_path(naming.log_path(await scene.name(1)), "s"))

    scene.owners.on_sealed = meanwhile
    await scene.topics.split(TOPIC, 0)
    assert await scene.subscriptions(1) == []
    assert (await scene.record()).epoch == 2


async def test_a_segment_is_known_by_its_whole_name_only(scene: Scene) -> None:
    await scene.create(2)
    name = await scene.name(1)
    assert await scene.topics.segment(name) == (await scene.record()).find(1)
    other = TOPIC.segment(1, start=0, end=0xFFFF)
    assert await scene.topics.segment(other) is None
    assert not await scene.topics.is_parting(name)
    assert not await scene.topics.is_sealed(name)
    await scene.topics.split(TOPIC, 1)
    assert await scene.topics.is_parting(name)
    assert await scene.topics.is_sealed(name)


async def test_a_deletion_takes_all_segments_along_also_those_of_a_change_under_way(
    scene: Scene,
) -> None:
    await scene.create()
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.split(TOPIC, 0)
    created_ms = await scene.topics.delete_segments(TOPIC)
    assert [each.segment_id for each in scene.owners.deleted] == [0, 1, 2]
    with pytest.raises(TopicNotFoundError):
        await scene.topics.get(TOPIC)
    assert await scene.topics.segment(TOPIC.segment(0, start=0, end=0xFFFF)) is None
    with pytest.raises(TopicConflictError, match="being deleted"):
        await scene.create()
    await scene.topics.finish(TOPIC)
    await scene.topics.check_deleted(TOPIC, created_ms)
    await scene.topics.forget(TOPIC, created_ms)
    assert await scene.topics.names("public/default") == []
    await scene.create()


async def test_of_two_deletions_the_late_one_leaves_a_topic_that_was_created_anew(
    scene: Scene,
) -> None:
    await scene.create()
    segment = await scene.name(0)
    created_ms = await scene.topics.delete_segments(TOPIC)
    await scene.topics.check_going(segment)
    await scene.topics.forget(TOPIC, created_ms)
    with pytest.raises(TopicNotFoundError, match="deleted with its topic"):
        await scene.topics.check_going(segment)
    scene.clock.advance(1)
    await scene.topics.create(TOPIC, 1, is_taken=scene.is_taken)
    with pytest.raises(ConflictError, match="its topic is in use"):
        await scene.topics.check_going(segment)
    with pytest.raises(TopicNotFoundError, match="by another request"):
        await scene.topics.check_deleted(TOPIC, created_ms)
    await scene.topics.forget(TOPIC, created_ms)
    assert await scene.active() == [0]
    again_ms = await scene.topics.delete_segments(TOPIC)
    with pytest.raises(TopicNotFoundError):
        await scene.topics.check_deleted(TOPIC, created_ms)
    await scene.topics.forget(TOPIC, created_ms)
    assert await scene.topics.find(TOPIC) is not None
    await scene.topics.forget(TOPIC, again_ms)
    assert await scene.topics.find(TOPIC) is None


async def test_a_deletion_that_was_interrupted_goes_on(scene: Scene) -> None:
    await scene.create(2)
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.delete_segments(TOPIC)
    scene.owners.deleted.clear()
    await scene.topics.delete_segments(TOPIC)
    assert len(scene.owners.deleted) == 2


async def test_the_subscriptions_of_a_topic_are_those_of_all_its_segments(scene: Scene) -> None:
    await scene.create(2)
    await have_cursor(scene.store, await scene.name(0), "b")
    await have_cursor(scene.store, await scene.name(1), "a")
    assert await scene.topics.used_by(TOPIC) == ["a", "b"]
    with pytest.raises(TopicNotFoundError):
        await scene.topics.used_by(TopicName.parse("other"))


async def test_a_broker_that_has_a_topic_open_finishes_a_change_that_stands_still(
    scene: Scene,
) -> None:
    await scene.create()
    scene.owners.failures = 3
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.split(TOPIC, 0)
    source = RecordLayouts(scene.store, scene.broker(), patience_ms=10)
    followed = source.follow(TOPIC, lambda: None)
    layout = await followed.get()
    assert layout is not None
    assert layout.epoch == 1
    await until(
        lambda: followed.known is not None and followed.known.epoch == 2, "the change is finished"
    )
    assert scene.owners.failures == 0
    followed.close()


async def test_a_change_that_goes_on_is_left_to_the_broker_that_began_it(scene: Scene) -> None:
    await scene.create()
    other = scene.broker()
    source = RecordLayouts(scene.store, other, patience_ms=60_000)
    heard = asyncio.Event()
    followed = source.follow(TOPIC, heard.set)
    await followed.get()
    await scene.topics.split(TOPIC, 0)
    await until(
        lambda: followed.known is not None and followed.known.epoch == 2, "the layout is heard of"
    )
    assert heard.is_set()
    assert (scene.topics.counts.finished, other.counts.finished) == (1, 0)
    assert followed._timer is None
    followed.close()


async def test_a_subscription_is_had_in_all_active_segments_that_have_come_of_a_sealed_one(
    scene: Scene,
) -> None:
    await scene.create(2)
    await scene.topics.split(TOPIC, 0)
    await scene.topics.split(TOPIC, 2)
    await scene.topics.subscribe_behind(await scene.name(0), "s")
    assert sorted(scene.owners.subscribed) == [(3, "s"), (4, "s"), (5, "s")]
    scene.owners.subscribed.clear()
    await scene.topics.subscribe_behind(await scene.name(3), "s")
    assert scene.owners.subscribed == []
