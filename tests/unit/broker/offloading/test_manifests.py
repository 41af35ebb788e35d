"""A topic's manifests: beside everything else, again after a failure, never two at once."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.broker.features.offloading import Manifests
from magnetar.broker.features.offloading.manifests import (
    ManifestSurroundings,
    schemas_in,
    transactions_in,
)
from magnetar.broker.schemas import SchemaData, SchemaNotFoundError, SchemaType, StoredSchema
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.topic import TopicPort
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.ledger.errors import ObjectStoreUnavailableError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import (
    NO_TRANSACTIONS,
    LogManifest,
    ManifestSchema,
    ManifestTransactions,
)
from magnetar.ledger.offloading.object_store import ObjectStores
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName
from tests.unit.broker.memory_log import ManualClock

SETTINGS = ObjectSettings.model_validate(
    {"offload_retry_s": 1, "offload_retry_s_max": 3, "manifest_interval_s": 60}
)
NAME = TopicName.parse("t")


def copied(ledger_id: int) -> LogLedger:
    found = LedgerObject(ObjectState.COPIED, f"{ledger_id:032x}", 0, 9, 9, 9)
    return LogLedger(ledger_id, 10, 100, 1, found)


class World:
    """A topic, its log, and the object store that manifests go to."""

    path = "/managed-ledgers/public/default/persistent/t"

    def __init__(self, *ledgers: LogLedger) -> None:
        self.clock = ManualClock()
        self.objects = self
        self.node = LogMetadata(ledgers, object_bases=(ObjectBase("main", "x/"),)), 3
        self.bodies: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.held: asyncio.Event | None = None
        self.topic = SimpleNamespace(
            name=NAME, is_leaving=False, visibility=SimpleNamespace(hidden=None)
        )
        self.around = ManifestSurroundings(
            cast(ObjectStores, self), self.instance_id, self.find_schemas, SETTINGS, self.clock
        )
        self.manifests = Manifests(cast(TopicPort, self.topic), cast(ManagedLog, self), self.around)

    @property
    def ledgers(self) -> tuple[LogLedger, ...]:
        return self.node[0].ledgers

    def add(self, ledger_id: int) -> None:
        node, version = self.node
        self.node = node.with_ledgers([*node.ledgers, copied(ledger_id)]), version + 1

    def store(self, _name: str) -> Any:
        return self

    async def create(self, key: str, body: bytes) -> bool:
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        self.bodies[key] = body
        return True

    async def instance_id(self) -> str:
        return "5f0c"

    async def find_schemas(self, topic: TopicName) -> Sequence[ManifestSchema]:
        assert topic == NAME
        return (ManifestSchema(0, 1, "STRING", b""),)

    def written(self) -> list[LogManifest]:
        return [LogManifest.from_json(body, key=key) for key, body in sorted(self.bodies.items())]

    async def look(self) -> None:
        assert self.manifests.look() is None
        await self.manifests.stopped()


async def test_a_new_owner_writes_a_manifest_with_schemas_once() -> None:
    world = World(copied(4))
    await world.look()
    await world.look()
    (manifest,) = world.written()
    assert (manifest.log, manifest.version, manifest.instance_id) == (world.path, 3, "5f0c")
    assert [each.type for each in manifest.schemas] == ["STRING"]
    assert world.around.counts.written == 1


@pytest.mark.parametrize("error", [ObjectStoreUnavailableError("away"), BrokerMetadataError("m")])
async def test_a_failure_is_tried_again_after_a_pause_that_doubles(error: Exception) -> None:
    world = World(copied(4))
    world.error = error
    for pause_ms in (1_000, 2_000, 3_000, 3_000):
        await world.look()
        failures = world.around.counts.failures
        world.clock.advance(pause_ms - 1)
        await world.look()
        assert world.around.counts.failures == failures
        world.clock.advance(1)
    world.error = None
    await world.look()
    assert len(world.written()) == 1


async def test_what_came_while_one_was_written_is_in_the_next_one() -> None:
    world = World(copied(4))
    world.held = asyncio.Event()
    world.manifests.look()
    assert world.manifests.is_working
    await asyncio.sleep(0)
    world.add(5)
    world.manifests.look()
    world.held.set()
    await world.manifests.stopped()
    assert [len(each.node.ledgers) for each in world.written()] == [1, 2]


async def test_a_topic_that_closes_breaks_off_and_one_that_leaves_begins_nothing() -> None:
    world = World(copied(4))
    world.held = asyncio.Event()
    world.manifests.look()
    await asyncio.sleep(0)
    world.manifests.close()
    await world.manifests.stopped()
    world.topic.is_leaving = True
    await world.look()
    assert world.written() == []


def visibility_of(*, aborted: PositionSet, last: Position | None) -> Visibility:
    """What hides these entries, of a log that ends at 9:0; a transaction is open behind `last`."""
    found = Visibility(SimpleNamespace(last_confirmed=Position(9, 0)))
    found.hidden = SimpleNamespace(
        is_plain=not aborted and last is None, aborted=aborted, limit=lambda end: last or end
    )
    return found


def test_readers_are_told_what_to_leave_out_of_objects_and_where_to_end() -> None:
    ledgers = [copied(4), copied(5), LogLedger(9)]
    aborted = PositionSet()
    assert transactions_in(visibility_of(aborted=aborted, last=None), ledgers) == NO_TRANSACTIONS
    for position in (Position(4, 0), Position(4, 9), Position(9, 0)):
        aborted.add(position)
    found = transactions_in(visibility_of(aborted=aborted, last=None), ledgers)
    assert found == ManifestTransactions(None, {4: b"\x01\x02"})
    inside = transactions_in(visibility_of(aborted=aborted, last=Position(5, 8)), ledgers)
    assert inside.read_through == Position(5, 8)
    behind = transactions_in(visibility_of(aborted=aborted, last=Position(5, 9)), ledgers)
    assert behind.read_through is None


async def test_a_topic_without_a_schema_has_a_manifest_all_the_same() -> None:
    class Registry:
        stored: Sequence[StoredSchema] | None = None

        async def versions(self, _topic: TopicName) -> Sequence[StoredSchema]:
            if self.stored is None:
                raise SchemaNotFoundError("none")
            return self.stored

    registry = Registry()
    find = schemas_in(cast(SchemaRegistry, registry))
    assert await find(NAME) == ()
    registry.stored = [StoredSchema(2, 7, SchemaData(SchemaType.AVRO, b"{}", {"a": "b"}))]
    assert await find(NAME) == [ManifestSchema(2, 7, "AVRO", b"{}", {"a": "b"})]
