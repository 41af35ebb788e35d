"""What the client makes of odd answers about layouts, by a broker that gives them on request."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from magnetar.sdk import Client, Producer, ProducerSettings
from magnetar.sdk.errors import LayoutError, SdkError
from magnetar.sdk.interceptors import ProducerInterceptor
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.scalable.scalable_producer import ScalableProducer
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.errors import AuthorizationError, TopicTerminatedError
from tests.integration.sdk.conftest import FAST
from tests.integration.sdk.scripted_broker import Peer, ScriptedBroker
from tests.waiting import until

_TOPIC = "topic://public/default/t"
_LOOKUP = BaseCommand.SCALABLE_TOPIC_LOOKUP


def _info(number: int, start: int, end: int, *, is_sealed: bool = False) -> pb.SegmentInfoProto:
    return pb.SegmentInfoProto(
        segment_id=number,
        hash_start=start,
        hash_end=end,
        state=pb.SEALED if is_sealed else pb.ACTIVE,
        created_at_epoch=0,
        created_at_ms=1,
    )


def _dag(epoch: int, *segments: pb.SegmentInfoProto) -> pb.ScalableTopicDAG:
    return pb.ScalableTopicDAG(epoch=epoch, segments=segments)


_ONE = _dag(1, _info(0, 0, 0xFFFF))
_SPLIT = _dag(2, _info(0, 0, 0xFFFF, is_sealed=True), _info(1, 0, 0x7FFF), _info(2, 0x8000, 0xFFFF))


class _Layouts:
    """The broker's answers about the layout of one topic."""

    def __init__(self, dag: pb.ScalableTopicDAG) -> None:
        self.dag = dag
        self.error: pb.ServerError | None = None
        self.buckets: Sequence[pb.IntRange] = ()
        self.sessions: list[tuple[Peer, int]] = []
        self.refused: set[int] = set()
        """Producers whose messages are refused: their segment has ended."""
        self.gone: set[str] = set()
        """Topics that are not found by producers, as segments that have left the layout."""

    def fault(self, peer: Peer, command: BaseCommand) -> bool:
        """Answer what is about layouts."""
        if command.type == BaseCommand.CONNECT:
            flags = pb.FeatureFlags(supports_scalable_topics=True)
            connected = pb.CommandConnected(
                server_version="scripted", protocol_version=21, feature_flags=flags
            )
            peer.send(BaseCommand.CONNECTED, connected=connected)
        elif command.type == _LOOKUP:
            session_id = command.scalableTopicLookup.session_id
            self.sessions.append((peer, session_id))
            self.push()
        elif command.type == BaseCommand.SCALABLE_TOPIC_SUBSCRIBE:
            assigned = pb.ScalableAssignedSegment(
                segment_id=0,
                segment_topic="segment://public/default/t/0000-ffff-0",
                bucket_ranges=self.buckets,
            )
            response = pb.CommandScalableTopicSubscribeResponse(
                request_id=command.scalableTopicSubscribe.request_id,
                assignment=pb.ScalableConsumerAssignment(layout_epoch=1, segments=[assigned]),
            )
            peer.send(
                BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
                scalableTopicSubscribeResponse=response,
            )
        elif command.type == BaseCommand.PRODUCER and command.producer.topic in self.gone:
            refusal = pb.CommandError(
                request_id=command.producer.request_id,
                error=pb.ServerError.TopicNotFound,
                message="it does not exist",
            )
            peer.send(BaseCommand.ERROR, error=refusal)
        elif command.type == BaseCommand.SEND and command.send.producer_id in self.refused:
            peer.refuse_send(command.send.sequence_id, pb.ServerError.TopicTerminatedError)
        else:
            return command.type == BaseCommand.SCALABLE_TOPIC_CLOSE
        return True

    def push(self, dag: pb.ScalableTopicDAG | None = None) -> None:
        """Send the layout, or another one, or the error to the newest session."""
        peer, session_id = self.sessions[-1]
        update = pb.CommandScalableTopicUpdate(
            session_id=session_id,
            dag=None if self.error is not None else dag or self.dag,
            error=self.error,
            message="no",
        )
        peer.send(BaseCommand.SCALABLE_TOPIC_UPDATE, scalableTopicUpdate=update)


@contextmanager
def _answering(broker: ScriptedBroker, dag: pb.ScalableTopicDAG) -> Iterator[_Layouts]:
    layouts = _Layouts(dag)
    broker.faults.append(layouts.fault)
    yield layouts


def _segments(producer: Producer) -> int:
    assert isinstance(producer, ScalableProducer)
    return len(producer.segments)


async def test_a_layout_that_cannot_be_used_is_asked_for_again() -> None:
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            async with client.producer(_TOPIC) as producer:
                layouts.dag = _SPLIT
                layouts.push(_dag(2, _info(0, 0, 5)))
                await broker.wait_command(_LOOKUP, 2)
                await until(lambda: _segments(producer) == 2)
                layouts.error = pb.ServerError.TopicNotFound
                layouts.push()
                await broker.wait_command(_LOOKUP, 4)  # With pauses: it stays refused.
                layouts.error = None
                await producer.send(b"x", key="k")


async def test_older_layouts_are_dropped() -> None:
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _SPLIT) as layouts:
            async with client.producer(_TOPIC) as producer:
                layouts.push(_ONE)
                layouts.push(_dag(3, *_SPLIT.segments))
                await producer.send(b"x", key="k")
                assert _segments(producer) == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pb.ServerError.AuthorizationError, AuthorizationError),
        (None, LayoutError),
    ],
)
async def test_the_first_refusal_is_raised(
    code: pb.ServerError | None, kind: type[SdkError]
) -> None:
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _dag(1)) as layouts:
            layouts.error = code
            with pytest.raises(kind):
                await client.producer(_TOPIC)


async def test_what_was_refused_goes_to_the_child_in_order_when_the_layout_comes_late() -> None:
    settings = ProducerSettings(batching=False)
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            async with client.producer(_TOPIC, settings) as producer:
                layouts.refused.add(0)
                sends = [
                    asyncio.ensure_future(producer.send(b"%d" % number, key="k"))
                    for number in range(5)
                ]
                await broker.wait_command(BaseCommand.SEND)
                await broker.wait_command(BaseCommand.CLOSE_PRODUCER)
                sends.append(asyncio.ensure_future(producer.send(b"5", key="k")))
                layouts.push(_SPLIT)
                ids = await asyncio.gather(*sends)
    assert [each.entry_id for each in ids] == list(range(6))
    assert [each[-1:] for each in broker.entries] == [b"%d" % number for number in range(6)]


async def test_what_was_under_way_goes_to_the_child_when_the_segment_is_gone_at_the_reconnect() -> (
    None
):
    """A producer was away while its segment was split, used up, and left the layout."""
    settings = ProducerSettings(batching=False, send_timeout_ms=0)
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            async with client.producer(_TOPIC, settings) as producer:
                assert isinstance(producer, ScalableProducer)
                await producer.send(b"0", key="k")
                layouts.gone.update(producer.segments)
                layouts.dag = _dag(3, _info(1, 0, 0x7FFF), _info(2, 0x8000, 0xFFFF))
                broker.drop_connections()
                sends = [
                    asyncio.ensure_future(producer.send(b"%d" % number, key="k"))
                    for number in range(1, 5)
                ]
                ids = await asyncio.gather(*sends)
    assert [each.entry_id for each in ids] == list(range(1, 5))
    assert [each[-1:] for each in broker.entries] == [b"%d" % number for number in range(5)]


async def test_without_a_next_layout_messages_fail_after_the_send_timeout() -> None:
    settings = ProducerSettings(send_timeout_ms=50)
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            async with client.producer(_TOPIC, settings) as producer:
                layouts.refused.add(0)
                with pytest.raises(TopicTerminatedError, match="not stored"):
                    await producer.send(b"x", key="k")
                # One that comes later waits by itself, and fails by itself.
                producer.send_nowait(b"y", key="k")
                with pytest.raises(TopicTerminatedError):
                    await producer.flush()
                assert (producer.pending_messages, producer.stats().messages_failed) == (0, 2)


async def test_flush_raises_errors_of_sends_without_a_callback_also_with_interceptors() -> None:
    class Passing(ProducerInterceptor):
        def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
            return message

        def on_sent(self, *outcome: object) -> None:
            told.append(outcome)

    told: list[object] = []
    settings = ProducerSettings(send_timeout_ms=50, interceptors=(Passing(),))
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            async with client.producer(_TOPIC, settings) as producer:
                layouts.refused.add(0)
                producer.send_nowait(b"x", key="k")
                with pytest.raises(TopicTerminatedError):
                    await producer.flush()
    assert len(told) == 1


async def test_buckets_that_make_no_sense_are_refused() -> None:
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            layouts.buckets = [pb.IntRange(start=0, end=9), pb.IntRange(start=9, end=20)]
            with pytest.raises(LayoutError, match="segment 0: hash range 9-20 overlaps"):
                await client.stream_consumer(_TOPIC, "s")
            await broker.wait_command(BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)


async def test_a_part_of_a_segment_is_consumed_with_its_buckets() -> None:
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        with _answering(broker, _ONE) as layouts:
            layouts.buckets = [pb.IntRange(start=0, end=9), pb.IntRange(start=10, end=65535)]
            async with client.stream_consumer(_TOPIC, "s"):
                command = await broker.wait_command(BaseCommand.SUBSCRIBE)
                assert command.subscribe.subType == pb.CommandSubscribe.Key_Shared
                meta = command.subscribe.keySharedMeta
                assert (meta.keySharedMode, meta.entryBucketDispatch) == (pb.STICKY, True)
                assert list(meta.hashRanges) == layouts.buckets
