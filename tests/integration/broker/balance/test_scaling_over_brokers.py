"""Splits by load at several broker processes: the one that decides has not the load itself."""

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.sdk.wire import BaseCommand, parse_topic_name
from tests.integration.broker.balance.test_several_brokers import call, connected, lookup
from tests.integration.broker.test_scalable_commands import look_up
from tests.real_cluster import RealCluster

_BROKERS = ("broker-1", "broker-2")
_TOPICS_TRIED = 64
_TEST_S_MAX = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Two brokers that look at their load often, and move nothing by themselves."""
    with RealCluster(
        tmp_path_factory.mktemp("scaling") / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            "MAGNETAR_BROKER_BUNDLE_AUTO_SPLIT": "false",
            "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "200",
            "MAGNETAR_BROKER_LOAD_CPU_CORES": "100",
            "MAGNETAR_BROKER_SCALABLE_AUTO_SCALE_INTERVAL_S": "0.5",
            "MAGNETAR_BROKER_SCALABLE_SPLIT_MSG_RATE_IN": "20",
            "MAGNETAR_BROKER_SCALABLE_MERGE_MSG_RATE_IN": "10",
        },
    ) as started:
        yield started


def _apart(cluster: RealCluster) -> tuple[str, str]:
    """A scalable topic whose only segment another broker has than its name; and that broker."""
    for number in range(_TOPICS_TRIED):
        topic = f"apart-{number}"
        path = f"/admin/v2/scalable/public/default/{topic}"
        answer = call(cluster, "broker-1", "PUT", path)
        assert answer.status == 204, answer
        owner = lookup(cluster, "broker-1", topic)
        stats = call(cluster, owner, "GET", f"{path}/stats").json
        address = stats["layout"]["segments"]["0"]["ownerBroker"]
        holder = next(name for name in _BROKERS if cluster.http_url(name).endswith(address))
        if holder != owner:
            return topic, holder
    raise AssertionError("one broker has everything")


async def test_the_owner_of_the_name_splits_a_segment_that_another_broker_has(
    cluster: RealCluster,
) -> None:
    topic, holder = await asyncio.to_thread(_apart, cluster)
    name = parse_topic_name(f"persistent://public/default/{topic}")
    client, watching = [await connected(cluster, holder) for _ in range(2)]
    assert (await look_up(watching, f"topic://public/default/{topic}")).dag.epoch == 1
    produced = await client.produce(str(name.segment(0, start=0, end=0xFFFF)))
    assert produced.type == BaseCommand.PRODUCER_SUCCESS
    pushed = asyncio.ensure_future(watching.next(BaseCommand.SCALABLE_TOPIC_UPDATE))
    async with asyncio.timeout(_TEST_S_MAX):
        number = 0
        while not pushed.done():
            client.publish(number, b"body")
            if (await client.next()).type != BaseCommand.SEND_RECEIPT:
                break  # The segment has ended.
            number += 1
        update = (await pushed).scalableTopicUpdate
    assert update.dag.epoch == 2
    for each in (client, watching):
        await each.close()
