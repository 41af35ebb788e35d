"""Messages that come before the producer of their partition is there."""

import asyncio
from dataclasses import replace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.errors import AlreadyClosedError, PendingLimitError, SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.partitioned_producer import PartitionedProducer
from magnetar.sdk.producing.topic_producer import TopicProducer
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire import BaseCommand, encode_send_receipts
from magnetar.sdk.wire.errors import NotAllowedError
from magnetar.sdk.wire.pulsar_pb2 import CommandSend, MessageMetadata, ServerError
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


@pytest.mark.parametrize("messages_max", [10_000, 2])
async def test_send_many_is_not_overtaken_by_what_is_sent_after_it(
    broker: ScriptedBroker, client: Client, messages_max: int
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=messages_max))
    messages = [b"%02d" % at for at in range(9)]
    sends = [
        asyncio.create_task(producer.send(messages[0])),
        asyncio.create_task(producer.send_many(messages[1:6])),
        asyncio.create_task(producer.send(messages[6])),
        asyncio.create_task(producer.send_many(messages[7:8])),
        asyncio.create_task(producer.send(messages[8])),
    ]
    await gate.has_held.wait()
    gate.open()
    async with asyncio.timeout(5):
        await asyncio.gather(*sends)
        await producer.flush()
    assert stored(broker) == messages


async def test_send_many_that_waits_for_one_partition_holds_up_no_other(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    settings = replace(
        gate.settings(),
        routing=lambda message, _: gate.idle if message.payload == b"held" else 1 - gate.idle,
    )
    producer = await client.producer("t", settings)
    many = asyncio.create_task(producer.send_many([b"held", b"1"]))
    await gate.has_held.wait()
    async with asyncio.timeout(5):
        await producer.send(b"2")
    assert stored(broker) == [b"1", b"2"]
    gate.open()
    async with asyncio.timeout(5):
        await many


async def test_who_waits_when_the_producer_is_closed_makes_no_other(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings())
    transaction = Transaction(AsyncMock(), 1_000)
    sends = [
        asyncio.create_task(producer.send_many([b"1"])),
        asyncio.create_task(producer.send(b"2", transaction=transaction)),
    ]
    await gate.has_held.wait()
    await producer.close(flush=False)
    async with asyncio.timeout(5):
        for each in sends:
            with pytest.raises(AlreadyClosedError):
                await each
    assert broker.count(BaseCommand.PRODUCER) == 2


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


class Receipts:
    """Withheld until they are released."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._held: list[tuple[Peer, CommandSend]] = []
        broker.faults.append(self._hold)

    def _hold(self, peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND:
            return False
        self._held.append((peer, command.send))
        return True

    def release(self) -> None:
        self._broker.faults.clear()
        for at, (peer, send) in enumerate(self._held):
            receipt = encode_send_receipts(
                send.producer_id, [send.sequence_id], ledger_id=1, entry_ids=[at]
            )
            peer.transport.write(receipt)


async def test_a_message_that_cannot_be_sent_fails_alone(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings())
    bad = cast("dict[str, str]", {"n": 1})
    told: list[SdkError | None] = []
    sends = [asyncio.create_task(producer.send(b"a"))]
    sends.append(asyncio.create_task(producer.send(b"b", properties=bad)))
    sends.append(asyncio.create_task(producer.send(b"c")))
    await gate.has_held.wait()
    producer.send_nowait(b"d", properties=bad, on_sent=lambda _, error: told.append(error))
    producer.send_nowait(b"e", properties=bad)
    gate.open()
    async with asyncio.timeout(5):
        first, second, third = await asyncio.gather(*sends, return_exceptions=True)
        with pytest.raises(SdkError, match="properties"):
            await producer.flush()
        await producer.send(b"f")
    assert isinstance(first, MessageId)
    assert isinstance(second, TypeError)
    assert isinstance(third, MessageId)
    assert [type(error) for error in told] == [SdkError]
    assert stored(broker) == [b"a", b"c", b"f"]


async def test_what_a_callback_sends_comes_behind_what_waits(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings())
    bad = cast("dict[str, str]", {"n": 1})
    producer.send_nowait(b"x", properties=bad, on_sent=lambda *_: producer.send_nowait(b"b"))
    producer.send_nowait(b"a")
    await gate.has_held.wait()
    gate.open()
    await producer.flush()
    assert stored(broker) == [b"a", b"b"]


async def test_a_start_that_is_cancelled_is_told_to_all_and_tried_again(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=1))
    assert isinstance(producer, PartitionedProducer)
    waits = asyncio.create_task(producer.send(b"1"))
    has_no_room = asyncio.create_task(producer.send(b"2"))
    many = asyncio.create_task(producer.send_many([b"3"]))
    await gate.has_held.wait()
    broker.faults.clear()
    starting = producer._slots[gate.idle].starting
    assert starting is not None
    starting.cancel()
    async with asyncio.timeout(5):
        for each in (waits, many):
            with pytest.raises(SdkError):
                await each
        assert await has_no_room
        assert await producer.send(b"4")
    assert stored(broker) == [b"2", b"4"]


async def test_what_is_no_sdk_error_ends_a_start_and_is_told_to_all(
    broker: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings())
    broker.faults.clear()
    with monkeypatch.context() as patch:
        patch.setattr(TopicProducer, "start", AsyncMock(side_effect=OSError("no")))
        async with asyncio.timeout(5):
            with pytest.raises(OSError, match="no"):
                await producer.send(b"1")
    async with asyncio.timeout(5):
        assert await producer.send(b"2")


async def test_a_cancelled_flush_leaves_what_waits_alone(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=3))
    sends = [asyncio.create_task(producer.send(b"%d" % at)) for at in range(8)]
    await gate.has_held.wait()
    flush = asyncio.create_task(producer.flush())
    await asyncio.sleep(0)  # it has begun to wait
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    broker.faults.clear()
    receipts = Receipts(broker)
    gate.open()
    await broker.wait_command(BaseCommand.SEND, 3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.flush(), 0.1)
    receipts.release()
    async with asyncio.timeout(5):
        assert len(await asyncio.gather(*sends)) == 8
        await producer.send(b"8")
    order = [command.send.sequence_id for command in broker.commands if command.HasField("send")]
    assert order == list(range(9))


async def test_a_cancelled_send_that_waits_for_room_is_not_sent_and_blocks_nobody(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=2))
    sends = [asyncio.create_task(producer.send(b"%d" % at)) for at in range(6)]
    await gate.has_held.wait()
    sends[2].cancel()
    sends[4].cancel()
    gate.open()
    async with asyncio.timeout(5):
        await asyncio.gather(*sends, return_exceptions=True)
    assert [each.cancelled() for each in sends] == [at in (2, 4) for at in range(6)]
    assert stored(broker) == [b"0", b"1", b"3", b"5"]


async def test_the_producer_is_there_at_once_for_all_though_many_wait_for_room(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=2))
    assert isinstance(producer, PartitionedProducer)
    sends = [asyncio.create_task(producer.send(b"%d" % at)) for at in range(6)]
    await gate.has_held.wait()
    confirmed: list[int] = []
    producer.on_confirmed = lambda some, _: confirmed.extend(each.messages for each in some)
    broker.faults.clear()
    receipts = Receipts(broker)
    gate.open()
    await broker.wait_command(BaseCommand.SEND, 2)
    assert producer.pending_messages == 2
    assert producer.last_sequence_id == 1
    assert set(producer.stats_by_partition()) == {0, 1}
    receipts.release()
    async with asyncio.timeout(5):
        await asyncio.gather(*sends)
    assert sum(confirmed) == 6


async def test_steady_load_holds_up_neither_flush_nor_bulk_nor_the_order_of_a_sender(
    broker: ScriptedBroker, client: Client
) -> None:
    gate = Gate(broker)
    producer = await client.producer("t", gate.settings(messages_max=2))
    is_over = False
    sent: list[list[bytes]] = [[] for _ in range(6)]

    async def send(sender: int) -> None:
        while not is_over:
            payload = b"%d %d" % (sender, len(sent[sender]))
            sent[sender].append(payload)
            await producer.send(payload)

    loops = [asyncio.create_task(send(sender)) for sender in range(6)]
    await gate.has_held.wait()
    many = asyncio.create_task(producer.send_many([b"m 0", b"m 1", b"m 2"]))
    flush = asyncio.create_task(producer.flush())
    gate.open()
    async with asyncio.timeout(5):
        await asyncio.gather(many, flush)
        await producer.send_many([b"m 3"])
        await producer.flush()
    is_over = True
    async with asyncio.timeout(5):
        await asyncio.gather(*loops)
        await producer.close()
    found = stored(broker)
    assert found[:6] == [b"%d 0" % sender for sender in range(6)]
    for sender, payloads in enumerate(sent):
        assert [each for each in found if each.startswith(b"%d " % sender)] == payloads
    assert [each for each in found if each.startswith(b"m")] == [b"m %d" % at for at in range(4)]
