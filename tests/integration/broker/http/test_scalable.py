"""Scalable topics over HTTP, on real bookies."""

from pathlib import Path

from magnetar.broker.base import naming
from magnetar.sdk.wire import parse_topic_name
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

TOPICS = "/admin/v2/scalable/public/default"
PATH = f"{TOPICS}/t"
PLAIN = "/admin/v2/persistent/public/default/t"
ROOT = "segment://public/default/t/0000-ffff-0"


async def test_a_topic_is_created_split_merged_shown_and_deleted(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PATH, {"team": "a"})).status == 204
        assert (await ask(port, "PUT", PATH)).status == 409
        assert (await ask(port, "PUT", f"{TOPICS}/x-partition-1")).status == 412
        assert (await ask(port, "GET", TOPICS)).json == ["topic://public/default/t"]
        assert (await ask(port, "GET", f"{TOPICS}?property=team=b")).json == []
        assert len((await ask(port, "GET", f"{TOPICS}?property=team=a")).json) == 1
        assert (await ask(port, "POST", f"{PATH}/split/0?at=256")).status == 204
        assert (await ask(port, "POST", f"{PATH}/split/0")).status == 412
        shown = (await ask(port, "GET", PATH)).json
        assert (shown["epoch"], shown["nextSegmentId"], shown["properties"]) == (
            2,
            3,
            {"team": "a"},
        )
        assert shown["segments"]["0"] == {
            "segmentId": 0,
            "hashRange": {"start": 0, "end": 65535},
            "state": "SEALED",
            "parentIds": [],
            "childIds": [1, 2],
            "createdAtEpoch": 1,
            "sealedAtEpoch": 2,
        }
        assert shown["segments"]["1"]["hashRange"] == {"start": 0, "end": 255}
        assert (await ask(port, "POST", f"{PATH}/merge/2/1")).status == 204
        assert (await ask(port, "DELETE", PATH)).status == 204
        assert (await ask(port, "GET", PATH)).status == 404
        assert (await ask(port, "GET", TOPICS)).json == []


async def test_one_name_is_of_one_kind(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PLAIN)).status == 204
        assert (await ask(port, "PUT", PATH)).status == 409
        assert (await ask(port, "PUT", f"{TOPICS}/other")).status == 204
        assert (await ask(port, "GET", TOPICS)).json == ["topic://public/default/other"]


async def test_statistics_are_those_of_all_segments(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PATH)).status == 204
        client = await WireClient.open(broker.port)
        await client.subscribe(ROOT)
        await client.produce(ROOT)
        for number in range(3):
            await client.publish_ok(number)
        assert (await ask(port, "POST", f"{PATH}/split/0")).status == 204
        stats = (await ask(port, "GET", f"{PATH}/stats")).json
        assert stats["layout"]["epoch"] == 2
        assert [each["state"] for each in stats["layout"]["segments"].values()] == [
            "SEALED",
            "ACTIVE",
            "ACTIVE",
        ]
        assert stats["layout"]["states"] == {"ACTIVE": 2, "SEALED": 1}
        assert (stats["layout"]["splits"], stats["layout"]["merges"]) == (1, 0)
        last = stats["layout"]["lastOperation"]
        assert (last["operation"], last["segmentIds"]) == ("SPLIT", [0])
        assert 0 <= last["stalledMs"] <= last["tookMs"] + 1
        assert stats["autoScale"]["policy"]["maxSegments"] == 64
        assert stats["autoScale"]["lastSplitAt"] == last["at"]
        assert stats["storageSize"] > 0
        page = (await ask(port, "GET", "/metrics")).text
        for line in (
            "magnetar_broker_segment_splits_total 1.0",
            "magnetar_broker_segment_change_age_seconds 0.0",
            'magnetar_broker_segments{state="active"} 2.0',
            'magnetar_broker_segments{state="sealed"} 1.0',
        ):
            assert line in page
        subscription = stats["subscriptions"]["s"]
        assert subscription["msgBacklog"] == 3
        assert set(subscription["segments"]) == {"0", "1", "2"}
        assert subscription["segments"]["0"]["consumerCount"] == 1
        await client.close()


async def test_a_topic_and_its_namespace_have_policies_of_splits_and_merges_by_load(
    tmp_path: Path,
) -> None:
    own, space = f"{PATH}/autoScalePolicy", "/admin/v2/namespaces/public/default"
    of_namespace = f"{space}/scalableTopicAutoScalePolicy"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PATH)).status == 204
        for path in (own, of_namespace):
            assert (await ask(port, "GET", path)).status == 204
            wanted = {"enabled": False, "maxSegments": 8, "splitMsgRateInThreshold": 20_000.0}
            assert (await ask(port, "POST", path, wanted)).status == 204
            assert (await ask(port, "GET", path)).json == wanted
            for wrong in ({"maxSegments": 0}, {"mergeMsgRateInThreshold": 30_000.0}):
                assert (await ask(port, "POST", path, wrong)).status == 412, wrong
        shown = (await ask(port, "GET", space)).json
        assert shown["scalableTopicAutoScalePolicy"]["maxSegments"] == 8
        # It goes with the policy of the namespace, and would not without it.
        assert (await ask(port, "POST", own, {"mergeMsgRateInThreshold": 10_000.0})).status == 204
        assert (await ask(port, "DELETE", of_namespace)).status == 204
        assert (await ask(port, "POST", own, {"mergeMsgRateInThreshold": 10_000.0})).status == 412
        assert (await ask(port, "DELETE", own)).status == 204
        assert (await ask(port, "GET", own)).status == 204


async def test_policies_and_permissions_of_a_topic_hold_for_its_segments(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PATH)).status == 204
        assert (await ask(port, "POST", f"{PLAIN}/messageTTL?messageTTL=7")).status == 204
        segment = await broker.services.topics.get(parse_topic_name(ROOT))
        assert segment.policies.message_ttl_s == 7
        assert (await ask(port, "POST", f"{PATH}/permissions/role", ["consume"])).status == 204
        for path in (PATH, PLAIN):
            assert (await ask(port, "GET", f"{path}/permissions")).json["role"] == ["consume"]
        assert (await ask(port, "DELETE", f"{PATH}/permissions/role")).status == 204


async def test_a_topic_with_subscriptions_is_deleted_by_force_only_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", PATH)).status == 204
        client = await WireClient.open(broker.port)
        await client.subscribe(ROOT)
        assert (await ask(port, "POST", f"{PATH}/split/0")).status == 204
        refused = await ask(port, "DELETE", PATH)
        assert (refused.status, "subscriptions" in refused.text) == (412, True)
        assert (await ask(port, "DELETE", f"{PATH}?force=true")).status == 204
        children = await cluster.store.children(naming.segments_path("public/default"))
        assert children == []
        refused_consumer = await client.subscribe(ROOT, consumer_id=1)
        while not refused_consumer.HasField("error"):  # It hears of its own end first.
            refused_consumer = await client.next()
        assert "does not exist" in refused_consumer.error.message
        await client.close()


async def test_a_namespace_is_deleted_with_its_scalable_topics_by_force_only(
    tmp_path: Path,
) -> None:
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, force_delete_namespace=True) as broker,
    ):
        port = broker.http_port
        space = "/admin/v2/namespaces/public/space"
        assert (await ask(port, "PUT", space)).status == 204
        topic = "/admin/v2/scalable/public/space/t"
        assert (await ask(port, "PUT", topic)).status == 204
        refused = await ask(port, "DELETE", space)
        assert (refused.status, "topic://public/space/t" in refused.text) == (409, True)
        assert (await ask(port, "DELETE", f"{space}?force=true")).status == 204
        assert await cluster.store.exists("/topics/public/space") is None


async def test_a_broker_without_the_feature_says_so(tmp_path: Path) -> None:
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, scalable_topics=False) as broker,
    ):
        answer = await ask(broker.http_port, "PUT", PATH)
        assert (answer.status, "scalable_topics" in answer.text) == (503, True)
        name = parse_topic_name("persistent://public/default/t")
        assert await broker.services.topics.scalable.find(name) is None
