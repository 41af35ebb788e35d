"""A broker in the memory of the test: it answers each request in the next turn of the loop.

It records what clients have at the broker, so that a test can cancel a call at each of its turns
and see what it leaves. Topics are empty. A scalable topic has one segment.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from magnetar.sdk.wire import BaseCommand, FrameDecoder, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb

URL = "pulsar://broker:6650"

_NONE = (1 << 64) - 1

_CLOSES = {
    BaseCommand.CLOSE_CONSUMER: "close_consumer",
    BaseCommand.CLOSE_PRODUCER: "close_producer",
    BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE: "scalableTopicUnsubscribe",
}


class MemoryBroker:
    """See the module's text. It is a `Network`, too: the client's only one."""

    def __init__(self, partitions: int = 0) -> None:
        self.live: dict[tuple[str, int], str] = {}
        """What clients have here: its kind and id, and its topic."""
        self._connections: list[_Transport] = []
        self._partitions = partitions

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        protocol = factory()
        transport = _Transport(protocol, self._answer)
        protocol.connection_made(transport)
        self._connections.append(transport)
        return transport

    def tell(self, command: BaseCommand) -> None:
        """Send a command on each connection."""
        for connection in self._connections:
            connection.tell(command)

    def _answer(self, command: BaseCommand) -> BaseCommand | None:
        kind = command.type
        if kind in _CLOSES:
            return self._closed(kind, command)
        if kind == BaseCommand.SCALABLE_TOPIC_CLOSE:
            self.live.pop(("layout", command.scalableTopicClose.session_id), None)
            return None
        if kind == BaseCommand.CONNECT:
            flags = pb.FeatureFlags(supports_scalable_topics=True)
            connected = pb.CommandConnected(
                server_version="memory", protocol_version=21, feature_flags=flags
            )
            return BaseCommand(type=BaseCommand.CONNECTED, connected=connected)
        if kind == BaseCommand.PARTITIONED_METADATA:
            return self._partitions_of(command.partitionMetadata)
        if kind == BaseCommand.LOOKUP:
            found = pb.CommandLookupTopicResponse(
                request_id=command.lookupTopic.request_id,
                response=pb.CommandLookupTopicResponse.Connect,
                brokerServiceUrl=URL,
                authoritative=True,
            )
            return BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=found)
        return self._opened(command)

    def _partitions_of(self, request: pb.CommandPartitionedTopicMetadata) -> BaseCommand:
        found = pb.CommandPartitionedTopicMetadataResponse(
            request_id=request.request_id,
            partitions=0 if "-partition-" in request.topic else self._partitions,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )
        return BaseCommand(
            type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=found
        )

    def _opened(self, command: BaseCommand) -> BaseCommand | None:
        kind = command.type
        if kind == BaseCommand.SUBSCRIBE:
            asked = command.subscribe
            self.live["consumer", asked.consumer_id] = asked.topic
            return _success(asked.request_id)
        if kind == BaseCommand.PRODUCER:
            made = command.producer
            self.live["producer", made.producer_id] = made.topic
            success = pb.CommandProducerSuccess(
                request_id=made.request_id, producer_name="p", last_sequence_id=-1
            )
            return BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=success)
        if kind == BaseCommand.SCALABLE_TOPIC_LOOKUP:
            session = command.scalableTopicLookup
            self.live["layout", session.session_id] = session.topic
            return _layout(session.session_id)
        if kind == BaseCommand.SCALABLE_TOPIC_SUBSCRIBE:
            registered = command.scalableTopicSubscribe
            self.live["registration", registered.consumer_id] = registered.topic
            return _assignment(registered.request_id)
        if kind == BaseCommand.GET_LAST_MESSAGE_ID:
            last = pb.CommandGetLastMessageIdResponse(
                request_id=command.getLastMessageId.request_id,
                last_message_id=pb.MessageIdData(ledgerId=_NONE, entryId=_NONE),
            )
            return BaseCommand(
                type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=last
            )
        return None

    def _closed(self, kind: BaseCommand.Type, command: BaseCommand) -> BaseCommand | None:
        request = getattr(command, _CLOSES[kind])
        if kind == BaseCommand.CLOSE_PRODUCER:
            self.live.pop(("producer", request.producer_id), None)
        else:
            is_consumer = kind == BaseCommand.CLOSE_CONSUMER
            what = "consumer" if is_consumer else "registration"
            self.live.pop((what, request.consumer_id), None)
        return _success(request.request_id)


def _success(request_id: int) -> BaseCommand:
    return BaseCommand(type=BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=request_id))


def _layout(session_id: int) -> BaseCommand:
    whole = pb.SegmentInfoProto(
        segment_id=0,
        hash_start=0,
        hash_end=0xFFFF,
        state=pb.ACTIVE,
        created_at_epoch=0,
        created_at_ms=1,
    )
    dag = pb.ScalableTopicDAG(epoch=1, segments=[whole])
    return BaseCommand(
        type=BaseCommand.SCALABLE_TOPIC_UPDATE,
        scalableTopicUpdate=pb.CommandScalableTopicUpdate(session_id=session_id, dag=dag),
    )


def _assignment(request_id: int) -> BaseCommand:
    segment = pb.ScalableAssignedSegment(
        segment_id=0, segment_topic="segment://public/default/t/0000-ffff-0"
    )
    response = pb.CommandScalableTopicSubscribeResponse(
        request_id=request_id,
        assignment=pb.ScalableConsumerAssignment(layout_epoch=1, segments=[segment]),
    )
    return BaseCommand(
        type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
        scalableTopicSubscribeResponse=response,
    )


class _Transport(asyncio.Transport):
    """The client's end of a connection."""

    def __init__(
        self, client: asyncio.Protocol, answer: Callable[[BaseCommand], BaseCommand | None]
    ) -> None:
        super().__init__()
        self._client, self._answer = client, answer
        self._decoder = FrameDecoder()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for command, _ in self._decoder.feed(bytes(data)):
            answer = self._answer(command)
            if answer is not None:
                self.tell(answer)

    def tell(self, command: BaseCommand) -> None:
        """Send a command to the client."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._client.data_received, encode_command(command))

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(partial(self._client.connection_lost, None))

    close = abort
