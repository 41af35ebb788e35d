"""What must fail, and with exactly which code; whoever else is on the topic goes on.

Over a raw connection: the official client turns several codes into one, and never sends most of
these commands. Each row is told the topic, does what comes before over a connection of its own or
over the same one, and returns the command that must fail.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.standalone import Standalone

_numbers = itertools.count(1)
ODD_NAMES = ("", "persistent://", "persistent://a/b", "://x", "a/b", "other://public/default/x")


def command(kind: str, **fields: Any) -> BaseCommand:
    """By the name of its field, with a request id if it has one."""
    made = BaseCommand(type=getattr(BaseCommand, _KINDS.get(kind, kind).upper()))
    part = getattr(made, kind)
    part.SetInParent()
    if "request_id" in part.DESCRIPTOR.fields_by_name:
        fields.setdefault("request_id", next(_numbers))
    part.MergeFrom(type(part)(**fields))
    return made


_KINDS = {
    "getLastMessageId": "get_last_message_id",
    "consumerStats": "consumer_stats",
    "getTopicsOfNamespace": "get_topics_of_namespace",
    "partitionMetadata": "partitioned_metadata",
    "lookupTopic": "lookup",
    "getSchema": "get_schema",
    "getOrCreateSchema": "get_or_create_schema",
}


class Place:
    """A topic, and two connections: the one that is refused, and somebody else's."""

    def __init__(self, topic: str, own: RawConnection, other: RawConnection) -> None:
        self.topic = topic
        self.own = own
        self.other = other

    def done(self, request: BaseCommand, connection: RawConnection | None = None) -> None:
        """A command that must be taken."""
        connection = connection or self.own
        connection.send_command(request)
        got = connection.receive()
        assert got.type in (BaseCommand.SUCCESS, BaseCommand.PRODUCER_SUCCESS), got

    def subscribe(self, consumer_id: int = 1, **fields: Any) -> BaseCommand:
        return command(
            "subscribe",
            **{
                "topic": self.topic,
                "subscription": "s",
                "subType": pb.CommandSubscribe.Exclusive,
                "consumer_id": consumer_id,
                **fields,
            },
        )

    def producer(self, producer_id: int = 1, **fields: Any) -> BaseCommand:
        return command("producer", **{"topic": self.topic, "producer_id": producer_id, **fields})

    def sticky(self, consumer_id: int, start: int, end: int, **fields: Any) -> BaseCommand:
        meta = pb.KeySharedMeta(
            keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end)], **fields
        )
        kind = pb.CommandSubscribe.Key_Shared
        return self.subscribe(consumer_id, subType=kind, keySharedMeta=meta)


Row = Callable[[Place], BaseCommand]


def _after(before: Callable[[Place], BaseCommand], row: Row) -> Row:
    """Somebody else does something first, which must succeed."""

    def both(place: Place) -> BaseCommand:
        place.done(before(place), place.other)
        return row(place)

    return both


def _after_own(before: Callable[[Place], BaseCommand], row: Row) -> Row:
    def both(place: Place) -> BaseCommand:
        place.done(before(place))
        return row(place)

    return both


_SHARED = pb.CommandSubscribe.Shared
_KEY_SHARED = pb.CommandSubscribe.Key_Shared
_EXCLUSIVE_MODE = pb.ProducerAccessMode.Exclusive
_NO_NAMESPACE = "persistent://public/nowhere/topic"
_NO_TENANT = "persistent://nobody/default/topic"
_BOTH = {"message_id": pb.MessageIdData(ledgerId=1, entryId=1), "message_publish_time": 1}

ROWS: dict[str, tuple[int, Row]] = {
    "producer of an unknown namespace": (
        pb.TopicNotFound,
        lambda place: place.producer(topic=_NO_NAMESPACE),
    ),
    "producer of an unknown tenant": (
        pb.TopicNotFound,
        lambda place: place.producer(topic=_NO_TENANT),
    ),
    "producer with a name that is taken": (
        pb.ProducerBusy,
        _after(
            lambda place: place.producer(producer_name="p"),
            lambda place: place.producer(producer_name="p"),
        ),
    ),
    "second exclusive producer": (
        pb.ProducerFenced,
        _after(
            lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE),
            lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE),
        ),
    ),
    "shared producer beside an exclusive one": (
        pb.ProducerBusy,
        _after(lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE), Place.producer),
    ),
    "exclusive producer beside a shared one": (
        pb.ProducerFenced,
        _after(Place.producer, lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE)),
    ),
    "consumer of an unknown namespace": (
        pb.TopicNotFound,
        lambda place: place.subscribe(topic=_NO_NAMESPACE),
    ),
    "consumer that may not create its topic": (
        pb.TopicNotFound,
        lambda place: place.subscribe(force_topic_creation=False),
    ),
    "second exclusive consumer": (pb.ConsumerBusy, _after(Place.subscribe, Place.subscribe)),
    "consumer of another type": (
        pb.ConsumerBusy,
        _after(Place.subscribe, lambda place: place.subscribe(subType=_SHARED)),
    ),
    "exclusive consumer of a shared subscription": (
        pb.ConsumerBusy,
        _after(lambda place: place.subscribe(subType=_SHARED), Place.subscribe),
    ),
    "reader of a durable subscription": (
        pb.NotAllowedError,
        _after(Place.subscribe, lambda place: place.subscribe(durable=False)),
    ),
    "compacted reading on a shared subscription": (
        pb.NotAllowedError,
        lambda place: place.subscribe(subType=_SHARED, read_compacted=True),
    ),
    "hash ranges that overlap": (
        pb.ConsumerAssignError,
        _after(lambda place: place.sticky(1, 0, 100), lambda place: place.sticky(2, 100, 200)),
    ),
    "hash ranges that are upside down": (
        pb.ConsumerAssignError,
        lambda place: place.sticky(1, 100, 0),
    ),
    "hash ranges beside automatic ones": (
        pb.ConsumerBusy,
        _after(
            lambda place: place.subscribe(subType=_KEY_SHARED),
            lambda place: place.sticky(2, 0, 100),
        ),
    ),
    "unsubscribe of an unknown consumer": (
        pb.MetadataError,
        lambda _: command("unsubscribe", consumer_id=9),
    ),
    "unsubscribe beside another consumer": (
        pb.MetadataError,
        _after(
            lambda place: place.subscribe(subType=_SHARED),
            _after_own(
                lambda place: place.subscribe(subType=_SHARED),
                lambda _: command("unsubscribe", consumer_id=1),
            ),
        ),
    ),
    "seek of an unknown consumer": (
        pb.MetadataError,
        lambda _: command("seek", consumer_id=9, message_publish_time=1),
    ),
    "seek to nowhere": (
        pb.MetadataError,
        _after_own(Place.subscribe, lambda _: command("seek", consumer_id=1)),
    ),
    "seek to an id and a time": (
        pb.MetadataError,
        _after_own(Place.subscribe, lambda _: command("seek", consumer_id=1, **_BOTH)),
    ),
    "last message of an unknown consumer": (
        pb.MetadataError,
        lambda _: command("getLastMessageId", consumer_id=9),
    ),
    "statistics of an unknown consumer": (
        pb.ConsumerNotFound,
        lambda _: command("consumerStats", consumer_id=9),
    ),
    "acknowledgement in a transaction": (
        pb.NotAllowedError,
        _after_own(
            Place.subscribe,
            lambda _: command(
                "ack", consumer_id=1, ack_type=pb.CommandAck.Individual, txnid_most_bits=1
            ),
        ),
    ),
    "lookup in an unknown namespace": (
        pb.TopicNotFound,
        lambda _: command("lookupTopic", topic=_NO_NAMESPACE),
    ),
    "partitions in an unknown namespace": (
        pb.TopicNotFound,
        lambda _: command("partitionMetadata", topic=_NO_NAMESPACE),
    ),
}


def _producer_of(name: str) -> Row:
    return lambda place: place.producer(topic=name)


def _consumer_of(name: str) -> Row:
    return lambda place: place.subscribe(topic=name)


for _name in ODD_NAMES:
    ROWS[f"producer of {_name!r}"] = (pb.InvalidTopicName, _producer_of(_name))
    ROWS[f"consumer of {_name!r}"] = (pb.InvalidTopicName, _consumer_of(_name))


def code_of(answer: BaseCommand) -> int:
    """The code of whatever kind of answer that is."""
    for name in (
        "error",
        "lookupTopicResponse",
        "partitionMetadataResponse",
        "consumerStatsResponse",
        "ackResponse",
    ):
        if answer.HasField(name):
            part = getattr(answer, name)
            return int(part.error_code if name == "consumerStatsResponse" else part.error)
    raise AssertionError(f"no refusal: {answer}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("rejections") / "data") as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.mark.parametrize("name", ROWS)
def test_it_is_refused_with_exactly_this_code(server: Standalone, name: str) -> None:
    code, row = ROWS[name]
    topic = f"persistent://public/default/refused-{next(_numbers)}"
    with RawConnection(server.port) as own, RawConnection(server.port) as other:
        own.connect()
        other.connect()
        refused = row(Place(topic, own, other))
        living = threading.Thread(target=other.receive_until_closed)
        living.start()  # it answers pings: nobody is taken for dead
        own.send_command(refused)
        assert code_of(own.receive()) == code
        own.ping()
        assert living.is_alive(), "the other connection was closed"
        other.finish_sending()
        living.join()


def test_a_slow_and_a_dead_reader_hold_up_nobody(server: Standalone) -> None:
    """One takes nothing off its socket, one is gone; a third one on the topic gets everything."""
    topic = f"persistent://public/default/slow-{next(_numbers)}"
    body, count = bytes(64_000), 300
    with RawConnection(server.port) as slow, RawConnection(server.port) as good:
        slow.connect()
        good.connect()
        with RawConnection(server.port) as dead:
            dead.connect()
            for connection, subscription in ((slow, "slow"), (dead, "dead"), (good, "good")):
                place = Place(topic, connection, connection)
                place.done(place.subscribe(subscription=subscription))
                connection.send_command(command("flow", consumer_id=1, messagePermits=1000))
        good.open_producer(topic)
        found = receipts = 0
        for number in range(count):
            good.send(send_frame(body, sequence_id=number))
            while receipts <= number:
                kind = good.receive().type
                receipts += kind == BaseCommand.SEND_RECEIPT
                found += kind == BaseCommand.MESSAGE
        while found < count:
            assert good.receive().type == BaseCommand.MESSAGE
            found += 1
