"""What a table of refused commands is made of: commands, and what comes before them."""

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from magnetar.sdk.wire import BaseCommand, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection

numbers = itertools.count(1)


def command(kind: str, **fields: Any) -> BaseCommand:
    """By the name of its field, with a request id if it has one; types are the fields' numbers."""
    number = BaseCommand.DESCRIPTOR.fields_by_name[kind].number
    made = BaseCommand(type=number)  # type: ignore[arg-type]
    part = getattr(made, kind)
    part.SetInParent()
    if "request_id" in part.DESCRIPTOR.fields_by_name:
        fields.setdefault("request_id", next(numbers))
    part.MergeFrom(type(part)(**fields))
    return made


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


Made = TypeVar("Made", bound=BaseCommand | bytes)
Row = Callable[[Place], BaseCommand | bytes]
"""What must be refused: a command, or a frame where no command says it."""


def after(
    before: Callable[[Place], BaseCommand], row: Callable[[Place], Made]
) -> Callable[[Place], Made]:
    """Somebody else does something first, which must succeed."""

    def both(place: Place) -> Made:
        place.done(before(place), place.other)
        return row(place)

    return both


def after_own(
    before: Callable[[Place], BaseCommand], row: Callable[[Place], Made]
) -> Callable[[Place], Made]:
    """Make a row whose connection does something else first."""

    def both(place: Place) -> Made:
        place.done(before(place))
        return row(place)

    return both


def code_of(answer: BaseCommand) -> int:
    """The code of whatever kind of answer that is."""
    for name in (
        "error",
        "lookupTopicResponse",
        "partitionMetadataResponse",
        "consumerStatsResponse",
        "getSchemaResponse",
        "getOrCreateSchemaResponse",
        "ackResponse",
        "newTxnResponse",
        "addPartitionToTxnResponse",
        "addSubscriptionToTxnResponse",
        "endTxnResponse",
        "endTxnOnPartitionResponse",
        "endTxnOnSubscriptionResponse",
        "tcClientConnectResponse",
    ):
        if answer.HasField(name):
            part = getattr(answer, name)
            has_code = "error_code" in part.DESCRIPTOR.fields_by_name
            return int(part.error_code if has_code else part.error)
    raise AssertionError(f"no refusal: {answer}")


def spoiled(request: BaseCommand, text: str) -> bytes:
    """The command's frame, in which this text is no UTF-8."""
    good = text.encode()
    frame = encode_command(request)
    assert frame.count(good) == 1
    return frame.replace(good, good[:-1] + b"\xff")


def payload_of(frame: bytes) -> bytes:
    """What follows the command in a SEND frame."""
    size = int.from_bytes(frame[4:8], "big")
    return frame[8 + size :]
