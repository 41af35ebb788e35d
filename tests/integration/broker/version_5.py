"""A producer and a stream consumer of Pulsar 5, by the commands that the Java client sends."""

import zlib
from collections import Counter

from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.test_scalable_commands import look_up, register
from tests.integration.broker.wire_client import WireClient

PERMITS = 1_000_000
_MARK = pb.KeyValue(key="__pulsar.v5.managed", value="true")


class V5Producer:
    """Publishes to the segment that has the key, and follows the layout, as a client of Pulsar 5.

    One message is under way at a time. A segment that ends before the receipt has not stored it.
    """

    def __init__(self, client: WireClient, topic: str) -> None:
        """`topic`: as an application gives it."""
        self._client = client
        self._topic = topic
        self._dag = pb.ScalableTopicDAG()
        self._open: set[int] = set()
        self.sent: Counter[str] = Counter()
        self.most_segments = 0

    async def open(self) -> None:
        self._take((await look_up(self._client, self._topic)).dag)

    def _take(self, dag: pb.ScalableTopicDAG) -> None:
        assert not self._dag.segments or dag.epoch > self._dag.epoch
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
        segment = self._segment_of(key)
        number = segment.segment_id
        if number not in self._open:
            self._client.send(
                BaseCommand.PRODUCER,
                producer=pb.CommandProducer(
                    topic=_name_of(self._topic, segment),
                    producer_id=number,
                    request_id=self._client.request_id(),
                    metadata=[_MARK] if segment.HasField("legacy_topic_name") else [],
                ),
            )
            if not await self._answer(BaseCommand.PRODUCER_SUCCESS, number):
                return False
            self._open.add(number)
        self._client.publish(self.sent[key], body, number, partition_key=key)
        return await self._answer(BaseCommand.SEND_RECEIPT, number)

    def _segment_of(self, key: str) -> pb.SegmentInfoProto:
        """By the ring; while all active segments are partitions, by their number."""
        hashed = zlib.crc32(key.encode())
        active = [each for each in self._dag.segments if each.state == pb.ACTIVE]
        if all(each.HasField("legacy_topic_name") for each in active):
            return active[hashed % len(active)]
        at = hashed >> 16
        (found,) = [each for each in active if each.hash_start <= at <= each.hash_end]
        return found

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


class V5StreamConsumer:
    """Consumes the segments that its coordinator gives it, and acknowledges at once."""

    def __init__(self, client: WireClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._segments: dict[str, int] = {}
        self._awaited: dict[int, int] = {}
        """Request ids to consumer ids."""
        self._consumers = 0
        self.received: dict[str, list[int]] = {}
        """Numbers of the messages of each key, as they came."""

    @property
    def count(self) -> int:
        return sum(map(len, self.received.values()))

    async def run(self) -> None:
        self._take((await register(self._client, self._topic, "a")).assignment)
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
                        self._client.flow(PERMITS, consumer_id)
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
                    consumer_name=f"a-seg-{self._consumers}",
                    consumer_id=self._consumers,
                    request_id=request_id,
                    initialPosition=pb.CommandSubscribe.Earliest,
                ),
            )

    def _message(self, message: pb.CommandMessage, payload: bytes) -> None:
        body = payload[10 + int.from_bytes(payload[6:10], "big") :].decode()
        key, _, number = body.rpartition(" ")
        self.received.setdefault(key, []).append(int(number))
        self._client.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=message.consumer_id,
                ack_type=pb.CommandAck.Cumulative,
                message_id=[message.message_id],
            ),
        )


def _name_of(topic: str, segment: pb.SegmentInfoProto) -> str:
    """Name of the topic that has a segment's messages."""
    if segment.HasField("legacy_topic_name"):
        return segment.legacy_topic_name
    whole = parse_topic_name("persistent://" + topic.partition("://")[2])
    number = segment.segment_id
    return str(whole.segment(number, start=segment.hash_start, end=segment.hash_end))
