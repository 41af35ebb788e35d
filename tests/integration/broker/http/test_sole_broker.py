"""The HTTP interface of a broker that is alone, as Pulsar's tools and clients use it."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.cluster.balance.bundles import Layout
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.topic import Topic
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire.pulsar_pb2 import CommandSubscribe
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

LOOKUP = "/lookup/v2/topic/persistent/public/default"
NAMESPACE = "/admin/v2/namespaces/public/default"
TOPICS = "/admin/v2/persistent/public/default"
HELD = Layout.even(4).bundle_of(parse_topic_name(TOPIC)).name


async def test_a_lookup_answers_the_broker_itself(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        answer = await ask(broker.http_port, "GET", f"{LOOKUP}/topic")
        assert answer.status == 200
        assert answer.json == {
            "brokerUrl": broker.service_url,
            "brokerUrlTls": "",
            "httpUrl": broker.http_url,
            "httpUrlTls": "",
            "nativeUrl": broker.service_url,
        }
        assert (
            await ask(broker.http_port, "GET", f"{LOOKUP}/topic?listenerName=outside")
        ).status == 412
        bundle = await ask(broker.http_port, "GET", f"{LOOKUP}/topic/bundle")
        assert (bundle.status, bundle.text) == (200, HELD)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/lookup/v2/topic/persistent/public/nowhere/topic", 404),
        ("/lookup/v2/topic/volatile/public/default/topic", 412),
        ("/admin/v2/namespaces/public/nowhere/bundles", 404),
        ("/admin/v2/namespaces/public/default/topics?mode=SOME", 400),
        (f"{TOPICS}/missing/partitions", 404),
        ("/admin/v2/brokers/elsewhere", 404),
        ("/admin/v2/schemas/public/default/topic/schema", 404),
    ],
)
async def test_what_is_refused_says_why(path: str, status: int, tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        answer = await ask(broker.http_port, "GET", path)
        assert answer.status == status
        assert answer.json["reason"]


async def test_a_namespace_shows_its_bundles_and_topics(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        assert (await ask(broker.http_port, "GET", f"{NAMESPACE}/bundles")).json == {
            "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
            "numBundles": 4,
        }
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        assert (await ask(broker.http_port, "GET", f"{NAMESPACE}/topics")).json == [TOPIC]
        assert (
            await ask(broker.http_port, "GET", f"{NAMESPACE}/topics?mode=NON_PERSISTENT")
        ).json == []
        assert (await ask(broker.http_port, "GET", TOPICS)).json == [TOPIC]
        held = await ask(broker.http_port, "GET", f"{TOPICS}?bundle={HELD}")
        assert held.json == [TOPIC]
        other = await ask(broker.http_port, "GET", f"{TOPICS}?bundle=0x00000000_0x40000000")
        assert other.json == []
        partitions = await ask(broker.http_port, "GET", f"{TOPICS}/topic/partitions")
        assert partitions.json == {"partitions": 0, "deleted": False}
        missing = f"{TOPICS}/missing/partitions?checkAllowAutoCreation=true"
        assert (await ask(broker.http_port, "GET", missing)).json["partitions"] == 0
        await client.close()


async def test_the_broker_shows_itself(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "GET", "/admin/v2/brokers")).json == [f"127.0.0.1:{port}"]
        assert (await ask(port, "GET", "/admin/v2/brokers/standalone")).json == [
            f"127.0.0.1:{port}"
        ]
        assert (await ask(port, "GET", "/admin/v2/brokers/leaderBroker")).json == {
            "serviceUrl": broker.http_url,
            "brokerId": f"127.0.0.1:{port}",
        }
        for path in ("health", "ready"):
            assert (await ask(port, "GET", f"/admin/v2/brokers/{path}")).text == "ok"
        owned = f"/admin/v2/brokers/standalone/127.0.0.1:{port}/ownedNamespaces"
        assert len((await ask(port, "GET", owned)).json) == 4
        (known,) = (await ask(port, "GET", "/magnetar/v1/brokers")).json
        assert known["is_leader"]
        assert known["is_self"]
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        report = (await ask(port, "GET", "/admin/v2/broker-stats/load-report")).json
        assert report["numTopics"] == 1
        assert report["lastStats"][f"public/default/{HELD}"]["producerCount"] == 1
        await client.close()


@pytest.mark.parametrize(
    "path",
    [f"{NAMESPACE}/unload", f"{NAMESPACE}/{HELD}/unload", f"{TOPICS}/topic/unload"],
)
async def test_an_unload_closes_topics_and_their_clients_look_again(
    path: str, tmp_path: Path
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        assert (await ask(broker.http_port, "PUT", path)).status == 204
        assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
        await client.close()


async def test_a_split_divides_the_topics_and_no_client_notices(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        whole = f"{NAMESPACE}/{HELD}"
        assert (await ask(port, "PUT", f"{whole}/split")).status == 204
        assert "0x60000000" in (await ask(port, "GET", f"{NAMESPACE}/bundles")).json["boundaries"]
        gone = await ask(port, "PUT", f"{whole}/split")
        assert gone.status == 412
        assert "no bundle" in gone.json["reason"]
        at = await ask(
            port,
            "PUT",
            f"{NAMESPACE}/0x00000000_0x40000000/split?splitAlgorithmName=specified_positions_divide",
            [0x10000000, 0x20000000],
        )
        assert at.status == 204
        assert (await ask(port, "GET", f"{NAMESPACE}/bundles")).json["numBundles"] == 7
        await client.publish_ok(0, b"still here")
        await client.close()


async def test_a_bundle_of_less_than_two_topics_is_not_divided_by_its_topics(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        path = f"{NAMESPACE}/{HELD}/split"
        by = "splitAlgorithmName=topic_count_equally_divide"
        answer = await ask(broker.http_port, "PUT", f"{path}?{by}")
        assert answer.status == 412
        unknown = await ask(broker.http_port, "PUT", f"{path}?splitAlgorithmName=by_magic")
        assert "by_magic" in unknown.json["reason"]
        outside = await ask(broker.http_port, "PUT", path, [5])
        assert "not inside" in outside.json["reason"]


async def test_a_topic_tells_what_it_does_and_why_it_does_nothing(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.subscribe(
            TOPIC, subType=CommandSubscribe.Key_Shared, consumer_name="c", subscription="s"
        )
        await client.publish_ok(0, b"body")
        stats = (await ask(broker.http_port, "GET", f"{TOPICS}/topic/stats")).json
        assert (stats["msgInCounter"], stats["msgOutCounter"]) == (1, 0)
        (producer,) = stats["publishers"]
        assert producer["producerId"] == 0
        subscription = stats["subscriptions"]["s"]
        assert subscription["type"] == "Key_Shared"
        assert subscription["keySharedMode"] == "AUTO_SPLIT"
        assert (subscription["msgBacklog"], subscription["unackedMessages"]) == (1, 0)
        assert subscription["whyIdle"] == "no_permits"
        assert "queues are full" in subscription["whyIdleText"]
        (consumer,) = subscription["consumers"]
        assert consumer["consumerName"] == "c"
        assert consumer["keyHashRangeArrays"] == [[1, 65535]]
        client.flow(10)
        await client.next(BaseCommand.MESSAGE)
        stats = (await ask(broker.http_port, "GET", f"{TOPICS}/topic/stats")).json
        assert stats["msgOutCounter"] == 1
        assert stats["bytesOutCounter"] > 0
        assert stats["subscriptions"]["s"]["whyIdle"] == "nothing_new"
        await client.close()


async def test_a_topic_that_does_not_exist_has_no_statistics(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        assert (await ask(broker.http_port, "GET", f"{TOPICS}/missing/stats")).status == 404
        assert (await ask(broker.http_port, "GET", TOPICS)).json == []


async def test_the_statistics_of_many_topics_are_not_made_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        for number in range(120):
            name = parse_topic_name(f"non-persistent://public/default/topic-{number}")
            await broker.services.topics.get(name)
        turns = Counter[int]()
        turn = 0

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def counted(topic: Topic, **said: Any) -> dict[str, Any]:
            turns[turn] += 1
            return topic_stats(topic, **said)

        monkeypatch.setattr("magnetar.broker.http.brokers.topic_stats", counted)
        counting = asyncio.create_task(count_turns())
        answer = await ask(broker.http_port, "GET", "/admin/v2/broker-stats/topics")
        counting.cancel()
        shown = answer.json["public/default"].values()
        assert sum(len(bundle["non-persistent"]) for bundle in shown) == 120
        assert max(turns.values()) <= 50


async def test_the_metadata_store_and_the_disks_of_bookies_are_shown(tmp_path: Path) -> None:
    async with cluster_of(2, tmp_path) as cluster, broker_on(cluster) as broker:
        found = (await ask(broker.http_port, "GET", "/magnetar/v1/metadata")).ok()
        assert (found["kind"], found["state"]) == ("embedded", "connected")
        assert (found["times_suspended"], found["times_expired"]) == (0, 0)
        calls = found["calls"]
        assert calls["reads"] > 0
        assert calls["writes"] > 0
        assert 0 < calls["median_ms"] <= calls["p99_ms"] <= calls["longest_ms"]
        first, second = (await ask(broker.http_port, "GET", "/magnetar/v1/bookies/disks")).ok()
        assert (first["writable"], first["problem"]) == (True, "")
        assert [each["use"] for each in first["directories"]] == ["bookie", "journal", "ledgers"]
        assert first["directories"][2]["level"] in ("free", "almost full", "full")
        assert first["id"] < second["id"]
