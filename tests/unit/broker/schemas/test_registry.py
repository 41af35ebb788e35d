"""The registry: versions, deletion, registering at once, bounds."""

import asyncio
import json
from typing import Any

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError, NotAllowedError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.model import DEFAULTS
from magnetar.broker.policies.model import SchemaCompatibility as Strategy
from magnetar.broker.schemas import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaData,
    SchemaNotFoundError,
    SchemaType,
)
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.sdk.wire import parse_topic_name
from tests.unit.broker.schemas.memory_schemas import MemoryLedgers, MemoryNodes, memory_schemas

TOPIC = parse_topic_name("topic")
ANY = DEFAULTS.with_values(schema_compatibility=Strategy.ALWAYS_COMPATIBLE)


def avro(*names: str) -> SchemaData:
    fields: list[Any] = [{"name": each, "type": "int", "default": 0} for each in names]
    definition = {"type": "record", "name": "R", "fields": fields}
    return SchemaData(SchemaType.AVRO, json.dumps(definition).encode(), {"by": "me"})


class Brokers:
    """Several registries on one store."""

    def __init__(self, **limits: Any) -> None:
        self.nodes = MemoryNodes()
        self.ledgers = MemoryLedgers()
        self._limits = BrokerSettings(**limits)

    def registry(self, **more: int) -> SchemaRegistry:
        return memory_schemas(self._limits, self.nodes, self.ledgers, **more)


async def test_versions_count_from_zero_and_what_is_there_keeps_its_own() -> None:
    brokers = Brokers()
    registry = brokers.registry()
    assert [await registry.put(TOPIC, avro(*names), DEFAULTS) for names in ("a", "ab", "a")] == [
        0,
        1,
        0,
    ]
    assert (await registry.latest(TOPIC)).schema == avro("a", "b")
    found = await brokers.registry().get(TOPIC, 0)
    assert (found.version, found.schema) == (0, avro("a"))
    assert [each.version for each in await registry.versions(TOPIC)] == [0, 1]
    assert await registry.find(TOPIC, avro("a", "b")) == 1
    assert len(brokers.ledgers.ledgers) == 2


async def test_partitions_and_other_domains_have_the_schemas_of_their_topic() -> None:
    registry = Brokers().registry()
    await registry.put(TOPIC.partition(3), avro("a"), DEFAULTS)
    assert await registry.has(TOPIC)
    assert await registry.has(TOPIC.partition(0))
    assert await registry.has(parse_topic_name("non-persistent://public/default/topic"))
    assert not await registry.has(parse_topic_name("other"))


async def test_segments_have_the_schemas_of_their_topic() -> None:
    registry = Brokers().registry()
    await registry.put(TOPIC.segment(1, start=0, end=0x7FFF), avro("a"), DEFAULTS)
    assert await registry.has(TOPIC)
    assert await registry.has(TOPIC.segment(2, start=0x8000, end=0xFFFF))


async def test_where_there_is_none_that_is_said() -> None:
    registry = Brokers().registry()
    for asked in (
        registry.latest(TOPIC),
        registry.get(TOPIC, 0),
        registry.versions(TOPIC),
        registry.index(TOPIC),
        registry.find(TOPIC, avro("a")),
        registry.delete(TOPIC),
    ):
        with pytest.raises(SchemaNotFoundError):
            await asked
    assert await registry.remove(TOPIC) is None


async def test_what_does_not_fit_is_refused_and_leaves_nothing() -> None:
    brokers = Brokers()
    registry = brokers.registry()
    await registry.put(TOPIC, SchemaData(SchemaType.STRING), DEFAULTS)
    with pytest.raises(IncompatibleSchemaError):
        await registry.put(TOPIC, avro("a"), DEFAULTS)
    with pytest.raises(IncompatibleSchemaError):
        await registry.check(TOPIC, avro("a"), Strategy.FULL)
    with pytest.raises(InvalidSchemaError):
        await registry.put(TOPIC, SchemaData(SchemaType.AVRO, b"{"), DEFAULTS)
    assert len(brokers.ledgers.ledgers) == 1
    assert await registry.put(TOPIC, avro("a"), ANY) == 1


async def test_without_updates_only_what_is_there_is_let_in() -> None:
    registry = Brokers().registry()
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    assert await registry.put(TOPIC, avro("a"), DEFAULTS, may_add=False) == 0
    with pytest.raises(IncompatibleSchemaError, match="auto updating is disabled"):
        await registry.put(TOPIC, avro("a", "b"), DEFAULTS, may_add=False)


async def test_a_deletion_takes_what_is_before_it_by_its_number_too() -> None:
    registry = Brokers().registry()
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    assert await registry.delete(TOPIC) == 1
    assert not await registry.has(TOPIC)
    with pytest.raises(SchemaNotFoundError):
        await registry.latest(TOPIC)
    with pytest.raises(SchemaNotFoundError):
        await registry.get(TOPIC, 1)
    with pytest.raises(SchemaNotFoundError):
        await registry.get(TOPIC, 0)
    assert await registry.versions(TOPIC) == []
    # Nothing has to fit what was deleted, and the same one is a version of its own.
    assert await registry.put(TOPIC, SchemaData(SchemaType.STRING), DEFAULTS) == 2
    assert await registry.delete(TOPIC) == 3
    assert await registry.put(TOPIC, avro("a"), DEFAULTS) == 4
    assert [each.version for each in await registry.versions(TOPIC)] == [4]


async def test_what_was_deleted_or_removed_is_not_missing_when_the_answer_is_lost() -> None:
    brokers = Brokers()
    registry = brokers.registry()
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    brokers.nodes.lost_replies = 1
    assert await registry.delete(TOPIC) == 1
    assert not await registry.has(TOPIC)
    await registry.put(TOPIC, avro("b"), DEFAULTS)
    brokers.nodes.lost_replies = 1
    assert await registry.remove(TOPIC) == 2
    assert (brokers.nodes.nodes, brokers.ledgers.ledgers) == ({}, {})


async def test_removal_leaves_no_node_and_no_ledger() -> None:
    brokers = Brokers()
    registry = brokers.registry()
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    await registry.delete(TOPIC)
    await registry.put(TOPIC, avro("b"), DEFAULTS)
    assert await registry.remove(TOPIC) == 2
    assert (brokers.nodes.nodes, brokers.ledgers.ledgers) == ({}, {})
    assert await registry.put(TOPIC, avro("a"), DEFAULTS) == 0


async def test_the_same_at_once_gets_one_version_at_one_broker_and_at_many() -> None:
    brokers = Brokers()
    registries = [brokers.registry() for _ in range(4)] * 3
    found = await asyncio.gather(*(each.put(TOPIC, avro("a"), DEFAULTS) for each in registries))
    assert set(found) == {0}
    assert len(brokers.ledgers.ledgers) == 1


async def test_different_ones_at_once_get_different_versions() -> None:
    brokers = Brokers()
    names = "abcdef"
    found = await asyncio.gather(
        *(brokers.registry().put(TOPIC, avro(each), DEFAULTS) for each in names)
    )
    assert sorted(found) == list(range(len(names)))
    for version, name in zip(found, names, strict=True):
        assert (await brokers.registry().get(TOPIC, version)).schema == avro(name)
    assert len(brokers.ledgers.ledgers) == len(names)


async def test_a_write_whose_reply_is_lost_is_found_again() -> None:
    brokers = Brokers()
    for names in ("a", "ab"):
        brokers.nodes.lost_replies = 1
        version = await brokers.registry().put(TOPIC, avro(*names), DEFAULTS)
        assert version == len(names) - 1
    assert len(brokers.ledgers.ledgers) == 2


async def test_a_schema_is_read_from_its_ledger_once_if_there_is_room_to_remember_it() -> None:
    brokers = Brokers()
    await brokers.registry().put(TOPIC, avro("a"), DEFAULTS)
    remembering, forgetful = brokers.registry(), brokers.registry(cache_bytes_max=0)
    for registry, opened in ((remembering, 1), (forgetful, 3)):
        brokers.ledgers.opened = 0
        for _ in range(3):
            await registry.latest(TOPIC)
        assert brokers.ledgers.opened == opened


LARGE = {"note": "x" * 10_000}
MANY = {f"property {number}": "" for number in range(100)}


@pytest.mark.parametrize(
    ("schema", "memory_bytes"),
    [
        (SchemaData(SchemaType.STRING), 1_024),
        (SchemaData(SchemaType.STRING, properties=LARGE), 11_000),
        (SchemaData(SchemaType.STRING, properties={"note": "€" * 10_000}), 41_000),
        (SchemaData(SchemaType.STRING, properties=MANY), 20_000),
        (SchemaData(SchemaType.EXTERNAL, b"x" * 10_000), 11_000),
        (avro(*(f"field{number}" for number in range(100))), 40_000),
    ],
    ids=["nothing", "property", "wide property", "properties", "definition", "parsed"],
)
async def test_all_that_a_cached_schema_takes_counts(schema: SchemaData, memory_bytes: int) -> None:
    """A schema of a primitive type has no definition, and only so many stay all the same."""
    brokers, count = Brokers(), 20
    for number in range(count):
        await brokers.registry().put(parse_topic_name(f"topic-{number}"), schema, DEFAULTS)
    registry = brokers.registry(cache_bytes_max=10 * memory_bytes)
    for _ in range(2):
        for number in range(count):
            await registry.latest(parse_topic_name(f"topic-{number}"))
    # As many as there are were read again: the cache had room for half of them at most.
    assert brokers.ledgers.opened == 2 * count
    brokers.ledgers.opened = 0
    await registry.latest(parse_topic_name(f"topic-{count - 1}"))
    assert brokers.ledgers.opened == 0


async def test_schemas_have_a_largest_size() -> None:
    schema = avro("a")
    size = len(schema.data) + len("byme")
    await Brokers(schema_bytes_max=size).registry().put(TOPIC, schema, DEFAULTS)
    with pytest.raises(InvalidSchemaError, match=f"has {size} bytes; the limit is {size - 1}"):
        await Brokers(schema_bytes_max=size - 1).registry().put(TOPIC, schema, DEFAULTS)


async def test_topics_have_only_so_many_versions() -> None:
    registry = Brokers(schema_versions_max=2).registry()
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    await registry.put(TOPIC, avro("b"), DEFAULTS)
    with pytest.raises(NotAllowedError, match="the limit is 2"):
        await registry.put(TOPIC, avro("c"), DEFAULTS)
    assert await registry.put(TOPIC, avro("b"), DEFAULTS) == 1


async def test_deleted_versions_count_until_they_are_removed() -> None:
    registry = Brokers(schema_versions_max=2).registry()
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    await registry.delete(TOPIC)
    with pytest.raises(
        NotAllowedError, match=r"2 versions .*, deleted ones included;.* force=true"
    ):
        await registry.put(TOPIC, avro("b"), DEFAULTS)
    await registry.remove(TOPIC)
    assert await registry.put(TOPIC, avro("b"), DEFAULTS) == 0


async def test_a_definition_that_cannot_be_written_leaves_no_ledger_behind() -> None:
    brokers = Brokers()
    brokers.ledgers.fails = True
    for _ in range(3):
        with pytest.raises(BrokerPersistenceError):
            await brokers.registry().put(TOPIC, avro("a"), DEFAULTS)
    assert brokers.ledgers.created == 3
    assert not brokers.ledgers.ledgers
    brokers.ledgers.fails = False
    assert await brokers.registry().put(TOPIC, avro("a"), DEFAULTS) == 0


async def test_consumers_have_to_read_the_last_one_and_add_nothing() -> None:
    registry = Brokers().registry()
    assert not await registry.check_consumer(TOPIC, avro("a"), Strategy.FULL)
    await registry.put(TOPIC, avro("a"), DEFAULTS)
    assert await registry.check_consumer(TOPIC, avro("a", "b"), Strategy.FULL)
    assert len(await registry.versions(TOPIC)) == 1
    with pytest.raises(IncompatibleSchemaError):
        await registry.check_consumer(TOPIC, SchemaData(SchemaType.STRING), Strategy.FULL)


async def test_a_namespace_that_goes_and_a_topic_that_goes_take_their_schemas_along() -> None:
    brokers = Brokers()
    registry = brokers.registry()
    other = parse_topic_name("persistent://public/other/topic")
    for topic in (TOPIC, parse_topic_name("more"), other):
        await registry.put(topic, avro("a"), DEFAULTS)
    await registry.topic_removed(parse_topic_name("non-persistent://public/default/topic"))
    assert await registry.has(TOPIC)
    await registry.topic_removed(TOPIC)
    assert not await registry.has(TOPIC)
    await registry.remove_namespace("public/default")
    await registry.remove_namespace("public/default")
    assert list(brokers.nodes.nodes) == ["/schemas/public/other/topic"]
    assert len(brokers.ledgers.ledgers) == 1


async def test_a_record_that_was_made_anew_while_a_ledger_was_written_keeps_its_schemas() -> None:
    """The new record has the version of the former one, and names other ledgers."""
    brokers = Brokers()
    registry, other = brokers.registry(), brokers.registry()
    await registry.put(TOPIC, avro("a"), ANY)
    create = brokers.ledgers.create
    is_late = True

    async def late(**fields: object) -> Any:
        nonlocal is_late
        if is_late:
            is_late = False
            await other.remove(TOPIC)
            assert await other.put(TOPIC, avro("b"), ANY) == 0
        return await create(**fields)

    brokers.ledgers.create = late  # type: ignore[method-assign]
    assert await registry.put(TOPIC, avro("c"), ANY) == 1
    assert [each.schema.data for each in await registry.versions(TOPIC)] == [
        avro("b").data,
        avro("c").data,
    ]
    assert len(brokers.ledgers.ledgers) == 2
