"""Messages that are refused, commands that come too late, readers that are slow or dead."""

from collections.abc import Callable

import pytest

from magnetar.sdk.wire import BaseCommand, encode_payload_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.integration.broker.refusing import Place, after_own, command, numbers, payload_of
from tests.standalone import Standalone

_NEVER_THERE = pb.MessageIdData(ledgerId=1 << 60, entryId=(1 << 63) - 1)

SENDS: dict[str, tuple[int, bytes]] = {
    "larger than the broker takes": (pb.NotAllowedError, send_frame(bytes((5 << 20) + 1))),
    "whose ids are upside down": (
        pb.MetadataError,
        encode_payload_command(
            BaseCommand(
                type=BaseCommand.SEND,
                send=pb.CommandSend(producer_id=1, sequence_id=9, highest_sequence_id=8),
            ),
            payload_of(send_frame(b"-")),
        ),
    ),
    "with a changed byte": (pb.ChecksumError, send_frame(b"-")[:-1] + b"+"),
}


@pytest.mark.parametrize("name", SENDS)
def test_a_message_is_refused_and_the_next_one_is_taken(server: Standalone, name: str) -> None:
    code, frame = SENDS[name]
    with RawConnection(server.port) as own:
        own.connect()
        own.open_producer(f"persistent://public/default/sent-{next(numbers)}")
        own.send(frame)
        answer = own.receive()
        assert answer.type == BaseCommand.SEND_ERROR, answer
        assert answer.send_error.error == code
        assert answer.send_error.producer_id == 1
        own.send(send_frame(b"good", sequence_id=20))
        answer = own.receive()
        assert answer.type == BaseCommand.SEND_RECEIPT, answer
        assert answer.send_receipt.sequence_id == 20


SILENT: dict[str, Callable[[Place], BaseCommand]] = {
    "credit for an unknown consumer": lambda _: command("flow", consumer_id=9, messagePermits=1),
    "no credit at all": after_own(
        Place.subscribe, lambda _: command("flow", consumer_id=1, messagePermits=0)
    ),
    "redelivery to an unknown consumer": lambda _: command(
        "redeliverUnacknowledgedMessages", consumer_id=9
    ),
    "redelivery of what was never there": after_own(
        Place.subscribe,
        lambda _: command(
            "redeliverUnacknowledgedMessages", consumer_id=1, message_ids=[_NEVER_THERE]
        ),
    ),
    "acknowledgement by an unknown consumer": lambda _: _ack(9, _NEVER_THERE),
    "acknowledgement of what was never there": after_own(
        Place.subscribe, lambda _: _ack(1, _NEVER_THERE)
    ),
    "acknowledgement of nothing": after_own(Place.subscribe, lambda _: _ack(1)),
    "acknowledgement of a batch that is none": after_own(
        Place.subscribe,
        lambda _: _ack(1, pb.MessageIdData(ledgerId=1, entryId=0, ack_set=[1], batch_size=-3)),
    ),
    "pong without a ping": lambda _: command("pong"),
}


def _ack(consumer_id: int, *ids: pb.MessageIdData) -> BaseCommand:
    request = pb.CommandAck(
        consumer_id=consumer_id, ack_type=pb.CommandAck.Individual, message_id=ids
    )
    return BaseCommand(type=BaseCommand.ACK, ack=request)


@pytest.mark.parametrize("name", SILENT)
def test_what_comes_too_late_is_no_error_and_gets_no_answer(server: Standalone, name: str) -> None:
    topic = f"persistent://public/default/silent-{next(numbers)}"
    with RawConnection(server.port) as own, RawConnection(server.port) as other:
        own.connect()
        other.connect()
        own.send_command(SILENT[name](Place(topic, own, other)))
        own.ping()  # nothing was said before the pong


@pytest.mark.parametrize("kind", ["close_producer", "close_consumer"])
def test_closing_what_is_not_there_is_done(server: Standalone, kind: str) -> None:
    with RawConnection(server.port) as own:
        own.connect()
        Place("", own, own).done(command(kind, **{kind.replace("close_", "") + "_id": 77}))


def test_a_slow_and_a_dead_reader_hold_up_nobody(server: Standalone) -> None:
    """One takes nothing off its socket, one is gone; a third one on the topic gets everything."""
    topic = f"persistent://public/default/slow-{next(numbers)}"
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
