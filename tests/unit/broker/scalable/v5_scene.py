"""A broker's core whose partitioned topics a test makes, and what a client of Pulsar 5 sends."""

from dataclasses import replace
from typing import Any

from magnetar.broker.features.scalable import Layouts, PartitionLayouts, SegmentCoordinators
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import BaseCommand, TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.scalable.watched_store import WatchedPartitions, WatchedStore

NAME = "persistent://public/default/t"
TOPIC = TopicName.parse(NAME)


class Scene:
    """The broker, with a store whose watches are called."""

    def __init__(self, harness: Harness | None = None, **settings: Any) -> None:
        self.harness = harness or Harness(**settings)
        known = self.harness.settings
        self.store = WatchedStore()
        self.partitions = WatchedPartitions(self.store, self.harness.topics.partitioned.records)
        clock = SystemClock()
        self.layouts = Layouts([PartitionLayouts(self.store, self.partitions)], clock)
        self.coordinators = SegmentCoordinators(
            self.layouts,
            self.harness.services.ownership,
            clock,
            grace_ms=known.scalable_consumer_grace_ms,
            consumers_max=known.scalable_consumers_per_subscription_max,
            wait_ms=known.lookup_wait_ms,
        )
        self.harness.services = replace(
            self.harness.services, layouts=self.layouts, segment_coordinators=self.coordinators
        )

    def client(self) -> Client:
        return self.harness.client()


def send_lookup(client: Client, topic: str = NAME, session_id: int = 1, **fields: Any) -> None:
    """SCALABLE_TOPIC_LOOKUP."""
    client.send(
        BaseCommand.SCALABLE_TOPIC_LOOKUP,
        scalableTopicLookup=pb.CommandScalableTopicLookup(
            session_id=session_id, topic=topic, **fields
        ),
    )


async def look_up(
    client: Client, topic: str = NAME, session_id: int = 1, **fields: Any
) -> pb.CommandScalableTopicUpdate:
    """SCALABLE_TOPIC_LOOKUP, and the answer."""
    send_lookup(client, topic, session_id, **fields)
    return await next_update(client)


async def next_update(client: Client) -> pb.CommandScalableTopicUpdate:
    return (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate


def close_session(client: Client, session_id: int = 1) -> None:
    client.send(
        BaseCommand.SCALABLE_TOPIC_CLOSE,
        scalableTopicClose=pb.CommandScalableTopicClose(session_id=session_id),
    )


async def register(
    client: Client, name: str = "a", consumer_id: int = 1, **fields: Any
) -> pb.CommandScalableTopicSubscribeResponse:
    """SCALABLE_TOPIC_SUBSCRIBE, and the answer."""
    known = {"topic": NAME, "subscription": "s", "consumer_type": pb.STREAM, **fields}
    client.send(
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
        scalableTopicSubscribe=pb.CommandScalableTopicSubscribe(
            request_id=client.next_request_id(),
            consumer_id=consumer_id,
            consumer_name=name,
            **known,
        ),
    )
    answer = await client.next(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    return answer.scalableTopicSubscribeResponse


async def unregister(client: Client, consumer_id: int = 1) -> BaseCommand:
    """SCALABLE_TOPIC_UNSUBSCRIBE, and the answer."""
    client.send(
        BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE,
        scalableTopicUnsubscribe=pb.CommandScalableTopicUnsubscribe(
            request_id=client.next_request_id(), consumer_id=consumer_id
        ),
    )
    return await client.next()


async def is_alive(client: Client) -> bool:
    """Whether the connection still answers."""
    client.send(BaseCommand.PING, ping=pb.CommandPing())
    return (await client.next()).type == BaseCommand.PONG
