"""A scalable topic under load on a real broker: it is split by itself, and merged afterwards."""

import asyncio
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from magnetar.broker.broker import Broker
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.test_scalable_commands import look_up, register
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of
from tests.waiting import until

_NAME = "topic://public/default/t"
_TOPIC = parse_topic_name("persistent://public/default/t")
_KEYS = [f"key-{number}" for number in range(32)]
_PERMITS = 1_000_000
_TEST_S_MAX = 120.0

_EAGER: dict[str, Any] = {
    "scalable_auto_scale_interval_s": 0.2,
    "scalable_split_msg_rate_in": 20,
    "scalable_merge_msg_rate_in": 10,
    "scalable_split_cooldown_s": 0.2,
    "scalable_merge_cooldown_s": 0.2,
    "scalable_merge_window_s": 0.5,
    "scalable_segments_max": 4,
}


class _Producer:
    """Publishes to the segment that has the key, and follows the layout, as a client of Pulsar 5.

    One message is under way at a time. A segment that ends before the receipt has not stored it.
    """

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._dag = pb.ScalableTopicDAG()
        self._open: set[int] = set()
        self.sent: Counter[str] = Counter()
        self.most_segments = 0

    async def open(self) -> None:
        self._take((await look_up(self._client, _NAME)).dag)

    def _take(self, dag: pb.ScalableTopicDAG) -> None:
        assert dag.epoch > self._dag.epoch
        self._dag = dag
        active = [each for each in dag.segments if each.state == pb.ACTIVE]
        self.most_segments = max(self.most_segments, len(active))

    async def publish(self, key: str) -> None:
        """Publish the next message of a key."""
        body = b"%s %d" % (key.encode(), self.sent[key])
        while not await self._try(key, body):
            pass
        self.sent[key] += 1

    async def _try(self, key: str, body: bytes) -> bool:
        """Whether the message was stored; False: the layout is another one now."""
        at = zlib.crc32(key.encode()) >> 16
        (segment,) = [
            each
            for each in self._dag.segments
            if each.state == pb.ACTIVE and each.hash_start <= at <= each.hash_end
        ]
        number = segment.segment_id
        if number not in self._open:
            name = _TOPIC.segment(number, start=segment.hash_start, end=segment.hash_end)
            self._client.send(
                BaseCommand.PRODUCER,
                producer=pb.CommandProducer(
                    topic=str(name), producer_id=number, request_id=self._client.request_id()
                ),
            )
            if not await self._answer(BaseCommand.PRODUCER_SUCCESS, number):
                return False
            self._open.add(number)
        self._client.publish(self.sent[key], body, number, partition_key=key)
        return await self._answer(BaseCommand.SEND_RECEIPT, number)

    async def _answer(self, wanted: int, number: int) -> bool:
        """Wait for an answer about a segment; False: it has ended, and there is a new layout."""
        epoch, has_ended = self._dag.epoch, False
        while not has_ended or self._dag.epoch == epoch:
            command = await self._client.next()
            match command.type:
                case BaseCommand.SCALABLE_TOPIC_UPDATE:
                    self._take(command.scalableTopicUpdate.dag)
                case BaseCommand.CLOSE_PRODUCER:
                    self._open.discard(command.close_producer.producer_id)
                    has_ended |= command.close_producer.producer_id == number
                case BaseCommand.ERROR:
                    assert command.error.error == pb.ServerError.TopicTerminatedError
                    has_ended = True
                case BaseCommand.SEND_ERROR:
                    assert command.send_error.error == pb.ServerError.TopicTerminatedError
                    has_ended = True
                case kind:
                    assert kind == wanted, command
                    return True
        return False


class _StreamConsumer:
    """Consumes the segments that its coordinator gives it, and acknowledges at once."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._segments: dict[str, int] = {}
        self._awaited: dict[int, int] = {}
        """Request ids to consumer ids."""
        self._consumers = 0
        self.received: dict[str, list[int]] = {key: [] for key in _KEYS}

    @property
    def count(self) -> int:
        return sum(map(len, self.received.values()))

    async def run(self) -> None:
        self._take((await register(self._client, _NAME, "a")).assignment)
        while True:
            command, payload = await self._client.next_frame()
            match command.type:
                case BaseCommand.MESSAGE:
                    self._message(command.message, payload)
                case BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
                    self._take(command.scalableTopicAssignmentUpdate.assignment)
                case BaseCommand.SUCCESS:
                    consumer_id = self._awaited.pop(command.success.request_id, None)
                    if consumer_id is not None:
                        self._client.flow(_PERMITS, consumer_id)
                case BaseCommand.REACHED_END_OF_TOPIC:
                    pass  # The coordinator says what comes after it.
                case kind:
                    raise AssertionError(f"{kind}: {command}")

    def _take(self, assignment: pb.ScalableConsumerAssignment) -> None:
        names = {each.segment_topic for each in assignment.segments}
        for gone in self._segments.keys() - names:
            self._client.send(
                BaseCommand.CLOSE_CONSUMER,
                close_consumer=pb.CommandCloseConsumer(
                    consumer_id=self._segments.pop(gone), request_id=self._client.request_id()
                ),
            )
        for name in sorted(names - self._segments.keys()):
            self._consumers += 1
            self._segments[name] = self._consumers
            request_id = self._client.request_id()
            self._awaited[request_id] = self._consumers
            self._client.send(
                BaseCommand.SUBSCRIBE,
                subscribe=pb.CommandSubscribe(
                    topic=name,
                    subscription="s",
                    subType=pb.CommandSubscribe.Exclusive,
                    consumer_id=self._consumers,
                    request_id=request_id,
                    initialPosition=pb.CommandSubscribe.Earliest,
                ),
            )

    def _message(self, message: pb.CommandMessage, payload: bytes) -> None:
        body = payload[10 + int.from_bytes(payload[6:10], "big") :].decode()
        key, _, number = body.rpartition(" ")
        self.received[key].append(int(number))
        self._client.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=message.consumer_id,
                ack_type=pb.CommandAck.Cumulative,
                message_id=[message.message_id],
            ),
        )


async def _active(broker: Broker) -> int:
    return len((await broker.services.topics.scalable.get(_TOPIC)).active)


async def test_a_topic_under_load_is_split_by_itself_and_merged_after_in_the_order_of_its_keys(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(_TEST_S_MAX),
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, **_EAGER) as broker,
    ):
        clients = [await WireClient.open(broker.port) for _ in range(2)]
        producer, consumer = _Producer(clients[0]), _StreamConsumer(clients[1])
        await producer.open()
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(consumer.run())
            while producer.most_segments < 3:
                for key in _KEYS:
                    await producer.publish(key)
            assert producer.most_segments <= 4
            total = producer.sent.total()
            await until(lambda: consumer.count == total, "all messages are consumed")

            async def is_whole() -> bool:
                return await _active(broker) == 1

            await until(is_whole, "the topic is merged into one segment")
            consuming.cancel()
        assert consumer.received == {key: list(range(producer.sent[key])) for key in _KEYS}, (
            "each message once, in the order of its key"
        )
        for client in clients:
            await client.close()


async def test_a_namespace_that_switches_it_off_keeps_its_segments(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(_TEST_S_MAX),
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, **{**_EAGER, "scalable_auto_scale": False}) as broker,
    ):
        client = await WireClient.open(broker.port)
        producer = _Producer(client)
        await producer.open()
        looks = _count_looks(broker)
        while len(looks) < 3:
            for key in _KEYS:
                await producer.publish(key)
        assert await _active(broker) == 1
        await client.close()


def _count_looks(broker: Broker) -> list[None]:
    """Gets an item with each look of the broker."""
    looks: list[None] = []
    look = broker.auto_scaling.look

    async def counted() -> None:
        await look()
        looks.append(None)

    broker.auto_scaling.look = counted  # type: ignore[method-assign]
    return looks
