"""An unused topic is deleted by the broker itself; a used one never is."""

from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from magnetar.broker.base import naming
from magnetar.sdk import Client
from magnetar.sdk.wire import parse_topic_name
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of
from tests.waiting import until

KEPT = "persistent://public/default/kept"


async def test_an_unused_topic_goes_and_one_with_a_subscription_stays(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"inactive_topic_check_interval_s": 0.1, "inactive_topic_max_s": 1}
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        client = await WireClient.open(broker.port)
        await client.subscribe(KEPT)
        await client.produce(TOPIC)
        await client.publish_ok(0, b"nobody reads it")
        await client.close()
        path = naming.log_path(parse_topic_name(TOPIC))

        async def is_gone() -> bool:
            return await cluster.store.exists(path) is None

        await until(is_gone, "the topic goes")
        assert await broker.services.topics.names("public/default") == [KEPT]


async def test_messages_that_nobody_has_subscribed_to_are_kept_if_the_broker_is_told_so(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {
        "inactive_topic_check_interval_s": 0.1,
        "inactive_topic_max_s": 1,
        "retention_check_interval_s": 0.1,
        "unsubscribed_retention": True,
        "ledger_entries_max": 1,
        "ledger_age_min_s": 0,
    }
    empty = "persistent://public/default/empty"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        for number in range(3):
            await client.publish_ok(number, b"somebody will")
        await client.produce(empty, 1)
        await client.close()

        async def is_gone() -> bool:
            return await broker.services.topics.names("public/default") == [TOPIC]

        await until(is_gone, "the empty one goes")
        async with Client(f"pulsar://127.0.0.1:{broker.port}") as late:
            reader = await late.reader(TOPIC)
            found = [(await reader.read_next(timeout_s=30)).data for _ in range(3)]
        assert found == [b"somebody will"] * 3


async def test_a_topic_that_is_read_without_a_connection_stays_for_as_long_as_is_said(
    tmp_path: Path,
) -> None:
    """As by queries that read straight from the bookies, and have nobody connected."""
    settings: dict[str, Any] = {"inactive_topic_check_interval_s": 0.1, "inactive_topic_max_s": 1}
    read, briefly = "persistent://public/default/read", "persistent://public/default/briefly"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        client = await WireClient.open(broker.port)
        for number, topic in enumerate((read, briefly, TOPIC)):
            await client.produce(topic, number)
        for topic, hold_s in ((read, 3_600), (briefly, 1)):
            body = {"topics": [topic], "readHoldS": hold_s}
            path = "/magnetar/v1/topics/internalStats"
            assert (await ask(broker.http_port, "POST", path, body)).json["refused"] == {}
        await client.close()

        async def is_gone() -> bool:
            return await broker.services.topics.names("public/default") == [read]

        await until(is_gone, "the others go")


async def test_a_topic_that_was_created_over_http_and_never_used_goes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"inactive_topic_check_interval_s": 0.1, "inactive_topic_max_s": 1}
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        path = "/admin/v2/persistent/public/default/unused"
        answer = await ask(broker.http_port, "PUT", path)
        assert answer.status == 204
        log = naming.log_path(parse_topic_name("persistent://public/default/unused"))

        async def is_gone() -> bool:
            return await cluster.store.exists(log) is None

        await until(is_gone, "the topic goes")


async def test_deleting_a_topic_logs_no_warning(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.close()
        path = TOPIC.replace("://", "/")
        with capture_logs() as logged:
            answer = await ask(broker.http_port, "DELETE", f"/admin/v2/{path}?force=true")
        assert answer.status == 204
        assert [each for each in logged if each["log_level"] not in ("info", "debug")] == []
        assert broker.services.topics.fenced == 0


async def test_a_segment_of_a_scalable_topic_stays_though_nobody_uses_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"inactive_topic_check_interval_s": 0.1, "inactive_topic_max_s": 1}
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        made = await ask(broker.http_port, "PUT", "/admin/v2/scalable/public/default/scalable")
        assert made.status == 204
        name = parse_topic_name("persistent://public/default/scalable")
        (segment,) = (await broker.services.topics.scalable.get(name)).active
        client = await WireClient.open(broker.port)
        await client.produce(str(segment.name_in(name)))
        await client.publish_ok(0, b"nobody has subscribed")
        await client.produce(TOPIC, 1)
        await client.close()
        path = naming.log_path(parse_topic_name(TOPIC))

        async def is_gone() -> bool:
            return await cluster.store.exists(path) is None

        await until(is_gone, "the plain topic goes, which was used for longer")
        assert await cluster.store.exists(naming.log_path(segment.name_in(name))) is not None
