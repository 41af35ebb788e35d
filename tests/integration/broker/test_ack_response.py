"""Acknowledgements with a request id are answered, every kind; the official client sends none.

The answer says that the broker has taken the acknowledgement, so that it holds for whoever consumes
next. It does not say that it survives kill -9 within the persist interval.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.sdk.wire import BaseCommand, pulsar_pb2
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.standalone import Standalone

_TOPIC = "persistent://public/default/acknowledged"
_COUNT = 10
_SHARED = pulsar_pb2.CommandSubscribe.Shared
_EXCLUSIVE = pulsar_pb2.CommandSubscribe.Exclusive


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("ack-response") / "data") as standalone:
        with RawConnection(standalone.port) as connection:
            connection.connect()
            connection.open_producer(_TOPIC)
            for number in range(_COUNT):
                connection.send(send_frame(b"%d" % number, sequence_id=number))
                assert connection.receive().type == BaseCommand.SEND_RECEIPT
        yield standalone
        standalone.assert_log_clean()


def _consume(
    server: Standalone, subscription: str, kind: pulsar_pb2.CommandSubscribe.SubType
) -> tuple[RawConnection, list[pulsar_pb2.CommandMessage]]:
    """Subscribe and take what is outstanding; a PING after the FLOW bounds it."""
    connection = RawConnection(server.port)
    connection.connect()
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = _TOPIC
    command.subscribe.subscription = subscription
    command.subscribe.subType = kind
    command.subscribe.consumer_id = 1
    command.subscribe.request_id = 2
    command.subscribe.initialPosition = pulsar_pb2.CommandSubscribe.Earliest
    connection.send_command(command)
    assert connection.receive().type == BaseCommand.SUCCESS
    connection.send_command(
        BaseCommand(
            type=BaseCommand.FLOW, flow=pulsar_pb2.CommandFlow(consumer_id=1, messagePermits=100)
        )
    )
    messages: list[pulsar_pb2.CommandMessage] = []
    while not messages or messages[-1].message_id.entryId < _COUNT - 1:
        answer = connection.receive()
        assert answer.type == BaseCommand.MESSAGE, answer
        messages.append(answer.message)
    return connection, messages


def _acknowledge(
    connection: RawConnection,
    kind: pulsar_pb2.CommandAck.AckType,
    *messages: pulsar_pb2.CommandMessage,
    request_id: int,
    ack_set: tuple[int, ...] = (),
) -> pulsar_pb2.CommandAckResponse:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = 1
    command.ack.ack_type = kind
    command.ack.request_id = request_id
    for message in messages:
        command.ack.message_id.add(
            ledgerId=message.message_id.ledgerId,
            entryId=message.message_id.entryId,
            ack_set=ack_set,
        )
    connection.send_command(command)
    answer = connection.receive()
    assert answer.type == BaseCommand.ACK_RESPONSE, answer
    return answer.ackResponse


def _entries(messages: list[pulsar_pb2.CommandMessage]) -> list[int]:
    return [message.message_id.entryId for message in messages]


def test_individual_acknowledgements_are_answered_and_hold(server: Standalone) -> None:
    connection, messages = _consume(server, "individual", _SHARED)
    with connection:
        assert _entries(messages) == list(range(_COUNT))
        individual = pulsar_pb2.CommandAck.Individual
        first = _acknowledge(connection, individual, messages[0], request_id=11)
        several = _acknowledge(connection, individual, *messages[2:8], request_id=12)
        again = _acknowledge(connection, individual, messages[0], request_id=13)
    for answer, request_id in ((first, 11), (several, 12), (again, 13)):
        assert (answer.consumer_id, answer.request_id) == (1, request_id)
        assert not answer.HasField("error")
    connection, messages = _consume(server, "individual", _SHARED)
    with connection:
        assert _entries(messages) == [1, 8, 9]


def test_cumulative_acknowledgements_are_answered_and_hold(server: Standalone) -> None:
    connection, messages = _consume(server, "cumulative", _EXCLUSIVE)
    with connection:
        cumulative = pulsar_pb2.CommandAck.Cumulative
        answer = _acknowledge(connection, cumulative, messages[6], request_id=0)
    assert answer.request_id == 0  # Request ids begin there: it must not pass for "none".
    assert not answer.HasField("error")
    connection, messages = _consume(server, "cumulative", _EXCLUSIVE)
    with connection:
        assert _entries(messages) == [7, 8, 9]


def test_a_cumulative_acknowledgement_on_a_shared_subscription_is_answered_and_ignored(
    server: Standalone,
) -> None:
    connection, messages = _consume(server, "shared", _SHARED)
    with connection:
        cumulative = pulsar_pb2.CommandAck.Cumulative
        answer = _acknowledge(connection, cumulative, messages[6], request_id=3)
        assert not answer.HasField("error")
    connection, messages = _consume(server, "shared", _SHARED)
    with connection:
        assert _entries(messages) == list(range(_COUNT))


def test_an_acknowledgement_survives_an_orderly_restart(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        with RawConnection(server.port) as connection:
            connection.connect()
            connection.open_producer(_TOPIC)
            for number in range(_COUNT):
                connection.send(send_frame(b"%d" % number, sequence_id=number))
                assert connection.receive().type == BaseCommand.SEND_RECEIPT
        connection, messages = _consume(server, "s", _SHARED)
        with connection:
            _acknowledge(
                connection, pulsar_pb2.CommandAck.Individual, *messages[1:8:2], request_id=1
            )
        assert server.terminate() == 0
        server.start()
        connection, messages = _consume(server, "s", _SHARED)
        connection.close()
        assert _entries(messages) == [0, 2, 4, 6, 8, 9]
