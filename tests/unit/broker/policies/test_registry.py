"""The registry of policies on a real embedded metadata store, with other brokers beside it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    InvalidNameError,
    NamespaceNotFoundError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.model import (
    NamespaceRecord,
    Policies,
    TenantRecord,
    namespace_path,
    tenant_path,
    topic_policies_path,
    topic_policies_root,
)
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchCallback
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.waiting import until

WAIT_S = 5.0
TOPIC = parse_topic_name("persistent://public/default/topic")
PARTITION = parse_topic_name("persistent://public/default/topic-partition-3")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def registry(store: MetadataStore) -> AsyncIterator[PolicyRegistry]:
    made = PolicyRegistry(store, BrokerSettings())
    await made.start({})
    yield made
    made.close()


@pytest.fixture
async def other(store: MetadataStore) -> AsyncIterator[PolicyRegistry]:
    """Another broker's."""
    made = PolicyRegistry(store, BrokerSettings())
    await made.start({})
    yield made
    made.close()


def producers(count: int | None) -> Callable[[Policies], Policies]:
    return lambda policies: policies.with_values(max_producers=count)


def namespace_producers(count: int | None) -> Callable[[NamespaceRecord], NamespaceRecord]:
    return lambda record: record.model_copy(update={"policies": producers(count)(record.policies)})


async def create_namespace(store: MetadataStore, namespace: str) -> None:
    tenant = tenant_path(namespace.partition("/")[0])
    if await store.exists(tenant) is None:
        await store.create(tenant, TenantRecord().encode())
    await store.create(namespace_path(namespace), NamespaceRecord().encode())


async def test_the_namespaces_of_the_settings_and_the_systems_exist_from_the_start(
    registry: PolicyRegistry,
) -> None:
    for namespace in ("public/default", "pulsar/system"):
        assert not (await registry.check_namespace(namespace)).is_deleted
    assert registry.known_namespaces() == ["public/default", "pulsar/system"]


async def test_a_namespace_of_the_settings_appears_when_the_start_found_no_store(
    store: MetadataStore,
) -> None:
    registry = PolicyRegistry(store, BrokerSettings(namespaces=("tenant/first",)))
    await registry.check_namespace("tenant/first")
    registry.close()


async def test_a_namespace_of_the_settings_that_was_deleted_stays_away(
    store: MetadataStore, registry: PolicyRegistry
) -> None:
    await store.delete(namespace_path("public/default"))
    with pytest.raises(NamespaceNotFoundError):
        await asyncio.wait_for(_refused(registry, "public/default"), WAIT_S)


async def _refused(registry: PolicyRegistry, namespace: str) -> None:
    while True:
        await registry.check_namespace(namespace)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("namespace", "says"),
    [
        ("public/nowhere", "namespace public/nowhere does not exist$"),
        ("nobody/nowhere", "there is no tenant nobody"),
        ("public", "is not a namespace"),
        ("public/a/b", "is not a namespace"),
        ("../default", "is not a namespace"),
        ("public/", "is not a namespace"),
        ("public/sp ace", "is not a namespace"),
    ],
)
async def test_what_does_not_exist_is_refused_and_named(
    registry: PolicyRegistry, namespace: str, says: str
) -> None:
    with pytest.raises(NamespaceNotFoundError, match=says):
        await registry.check_namespace(namespace)


async def test_absence_is_not_remembered(store: MetadataStore, registry: PolicyRegistry) -> None:
    with pytest.raises(NamespaceNotFoundError):
        await registry.check_namespace("tenant/later")
    await create_namespace(store, "tenant/later")
    await registry.check_namespace("tenant/later")


async def test_a_namespace_that_is_being_deleted_is_refused(registry: PolicyRegistry) -> None:
    await registry.update_namespace(
        "public/default", lambda record: record.model_copy(update={"is_deleted": True})
    )
    with pytest.raises(NamespaceNotFoundError, match="being deleted"):
        await registry.check_namespace("public/default")


async def test_what_is_known_is_not_read_again(
    store: MetadataStore, registry: PolicyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.of(TOPIC)

    async def fail(*_: object) -> None:
        raise AssertionError("a read")

    monkeypatch.setattr(store, "get", fail)
    monkeypatch.setattr(store, "children", fail)
    await registry.of(TOPIC)
    await registry.of(PARTITION)


async def test_levels_that_do_not_change_are_merged_once(registry: PolicyRegistry) -> None:
    other = parse_topic_name("persistent://public/default/other")
    await registry.update_topic(TOPIC, producers(4))
    before = await registry.of(TOPIC), await registry.of_namespace("public/default")
    assert await registry.of(PARTITION) is before[0]
    assert await registry.of(other) is before[1]
    assert await registry.of_namespace("public/default") is before[1]
    await registry.update_namespace("public/default", namespace_producers(3))
    after = await registry.of(TOPIC), await registry.of_namespace("public/default")
    assert [each.max_producers for each in after] == [4, 3]
    await registry.update_topic(TOPIC, producers(5))
    assert (await registry.of(TOPIC)).max_producers == 5
    await registry.dynamic.set("maxConsumersPerTopic", "7")
    assert (await registry.of(TOPIC)).max_consumers == 7
    assert (await registry.of_namespace("public/default")).max_consumers == 7


async def test_a_change_counts_here_at_once_and_elsewhere_by_a_watch(
    registry: PolicyRegistry, other: PolicyRegistry
) -> None:
    await registry.of(TOPIC)
    await other.of(TOPIC)
    told: list[tuple[str, TopicName | None]] = []
    other.on_change(lambda namespace, topic: told.append((namespace, topic)))
    await registry.update_namespace("public/default", namespace_producers(3))
    assert registry.known(TOPIC).max_producers == 3
    await until(lambda: other.known(TOPIC).max_producers == 3)
    assert told == [("public/default", None)]


async def test_a_topics_own_policy_counts_for_it_and_its_partitions_alone(
    registry: PolicyRegistry, other: PolicyRegistry
) -> None:
    neighbour = parse_topic_name("persistent://public/default/neighbour")
    for topic in (TOPIC, neighbour):
        await other.of(topic)
    told: list[tuple[str, TopicName | None]] = []
    other.on_change(lambda namespace, topic: told.append((namespace, topic)))
    await registry.update_topic(PARTITION, producers(4))
    assert registry.known(TOPIC).max_producers == 4
    await until(lambda: other.known(PARTITION).max_producers == 4)
    assert other.known(neighbour).max_producers == 0
    assert told == [("public/default", TOPIC)]


async def test_a_topics_own_policy_is_found_by_a_broker_that_starts_later(
    store: MetadataStore, registry: PolicyRegistry
) -> None:
    odd = parse_topic_name("persistent://public/default/a b%ü")
    await registry.update_topic(odd, producers(5))
    later = PolicyRegistry(store, BrokerSettings())
    assert (await later.of(odd)).max_producers == 5
    later.close()


async def test_a_topic_that_loses_its_last_policy_has_its_namespaces_and_no_node(
    store: MetadataStore, registry: PolicyRegistry, other: PolicyRegistry
) -> None:
    await registry.update_topic(TOPIC, producers(4))
    assert (await other.of(TOPIC)).max_producers == 4
    await registry.update_topic(TOPIC, producers(None))
    assert await store.exists(topic_policies_path(TOPIC)) is None
    await until(lambda: other.known(TOPIC).max_producers == 0)


def watches_of(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the watches on each node from now on."""
    watched = Counter[str]()
    watch = store.watch

    class Counted:
        def __init__(self, path: str, made: Watch) -> None:
            self._path, self._made = path, made
            watched[path] += 1

        def close(self) -> None:
            watched[self._path] -= 1
            self._made.close()

    def counted(path: str, callback: WatchCallback) -> Counted:
        return Counted(path, watch(path, callback))

    monkeypatch.setattr(store, "watch", counted)
    return watched


async def test_of_topics_that_come_and_go_nothing_is_followed_for_ever(
    store: MetadataStore, registry: PolicyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = watches_of(store, monkeypatch)
    with_policies, without = TOPIC, parse_topic_name("persistent://public/default/plain")
    await registry.update_topic(with_policies, producers(4))
    for topic in (with_policies, without):
        await registry.of(topic)
        await registry.remove_topic(topic)
        assert watched[topic_policies_path(topic)] == 0
    assert await store.exists(topic_policies_path(with_policies)) is None
    # A later topic of the name is as any other one.
    assert (await registry.of(with_policies)).max_producers == 0
    await registry.update_topic(with_policies, producers(5))
    assert (await registry.of(with_policies)).max_producers == 5


async def test_topics_with_rights_of_roles_are_deleted_side_by_side(
    registry: PolicyRegistry, other: PolicyRegistry
) -> None:
    """All of them change the one record of their namespace, as a forced deletion of it does."""
    namespace = TOPIC.namespace_name
    topics = [parse_topic_name(f"persistent://{namespace}/t{each}") for each in range(40)]
    rights = {str(each): {"app": ("produce",)} for each in topics}
    await registry.update_namespace(
        namespace, lambda record: record.model_copy(update={"topic_permissions": rights})
    )
    removals = [(registry, other)[at % 2].remove_topic(each) for at, each in enumerate(topics)]
    await asyncio.gather(*removals)
    assert not (await registry.check_namespace(namespace)).topic_permissions


async def test_settings_that_were_changed_count_also_when_the_start_found_no_store(
    store: MetadataStore, other: PolicyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.dynamic.set("ttl_s", "7")

    async def away(*_: object) -> object:
        raise MetadataUnavailableError("away")

    registry = PolicyRegistry(store, BrokerSettings())
    with monkeypatch.context() as patched:
        for call in ("exists", "get", "create", "catch_up"):
            patched.setattr(store, call, away)
        await registry.start({})
    assert registry.defaults.message_ttl_s == 0
    await until(lambda: registry.defaults.message_ttl_s == 7)
    registry.close()


async def test_settings_that_need_each_other_stay_together(registry: PolicyRegistry) -> None:
    dynamic = registry.dynamic
    await dynamic.set("ensemble_size", "3")
    await dynamic.set("write_quorum", "3")
    with pytest.raises(InvalidNameError, match="without ensemble_size"):
        await dynamic.remove("ensemble_size")
    assert dynamic.current.ensemble_size == 3
    await dynamic.remove("write_quorum")
    await dynamic.remove("ensemble_size")
    assert await dynamic.values() == {}


async def test_settings_that_two_change_at_once_fit_each_other(
    registry: PolicyRegistry, other: PolicyRegistry
) -> None:
    await registry.dynamic.set("ensemble_size", "3")
    outcomes = await asyncio.gather(
        registry.dynamic.set("ensemble_size", "1"),
        other.dynamic.set("write_quorum", "2"),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes].count(InvalidNameError) == 1
    values: dict[str, Any] = dict(await registry.dynamic.values())
    BrokerSettings(**values)


async def test_changes_at_the_same_time_are_made_on_top_of_each_other(
    registry: PolicyRegistry, other: PolicyRegistry
) -> None:
    def consumers(policies: Policies) -> Policies:
        return policies.with_values(max_consumers=9)

    await asyncio.gather(
        registry.update_topic(TOPIC, producers(1)), other.update_topic(TOPIC, consumers)
    )
    stored = await registry.own(TOPIC)
    assert (stored.max_producers, stored.max_consumers) == (1, 9)


async def test_a_change_of_another_broker_that_is_heard_of_before_ones_own_is_answered_counts(
    store: MetadataStore,
    registry: PolicyRegistry,
    other: PolicyRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store_set = store.set

    async def slow(path: str, value: bytes, *, version: int) -> int:
        monkeypatch.setattr(store, "set", store_set)
        done = await store_set(path, value, version=version)
        await other.update_namespace("public/default", namespace_producers(9))
        await until(lambda: registry.known(TOPIC).max_producers == 9)
        return done

    monkeypatch.setattr(store, "set", slow)
    await registry.update_namespace("public/default", namespace_producers(1))
    await until(lambda: registry.known(TOPIC).max_producers == 9)


async def test_a_deleted_namespace_is_told_to_those_who_use_it(
    store: MetadataStore, registry: PolicyRegistry
) -> None:
    told: list[str] = []
    registry.on_change(lambda namespace, _: told.append(namespace))
    await store.delete(namespace_path("public/default"))
    await until(lambda: told == ["public/default"])
    with pytest.raises(NamespaceNotFoundError):
        await registry.check_namespace("public/default")


async def test_of_topics_that_others_delete_nothing_is_followed_for_ever(
    store: MetadataStore,
    registry: PolicyRegistry,
    other: PolicyRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = topic_policies_path(TOPIC)
    await registry.update_topic(TOPIC, producers(4))
    watched = watches_of(store, monkeypatch)
    told: list[TopicName | None] = []
    other.on_change(lambda _, topic: told.append(topic))
    for _ in range(2):  # A later topic of the name is followed as well.
        assert (await other.of(TOPIC)).max_producers == 4
        assert watched[path] > 0
        await registry.remove_topic(TOPIC)
        await until(lambda: watched[path] == 0, "no broker follows it")
        await until(lambda: bool(told), "the loss is reported")
        assert other.known(TOPIC).max_producers == 0
        told.clear()
        await registry.update_topic(TOPIC, producers(4))
        await until(lambda: other.known(TOPIC).max_producers == 4)


async def test_nothing_is_followed_of_a_namespace_that_others_delete(
    store: MetadataStore, other: PolicyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = watches_of(store, monkeypatch)
    await create_namespace(store, "public/gone")
    topic = parse_topic_name("persistent://public/gone/t")
    await other.of(topic)
    await other.update_topic(topic, producers(4))
    root = topic_policies_root("public/gone", "persistent")
    assert watched[root] == 1
    await store.delete(namespace_path("public/gone"))
    await until(lambda: watched[root] == watched[topic_policies_path(topic)] == 0)


async def test_an_unreadable_record_is_refused_and_left(
    store: MetadataStore, registry: PolicyRegistry
) -> None:
    await store.create(namespace_path("public/odd"), b'{"format":9}')
    with pytest.raises(BrokerMetadataError, match="left as it is"):
        await registry.check_namespace("public/odd")
    assert (await store.get(namespace_path("public/odd"))).value == b'{"format":9}'


class _Deaf:
    """A store that reports no change."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        return self._store.watch(path, lambda _: None)


async def test_policies_that_are_read_again_are_those_that_are_stored(
    store: MetadataStore, other: PolicyRegistry
) -> None:
    behind = PolicyRegistry(cast(MetadataStore, _Deaf(store)), BrokerSettings())
    await behind.start({})
    assert (await behind.of(TOPIC)).max_producers == 0
    await other.dynamic.set("max_producers_per_topic", "3")
    assert (await behind.of(TOPIC)).max_producers == 0, "it is behind"
    assert (await behind.reread(TOPIC)).max_producers == 3
    await other.update_namespace("public/default", namespace_producers(4))
    assert (await behind.reread(TOPIC)).max_producers == 4
    for count in (5, 6):
        await other.update_topic(TOPIC, producers(count))
        assert (await behind.reread(PARTITION)).max_producers == count
    await other.update_topic(TOPIC, producers(None))
    assert (await behind.reread(TOPIC)).max_producers == 4
    with pytest.raises(NamespaceNotFoundError):
        await behind.reread(parse_topic_name("persistent://public/missing/topic"))
    behind.close()
