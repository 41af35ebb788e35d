"""Partitioned topics on a real embedded metadata store."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    ConflictError,
    NotAllowedError,
    PartitionCountError,
    TopicConflictError,
    TopicNotFoundError,
    UnreadableRecordError,
)
from magnetar.broker.cluster.partitions import PartitionedTopics
from magnetar.broker.cluster.partitions.record import partitioned_topic_path
from magnetar.cursors import list_cursors
from magnetar.cursors.node import CursorNode, cursor_path, decode_node, encode_node
from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.unit.broker.memory_log import ManualClock

TOPIC = parse_topic_name("persistent://public/default/whole")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield opened
    await opened.close()


class LostReplies:
    """A store whose next `lost` nodes are made, and nobody hears of it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, path: str, value: bytes = b"") -> str:
        created = await self._store.create(path, value)
        if self.lost:
            self.lost -= 1
            raise UnknownOutcomeError(path)
        return created


@pytest.fixture
def topics(store: MetadataStore) -> PartitionedTopics:
    return PartitionedTopics(store, partitions_max=8, clock=ManualClock())


async def have_cursor(store: MetadataStore, index: int, name: str) -> None:
    node = CursorNode(epoch=3, mark_delete=(5, 6), properties={"a": "b"})
    path = cursor_path(naming.log_path(TOPIC.partition(index)), name)
    await store.create(path, encode_node(node))


async def test_a_partitioned_topic_has_all_its_partitions_at_once(
    topics: PartitionedTopics, store: MetadataStore
) -> None:
    await topics.create(TOPIC, 3, {"owner": "me"})
    record = await topics.get(TOPIC)
    assert (record.partitions, record.properties) == (3, {"owner": "me"})
    for index in range(3):
        assert await store.exists(naming.log_path(TOPIC.partition(index))) is not None
        assert await topics.is_partition(TOPIC.partition(index))
    assert await store.exists(naming.log_path(TOPIC)) is None
    assert await topics.names("public/default") == [TOPIC]
    assert not await topics.is_partition(parse_topic_name("other-partition-0"))


async def test_a_name_beyond_the_last_partition_is_refused(topics: PartitionedTopics) -> None:
    await topics.create(TOPIC, 2)
    with pytest.raises(NotAllowedError, match="max allowed 2"):
        await topics.is_partition(TOPIC.partition(2))


async def test_a_name_is_taken_by_either_kind(
    topics: PartitionedTopics, store: MetadataStore
) -> None:
    await topics.create(TOPIC, 1)
    with pytest.raises(TopicConflictError):
        await topics.create(TOPIC, 2)
    plain = parse_topic_name("plain")
    assert await topics.create_log(plain)
    assert not await topics.create_log(plain)
    with pytest.raises(TopicConflictError):
        await topics.create(plain, 2)
    assert await topics.find(plain) is None
    with pytest.raises(TopicConflictError):
        await topics.grow(plain, 3, is_forced=False)
    with pytest.raises(NotAllowedError):
        await topics.create(TOPIC.partition(0), 2)
    assert (await topics.ensure(TOPIC, 5)).partitions == 1


@pytest.mark.parametrize("count", [0, -1, 9])
async def test_a_number_of_partitions_that_cannot_be_is_refused(
    topics: PartitionedTopics, count: int
) -> None:
    with pytest.raises(PartitionCountError):
        await topics.create(TOPIC, count)
    await topics.create(TOPIC, 8)
    with pytest.raises(PartitionCountError):
        await topics.grow(TOPIC, count, is_forced=True)


async def test_growth_brings_the_subscriptions_along(
    topics: PartitionedTopics, store: MetadataStore
) -> None:
    await topics.create(TOPIC, 2)
    await have_cursor(store, 0, "s/1")
    await have_cursor(store, 0, "pulsar.dedup")
    await topics.grow(TOPIC, 4, is_forced=False)
    assert (await topics.get(TOPIC)).partitions == 4
    for index in (2, 3):
        path = naming.log_path(TOPIC.partition(index))
        assert await list_cursors(store, path) == ["s/1"]
        node = decode_node((await store.get(cursor_path(path, "s/1"))).value)
        assert (node.mark_delete, node.properties) == ((-1, -1), {"a": "b"})
        assert node.last_active_ms == ManualClock().wall_ms(), "as young as it is"
    assert await list_cursors(store, naming.log_path(TOPIC.partition(1))) == []
    with pytest.raises(PartitionCountError):
        await topics.grow(TOPIC, 3, is_forced=False)
    with pytest.raises(TopicNotFoundError):
        await topics.grow(parse_topic_name("missing"), 3, is_forced=False)


async def test_growth_brings_along_what_subscribes_while_it_grows(
    store: MetadataStore,
) -> None:
    class Late(LostReplies):
        """Somebody subscribes between the copies of the cursors and the new count."""

        is_late = False

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            if path == partitioned_topic_path(TOPIC) and not self.is_late:
                self.is_late = True
                await have_cursor(store, 0, "late")
            return await store.set(path, value, version=version)

    topics = PartitionedTopics(
        cast("MetadataStore", Late(store)), partitions_max=8, clock=ManualClock()
    )
    await topics.create(TOPIC, 1)
    await topics.grow(TOPIC, 2, is_forced=False)
    assert await list_cursors(store, naming.log_path(TOPIC.partition(1))) == ["late"]


class _CrashError(BaseException):
    """The broker is gone."""


@pytest.mark.parametrize("count", [4, 5])
async def test_a_growth_that_was_interrupted_is_completed_by_the_next_one(
    store: MetadataStore, topics: PartitionedTopics, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    await topics.create(TOPIC, 2)

    async def crash(*_: object) -> None:
        await have_cursor(store, 0, "late")
        raise _CrashError

    with monkeypatch.context() as patched:
        patched.setattr(topics, "_bring_along", crash)
        with pytest.raises(_CrashError):
            await topics.grow(TOPIC, 4, is_forced=False)
    assert (await topics.get(TOPIC)).partitions == 4, "clients know them by now"
    await topics.grow(TOPIC, count, is_forced=False)
    for index in range(2, count):
        assert await list_cursors(store, naming.log_path(TOPIC.partition(index))) == ["late"]
    assert await list_cursors(store, naming.log_path(TOPIC.partition(1))) == []


async def test_a_growth_that_was_completed_brings_nothing_along_when_it_is_repeated(
    store: MetadataStore, topics: PartitionedTopics
) -> None:
    await topics.create(TOPIC, 1)
    await topics.grow(TOPIC, 2, is_forced=False)
    before = (await store.get(partitioned_topic_path(TOPIC))).value
    await have_cursor(store, 0, "of one partition")
    await topics.grow(TOPIC, 2, is_forced=False)
    assert await list_cursors(store, naming.log_path(TOPIC.partition(1))) == []
    assert (await store.get(partitioned_topic_path(TOPIC))).value == before
    assert b"growing_from" not in before


async def test_a_growth_leaves_what_another_one_beyond_it_has_yet_to_bring_along(
    store: MetadataStore, topics: PartitionedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics.create(TOPIC, 1)
    bring_along = topics._bring_along

    async def overtaken(topic: TopicName, indexes: range) -> None:
        await bring_along(topic, indexes)

        async def crash(*_: object) -> None:
            raise _CrashError

        with monkeypatch.context() as patched:
            patched.setattr(topics, "_bring_along", crash)
            with pytest.raises(_CrashError):
                await topics.grow(TOPIC, 4, is_forced=False)
        await have_cursor(store, 0, "late")

    with monkeypatch.context() as patched:
        patched.setattr(topics, "_bring_along", overtaken)
        await topics.grow(TOPIC, 2, is_forced=False)
    await topics.grow(TOPIC, 4, is_forced=False)
    for index in (1, 2, 3):
        assert await list_cursors(store, naming.log_path(TOPIC.partition(index))) == ["late"]


async def test_growth_brings_nothing_back_that_is_deleted_meanwhile(
    store: MetadataStore,
) -> None:
    class Deleted(LostReplies):
        """Somebody deletes the topic as soon as the new count is there."""

        async def set(self, path: str, value: bytes, *, version: int) -> int:
            await have_cursor(store, 0, "late")
            version = await store.set(path, value, version=version)
            if path == partitioned_topic_path(TOPIC):
                others = PartitionedTopics(store, partitions_max=8, clock=ManualClock())
                for index in range(await others.mark_deleted(TOPIC)):
                    log = naming.log_path(TOPIC.partition(index))
                    for cursor in await list_cursors(store, log):
                        await store.delete(cursor_path(log, cursor))
                    await store.delete(log)
                await others.forget(TOPIC)
                await have_cursor(store, 0, "of another topic of that name")
            return version

    topics = PartitionedTopics(
        cast("MetadataStore", Deleted(store)), partitions_max=8, clock=ManualClock()
    )
    await topics.create(TOPIC, 1)
    await topics.grow(TOPIC, 2, is_forced=False)
    assert await store.exists(naming.log_path(TOPIC.partition(1))) is None


async def test_a_copy_of_a_subscription_for_a_partition_that_was_deleted_leaves_nothing(
    topics: PartitionedTopics, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of the namespace found the partition before its subscriptions came."""
    await topics.create(TOPIC, 1)
    await have_cursor(store, 0, "s")
    added = naming.log_path(TOPIC.partition(1))
    create_log = topics.create_log

    async def deleted_at_once(
        topic: TopicName, properties: Mapping[str, str] | None = None
    ) -> bool:
        is_made = await create_log(topic, properties)
        await store.delete(naming.log_path(topic))
        return is_made

    monkeypatch.setattr(topics, "create_log", deleted_at_once)
    with pytest.raises(TopicNotFoundError, match="was deleted meanwhile"):
        await topics.grow(TOPIC, 2, is_forced=False)
    assert await store.exists(added) is None
    monkeypatch.undo()
    await topics.grow(TOPIC, 2, is_forced=False)
    assert await list_cursors(store, added) == ["s"]


async def test_growth_takes_existing_topics_in_by_force_only(topics: PartitionedTopics) -> None:
    await topics.create_log(TOPIC.partition(2))
    await topics.create(TOPIC, 2)
    with pytest.raises(TopicConflictError):
        await topics.grow(TOPIC, 3, is_forced=False)
    assert (await topics.get(TOPIC)).partitions == 2
    await topics.grow(TOPIC, 3, is_forced=True)
    assert (await topics.get(TOPIC)).partitions == 3


async def test_an_interrupted_creation_is_completed(
    topics: PartitionedTopics, store: MetadataStore
) -> None:
    await topics.create(TOPIC, 3)
    await store.delete(naming.log_path(TOPIC.partition(1)), version=0)
    await topics.create_missed(TOPIC)
    assert await store.exists(naming.log_path(TOPIC.partition(1))) is not None


async def test_what_was_made_is_no_conflict_when_the_answers_are_lost(
    store: MetadataStore,
) -> None:
    lossy = LostReplies(store)
    topics = PartitionedTopics(cast(MetadataStore, lossy), partitions_max=8, clock=ManualClock())
    lossy.lost = 3
    assert (await topics.create(TOPIC, 2)).partitions == 2
    for index in range(2):
        assert await store.exists(naming.log_path(TOPIC.partition(index))) is not None
    lossy.lost = 1
    assert await topics.create_log(parse_topic_name("plain"), {"owner": "me"})
    assert not await topics.create_log(parse_topic_name("plain"), {"owner": "me"})


async def test_no_partition_appears_while_they_are_deleted(
    topics: PartitionedTopics, store: MetadataStore
) -> None:
    await topics.create(TOPIC, 2)
    assert await topics.mark_deleted(TOPIC) == 2
    with pytest.raises(NotAllowedError, match="being deleted"):
        await topics.is_partition(TOPIC.partition(0))
    with pytest.raises(TopicNotFoundError):
        await topics.grow(TOPIC, 3, is_forced=True)
    assert await store.exists(naming.log_path(TOPIC.partition(2))) is None
    await topics.forget(TOPIC)
    assert await topics.find(TOPIC) is None


async def test_of_two_deletions_the_late_one_leaves_a_topic_that_was_created_anew(
    topics: PartitionedTopics,
) -> None:
    await topics.create(TOPIC, 2)
    await topics.mark_deleted(TOPIC)
    await topics.check_deleted(TOPIC)
    await topics.forget(TOPIC)
    with pytest.raises(TopicNotFoundError, match="by another request"):
        await topics.check_deleted(TOPIC)
    await topics.create(TOPIC, 3)
    with pytest.raises(ConflictError, match="created anew"):
        await topics.check_deleted(TOPIC)
    await topics.forget(TOPIC)
    await topics.mark_migrated_deleted(TOPIC)
    record = await topics.get(TOPIC)
    assert (record.partitions, record.is_deleted) == (3, False)


async def test_a_topic_that_gives_way_to_a_plain_one_leaves_another_of_its_name(
    topics: PartitionedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((False, True))

    async def has_log(topic: TopicName) -> bool:
        is_second = next(answers)
        if is_second:  # Meanwhile it was deleted, and another one was created.
            await topics.mark_deleted(topic)
            await topics.forget(topic)
            with monkeypatch.context() as patched:
                patched.setattr(topics, "_has_log", _no)
                await topics.create(topic, 5)
        return is_second

    monkeypatch.setattr(topics, "_has_log", has_log)
    with pytest.raises(TopicConflictError):
        await topics.create(TOPIC, 2)
    assert (await topics.get(TOPIC)).partitions == 5


async def _no(_: TopicName) -> bool:
    return False


async def test_a_record_of_a_newer_release_is_left_alone(
    topics: PartitionedTopics, store: MetadataStore
) -> None:
    await store.create(partitioned_topic_path(TOPIC), b'{"format": 2, "partitions": 3}')
    with pytest.raises(UnreadableRecordError):
        await topics.create(TOPIC, 2)
    assert (await store.get(partitioned_topic_path(TOPIC))).version == 0
