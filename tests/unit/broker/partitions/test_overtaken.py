"""A creation or growth that a deletion overtakes leaves the whole topic, or nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError, RequestError, TopicNotFoundError
from magnetar.broker.cluster.partitions import PartitionedTopics
from magnetar.broker.topics.deletion import TopicDeletion
from magnetar.cursors import list_cursors
from magnetar.cursors.node import CursorNode, cursor_path, encode_node
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import BadVersionError, NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.unit.broker.memory_log import ManualClock
from tests.unit.broker.paused_store import PausedStore

TOPIC = parse_topic_name("persistent://public/default/whole")
_BEFORE, _AFTER = 2, 4
_MANY = 70
_CURSOR = encode_node(CursorNode(epoch=1, mark_delete=(-1, -1)))

Request = Callable[[PartitionedTopics], Awaitable[Any]]
Meanwhile = Callable[[MetadataStore, PartitionedTopics], Awaitable[None]]


class _NoLedgers:
    """No log here has any."""


def topics_on(store: MetadataStore) -> PartitionedTopics:
    return PartitionedTopics(store, partitions_max=0, clock=ManualClock())


async def delete_partitions(
    store: MetadataStore, topics: PartitionedTopics, *, but: int | None = None
) -> None:
    """Mark the topic, and delete all partitions that its record has, but one that is in use."""
    deletion = TopicDeletion(cast(LedgerClient, _NoLedgers()), store)
    for index in range(await topics.mark_deleted(TOPIC)):
        with suppress(TopicNotFoundError):
            if index == but:
                continue
            await deletion.mark(TOPIC.partition(index))
            await deletion.finish(TOPIC.partition(index), lambda: True)


async def delete(store: MetadataStore, topics: PartitionedTopics) -> None:
    with suppress(TopicNotFoundError):
        await delete_partitions(store, topics)
    await topics.forget(TOPIC)


async def delete_and_create(store: MetadataStore, topics: PartitionedTopics) -> None:
    await delete(store, topics)
    await topics.create(TOPIC, 1)
    # The record has no token. A process that stands still between a read and the write after it
    # takes a later record of the same version for the one that it has read.
    for number in range(9):
        await topics.update_properties(TOPIC, lambda _, text=str(number): {"changed": text})  # type: ignore[misc]


async def give_up_deleting(store: MetadataStore, topics: PartitionedTopics) -> None:
    """Refuse a deletion that is not forced, because one of the partitions is in use."""
    with suppress(TopicNotFoundError):
        await delete_partitions(store, topics, but=0)
        await topics.mark_deleted(TOPIC, is_deleted=False)
        await topics.create_missed(TOPIC)


async def begin_to_delete(_store: MetadataStore, topics: PartitionedTopics) -> None:
    """Mark the topic only; `overtaken` goes on after the request."""
    with suppress(TopicNotFoundError):
        await topics.mark_deleted(TOPIC)


async def migrate(_store: MetadataStore, topics: PartitionedTopics) -> None:
    with suppress(TopicNotFoundError):
        await topics.make_final(TOPIC)


async def create(topics: PartitionedTopics) -> object:
    return await topics.create(TOPIC, _AFTER)


async def grow(topics: PartitionedTopics) -> None:
    await topics.grow(TOPIC, _AFTER, is_forced=False)


async def grow_much(topics: PartitionedTopics) -> None:
    await topics.grow(TOPIC, _MANY, is_forced=False)


async def create_missed(topics: PartitionedTopics) -> None:
    await topics.create_missed(TOPIC)


async def logs_in(store: MetadataStore) -> list[str]:
    try:
        return await store.children(naming.topics_path(TOPIC.namespace_name))
    except NoNodeError:
        return []


async def check_whole(store: MetadataStore) -> None:
    """Check that there is a log for each partition of the record, with its subscription, and no
    other log; none without a record."""
    record = await topics_on(store).find(TOPIC)
    count = record.partitions if record is not None else 0
    names = [TOPIC.partition(index) for index in range(count)]
    wanted = sorted(naming.log_path(name).rpartition("/")[2] for name in names)
    assert sorted(await logs_in(store)) == wanted
    cursors = [await list_cursors(store, naming.log_path(name)) for name in names]
    assert all(each == cursors[0] for each in cursors)


async def overtaken(path: Path, at: int, request: Request, meanwhile: Meanwhile) -> bool:
    """Pause a request before its call `at` of the store; do something else meanwhile. Return False
    if the request has no such call."""
    store: Any = await open_store(f"embedded:{path}")
    try:
        topics = topics_on(store)
        if request is not create:
            await topics.create(TOPIC, _BEFORE)
            for index in range(_BEFORE):
                log = naming.log_path(TOPIC.partition(index))
                await store.create(cursor_path(log, "s"), _CURSOR)
        if request is create_missed:
            await store.delete(cursor_path(naming.log_path(TOPIC.partition(1)), "s"))
            await store.delete(naming.log_path(TOPIC.partition(1)))
        paused = PausedStore(store, at)
        late = asyncio.ensure_future(request(topics_on(paused.store)))
        if not await paused.waits_in(late):
            await late
            await check_whole(store)
            return False
        await meanwhile(store, topics)
        paused.may_go_on.set()
        with suppress(RequestError):
            await late
        if meanwhile is begin_to_delete:
            await delete(store, topics)
        await check_whole(store)
        return True
    finally:
        await store.close()


@pytest.mark.parametrize("request_", [create, grow, create_missed])
@pytest.mark.parametrize(
    "meanwhile", [delete, begin_to_delete, delete_and_create, give_up_deleting, migrate]
)
async def test_after_both_requests_there_is_the_whole_topic_or_nothing(
    tmp_path: Path, request_: Request, meanwhile: Meanwhile
) -> None:
    calls = 0
    while await overtaken(tmp_path / f"{calls}.db", calls, request_, meanwhile):
        calls += 1
    assert calls > 8, "each step of the request was paused"


async def test_a_growth_stops_soon_after_its_topic_is_gone(tmp_path: Path) -> None:
    store: Any = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    topics = topics_on(store)
    await topics.create(TOPIC, _BEFORE)
    late = topics_on(store)
    create_log, made = late.create_log, 0

    async def counted(*args: Any) -> bool:
        nonlocal made
        made += 1
        if made == 1:
            await delete(store, topics)
        return await create_log(*args)

    late.create_log = counted  # type: ignore[method-assign, assignment]
    with pytest.raises(TopicNotFoundError, match="was deleted meanwhile"):
        await late.grow(TOPIC, 10_000, is_forced=True)
    assert made < 200
    assert await logs_in(store) == []
    await store.close()


async def test_many_partitions_are_made_and_taken_back(tmp_path: Path) -> None:
    for at in (250, 300, 350):
        await overtaken(tmp_path / f"{at}.db", at, grow_much, delete)


async def test_a_growth_that_cannot_clean_up_still_says_that_its_topic_is_gone(
    tmp_path: Path,
) -> None:
    store: Any = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    topics = topics_on(store)
    await topics.create(TOPIC, _BEFORE)
    late = topics_on(store)
    create_log = late.create_log

    async def overtaken_by_deletion(*args: Any) -> bool:
        is_made = await create_log(*args)
        await delete(store, topics)
        return is_made

    async def unavailable(_: TopicName) -> None:
        raise BrokerMetadataError("the store is away")

    late.create_log = overtaken_by_deletion  # type: ignore[method-assign, assignment]
    late.take_back = unavailable  # type: ignore[method-assign, assignment]
    with capture_logs() as logged, pytest.raises(TopicNotFoundError, match="deleted meanwhile"):
        await late.grow(TOPIC, _AFTER, is_forced=False)
    assert "partitions_left_behind" in [each["event"] for each in logged]
    await store.close()


async def load(store: MetadataStore, log: str) -> list[str]:
    """Load a log as a broker does, and subscribe; return its subscriptions."""
    with suppress(NoNodeError, BadVersionError):
        await store.set(log, LogMetadata(owner_token=7).to_json(), version=0)
        await store.create(cursor_path(log, "live"), _CURSOR)
        return ["copied", "live"]
    return []


async def make_anew(store: MetadataStore, log: str) -> list[str]:
    """Delete the log, or complete its deletion. Then load a later one of the name, and subscribe
    and acknowledge there under the name of a subscription that was copied to the first."""
    deletion = TopicDeletion(cast(LedgerClient, _NoLedgers()), store)
    await deletion.mark(TOPIC.partition(0))
    await deletion.finish(TOPIC.partition(0), lambda: True)
    await topics_on(store).create_log(TOPIC.partition(0))
    await store.set(log, LogMetadata(owner_token=7).to_json(), version=0)
    await store.create(cursor_path(log, "copied"), _CURSOR)
    await store.set(cursor_path(log, "copied"), _CURSOR, version=0)
    return ["copied"]


Use = Callable[[MetadataStore, str], Awaitable[list[str]]]


async def taken_back(path: Path, at: int, use: Use) -> bool:
    """Pause the removal of a partition before its call `at` of the store. Meanwhile a broker loads
    the partition, of a later topic of the name perhaps, and a client subscribes. Return False if
    the removal has no such call."""
    store: Any = await open_store(f"embedded:{path}")
    try:
        log = naming.log_path(TOPIC.partition(0))
        await topics_on(store).create_log(TOPIC.partition(0))
        await store.create(cursor_path(log, "copied"), _CURSOR)
        paused = PausedStore(store, at)
        late = asyncio.ensure_future(topics_on(paused.store).take_back(TOPIC.partition(0)))
        if not await paused.waits_in(late):
            await late
            assert await store.exists(log) is None
            return False
        left = await use(store, log)
        paused.may_go_on.set()
        await late
        assert await list_cursors(store, log) == left, f"paused before call {at}"
        assert (await store.exists(log) is not None) == bool(left)
        return True
    finally:
        await store.close()


@pytest.mark.parametrize("use", [load, make_anew])
async def test_what_is_loaded_while_it_is_taken_back_keeps_all_its_subscriptions(
    tmp_path: Path, use: Use
) -> None:
    calls = 0
    while await taken_back(tmp_path / f"{calls}.db", calls, use):
        calls += 1
    assert calls > 3, "each step of the removal was paused"


async def test_a_subscription_that_is_copied_while_its_log_is_taken_back_goes_with_it(
    tmp_path: Path,
) -> None:
    """A growth on another broker has not noticed yet that its topic is gone."""
    calls, log = 0, naming.log_path(TOPIC.partition(0))
    is_paused = True
    while is_paused:
        store: Any = await open_store(f"embedded:{tmp_path / f'{calls}.db'}")
        await topics_on(store).create_log(TOPIC.partition(0))
        paused = PausedStore(store, calls)
        late = asyncio.ensure_future(topics_on(paused.store).take_back(TOPIC.partition(0)))
        is_paused = await paused.waits_in(late)
        if is_paused:
            await store.create_child(cursor_path(log, "copied"), _CURSOR)
            paused.may_go_on.set()
        await late
        assert await store.exists(log) is None, f"paused before call {calls}"
        await store.close()
        calls += 1
    assert calls > 3, "each step of the removal was paused"


async def test_a_log_with_ledgers_is_not_taken_back(tmp_path: Path) -> None:
    """Neither loaded nor new: a restore has made it."""
    store: Any = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    log = naming.log_path(TOPIC.partition(0))
    await store.create(log, LogMetadata((LogLedger(5, 1, 1, 1),)).to_json())
    await topics_on(store).take_back(TOPIC.partition(0))
    assert await store.exists(log) == 0
    await store.close()
