"""Messages that come before the producer of their partition is there."""

import asyncio
from dataclasses import replace

import pytest

from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.errors import PendingLimitError, SdkError
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.errors import NotAllowedError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata, ServerError
from tests.integration.sdk.conftest import FAST
from tests.integration.sdk.scripted_broker import Peer, ScriptedBroker


class Gate:
    """Lets the first producer of a partition be made, and holds up the other, for all messages."""

    def __init__(self, broker: ScriptedBroker) -> None:
        broker.partitions = 2
        broker.faults.append(self._hold)
        self.idle = 0
        self.held: list[tuple[Peer, BaseCommand]] = []
        self.has_held = asyncio.Event()

    def _hold(self, peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.PRODUCER:
            return False
        if peer.broker.count(BaseCommand.PRODUCER) == 1:
            self.idle = 1 - int(command.producer.topic[-1])
            return False
        self.held.append((peer, command))
        self.has_held.set()
        return True

    def settings(self, *, messages_max: int = 10_000, bytes_max: int = 1 << 20) -> ProducerSettings:
        return ProducerSettings(
            lazy_partitions=True,
            batching=False,
            routing=lambda *_: self.idle,
            pending_messages_max=messages_max,
            pending_bytes_max=bytes_max,
        )

    def open(self) -> None:
        for peer, command in self.held:
            peer.serve(command, b"")


def stored(broker: ScriptedBroker) -> list[bytes]:
    batches = [MessageBatch(entry, EntrySource("t"), 1, 0) for entry in broker.entries]
    return [payload for batch in batches for payload in batch.payloads()]


@pytest.mark.parametrize(
    ("bounds", "memory_bytes_max"),
    [({"messages_max": 2}, 0), ({"bytes_max": 4}, 0), ({}, 4)],
    ids=["messages", "bytes", "memory of the client"],
)
async def test_send_waits_for_room_and_keeps_the_order_of_the_calls(
    broker: ScriptedBroker, bounds: dict[str, int], memory_bytes_max: int
) -> None:
    gate = Gate(broker)
    async with Client(broker.url, replace(FAST, memory_bytes_max=memory_bytes_max)) as client:
        producer = await client.producer("t", gate.settings(**bounds))
        messages = [b"%02d" % at for at in range(6)]
        sends = [asyncio.create_task(producer.send(each)) for each in messages[:5]]
        await gate.has_held.wait()
        gate.open()
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        await producer.send(messages[5])
        await asyncio.gather(*sends)
    assert stored(broker) == messages


async def test_send_nowait_is_refused_where_send_would_wait(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=2))
    outcomes: list[SdkError | None] = []
    for _ in range(2):
        producer.send_nowait(b"1", on_sent=lambda _, error: outcomes.append(error))
    with pytest.raises(PendingLimitError):
        producer.send_nowait(b"1")
    await gate.has_held.wait()
    gate.open()
    await producer.flush()
    assert outcomes == [None, None]


async def test_what_is_encoded_already_has_the_producer_made_too(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings())
    with pytest.raises(PendingLimitError):
        producer.send_encoded_nowait(b"1", MessageMetadata())
    async with asyncio.timeout(5):
        await gate.has_held.wait()


async def test_what_a_callback_raises_keeps_the_outcome_from_nobody_else(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings())
    outcomes: list[SdkError | None] = []

    def broken(_: object, __: object) -> None:
        raise RuntimeError("of the application")

    producer.send_nowait(b"1", on_sent=broken)
    producer.send_nowait(b"2", on_sent=lambda _, error: outcomes.append(error))
    await gate.has_held.wait()
    for peer, command in gate.held:
        peer.refuse(command.producer.request_id, ServerError.NotAllowedError)
    await producer.flush()
    assert [type(error) for error in outcomes] == [NotAllowedError]
    broker.faults.clear()
    assert await producer.send(b"3")  # the next message tries again
