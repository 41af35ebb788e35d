"""Tenants, namespaces and policies over HTTP, as Pulsar's tools ask for them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.broker import Broker
from magnetar.broker.policies.model import DispatchRate
from magnetar.broker.policies.tenants import Tenants
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from tests.http_calls import Answer, ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

ADMIN = "/admin/v2"
NAMESPACE = "/namespaces/public/default"
OF_TOPIC = "/persistent/public/default/topic"

RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 2,
    "relativeToPublishRate": True,
}
BODIES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
    "messageTTL": 60,
    "subscriptionExpirationTime": 5,
    "persistence": {
        "bookkeeperEnsemble": 3,
        "bookkeeperWriteQuorum": 3,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.5,
    },
    "deduplication": True,
    "deduplicationEnabled": True,
    "deduplicationSnapshotInterval": 30,
    "publishRate": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 1000},
    "dispatchRate": RATE,
    "subscriptionDispatchRate": RATE,
    "replicatorDispatchRate": RATE,
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10},
    "autoTopicCreation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "delayedDelivery": {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 60_000},
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 30,
        "deleteWhileInactive": True,
    },
    "compactionThreshold": 1_000_000,
    "subscriptionTypesEnabled": ["Exclusive", "Key_Shared"],
    "encryptionRequired": True,
    "entryMetadata": True,
}
NUMBERS = (
    "maxProducersPerTopic",
    "maxConsumersPerTopic",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxTopicsPerNamespace",
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
)
TOPIC_NUMBERS = (
    "maxProducers",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "maxMessageSize",
)
NAMESPACE_ONLY = {"autoTopicCreation", "encryptionRequired", "entryMetadata", "deduplication"}
TOPIC_ONLY = {"deduplicationEnabled"}
QUERIES = {"messageTTL", "subscriptionExpirationTime"}

OF_NAMESPACES = [
    *((name, body) for name, body in BODIES.items() if name not in TOPIC_ONLY),
    *((name, 7) for name in NUMBERS),
]
OF_TOPICS = [
    *((name, body) for name, body in BODIES.items() if name not in NAMESPACE_ONLY),
    *((name, 7) for name in TOPIC_NUMBERS),
]


class Rest:
    """The HTTP interface of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def __call__(self, method: str, path: str, body: object = None) -> Answer:
        return await ask(self.broker.http_port, method, ADMIN + path, body)

    async def ok(self, method: str, path: str, body: object = None) -> Any:
        """The JSON that is answered; None: nothing."""
        answer = await self(method, path, body)
        assert answer.status in (200, 204), (answer.status, answer.text)
        assert answer.status == 200 or not answer.text
        return answer.json if answer.text else None

    async def refused(self, method: str, path: str, body: object = None) -> int:
        answer = await self(method, path, body)
        assert answer.json["reason"]
        return answer.status


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        yield Rest(broker)


async def test_a_fresh_broker_has_what_a_fresh_standalone_has(rest: Rest) -> None:
    assert await rest.ok("GET", "/clusters") == ["standalone"]
    assert await rest.ok("GET", "/tenants") == ["public", "pulsar"]
    assert await rest.ok("GET", "/tenants/public") == {
        "adminRoles": [],
        "allowedClusters": ["standalone"],
    }
    assert await rest.ok("GET", "/namespaces/public") == ["public/default"]
    assert await rest.ok("GET", "/namespaces/pulsar") == ["pulsar/system"]
    assert (await rest.ok("GET", "/clusters/standalone"))["brokerServiceUrl"].startswith("pulsar:")
    shown = await rest.ok("GET", NAMESPACE)
    assert shown["replication_clusters"] == ["standalone"]
    assert shown["bundles"]["numBundles"] == 4
    assert shown["deleted"] is False
    assert "retention_policies" not in shown


async def test_the_life_of_a_tenant(rest: Rest) -> None:
    info = {"adminRoles": ["admin"], "allowedClusters": ["standalone"]}
    await rest.ok("PUT", "/tenants/acme", info)
    assert await rest.refused("PUT", "/tenants/acme", info) == 409
    assert await rest.ok("GET", "/tenants/acme") == info
    await rest.ok("POST", "/tenants/acme", {**info, "adminRoles": []})
    assert (await rest.ok("GET", "/tenants/acme"))["adminRoles"] == []
    assert await rest.ok("GET", "/namespaces/acme") == []
    await rest.ok("PUT", "/namespaces/acme/shop")
    assert await rest.refused("DELETE", "/tenants/acme") == 409
    assert await rest.refused("DELETE", "/tenants/acme?force=true") == 405
    await rest.ok("DELETE", "/namespaces/acme/shop")
    await rest.ok("DELETE", "/tenants/acme")
    for method in ("GET", "DELETE", "POST"):
        assert await rest.refused(method, "/tenants/acme", info) == 404
    assert await rest.refused("GET", "/namespaces/acme") == 404


CANNOT_BE_MADE: list[tuple[str, object, int]] = [
    ("/tenants/no", {"allowedClusters": []}, 412),
    ("/tenants/no", {"allowedClusters": ["nowhere"]}, 412),
    ("/tenants/no", None, 412),
    ("/tenants/sp%20ace", {"allowedClusters": ["standalone"]}, 412),
    ("/tenants/no", {"allowedClusters": "standalone"}, 400),
    ("/namespaces/nobody/x", None, 404),
    ("/namespaces/public/default", None, 409),
    ("/namespaces/public/sp%20ace", None, 412),
    ("/namespaces/public/x", {"replication_clusters": ["nowhere"]}, 412),
    ("/namespaces/public/x", {"bundles": {"numBundles": -1}}, 412),
    ("/namespaces/public/x", {"message_ttl_in_seconds": -1}, 412),
    ("/namespaces/public/x", {"message_ttl_in_seconds": "soon"}, 400),
    ("/clusters/standalone", {}, 409),
    ("/clusters/sp%20ace", {}, 412),
]


async def test_what_cannot_be_made_is_refused(rest: Rest) -> None:
    for path, body, status in CANNOT_BE_MADE:
        assert await rest.refused("PUT", path, body) == status, (path, body)


async def test_a_cluster_that_tenants_use_stays(rest: Rest) -> None:
    await rest.ok("PUT", "/clusters/other", {"serviceUrl": "http://other:8080"})
    assert await rest.ok("GET", "/clusters") == ["other", "standalone"]
    await rest.ok("POST", "/clusters/other", {"serviceUrl": "http://elsewhere:8080"})
    shown = await rest.ok("GET", "/clusters/other")
    assert shown["serviceUrl"] == "http://elsewhere:8080"
    assert shown["brokerClientTlsTrustStoreType"] == "JKS", "what is not set has its default"
    assert await rest.refused("DELETE", "/clusters/standalone") == 412
    await rest.ok("DELETE", "/clusters/other")
    assert await rest.refused("GET", "/clusters/other") == 404


async def test_a_namespace_is_made_with_policies_used_and_deleted(rest: Rest) -> None:
    body = {"bundles": {"numBundles": 8}, "max_producers_per_topic": 1, "retention_policies": None}
    await rest.ok("PUT", "/namespaces/public/shop", body)
    assert await rest.ok("GET", "/namespaces/public") == ["public/default", "public/shop"]
    assert (await rest.ok("GET", "/namespaces/public/shop"))["max_producers_per_topic"] == 1
    assert (await rest.ok("GET", "/namespaces/public/shop/bundles"))["numBundles"] == 8
    client = await WireClient.open(rest.broker.port)
    topic = "persistent://public/shop/orders"
    assert (await client.produce(topic)).type == BaseCommand.PRODUCER_SUCCESS
    assert (await client.produce(topic, 1)).error.error == 16  # ProducerBusy
    assert await rest.refused("DELETE", "/namespaces/public/shop") == 409
    assert await rest.ok("GET", "/namespaces/public/shop/topics") == [topic]
    await client.close()
    await rest.ok("PUT", "/namespaces/public/empty")
    await rest.ok("DELETE", "/namespaces/public/empty")
    assert await rest.refused("GET", "/namespaces/public/empty") == 404
    assert await rest.refused("DELETE", "/namespaces/public/empty") == 404
    await rest.ok("PUT", "/namespaces/public/empty")  # and again
    assert (await rest.ok("GET", "/namespaces/public/empty/bundles"))["numBundles"] == 4


async def test_with_force_a_namespace_and_a_tenant_go_with_all_that_is_in_them(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"force_delete_namespace": True, "force_delete_tenant": True}
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        rest = Rest(broker)
        await rest.ok("PUT", "/tenants/acme", {"allowedClusters": ["standalone"]})
        for namespace in ("acme/one", "acme/two"):
            await rest.ok("PUT", f"/namespaces/{namespace}")
            client = await WireClient.open(broker.port)
            topic = f"persistent://{namespace}/plain"
            assert (await client.produce(topic)).type == BaseCommand.PRODUCER_SUCCESS
            assert (await client.subscribe(topic)).type == BaseCommand.SUCCESS
            await rest.ok("PUT", f"/persistent/{namespace}/parts/partitions", 3)
            await rest.ok("POST", f"/persistent/{namespace}/parts/maxProducers", 5)
            await client.close()
        assert await rest.refused("DELETE", "/namespaces/acme/one") == 409
        await broker.services.policies.mark_deleted("acme/one", is_deleted=True)  # and died
        assert await rest.refused("GET", "/namespaces/acme/one/topics") == 404
        await rest.ok("DELETE", "/namespaces/acme/one?force=true")
        assert await rest.ok("GET", "/namespaces/acme") == ["acme/two"]
        await rest.ok("PUT", "/namespaces/acme/one")  # as new
        assert await rest.ok("GET", "/namespaces/acme/one/topics") == []
        assert await rest.refused("GET", "/persistent/acme/one/parts/maxProducers") == 404
        await rest.ok("DELETE", "/tenants/acme?force=true")
        assert await rest.ok("GET", "/tenants") == ["public", "pulsar"]
        client = await WireClient.open(broker.port)
        assert (await client.produce("persistent://acme/two/plain")).error.error == 11
        await client.close()


class _Unload:
    """Has something happen while the bundles of a namespace are given up."""

    def __init__(self, rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ends = rest.broker.services.topics.ends
        self._hand_over = self._ends.hand_over
        self.happening: list[Callable[[], Awaitable[object]]] = []
        monkeypatch.setattr(self._ends, "hand_over", self)

    async def __call__(self, *arguments: Any, **named: Any) -> None:
        await self._hand_over(*arguments, **named)
        if self.happening:
            await self.happening.pop(0)()


async def test_a_namespace_with_a_topic_by_now_is_not_deleted_by_one_of_two(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.ok("PUT", "/namespaces/public/two")
    unload = _Unload(rest, monkeypatch)

    async def second() -> None:
        async def failing() -> None:
            raise ServiceNotReadyError("it cannot be given up now")

        unload.happening.append(failing)
        assert await rest.refused("DELETE", "/namespaces/public/two") == 503
        await rest.ok("PUT", "/persistent/public/two/topic")

    unload.happening.append(second)
    assert await rest.refused("DELETE", "/namespaces/public/two") == 409
    assert await rest.ok("GET", "/persistent/public/two") == ["persistent://public/two/topic"]
    await rest.ok("PUT", "/persistent/public/two/other")
    for topic in ("topic", "other"):
        await rest.ok("DELETE", f"/persistent/public/two/{topic}")
    await rest.ok("DELETE", "/namespaces/public/two")


@pytest.mark.parametrize("looks", [0, 1])
async def test_a_namespace_whose_deletion_loses_the_store_on_the_way_is_not_left_marked(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    await rest.ok("PUT", "/namespaces/public/hiccup")
    marked_version, is_away = Tenants.marked_version, iter([False] * looks + [True])

    async def asked(self: Tenants, namespace: str) -> int | None:
        if next(is_away, False):
            raise BrokerMetadataError("away")
        return await marked_version(self, namespace)

    monkeypatch.setattr(Tenants, "marked_version", asked)
    assert await rest.refused("DELETE", "/namespaces/public/hiccup") == 503
    await rest.ok("PUT", "/persistent/public/hiccup/topic")
    await rest.ok("DELETE", "/persistent/public/hiccup/topic")
    await rest.ok("DELETE", "/namespaces/public/hiccup")


async def test_a_namespace_in_which_an_owner_has_made_a_topic_meanwhile_is_not_deleted(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.ok("PUT", "/namespaces/public/late")
    unload = _Unload(rest, monkeypatch)

    async def make() -> None:  # as a broker does that has not heard of the mark
        topic = parse_topic_name("persistent://public/late/topic")
        assert await rest.broker.services.topics.partitioned.create_log(topic)

    unload.happening.append(make)
    assert await rest.refused("DELETE", "/namespaces/public/late") == 409
    await rest.ok("DELETE", "/persistent/public/late/topic")
    await rest.ok("DELETE", "/namespaces/public/late")


async def test_every_policy_of_a_namespace_is_set_shown_and_removed(rest: Rest) -> None:
    for name, body in OF_NAMESPACES:
        path = f"{NAMESPACE}/{name}"
        assert await rest.ok("GET", path) is None, name
        await rest.ok("PUT" if name == "compactionThreshold" else "POST", path, body)
        assert await rest.ok("GET", path) == body, name
    shown = await rest.ok("GET", NAMESPACE)
    assert shown["publishMaxMessageRate"] == {"standalone": BODIES["publishRate"]}
    assert shown["retention_policies"] == BODIES["retention"]
    for name, _ in OF_NAMESPACES:
        path = f"{NAMESPACE}/{name}"
        if name == "encryptionRequired":
            await rest.ok("POST", path, False)
        else:
            await rest.ok("DELETE", path)
            assert await rest.ok("GET", path) is None, name


async def test_every_policy_of_a_topic_is_set_shown_and_removed(rest: Rest) -> None:
    client = await WireClient.open(rest.broker.port)
    await client.produce(TOPIC)
    for name, body in OF_TOPICS:
        path = f"{OF_TOPIC}/{name}"
        assert await rest.ok("GET", path) is None, name
        if name in QUERIES:
            await rest.ok("POST", f"{path}?{name}={body}")
        else:
            await rest.ok("POST", path, body)
        assert await rest.ok("GET", path) == body, name
    assert len((await rest.broker.services.policies.own(parse_topic_name(TOPIC))).model_fields_set)
    await rest.ok("DELETE", f"{OF_TOPIC}/maxProducers")
    assert await rest.ok("GET", f"{OF_TOPIC}/maxProducers") is None
    await rest.ok("DELETE", f"{OF_TOPIC}/policies")
    for name, _ in OF_TOPICS:
        assert await rest.ok("GET", f"{OF_TOPIC}/{name}") is None, name
    await client.close()


async def test_what_is_applied_comes_from_the_namespace_then_from_the_broker(rest: Rest) -> None:
    client = await WireClient.open(rest.broker.port)
    await client.produce(TOPIC)
    path = f"{OF_TOPIC}/maxUnackedMessagesOnConsumer"
    assert await rest.ok("GET", f"{path}?applied=true") == 50_000
    await rest.ok("POST", f"{NAMESPACE}/maxUnackedMessagesPerConsumer", 9)
    assert await rest.ok("GET", f"{path}?applied=true") == 9
    await rest.ok("POST", path, 3)
    assert await rest.ok("GET", f"{path}?applied=true") == 3
    assert rest.broker.services.topics.loaded[0].policies.max_unacked_per_consumer == 3
    for name, _ in OF_TOPICS:  # each has an answer, or none, and never a failure
        await rest.ok("GET", f"{OF_TOPIC}/{name}?applied=true")
    await client.close()


async def test_backlog_quotas_are_kept_by_their_kind(rest: Rest) -> None:
    client = await WireClient.open(rest.broker.port)
    await client.produce(TOPIC)
    size = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    age = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    for path in (NAMESPACE, OF_TOPIC):
        assert await rest.ok("GET", f"{path}/backlogQuotaMap") == {}
        await rest.ok("POST", f"{path}/backlogQuota", size)
        await rest.ok("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", age)
        found = await rest.ok("GET", f"{path}/backlogQuotaMap")
        assert found == {"destination_storage": size, "message_age": age}
        await rest.ok("DELETE", f"{path}/backlogQuota")
        assert await rest.ok("GET", f"{path}/backlogQuotaMap") == {"message_age": age}
    await client.close()


async def test_each_subscription_of_a_topic_can_have_a_rate_of_its_own(rest: Rest) -> None:
    client = await WireClient.open(rest.broker.port)
    await client.produce(TOPIC)
    path = f"{OF_TOPIC}/slow/dispatchRate"
    assert await rest.ok("GET", path) is None
    await rest.ok("POST", path, RATE)
    assert await rest.ok("GET", path) == RATE
    topic = rest.broker.services.topics.loaded[0]
    assert topic.policies.dispatch_rate_of("slow").messages == 10
    assert topic.policies.dispatch_rate_of("other") == DispatchRate()
    await rest.ok("DELETE", path)
    assert await rest.ok("GET", path) is None
    await client.close()


NO_SENSE: list[tuple[str, object, int]] = [
    ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0}, 412),
    ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": -2}, 412),
    ("retention", [], 400),
    ("messageTTL", -1, 412),
    ("messageTTL", "x", 400),
    ("messageTTL", 1.5, 400),
    (
        "persistence",
        {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1},
        400,
    ),
    ("persistence", {"managedLedgerMaxMarkDeleteRate": float("nan")}, 400),
    ("persistence", {"managedLedgerMaxMarkDeleteRate": float("inf")}, 400),
    ("publishRate", {"publishThrottlingRateInMsg": 10**400}, 400),
    ("maxProducersPerTopic", -1, 412),
    ("maxProducersPerTopic", 1 << 63, 412),
    ("deduplication", "yes", 400),
    ("subscriptionTypesEnabled", ["Odd"], 400),
    ("autoTopicCreation", {"allowAutoTopicCreation": True}, 412),
    (
        "autoTopicCreation",
        {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 0,
        },
        412,
    ),
    ("dispatchRate", {"ratePeriodInSecond": 0}, 412),
    ("delayedDelivery", {"active": True, "tickTime": 0}, 412),
    ("inactiveTopicPolicies", {"maxInactiveDurationSeconds": 0}, 412),
    ("backlogQuota", {"limitSize": 1}, 412),
    (
        "backlogQuota?backlogQuotaType=odd",
        {"limitSize": 1, "policy": "producer_exception"},
        412,
    ),
]


async def test_values_that_make_no_sense_are_refused_and_change_nothing(rest: Rest) -> None:
    before = await rest.ok("GET", NAMESPACE)
    for path, body, status in NO_SENSE:
        answered = await rest.refused("POST", f"{NAMESPACE}/{path}", body)
        assert answered == status, (path, body)
    assert await rest.ok("GET", NAMESPACE) == before


async def test_a_quota_that_retention_leaves_no_room_for_is_refused(rest: Rest) -> None:
    quota = {"limitSize": 2 << 20, "policy": "producer_exception"}
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1}
    await rest.ok("POST", f"{NAMESPACE}/retention", retention)
    assert await rest.refused("POST", f"{NAMESPACE}/backlogQuota", quota) == 412
    await rest.ok("DELETE", f"{NAMESPACE}/retention")
    await rest.ok("POST", f"{NAMESPACE}/backlogQuota", quota)
    assert await rest.refused("POST", f"{NAMESPACE}/retention", retention) == 412


async def test_policies_of_what_does_not_exist_are_refused(rest: Rest) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert await rest.refused(method, "/namespaces/public/no/maxProducersPerTopic", 1) == 404
        assert await rest.refused(method, "/persistent/public/no/topic/maxProducers", 1) == 404
        assert await rest.refused(method, f"{OF_TOPIC}-missing/maxProducers", 1) == 404
        assert await rest.refused(method, f"{OF_TOPIC}-partition-0/maxProducers", 1) == 405
