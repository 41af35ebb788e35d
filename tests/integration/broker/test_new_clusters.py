"""Messages published right after a topic was given another cluster to copy to; real bookies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.features.replication import Replication
from magnetar.broker.features.replication.names import cursor_name
from magnetar.broker.topic import Topic
from magnetar.cursors import Cursor, CursorUnavailableError
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WAIT_S, WireClient
from tests.integration.ledger.cluster import cluster_of

NAME = parse_topic_name(TOPIC)


class _Cursors:
    """Refuses to open the cursor of the cluster `west` at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = True
        self.was_asked = asyncio.Event()
        original = Cursor.open

        async def open_cursor(log: Any, client: Any, store: Any, name: str, **more: Any) -> Cursor:
            if name == cursor_name("west"):
                self.was_asked.set()
                if self.is_away:
                    raise CursorUnavailableError("the metadata store is away")
            return await original(log, client, store, name, **more)

        monkeypatch.setattr(Cursor, "open", open_cursor)


@asynccontextmanager
async def _published_to_new_cluster(
    cursors: _Cursors, directory: Path
) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker, and a client that has sent message 1 when the list had changed."""
    async with (
        cluster_of(1, directory) as cluster,
        broker_on(cluster, cluster_name="east", publish_drain_timeout_ms=200) as broker,
    ):
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.publish_ok(0)
        await broker.services.policies.update_topic(
            NAME, lambda own: own.with_values(replicated_to=("east", "west"))
        )
        async with asyncio.timeout(WAIT_S):
            await cursors.was_asked.wait()
        client.publish(1, b"1")
        yield broker, client
        await client.close()


def _to_copy(topic: Topic) -> int:
    """How many entries the cursor of `west` has before it."""
    replication = topic.find(Replication)
    assert replication is not None
    (cursor,) = replication.cursors()
    return cursor.backlog_entries


async def test_a_topic_that_moves_before_the_cursor_exists_has_acknowledged_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner makes the cursor before it takes the message, which the client sends again."""
    cursors = _Cursors(monkeypatch)
    async with _published_to_new_cluster(cursors, tmp_path) as (broker, client):
        client.send(BaseCommand.PING, ping=pb.CommandPing())
        await client.next(BaseCommand.PONG)  # The broker has the message, too.
        topics = broker.services.topics
        await topics.ends.hand_over([NAME], None, timeout_s=WAIT_S)
        assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER, "and no receipt"
        cursors.is_away = False
        topic = await topics.get(NAME)
        assert _to_copy(topic) == 0
        await client.produce(TOPIC)
        await client.publish_ok(1)
        assert _to_copy(topic) == 1


async def test_publishes_are_acknowledged_once_the_cursor_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = _Cursors(monkeypatch)
    async with _published_to_new_cluster(cursors, tmp_path) as (broker, client):
        cursors.is_away = False
        receipt = await client.next(BaseCommand.SEND_RECEIPT)
        assert receipt.send_receipt.sequence_id == 1
        assert _to_copy(await broker.services.topics.get(NAME)) == 1
