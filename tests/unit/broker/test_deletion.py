"""The deletion of a topic's stored data, against the next owner that completes it meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.base import naming
from magnetar.broker.base.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features import compaction
from magnetar.broker.features.compaction.compacted_ledger import CompactionRecord, properties_of
from magnetar.broker.features.delayed.bucket_ledgers import StoredBucket, property_of
from magnetar.broker.features.transactions.topic_log import path_of
from magnetar.broker.policies.model import (
    NamespaceRecord,
    Policies,
    TopicPolicyRecord,
    namespace_path,
    topic_policies_path,
)
from magnetar.broker.policies.records import Check
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.schemas.record import IndexEntry, SchemaRecord, schemas_path
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.topics.deletion import TopicDeletion
from magnetar.cursors.node import CursorNode, cursor_path, encode_node
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.unit.broker.memory_log import HeldTenure, ManualClock
from tests.waiting import settle

TOPIC = parse_topic_name("persistent://public/default/topic")
LOG = naming.log_path(TOPIC)
_LEDGERS_EACH = 100
"""Ids of ledgers of one generation of the topic."""


class Ledgers:
    """Ledgers of which only the deletion matters."""

    def __init__(self) -> None:
        self.deleted: set[int] = set()

    async def delete(self, ledger_id: int) -> None:
        self.deleted.add(ledger_id)


class Paused:
    """A store whose call number `at` by a task waits until the test lets it go on."""

    def __init__(self, store: MetadataStore, at: int) -> None:
        self._store = store
        self._left = at
        self.task: asyncio.Task[None] | None = None
        self.is_waiting = False
        self.may_go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        return partial(self._called, call) if asyncio.iscoroutinefunction(call) else call

    async def _called(self, call: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        if asyncio.current_task() is self.task:
            if self._left == 0:
                self.is_waiting = True
                await self.may_go_on.wait()
            self._left -= 1
        return await call(*args, **named)


class Broker:
    """The parts of one broker that delete a topic."""

    def __init__(self, store: MetadataStore, ledgers: Ledgers) -> None:
        self._policies = PolicyRegistry(store, BrokerSettings())
        self._schemas = memory_schemas(store, ledgers)
        self.tenure = HeldTenure()
        self.deletion = TopicDeletion(cast(LedgerClient, ledgers), store)
        self.deletion.forget = self._forget

    async def _forget(self, name: TopicName, check: Check) -> None:
        await self._policies.remove_topic(name, check)
        await self._schemas.topic_removed(name, check)

    async def finish(self) -> None:
        await self.deletion.finish(TOPIC, self.tenure.holds)

    def close(self) -> None:
        self._policies.close()


def memory_schemas(store: MetadataStore, ledgers: Ledgers) -> SchemaRegistry:
    return SchemaRegistry(store, cast(Any, ledgers), BrokerSettings(), ManualClock())


async def have_topic(store: MetadataStore, generation: int) -> None:
    """Create the topic with everything that belongs to one."""
    first = generation * _LEDGERS_EACH
    index = property_of([StoredBucket(ledger_id=first + 1, records=1, starts_ms=[1], last=(1, 1))])
    log = LogMetadata(
        ledgers=(LogLedger(first),),
        properties={key: value for key, value in index.items() if value is not None},
    )
    await store.create(LOG, log.to_json())
    record = CompactionRecord(ledger_id=first + 2, horizon=(first, 1))
    for ledger_id, name, properties in (
        (first + 3, "a", {}),
        (first + 4, "b", {}),
        (first + 5, compaction.CURSOR, properties_of(record)),
    ):
        node = CursorNode(
            epoch=1, cursor_ledger_id=ledger_id, mark_delete=(-1, -1), properties=properties
        )
        await store.create(cursor_path(LOG, name), encode_node(node))
    transactions = LogMetadata(ledgers=(LogLedger(first + 6),))
    await store.create(path_of(TOPIC), transactions.to_json())
    policies = TopicPolicyRecord(policies=Policies(max_producers=generation))
    await store.create(topic_policies_path(TOPIC), policies.encode())
    entry = IndexEntry(version=0, ledger_id=first + 7, timestamp_ms=1)
    await store.create(schemas_path(TOPIC), SchemaRecord(versions=(entry,)).encode())
    path = namespace_path(TOPIC.namespace_name)
    found = await store.get(path)
    space = NamespaceRecord(topic_permissions={str(TOPIC): {f"role {generation}": ("consume",)}})
    await store.set(path, space.encode(), version=found.version)


async def nodes(store: MetadataStore, path: str = "/") -> dict[str, tuple[bytes, int]]:
    node = await store.get(path)
    found = {path: (node.value, node.version)}
    for name in await store.children(path):
        found |= await nodes(store, f"{path.rstrip('/')}/{name}")
    return found


async def use(store: MetadataStore) -> None:
    """Write all nodes of the topic once more, as an owner that serves it does."""
    for path, (value, version) in (await nodes(store)).items():
        if value:
            await store.set(path, value, version=version)


async def overtaken(path: Path, at: int, *, is_unloaded: bool) -> bool:
    """Pause a deletion before its call `at` of the store; meanwhile another owner completes it, and
    the topic is created anew. Return False if the deletion has no such call.

    `is_unloaded`: the first owner gave the bundle up in order, which its tenure outlives.
    """
    store = await open_store(f"embedded:{path}")
    try:
        await store.create(namespace_path(TOPIC.namespace_name), NamespaceRecord().encode())
        await have_topic(store, 1)
        await use(store)
        paused, ledgers = Paused(store, at), Ledgers()
        first, second = Broker(cast(MetadataStore, paused), ledgers), Broker(store, ledgers)
        await first.deletion.mark(TOPIC)
        late = paused.task = asyncio.create_task(first.finish())
        while not late.done() and not paused.is_waiting:
            await settle()
        if not paused.is_waiting:
            await late
            return False
        await second.finish()
        assert await store.exists(LOG) is None
        assert ledgers.deleted == {_LEDGERS_EACH + each for each in range(8)}
        await have_topic(store, 2)
        before = await nodes(store)
        first.tenure.is_held = is_unloaded
        paused.may_go_on.set()
        with suppress(ServiceNotReadyError):
            await late
        assert await nodes(store) == before, f"paused before call {at}"
        assert max(ledgers.deleted) < 2 * _LEDGERS_EACH, f"paused before call {at}"
        for each in (first, second):
            each.close()
        return True
    finally:
        await store.close()


@pytest.mark.parametrize("is_unloaded", [False, True])
async def test_a_deletion_that_another_owner_completed_leaves_a_topic_that_was_created_since(
    tmp_path: Path, is_unloaded: bool
) -> None:
    calls = 0
    while await overtaken(tmp_path / f"{calls}.db", calls, is_unloaded=is_unloaded):
        calls += 1
    assert calls > 15, "each step of the deletion was paused"


async def test_a_node_without_a_value_is_deleted_with_the_cursors_below_it(tmp_path: Path) -> None:
    """As a restore leaves it that was broken off, and earlier releases when a topic was deleted
    while a subscription was made."""
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    await store.create(namespace_path(TOPIC.namespace_name), NamespaceRecord().encode())
    cursor = CursorNode(epoch=1, cursor_ledger_id=7, mark_delete=(-1, -1))
    await store.create(cursor_path(LOG, "s"), encode_node(cursor))
    assert (await store.get(LOG)).value == b""
    ledgers = Ledgers()
    broker = Broker(store, ledgers)
    await broker.deletion.mark(TOPIC)
    await broker.finish()
    assert await store.exists(LOG) is None
    assert ledgers.deleted == {7}
    with pytest.raises(TopicNotFoundError):
        await broker.deletion.mark(TOPIC)
    broker.close()
    await store.close()


async def test_a_deletion_by_a_broker_that_lost_the_topic_is_left_to_the_next_owner(
    tmp_path: Path,
) -> None:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    await store.create(namespace_path(TOPIC.namespace_name), NamespaceRecord().encode())
    await have_topic(store, 1)
    broker = Broker(store, Ledgers())
    await broker.deletion.mark(TOPIC)
    before = await nodes(store)
    broker.tenure.is_held = False
    with pytest.raises(ServiceNotReadyError, match="ask its next owner"):
        await broker.finish()
    assert await nodes(store) == before
    broker.close()
    await store.close()
