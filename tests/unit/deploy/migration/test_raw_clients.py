"""Clients of whole entries leave nothing behind at the broker when they cannot attach."""

import asyncio

import pytest

from magnetar.deploy.migration.raw_clients import RawConsumer, RawProducer
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import OperationTimeoutError, ServiceError
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire import BaseCommand, TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.frames import FrameDecoder, encode_command
from tests.waiting import settle

TOPIC = TopicName.parse("persistent://acme/orders/new")


class Wire(asyncio.Transport):
    """A connection's transport, which keeps the commands that were written."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[BaseCommand] = []
        self._decoder = FrameDecoder()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.commands += [command for command, _ in self._decoder.feed(bytes(data))]

    def abort(self) -> None:
        """Do nothing."""

    @property
    def types(self) -> list[BaseCommand.Type]:
        return [each.type for each in self.commands if each.type != BaseCommand.CONNECT]


def _connected(*, timeout_ms: int = 30_000) -> tuple[Connection, Wire]:
    wire = Wire()
    connection = Connection(ClientSettings(operation_timeout_ms=timeout_ms), name="source")
    connection.connection_made(wire)
    return connection, wire


async def test_a_subscribe_without_an_answer_is_followed_by_a_close() -> None:
    connection, wire = _connected(timeout_ms=1)
    consumer = RawConsumer(connection, 7, lambda: None)
    with pytest.raises(OperationTimeoutError):
        await consumer.attach(TOPIC, "hold")
    await settle()
    assert wire.types == [BaseCommand.SUBSCRIBE, BaseCommand.CLOSE_CONSUMER]
    assert wire.commands[-1].close_consumer.consumer_id == 7
    assert not connection.consumers


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_cancelled_subscribe_is_followed_by_a_close(is_answered: bool) -> None:
    connection, wire = _connected()
    attaching = asyncio.create_task(RawConsumer(connection, 7, lambda: None).attach(TOPIC, "hold"))
    await settle()
    if is_answered:  # in the very turn of the cancellation
        request_id = wire.commands[-1].subscribe.request_id
        success = pb.CommandSuccess(request_id=request_id)
        connection.data_received(
            encode_command(BaseCommand(type=BaseCommand.SUCCESS, success=success))
        )
    attaching.cancel()
    await asyncio.gather(attaching, return_exceptions=True)
    await settle()
    assert wire.types == [BaseCommand.SUBSCRIBE, BaseCommand.CLOSE_CONSUMER]


async def test_a_refused_subscribe_needs_no_close() -> None:
    connection, wire = _connected()
    attaching = asyncio.create_task(RawConsumer(connection, 7, lambda: None).attach(TOPIC, "hold"))
    await settle()
    error = pb.CommandError(
        request_id=wire.commands[-1].subscribe.request_id,
        error=pb.ServerError.ConsumerBusy,
        message="there is another consumer",
    )
    connection.data_received(encode_command(BaseCommand(type=BaseCommand.ERROR, error=error)))
    with pytest.raises(ServiceError):
        await attaching
    await settle()
    assert wire.types == [BaseCommand.SUBSCRIBE]


async def test_a_producer_without_an_answer_is_closed() -> None:
    connection, wire = _connected(timeout_ms=1)
    producer = RawProducer(connection, 7, lambda _: None, lambda: None)
    with pytest.raises(OperationTimeoutError):
        await producer.attach(TOPIC, "copies")
    await settle()
    assert wire.types == [BaseCommand.PRODUCER, BaseCommand.CLOSE_PRODUCER]
