"""Several broker processes: lookups agree, bundles move and split, who joins gets a part."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pulsar
import pytest

from magnetar.broker.cluster.balance.bundles import Layout
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests import http_calls
from tests.http_calls import Answer
from tests.integration.broker.websocket.sockets import Topic, status_of
from tests.integration.broker.wire_client import WireClient
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Two brokers that move nothing by themselves."""
    with RealCluster(
        tmp_path_factory.mktemp("balance") / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            "MAGNETAR_BROKER_BUNDLE_AUTO_SPLIT": "false",
            "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "200",
            # In so short a sample the first HTTP request alone uses up a core, and a broker without
            # a core to spare is given nothing: judge by the bundles alone.
            "MAGNETAR_BROKER_LOAD_CPU_CORES": "100",
            "MAGNETAR_BROKER_FORCE_DELETE_NAMESPACE": "true",
        },
    ) as started:
        yield started


def call(cluster: RealCluster, broker: str, method: str, path: str, body: object = None) -> Answer:
    """One request to one broker; redirects are answers, too."""
    return http_calls.call(cluster.http_url(broker), method, path, body)


def follow(cluster: RealCluster, broker: str, method: str, path: str) -> Answer:
    """Send a request as a client does: to the broker that a redirect names."""
    for _ in range(5):
        answer = call(cluster, broker, method, path)
        if answer.status != 307:
            return answer
        location = answer.headers["location"]
        broker = next(
            name for name in brokers_of(cluster) if location.startswith(cluster.http_url(name))
        )
        path = location.removeprefix(cluster.http_url(broker))
    raise AssertionError(f"redirected in circles: {path}")


def brokers_of(cluster: RealCluster) -> list[str]:
    return [name for name in cluster.names if name.startswith("broker-")]


def lookup(cluster: RealCluster, broker: str, topic: str) -> str:
    """Name of the broker that a lookup at `broker` ends at."""
    path = f"/lookup/v2/topic/persistent/public/default/{topic}"
    found = follow(cluster, broker, "GET", path)
    assert found.status == 200, found
    return next(
        name for name in brokers_of(cluster) if cluster.url(name) == found.json["brokerUrl"]
    )


def owners(
    cluster: RealCluster, broker: str = "broker-1", namespace: str = "public/default"
) -> dict[str, str | None]:
    """The owner of each bundle."""
    found = call(cluster, broker, "GET", f"/magnetar/v1/namespaces/{namespace}/bundles")
    return {each["bundle"]: each["broker"] for each in found.json}


def spread(cluster: RealCluster, namespace: str, topics: Sequence[str]) -> None:
    """Have the topics at both brokers; where bundles go depends on what those have already."""
    used = {bundle_of(cluster, topic, namespace) for topic in topics}
    found = owners(cluster, namespace=namespace)
    owned = {bundle: owner for bundle, owner in found.items() if bundle in used}
    assert len(owned) >= 2, found
    if len(set(owned.values())) == 1:
        bundle, source = next(iter(owned.items()))
        (destination,) = set(brokers_of(cluster)) - {source}
        path = f"/admin/v2/namespaces/{namespace}/{bundle}/unload?destinationBroker={destination}"
        assert follow(cluster, "broker-1", "PUT", path).status == 204


def bundle_of(cluster: RealCluster, topic: str, namespace: str = "public/default") -> str:
    path = f"/lookup/v2/topic/persistent/{namespace}/{topic}/bundle"
    return call(cluster, "broker-1", "GET", path).text


def topics_in_each_bundle(prefix: str, *, bundles: int = 4, each: int = 1) -> list[str]:
    """So many topics for each bundle of a new namespace, one bundle after the other."""
    layout = Layout.even(bundles)
    chosen: dict[str, list[str]] = {bundle.name: [] for bundle in layout.bundles}
    number = 0
    while any(len(names) < each for names in chosen.values()):
        name = f"{prefix}-{number}"
        chosen[layout.bundle_of(parse_topic_name(name)).name].append(name)
        number += 1
    return [name for names in chosen.values() for name in names[:each]]


def test_lookups_by_http_and_by_the_binary_protocol_agree_at_every_broker(
    cluster: RealCluster,
) -> None:
    found: dict[str, str] = {}
    for topic in topics_in_each_bundle("agree"):
        by_http = {lookup(cluster, broker, topic) for broker in brokers_of(cluster)}
        assert len(by_http) == 1
        (found[topic],) = by_http
    # Two brokers, four bundles with nothing in them: each has two.
    assert sorted(found.values()) == ["broker-1", "broker-1", "broker-2", "broker-2"]
    for broker in brokers_of(cluster):
        client = pulsar.Client(cluster.url(broker), operation_timeout_seconds=30)
        for topic, owner in found.items():
            with_producer = client.create_producer(topic)
            with_producer.send(broker.encode())
            report = call(cluster, owner, "GET", "/admin/v2/broker-stats/load-report").json
            bundle = f"public/default/{bundle_of(cluster, topic)}"
            assert report["lastStats"][bundle]["producerCount"] == 1
            with_producer.close()
        client.close()


def test_a_client_with_an_http_url_is_led_to_the_owner(cluster: RealCluster) -> None:
    client = pulsar.Client(cluster.http_url("broker-1"), operation_timeout_seconds=30)
    for topic in topics_in_each_bundle("by-http"):
        producer = client.create_producer(topic)
        producer.send(b"one")
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(timeout_millis=30_000).data() == b"one"
    client.close()


async def test_websocket_clients_may_ask_any_broker(cluster: RealCluster) -> None:
    for name in topics_in_each_bundle("by-websocket"):
        owner = await asyncio.to_thread(lookup, cluster, "broker-1", name)
        (other,) = set(brokers_of(cluster)) - {owner}
        here, there = (
            Topic(cluster.server(broker).ports["http"], f"public/default/{name}")
            for broker in (owner, other)
        )
        async with here.consumer() as consumer, there.producer() as producer:
            await producer.publish_ok("across")
            assert await consumer.payload() == "across"
        async with there.consumer(subscription="t") as consumer, here.producer() as producer:
            await producer.publish_ok("back")
            assert await consumer.payload() == "back"
            assert await status_of(here.consumer(subscription="t")) == 409


def test_who_is_not_the_owner_redirects_with_method_and_query_kept(cluster: RealCluster) -> None:
    (topic, *_) = topics_in_each_bundle("redirect")
    owner = lookup(cluster, "broker-1", topic)
    (other,) = set(brokers_of(cluster)) - {owner}
    bundle = bundle_of(cluster, topic)
    for path in (
        f"{NAMESPACE}/{bundle}/unload?destinationBroker={other}",
        f"{NAMESPACE}/{bundle}/split",
    ):
        answer = call(cluster, other, "PUT", path)
        assert answer.status == 307
        assert answer.headers["location"].startswith(cluster.http_url(owner) + path.split("?")[0])
        assert "authoritative=true" in answer.headers["location"]
        assert ("destinationBroker=" in path) == (
            f"destinationBroker={other}" in answer.headers["location"]
        )


def test_what_only_the_owner_knows_of_a_topic_is_asked_there(cluster: RealCluster) -> None:
    topic = topics_in_each_bundle("owned")[0]
    base = f"/admin/v2/persistent/public/default/{topic}"
    assert call(cluster, "broker-1", "PUT", base).status == 204
    owner = lookup(cluster, "broker-1", topic)
    (other,) = set(brokers_of(cluster)) - {owner}
    for path in ("stats", "internalStats", "lastMessageId", "messageid/0", "internal-info"):
        answer = call(cluster, other, "GET", f"{base}/{path}")
        assert answer.status == 307, (path, answer)
        assert answer.headers["location"].startswith(f"{cluster.http_url(owner)}{base}/{path}?")
        assert follow(cluster, other, "GET", f"{base}/{path}").status == 200
    assert follow(cluster, other, "GET", f"{base}/stats").json["ownerBroker"] in (
        cluster.http_url(owner)
    )


def test_topics_that_keep_nothing_are_listed_wherever_they_are(cluster: RealCluster) -> None:
    names = topics_in_each_bundle("passing")
    base = "/admin/v2/non-persistent/public/default"
    for name in names:
        assert follow(cluster, "broker-1", "PUT", f"{base}/{name}").status == 204
    wanted = {f"non-persistent://public/default/{name}" for name in names}
    for broker in brokers_of(cluster):
        assert wanted <= set(call(cluster, broker, "GET", base).json)


def test_an_unloaded_bundle_is_where_it_was_sent_and_its_clients_follow(
    cluster: RealCluster,
) -> None:
    (_, topic, *_) = topics_in_each_bundle("moving")
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=20)
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    bundle = bundle_of(cluster, topic)
    for number in range(4):
        source = owners(cluster)[bundle]
        (destination,) = set(brokers_of(cluster)) - {source}
        producer.send(f"{number} before".encode())
        path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={destination}"
        assert follow(cluster, "broker-1", "PUT", path).status == 204
        producer.send(f"{number} after".encode())
        assert owners(cluster)[bundle] == destination
        for when in ("before", "after"):
            message = reader.read_next(timeout_millis=20_000)
            assert message.data() == f"{number} {when}".encode()
    client.close()


def test_a_bundle_without_clients_goes_where_it_is_sent(cluster: RealCluster) -> None:
    """No client connects to the destination, and the leader chooses no other broker."""
    (topic, *_) = topics_in_each_bundle("without")
    bundle = bundle_of(cluster, topic)
    path = f"{NAMESPACE}/{bundle}/unload"
    lookup(cluster, "broker-1", topic)
    for destination in 2 * brokers_of(cluster):
        if owners(cluster)[bundle] != destination:
            answer = follow(cluster, "broker-1", "PUT", f"{path}?destinationBroker={destination}")
            assert answer.status == 204
        assert owners(cluster)[bundle] == destination
        assert lookup(cluster, "broker-1", topic) == destination


def test_an_unload_to_nowhere_is_refused_and_moves_nothing(cluster: RealCluster) -> None:
    (topic, *_) = topics_in_each_bundle("nowhere")
    owner = lookup(cluster, "broker-1", topic)
    bundle = bundle_of(cluster, topic)
    for destination in ("broker-9", owner):
        path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={destination}"
        answer = call(cluster, owner, "PUT", path)
        assert answer.status == 412
        assert destination in answer.json["reason"]
    assert owners(cluster)[bundle] == owner


def test_a_namespace_is_unloaded_at_all_brokers(cluster: RealCluster) -> None:
    topics = topics_in_each_bundle("all")
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=20)
    producers = {topic: client.create_producer(topic) for topic in topics}
    assert call(cluster, "broker-2", "PUT", f"{NAMESPACE}/unload").status == 204
    for producer in producers.values():
        producer.send(b"again")
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(timeout_millis=20_000).data() == b"again"
    client.close()


def test_a_split_is_seen_by_every_broker_and_by_no_client(cluster: RealCluster) -> None:
    (*_, topic) = topics_in_each_bundle("split")
    bundle = bundle_of(cluster, topic)
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=20)
    producer = client.create_producer(topic)
    producer.send(b"before")
    owner = owners(cluster)[bundle]
    assert owner is not None
    closed = cluster.log_text(owner).count("topic_closed")
    assert follow(cluster, "broker-1", "PUT", f"{NAMESPACE}/{bundle}/split").status == 204
    producer.send(b"after")
    assert cluster.log_text(owner).count("topic_closed") == closed
    for broker in brokers_of(cluster):
        wait_until(
            lambda broker=broker: bundle not in owners(cluster, broker),  # type: ignore[misc]
            f"{broker} knows of the split",
        )
        assert lookup(cluster, broker, topic) == owner
    halves = [each for each in owners(cluster) if each not in {bundle}]
    half = bundle_of(cluster, topic)
    assert half in halves
    # Only now a half moves, by a lease of its own (RULE 11.1).
    (other,) = set(brokers_of(cluster)) - {owner}
    path = f"{NAMESPACE}/{half}/unload?destinationBroker={other}"
    assert follow(cluster, "broker-1", "PUT", path).status == 204
    producer.send(b"elsewhere")
    assert owners(cluster)[half] == other
    client.close()


def test_a_bundle_that_nobody_has_is_split_by_whoever_is_chosen(cluster: RealCluster) -> None:
    assert call(cluster, "broker-1", "PUT", f"{NAMESPACE}/unload").status == 204
    free = [bundle for bundle, owner in owners(cluster).items() if owner is None]
    assert free
    for bundle, asked in zip(free, brokers_of(cluster) * len(free), strict=False):
        assert follow(cluster, asked, "PUT", f"{NAMESPACE}/{bundle}/split").status == 204
    for broker in brokers_of(cluster):
        wait_until(
            lambda broker=broker: not set(free) & owners(cluster, broker).keys(),  # type: ignore[misc]
            f"{broker} knows of the splits",
        )


def test_a_request_about_all_partitions_gives_away_those_that_nobody_has(
    cluster: RealCluster,
) -> None:
    for broker in brokers_of(cluster):  # one of them leads
        namespace = f"public/fresh-{broker}"
        topic = f"/admin/v2/persistent/{namespace}/whole"
        assert call(cluster, broker, "PUT", f"/admin/v2/namespaces/{namespace}").status == 204
        assert call(cluster, broker, "PUT", f"{topic}/partitions", 16).status == 204
        assert not any(owners(cluster, broker, namespace).values())
        answer = call(cluster, broker, "PUT", f"{topic}/subscription/s")
        assert answer.status == 204, answer
        assert all(owners(cluster, broker, namespace).values())
        parts = call(cluster, broker, "GET", f"{topic}/partitioned-stats").json["partitions"]
        assert [list(each["subscriptions"]) for each in parts.values()] == [["s"]] * 16


def test_policies_and_a_forced_deletion_reach_the_topics_of_every_broker(
    cluster: RealCluster,
) -> None:
    namespace = "/admin/v2/namespaces/public/shared"

    def done(broker: str, method: str, path: str, body: object = None) -> None:
        answer = call(cluster, broker, method, path, body)
        assert answer.status == 204, answer

    done("broker-1", "PUT", namespace)
    topics = [f"persistent://public/shared/topic-{number}" for number in range(8)]
    client = pulsar.Client(cluster.url("broker-2"))
    producers = [client.create_producer(topic) for topic in topics]
    spread(cluster, "public/shared", [topic.rpartition("/")[2] for topic in topics])
    for producer in producers:
        producer.send(b"there again, if it moved")
    done("broker-1", "POST", f"{namespace}/maxProducersPerTopic", 1)

    def refused() -> int:
        count = 0
        for topic in topics:
            try:
                client.create_producer(topic).close()
            except pulsar.ProducerBusy:
                count += 1
        return count

    wait_until(lambda: refused() == len(topics), "no topic takes another producer")
    assert len({each for each in owners(cluster, namespace="public/shared").values() if each}) == 2
    for producer in producers:
        producer.close()
    assert call(cluster, "broker-2", "DELETE", namespace).status == 409
    done("broker-2", "DELETE", f"{namespace}?force=true")
    for broker in brokers_of(cluster):
        assert call(cluster, broker, "GET", namespace).status == 404
    with pytest.raises(pulsar.exceptions.TopicNotFound):
        client.create_producer(topics[0])
    done("broker-1", "PUT", namespace, {"bundles": {"numBundles": 2}})  # cut in another way
    for topic in topics:
        client.create_producer(topic).close()
    assert len(owners(cluster, "broker-2", "public/shared")) == 2
    client.close()


def test_a_broker_that_joins_gets_its_part_and_then_nothing_moves(tmp_path: Path) -> None:
    environment = {
        "MAGNETAR_BROKER_BUNDLES_PER_NAMESPACE": "8",
        "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "100",
        "MAGNETAR_BROKER_SHEDDING_INTERVAL_MS": "300",
        "MAGNETAR_BROKER_SHEDDING_TOPICS_MIN": "4",
        "MAGNETAR_BROKER_SHEDDING_MOVES_MAX": "2",
        # The machine that tests run on is busy with other things: judge by the bundles alone.
        "MAGNETAR_BROKER_LOAD_CPU_CORES": "100",
        "MAGNETAR_BROKER_SHEDDING_USAGE_PERCENT_MIN": "100",
        "MAGNETAR_BROKER_SHEDDING_USAGE_PERCENT_MAX": "100",
        # In a tenth of a second one broker publishes and the other does not.
        "MAGNETAR_BROKER_BUNDLE_MSG_RATE_MAX": "1e9",
        # However long the disk takes: what is not answered when its topic moves is there twice.
        "MAGNETAR_BROKER_PUBLISH_DRAIN_TIMEOUT_MS": "15000",
    }
    cluster = RealCluster(tmp_path / "cluster", bookies=1, brokers=2, environment=environment)
    cluster.directory.joinpath("logs").mkdir(parents=True)
    try:
        for name in ("zookeeper-1", "bookie-1", "broker-1"):
            cluster.start(name)
        check_that_a_joining_broker_gets_its_part(cluster)
    finally:
        cluster.kill_all()


def check_that_a_joining_broker_gets_its_part(cluster: RealCluster) -> None:
    topics = topics_in_each_bundle("joined", bundles=8, each=2)
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=30)
    producers = [client.create_producer(topic) for topic in topics]
    for producer in producers:
        producer.send(b"0")
    assert set(owners(cluster).values()) == {"broker-1"}
    cluster.start("broker-2")
    rounds = 0

    def publish_and_compare() -> bool:
        nonlocal rounds
        rounds += 1
        for producer in producers:
            producer.send(str(rounds).encode())
        return loaded(cluster) == [4, 4]

    wait_until(publish_and_compare, "both brokers have four bundles", within_s=90)
    settled = owners(cluster)
    for _ in range(4):  # Some looks of the leader later nothing has moved.
        publish_and_compare()
        time.sleep(0.3)
    assert owners(cluster) == settled
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        read = [reader.read_next(timeout_millis=20_000).data() for _ in range(rounds + 1)]
        assert read == [str(each).encode() for each in range(rounds + 1)]
        reader.close()
    client.close()


def loaded(cluster: RealCluster) -> list[int]:
    """How many bundles each broker has."""
    held = list(owners(cluster).values())
    return [held.count(name) for name in brokers_of(cluster)]


def test_a_partitioned_topic_is_managed_through_any_broker(cluster: RealCluster) -> None:
    path = "/admin/v2/persistent/public/default/spread"
    assert call(cluster, "broker-1", "PUT", f"{path}/partitions", 8).status == 204
    for index in range(8):
        lookup(cluster, brokers_of(cluster)[index % 2], f"spread-partition-{index}")
    partitions = [f"spread-partition-{index}" for index in range(8)]
    spread(cluster, "public/default", partitions)
    served = {lookup(cluster, "broker-1", partition) for partition in partitions}
    assert len(served) == 2, "the partitions are to be at both brokers"
    assert call(cluster, "broker-2", "GET", f"{path}/partitions").json["partitions"] == 8
    assert call(cluster, "broker-2", "PUT", f"{path}/unload").status == 204
    ended = call(cluster, "broker-1", "POST", f"{path}/terminate/partitions")
    assert (ended.status, len(ended.json)) == (200, 8), ended
    assert call(cluster, "broker-2", "DELETE", f"{path}/partitions?force=true").status == 204
    listed = call(cluster, "broker-1", "GET", "/admin/v2/persistent/public/default").json
    assert not [each for each in listed if "spread" in each]


async def connected(cluster: RealCluster, broker: str) -> WireClient:
    host, _, port = cluster.url(broker).removeprefix("pulsar://").partition(":")
    return await WireClient.open(int(port), host=host)


async def test_a_topic_is_told_to_those_who_watch_at_the_other_broker(
    cluster: RealCluster,
) -> None:
    makers, watchers = [await connected(cluster, name) for name in ("broker-1", "broker-2")]
    watchers.send(
        BaseCommand.WATCH_TOPIC_LIST,
        watchTopicList=pb.CommandWatchTopicList(
            request_id=1,
            watcher_id=1,
            namespace="public/default",
            topics_pattern="public/default/watched-.*",
        ),
    )
    answer = await watchers.next(BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    assert not answer.watchTopicListSuccess.topic
    names = [f"watched-{number}" for number in range(20)]
    owners_of = await asyncio.to_thread(
        lambda: {name: lookup(cluster, "broker-1", name) for name in names}
    )
    owned = next(name for name in names if owners_of[name] == "broker-1")
    await makers.produce(f"persistent://public/default/{owned}")
    update = (await watchers.next(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    assert list(update.new_topics) == [f"persistent://public/default/{owned}"]
    for client in (makers, watchers):
        await client.close()
