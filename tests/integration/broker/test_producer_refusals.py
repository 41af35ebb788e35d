"""What producers are refused, with the codes of the protocol, on a raw connection to a server."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from magnetar.sdk.wire import (
    BaseCommand,
    MessageMetadata,
    encode_payload,
    encode_payload_command,
    pulsar_pb2,
)
from tests.http_calls import admin, topic_path
from tests.integration.broker.raw_connection import RawConnection
from tests.standalone import Standalone

_ERRORS = pulsar_pb2.ServerError
_MINUS_1 = (1 << 64) - 1
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/refusals-{next(_numbers)}"


@pytest.fixture
def open_raw(server: Standalone) -> Iterator[Callable[[], RawConnection]]:
    opened: list[RawConnection] = []

    def make() -> RawConnection:
        raw = RawConnection(server.port)
        opened.append(raw)
        raw.connect()
        return raw

    yield make
    for raw in opened:
        raw.ping()  # none of it ended a connection
        raw.close()


def _send(raw: RawConnection, sequence_id: int, body: bytes = b"-", **fields: object) -> None:
    metadata = MessageMetadata(
        producer_name=str(fields.pop("name", "p")),
        sequence_id=int(str(fields.pop("inner_id", sequence_id))),
        publish_time=1,
    )
    send = pulsar_pb2.CommandSend(producer_id=1, sequence_id=sequence_id, **fields)  # type: ignore[arg-type]
    raw.send(
        encode_payload_command(
            BaseCommand(type=BaseCommand.SEND, send=send),
            encode_payload(metadata.SerializeToString(), body),
        )
    )


def _code(answer: BaseCommand) -> int:
    assert answer.type in (BaseCommand.ERROR, BaseCommand.SEND_ERROR), answer
    if answer.type == BaseCommand.ERROR:
        return answer.error.error
    return answer.send_error.error


def _is_stored(answer: BaseCommand) -> bool:
    assert answer.type == BaseCommand.SEND_RECEIPT, answer
    return answer.send_receipt.message_id.ledgerId != _MINUS_1


def test_access_modes(open_raw: Callable[[], RawConnection], topic: str) -> None:
    owner, other = open_raw(), open_raw()
    assert owner.produce(topic, producer_access_mode=1).producer_success.topic_epoch == 0
    assert _code(other.produce(topic)) == _ERRORS.ProducerBusy
    assert _code(other.produce(topic, producer_access_mode=1)) == _ERRORS.ProducerFenced
    queued = other.produce(topic, producer_access_mode=2)
    assert not queued.producer_success.producer_ready
    assert _code(other.produce(topic)) == _ERRORS.ServiceNotReady
    owner.close_producer()
    ready = other.receive().producer_success
    assert (ready.producer_ready, ready.topic_epoch) == (True, 1)
    assert owner.produce(topic, producer_access_mode=3).producer_success.topic_epoch == 2
    assert other.receive().type == BaseCommand.CLOSE_PRODUCER


def test_encryption(server: Standalone, open_raw: Callable[[], RawConnection], topic: str) -> None:
    admin(server, "PUT", "namespaces/public/sealed", {})
    admin(server, "POST", "namespaces/public/sealed/encryptionRequired", True)
    sealed = topic.replace("public/default", "public/sealed")
    raw = open_raw()
    assert _code(raw.produce(sealed)) == _ERRORS.MetadataError
    assert raw.produce(sealed, encrypted=True, producer_name="p").HasField("producer_success")
    _send(raw, 0, b"plain")
    assert _code(raw.receive()) == _ERRORS.MetadataError


def test_sizes_and_sequence_ids(
    server: Standalone, open_raw: Callable[[], RawConnection], topic: str
) -> None:
    raw = open_raw()
    raw.produce(topic, producer_name="p")
    admin(server, "POST", f"{topic_path(topic)}/maxMessageSize", 1024)
    sizes = itertools.count(1)
    while True:  # until the policy has reached the topic
        number = next(sizes)
        _send(raw, number, b"x" * 1025)
        answer = raw.receive()
        if answer.type == BaseCommand.SEND_ERROR:
            break
    assert _code(answer) == _ERRORS.NotAllowedError
    assert answer.send_error.sequence_id == number
    _send(raw, number + 1, b"x" * 1024)
    assert _is_stored(raw.receive())
    _send(raw, number + 9, highest_sequence_id=number + 8)
    assert _code(raw.receive()) == _ERRORS.MetadataError


def test_what_is_sent_again(
    server: Standalone, open_raw: Callable[[], RawConnection], topic: str
) -> None:
    raw = open_raw()
    raw.produce(topic, producer_name="p")
    admin(server, "POST", f"{topic_path(topic)}/deduplicationEnabled", True)
    assert raw.receive().type == BaseCommand.CLOSE_PRODUCER  # it is loaded anew
    assert raw.produce(topic, producer_name="p", epoch=1).producer_success.last_sequence_id == -1
    for sequence_id, is_new in ((3, True), (3, False), (2, False), (4, True)):
        _send(raw, sequence_id)
        answer = raw.receive()
        assert answer.send_receipt.sequence_id == sequence_id
        assert _is_stored(answer) is is_new
    # Nothing is taken behind what was refused: sent again it must not look like a duplicate.
    for spoiled in ({"name": "somebody else"}, {"inner_id": 6}):
        _send(raw, 5, **spoiled)
        _send(raw, 6)
        assert _code(raw.receive()) == _ERRORS.MetadataError
        assert raw.receive().type == BaseCommand.CLOSE_PRODUCER
        assert raw.produce(topic, producer_name="p").producer_success.last_sequence_id == 4
    for sequence_id in (5, 6):
        _send(raw, sequence_id)
        assert _is_stored(raw.receive())


def test_a_rate_holds_up_its_own_connection_alone(
    server: Standalone, open_raw: Callable[[], RawConnection], topic: str
) -> None:
    fast, other = open_raw(), open_raw()
    fast.produce(topic, producer_name="p")
    other.produce(f"{topic}-other", producer_name="p")
    rate = {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
    admin(server, "POST", f"{topic_path(topic)}/publishRate", rate)

    def limited() -> int:
        stats = admin(server, "GET", f"{topic_path(topic)}/stats")
        assert isinstance(stats, dict)
        return int(stats["publishRateLimitedTimes"])

    sequence_ids = itertools.count()
    while not limited():  # the policy reaches the topic, and then the rate is over
        for _ in range(25):
            _send(fast, next(sequence_ids))
        for _ in range(25):
            assert _is_stored(fast.receive())
    for sequence_id in range(50):
        _send(other, sequence_id)
        assert _is_stored(other.receive())
    _send(fast, next(sequence_ids))
    assert _is_stored(fast.receive())  # when time has paid for it
