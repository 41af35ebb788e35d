"""Topic list watchers on a broker with a real metadata store."""

import asyncio
from pathlib import Path

from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

_OLD, _NEW, _OTHER = (f"persistent://public/default/{name}" for name in ("a-old", "a-new", "b"))


async def test_a_watcher_hears_of_topics_that_come_and_go(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(_OLD)
        watcher = await WireClient.open(broker.port)
        watcher.send(
            BaseCommand.WATCH_TOPIC_LIST,
            watchTopicList=pb.CommandWatchTopicList(
                request_id=1,
                watcher_id=2,
                namespace="public/default",
                topics_pattern="persistent://public/default/a-.*",
            ),
        )
        answer = (await watcher.next()).watchTopicListSuccess
        assert list(answer.topic) == [_OLD]
        await client.produce(_OTHER, producer_id=1)
        await client.produce(_NEW, producer_id=2)
        update = (await watcher.next(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
        assert (list(update.new_topics), list(update.deleted_topics)) == ([_NEW], [])
        deleting = asyncio.create_task(
            broker.services.topics.removal.delete(parse_topic_name(_OLD), is_forced=True)
        )
        update = (await watcher.next(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
        assert (list(update.new_topics), list(update.deleted_topics)) == ([], [_OLD])
        await deleting
        for each in (client, watcher):
            await each.close()
