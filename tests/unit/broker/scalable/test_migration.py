"""Plain and partitioned topics become scalable, on a real embedded metadata store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.broker.base.errors import (
    ConflictError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicConflictError,
)
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.layout import synthetic_layout
from magnetar.broker.features.scalable.record import LEGACY_PLAIN, ScalableTopicRecord, fault_of
from magnetar.broker.policies.model import decode
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName
from tests.unit.broker.scalable.test_changes import finish
from tests.unit.broker.scalable.test_scalable_topics import TOPIC, Scene, have_cursor

_STEPS = ("begin", "prepare", "seal", "carry")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield Scene(store)
    await store.close()


def begun(partitions: int) -> ScalableTopicRecord:
    return changes.begin_migration(TOPIC, None, partitions, now_ms=10, segments_max=8)


async def partitioned(scene: Scene, partitions: int) -> int:
    """Have a partitioned topic that gets no more partitions; returns how many it has."""
    await scene.logs.create(TOPIC, partitions)
    count = await scene.logs.make_final(TOPIC)
    assert count is not None
    return count


@pytest.mark.parametrize("partitions", [0, 1, 3, 8])
def test_the_logs_of_a_topic_become_sealed_parents_of_as_many_segments(partitions: int) -> None:
    record = finish(begun(partitions))
    count = max(1, partitions)
    names = [each.name_in(TOPIC) for each in record.legacy]
    assert names == [TOPIC.partition(each) for each in range(partitions)] or names == [TOPIC]
    assert [each.id for each in record.active] == list(range(count, 2 * count))
    for each in record.active:
        assert each.parents == tuple(range(count))
        assert each.name_in(TOPIC).is_segment
    assert all(each.is_sealed for each in record.legacy)
    assert decode(ScalableTopicRecord, "/p", record.encode()) == record


def test_the_segments_of_a_migrated_topic_have_entry_buckets_as_those_of_a_new_one() -> None:
    record = changes.begin_migration(TOPIC, None, 2, now_ms=10, segments_max=8, entry_buckets=4)
    assert [each.entry_buckets for each in finish(record).active] == [2, 2]
    assert [each.entry_buckets for each in record.legacy] == [1, 1]


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_clients_are_told_a_newer_layout_only_when_the_migration_has_ended(partitions: int) -> None:
    before = synthetic_layout(TOPIC, partitions)
    record = begun(partitions)
    assert record.layout_of(TOPIC) == before
    after = finish(record).layout_of(TOPIC)
    assert after.epoch > before.epoch
    assert [each.topic for each in after.segments if each.is_legacy] == [
        each.topic for each in before.segments
    ]


def test_no_record_says_that_a_partition_takes_messages_beside_the_ring() -> None:
    record = finish(begun(2))
    active = record.active[0].model_copy(update={"legacy": 5})
    segments = tuple(active if each.id == active.id else each for each in record.segments)
    assert "was a partition" in fault_of(record.model_copy(update={"segments": segments}))
    some = begun(2).model_copy(update={"segments": begun(2).segments[:1]})
    assert fault_of(some)


def test_a_topic_with_more_partitions_than_segments_may_be_is_not_migrated() -> None:
    with pytest.raises(NotAllowedError, match="9 segments"):
        begun(9)


async def test_the_children_have_the_subscriptions_of_all_partitions(scene: Scene) -> None:
    count = await partitioned(scene, 2)
    await have_cursor(scene.store, TOPIC.partition(0), "one")
    await have_cursor(scene.store, TOPIC.partition(1), "other")
    scene.owners.gained[TOPIC.partition(1)] = ["late"]
    await scene.topics.migrate(TOPIC, count)
    assert scene.owners.sealed == [TOPIC.partition(0), TOPIC.partition(1)]
    for child in (2, 3):
        assert await scene.subscriptions(child) == ["late", "one", "other"]
    assert scene.topics.counts.migrations == 1


async def test_the_segments_of_a_migrated_topic_are_split_and_merged(scene: Scene) -> None:
    await scene.logs.create_log(TOPIC)
    await scene.topics.migrate(TOPIC, 0)
    await scene.topics.split(TOPIC, 1)
    await scene.topics.merge(TOPIC, 2, 3)
    assert await scene.active() == [4]
    record = await scene.record()
    assert (record.legacy[0].legacy, record.splits, record.merges) == (LEGACY_PLAIN, 1, 1)


class _CrashError(BaseException):
    """The broker is gone."""


@pytest.mark.parametrize("step", _STEPS)
async def test_a_migration_is_finished_by_another_broker_wherever_the_first_one_crashed(
    scene: Scene, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = await partitioned(scene, 2)
    await have_cursor(scene.store, TOPIC.partition(1), "s")
    first = scene.broker()
    if step == "begin":
        monkeypatch.setattr(first, "finish", _crash)
    else:
        original, calls = getattr(first, f"_{step}"), 0

        async def crash_after(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            await original(*arguments)
            if step != "carry" or calls == 2:  # Subscriptions are carried before the seal, too.
                raise _CrashError

        monkeypatch.setattr(first, f"_{step}", crash_after)
    with pytest.raises(_CrashError):
        await first.migrate(TOPIC, count)
    record = await scene.record()
    assert record.layout_of(TOPIC) == synthetic_layout(TOPIC, 2), "nobody has seen anything"
    await scene.broker().finish(TOPIC)
    assert await scene.active() == [2, 3]
    for child in (2, 3):
        assert await scene.subscriptions(child) == ["s"]


async def _crash(_topic: TopicName, *, is_first: bool = False) -> None:
    raise _CrashError


async def test_a_migration_that_was_broken_off_goes_on_when_it_is_asked_for_again(
    scene: Scene,
) -> None:
    await scene.logs.create_log(TOPIC)
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.migrate(TOPIC, 0)
    with pytest.raises(ConflictError, match="migration of 0"):
        await scene.topics.split(TOPIC, 0)
    await scene.topics.migrate(TOPIC, 0)
    assert await scene.active() == [1]
    with pytest.raises(TopicConflictError, match="scalable topic already"):
        await scene.topics.migrate(TOPIC, 0)


async def test_a_topic_that_is_migrated_gets_no_more_partitions_and_loses_none(
    scene: Scene,
) -> None:
    await partitioned(scene, 2)
    for refused in (
        scene.logs.grow(TOPIC, 3, is_forced=False),
        scene.logs.mark_deleted(TOPIC),
    ):
        with pytest.raises(TopicConflictError, match="scalable"):
            await refused
    assert await scene.logs.mark_deleted(TOPIC, with_scalable=True) == 2


async def test_a_topic_without_partitions_has_none_to_fix(scene: Scene) -> None:
    assert await scene.logs.make_final(TOPIC) is None


async def test_a_partition_is_found_by_its_name_and_settled_when_it_is_sealed(
    scene: Scene,
) -> None:
    count = await partitioned(scene, 2)
    first = TOPIC.partition(0)
    assert await scene.topics.is_settled(first), "no change knows it"
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await scene.topics.migrate(TOPIC, count)
    assert await scene.topics.is_parting(first)
    assert not await scene.topics.is_settled(first)
    await scene.topics.finish(TOPIC)
    assert await scene.topics.is_settled(first)
    found = await scene.topics.segment(first)
    assert found is not None
    assert found.is_sealed
    assert await scene.topics.segment(TOPIC) is None, "the whole is no segment"
