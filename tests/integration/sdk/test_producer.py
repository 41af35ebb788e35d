"""How a producer takes faults: nothing lost, nothing reordered, every outcome told."""

import asyncio
import os
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import AsyncMock

import pytest

from magnetar.sdk import AccessMode, Client, Compression, MessageId, ProducerSettings
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.errors import (
    AlreadyClosedError,
    CredentialsError,
    ForkedError,
    MessageTooLargeError,
    OperationTimeoutError,
    PendingLimitError,
    SchemaValueError,
    SdkError,
    SendTimeoutError,
    TransactionEndedError,
)
from magnetar.sdk.schemas import STRING
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.errors import (
    MessageChecksumError,
    ProducerBusyError,
    ProducerFencedError,
    TopicNameError,
    TopicTerminatedError,
)
from magnetar.sdk.wire.pulsar_pb2 import ServerError
from tests.integration.sdk.conftest import FAST
from tests.integration.sdk.scripted_broker import NO_REQUEST, Peer, ScriptedBroker, once
from tests.waiting import until

SINGLE = ProducerSettings(batching=False)


def stored(broker: ScriptedBroker) -> list[bytes]:
    """The payloads of everything that the broker holds."""
    batches = [MessageBatch(entry, EntrySource("t"), 1, 0) for entry in broker.entries]
    return [payload for batch in batches for payload in batch.payloads()]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % at for at in range(count)]


async def test_send_gives_the_id_of_the_stored_message(client: Client) -> None:
    producer = await client.producer("t", SINGLE)
    assert [await producer.send(b"a"), await producer.send(b"b")] == [
        MessageId(1, 0),
        MessageId(1, 1),
    ]
    assert producer.name == "made-up"


async def test_a_transaction_is_not_committed_without_a_message_that_could_not_be_sent(
    client: Client,
) -> None:
    producer = await client.producer("t", SINGLE, schema=STRING)
    coordinators = AsyncMock()
    coordinators.begin.return_value = (0, 7)
    transaction = await Transaction(coordinators, 1_000).begin()
    wrong: Any = 1
    sends = (producer.send(each, transaction=transaction) for each in ("a", wrong))
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(each) for each in results] == [MessageId, SchemaValueError]
    with pytest.raises(TransactionEndedError, match="str"):
        await transaction.commit()
    coordinators.end.assert_awaited_once_with(0, 7, commits=False)


async def test_what_is_sent_in_one_turn_becomes_one_batch(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t")
    ids = await asyncio.gather(*(producer.send(payload) for payload in numbered(3)))
    assert ids == [MessageId(1, 0, index) for index in range(3)]
    assert len(broker.entries) == 1
    assert stored(broker) == numbered(3)


async def test_batch_with_a_delay_waits_for_more(client: Client, broker: ScriptedBroker) -> None:
    settings = ProducerSettings(batch_delay_ms=60_000, batch_messages_max=2)
    producer = await client.producer("t", settings)
    first = asyncio.ensure_future(producer.send(b"0"))
    broker.peers[0].close_producer()
    await broker.wait_command(BaseCommand.PRODUCER, 2)
    assert not broker.entries
    ids = await asyncio.gather(first, producer.send(b"1"))
    assert list(ids) == [MessageId(1, 0, 0), MessageId(1, 0, 1)]


async def test_flush_closes_a_waiting_batch(client: Client, broker: ScriptedBroker) -> None:
    producer = await client.producer("t", ProducerSettings(batch_delay_ms=60_000))
    producer.send_nowait(b"0")
    await producer.flush()
    assert stored(broker) == [b"0"]


@pytest.mark.parametrize("batching", [True, False])
async def test_send_many_keeps_order_and_bounds(
    client: Client, broker: ScriptedBroker, batching: bool
) -> None:
    settings = ProducerSettings(batching=batching, batch_messages_max=7, pending_messages_max=10)
    producer = await client.producer("t", settings)
    most = 0

    def note(peer: Peer, command: BaseCommand) -> bool:
        nonlocal most
        most = max(most, producer.pending_messages)
        return False

    broker.faults.append(note)
    await producer.send_many(numbered(100))
    await producer.flush()
    assert stored(broker) == numbered(100)
    assert most == 10
    assert producer.last_sequence_id == 99


async def test_large_payloads_leave_a_batch_within_its_bytes(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", ProducerSettings(batch_bytes_max=1_000))
    payloads = [bytes(400) for _ in range(9)] + [bytes(5_000), b"x"]
    await producer.send_many(payloads)
    await producer.flush()
    assert stored(broker) == payloads
    assert max(map(len, broker.entries[:4])) < 1_100


@pytest.mark.parametrize("codec", list(Compression))
async def test_compressed_batches_come_back(
    client: Client, broker: ScriptedBroker, codec: Compression
) -> None:
    producer = await client.producer("t", ProducerSettings(compression=codec))
    await producer.send_many([b"again and again " * 20] * 50)
    await producer.flush()
    assert stored(broker) == [b"again and again " * 20] * 50
    if codec is not Compression.NONE:
        assert sum(map(len, broker.entries)) < 2_000


async def test_connection_lost_sends_again_in_order(client: Client, broker: ScriptedBroker) -> None:
    producer = await client.producer("t", SINGLE)

    def lose_receipt_and_connection(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND or command.send.sequence_id != 3:
            return False
        peer.transport.abort()
        return True

    broker.faults.append(once(lose_receipt_and_connection))
    await producer.send_many(numbered(10))
    await producer.flush()
    assert stored(broker) == numbered(10)
    assert broker.count(BaseCommand.PRODUCER) == 2
    second = (await broker.wait_command(BaseCommand.PRODUCER, 2)).producer
    assert (second.epoch, second.producer_name) == (1, "made-up")
    assert not second.user_provided_producer_name


async def test_closed_by_the_broker_attaches_again(client: Client, broker: ScriptedBroker) -> None:
    producer = await client.producer("t", SINGLE)
    await producer.send(b"0")
    broker.peers[0].close_producer()
    await broker.wait_command(BaseCommand.PRODUCER, 2)
    await producer.send(b"1")
    assert stored(broker) == [b"0", b"1"]
    assert len(broker.peers) == 1, "the connection is kept"


async def test_broker_away_for_a_while_is_waited_for(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", SINGLE)
    broker.stop()
    pending = asyncio.gather(*(producer.send(payload) for payload in numbered(5)))
    await broker.listen()
    assert await pending == [MessageId(1, at) for at in range(5)]


async def test_credentials_that_cannot_be_had_for_a_moment_are_asked_for_again(
    broker: ScriptedBroker,
) -> None:
    failures = [RuntimeError("the issuer is away")]

    def supply() -> bytes:
        if broker.entries and failures:
            raise failures.pop()
        return b"token"

    settings = replace(FAST, auth_method_name="token", auth_supplier=supply)
    async with Client(broker.url, settings) as client:
        producer = await client.producer("t", SINGLE)
        await producer.send(b"a")
        broker.drop_connections()
        await producer.send(b"b")
    assert stored(broker) == [b"a", b"b"]
    assert not failures


@pytest.mark.parametrize("kind", [FileNotFoundError, TimeoutError, ConnectionRefusedError])
async def test_a_producer_comes_up_once_its_credentials_can_be_had(
    broker: ScriptedBroker, kind: type[OSError]
) -> None:
    failures = [kind("for a moment"), kind("for a moment")]

    def supply() -> bytes:
        if failures:
            raise failures.pop()
        return b"token"

    settings = replace(FAST, auth_method_name="token", auth_supplier=supply)
    async with Client(broker.url, settings) as client:
        producer = await client.producer("t", SINGLE)
        await producer.send(b"a")
    assert stored(broker) == [b"a"]


async def test_credentials_that_no_time_brings_fail_a_producer_at_once(
    broker: ScriptedBroker,
) -> None:
    def supply() -> bytes:
        raise KeyError("token")

    settings = replace(FAST, auth_method_name="token", auth_supplier=supply)
    async with Client(broker.url, settings) as client:
        with pytest.raises(CredentialsError, match="KeyError"):
            await client.producer("t", SINGLE)


async def test_refused_message_fails_alone(client: Client, broker: ScriptedBroker) -> None:
    producer = await client.producer("t", SINGLE)

    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND or command.send.sequence_id != 1:
            return False
        peer.refuse_send(1, ServerError.ChecksumError)
        return True

    broker.faults.append(refuse)
    results = await asyncio.gather(
        *(producer.send(payload) for payload in numbered(3)), return_exceptions=True
    )
    assert isinstance(results[1], MessageChecksumError)
    assert [results[0], results[2]] == [MessageId(1, 0), MessageId(1, 1)]


async def test_failed_write_sends_again_after_attaching_afresh(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", SINGLE)

    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND:
            return False
        peer.refuse_send(command.send.sequence_id, ServerError.PersistenceError)
        return True

    broker.faults.append(once(refuse))
    await producer.send(b"0")
    assert stored(broker) == [b"0"]
    assert broker.count(BaseCommand.PRODUCER) == 2


async def test_terminated_topic_fails_what_is_pending(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", SINGLE)

    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND:
            return False
        peer.refuse_send(command.send.sequence_id, ServerError.TopicTerminatedError)
        return True

    broker.faults.append(refuse)
    with pytest.raises(TopicTerminatedError):
        await producer.send(b"0")


async def test_receipt_of_a_message_that_is_not_next_breaks_the_connection(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", SINGLE)

    def skip(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND:
            return False
        ahead = BaseCommand()
        ahead.CopyFrom(command)
        ahead.send.sequence_id += 5
        peer.store(ahead, broker.entries.pop() if broker.entries else b"")
        broker.entries.clear()
        return True

    broker.faults.append(once(skip))
    assert await producer.send(b"0") == MessageId(1, 0)
    assert broker.count(BaseCommand.CONNECT) == 2


async def test_no_receipt_in_time_is_told_as_unknown(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", ProducerSettings(batching=False, send_timeout_ms=30))
    broker.faults.append(lambda peer, command: command.type == BaseCommand.SEND)
    with pytest.raises(SendTimeoutError):
        await producer.send(b"0")
    producer.send_nowait(b"1")
    with pytest.raises(SendTimeoutError):
        await producer.flush()
    await producer.flush()
    assert producer.pending_messages == 0


async def test_limit_of_pending_messages_is_kept(client: Client, broker: ScriptedBroker) -> None:
    settings = ProducerSettings(batching=False, pending_messages_max=2)
    producer = await client.producer("t", settings)
    producer.send_nowait(b"0")
    producer.send_nowait(b"1")
    with pytest.raises(PendingLimitError):
        producer.send_nowait(b"2")
    assert await producer.send(b"2") == MessageId(1, 2)


async def test_limit_of_pending_bytes_lets_one_large_message_through(client: Client) -> None:
    settings = ProducerSettings(batching=False, pending_bytes_max=10)
    producer = await client.producer("t", settings)
    ids = await asyncio.gather(*(producer.send(bytes(50)) for _ in range(3)))
    assert ids == [MessageId(1, at) for at in range(3)]


async def test_cancelled_waiter_passes_its_turn_on(client: Client, broker: ScriptedBroker) -> None:
    settings = ProducerSettings(batching=False, pending_messages_max=1)
    producer = await client.producer("t", settings)
    sends = [asyncio.ensure_future(producer.send(payload)) for payload in numbered(4)]
    await broker.wait_command(BaseCommand.PRODUCER)
    sends[1].cancel()
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert stored(broker) == [b"0", b"2", b"3"]


async def test_too_large_a_message_is_refused_here(client: Client) -> None:
    producer = await client.producer("t")
    assert await producer.send(bytes(100_000)) == MessageId(1, 0)
    with pytest.raises(MessageTooLargeError):
        await producer.send(bytes(100_001))
    with pytest.raises(MessageTooLargeError):
        await producer.send_many([bytes(100_001)])


async def test_creation_is_retried_where_that_helps(client: Client, broker: ScriptedBroker) -> None:
    def not_ready(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.PRODUCER:
            return False
        peer.refuse(command.producer.request_id, ServerError.ServiceNotReady)
        return True

    broker.faults.append(once(not_ready))
    await client.producer("t")
    assert broker.count(BaseCommand.PRODUCER) == 2


async def test_creation_fails_at_once_where_it_does_not(
    client: Client, broker: ScriptedBroker
) -> None:
    def busy(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.PRODUCER:
            return False
        peer.refuse(command.producer.request_id, ServerError.ProducerBusy, "taken by somebody")
        return True

    broker.faults.append(busy)
    settings = ProducerSettings(name="mine", access_mode=AccessMode.EXCLUSIVE)
    with pytest.raises(ProducerBusyError, match="taken by somebody"):
        await client.producer("t", settings)
    assert broker.count(BaseCommand.PRODUCER) == 1


async def test_unreachable_broker_is_given_up_after_the_operation_timeout(
    broker: ScriptedBroker,
) -> None:
    broker.stop()
    settings = type(FAST)(operation_timeout_ms=50, reconnect_delay_min_ms=5)
    async with Client(broker.url, settings) as client:
        with pytest.raises(OperationTimeoutError, match="cannot connect"):
            await client.producer("t")


async def test_a_broker_that_takes_no_clients_now_is_passed_over(broker: ScriptedBroker) -> None:
    def refuse(peer: Peer, command: BaseCommand) -> bool:
        peer.refuse(NO_REQUEST, ServerError.ServiceNotReady)
        peer.transport.close()
        return True

    async with ScriptedBroker() as starting:
        starting.faults.append(refuse)
        url = f"pulsar://127.0.0.1:{starting.port},127.0.0.1:{broker.port}"
        async with Client(url, FAST) as client:
            assert await client.partitions("t") == 0


async def test_those_who_ask_together_pass_over_a_dead_broker_together(
    broker: ScriptedBroker,
) -> None:
    async with ScriptedBroker() as dead:
        url = f"pulsar://127.0.0.1:{dead.port},127.0.0.1:{broker.port}"
        dead.stop()
        async with Client(url, FAST) as client:
            asked = [client.partitions(topic) for topic in ("t", "u")]
            assert await asyncio.gather(*asked) == [0, 0]


async def test_bad_topic_name_is_refused_here(client: Client) -> None:
    with pytest.raises(TopicNameError):
        await client.producer("a/b")


async def test_close_flushes_and_tells_the_broker(client: Client, broker: ScriptedBroker) -> None:
    async with await client.producer("t") as producer:
        producer.send_nowait(b"0")
    assert stored(broker) == [b"0"]
    assert broker.count(BaseCommand.CLOSE_PRODUCER) == 1
    with pytest.raises(AlreadyClosedError):
        await producer.send(b"1")
    with pytest.raises(AlreadyClosedError):
        producer.send_nowait(b"1")


async def test_close_raises_what_failed_because_the_producer_was_lost(
    client: Client, broker: ScriptedBroker
) -> None:
    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.PRODUCER:
            peer.refuse(command.producer.request_id, ServerError.ProducerFenced)
        return command.type in (BaseCommand.PRODUCER, BaseCommand.SEND)

    producer = await client.producer("t")
    broker.faults.append(refuse)
    producer.send_nowait(b"0")
    await broker.wait_command(BaseCommand.SEND)
    broker.drop_connections()
    await until(lambda: producer.stats().messages_failed == 1)
    with pytest.raises(ProducerFencedError):
        await producer.close()
    await producer.close()


async def test_close_without_flush_fails_what_is_pending(
    client: Client, broker: ScriptedBroker
) -> None:
    broker.faults.append(lambda peer, command: command.type == BaseCommand.SEND)
    producer = await client.producer("t", SINGLE)
    told: list[SdkError | None] = []
    producer.send_nowait(b"0", on_sent=lambda _, error: told.append(error))
    waiting = asyncio.ensure_future(producer.send(b"1"))
    await broker.wait_command(BaseCommand.SEND)
    await producer.close(flush=False)
    assert isinstance(told[0], AlreadyClosedError)
    with pytest.raises(AlreadyClosedError):
        await waiting


async def test_client_closes_what_it_made(broker: ScriptedBroker) -> None:
    async with Client(broker.url, FAST) as client:
        producer = await client.producer("t")
        consumer = await client.consumer("t", "s")
        producer.send_nowait(b"0")
    assert stored(broker) == [b"0"]
    assert broker.count(BaseCommand.CLOSE_CONSUMER) == 1
    with pytest.raises(AlreadyClosedError):
        await consumer.receive()
    with pytest.raises(AlreadyClosedError):
        await client.producer("t")


async def test_cancelled_creation_leaves_no_producer_behind(
    client: Client, broker: ScriptedBroker
) -> None:
    broker.faults.append(lambda peer, command: command.type == BaseCommand.PRODUCER)
    creating = asyncio.ensure_future(client.producer("t"))
    await broker.wait_command(BaseCommand.PRODUCER)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await broker.wait_command(BaseCommand.CLOSE_PRODUCER)


async def test_client_left_by_an_error_does_not_wait_for_receipts(broker: ScriptedBroker) -> None:
    broker.faults.append(lambda peer, command: command.type == BaseCommand.SEND)
    failed: list[SdkError | None] = []

    async def fail() -> None:
        async with Client(broker.url, FAST) as client:
            producer = await client.producer("t", SINGLE)
            producer.send_nowait(b"0", on_sent=lambda _, error: failed.append(error))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert isinstance(failed[0], AlreadyClosedError)


async def test_closing_goes_without_the_brokers_word(broker: ScriptedBroker) -> None:
    broker.faults.append(lambda peer, command: command.type == BaseCommand.CLOSE_PRODUCER)
    async with Client(broker.url, type(FAST)(close_timeout_ms=10)) as client:
        await (await client.producer("t")).close()
    assert broker.count(BaseCommand.CLOSE_PRODUCER) == 1


@pytest.mark.parametrize("topic", ["t", "t-partition-0"])
async def test_closing_the_client_ends_the_making_of_a_producer(
    client: Client, broker: ScriptedBroker, topic: str
) -> None:
    broker.faults.append(lambda peer, command: command.type == BaseCommand.CONNECT)
    making = asyncio.create_task(client.producer(topic))
    await broker.wait_command(BaseCommand.CONNECT)
    await client.close()
    with pytest.raises(AlreadyClosedError):
        async with asyncio.timeout(5):
            await making


async def test_a_closed_client_connects_no_more(client: Client, broker: ScriptedBroker) -> None:
    broker.faults.append(lambda peer, command: command.type == BaseCommand.PRODUCER)
    making = asyncio.create_task(client.producer("t"))
    await broker.wait_command(BaseCommand.PRODUCER)
    await client.close()
    with pytest.raises(AlreadyClosedError):
        async with asyncio.timeout(5):
            await making
    assert broker.count(BaseCommand.CONNECT) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_child_of_a_fork_is_told_at_every_call_and_may_close(client: Client) -> None:
    await client.producer("t")
    child = os.fork()
    if child == 0:
        try:
            for call in (client.producer, client.partitions, client.schema):
                with pytest.raises(ForkedError):
                    call("t").send(None)
            with pytest.raises(ForkedError):
                client.transaction()
            with pytest.raises(StopIteration):
                client.close().send(None)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_a_late_refusal_of_a_cancelled_request_harms_nobody(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t", SINGLE)

    def hold(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.PRODUCER:
            held.append((peer, command))
        return command.type == BaseCommand.PRODUCER

    held: list[tuple[Peer, BaseCommand]] = []
    broker.faults.append(hold)
    making = asyncio.create_task(client.producer("t2", SINGLE))
    await broker.wait_command(BaseCommand.PRODUCER, 2)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    broker.faults.clear()
    ((peer, command),) = held
    peer.refuse(command.producer.request_id, ServerError.ProducerBusy)
    await producer.send(b"a")
    assert broker.count(BaseCommand.CONNECT) == 1
    assert stored(broker) == [b"a"]


@pytest.mark.parametrize("batching", [False, True])
async def test_what_is_too_large_with_all_that_travels_is_refused_and_holds_nobody_up(
    client: Client, broker: ScriptedBroker, batching: bool
) -> None:
    noise = Random(1).randbytes(200_000)
    settings = ProducerSettings(batching=batching, compression=Compression.ZLIB)
    producer = await client.producer("t", settings)
    with pytest.raises(MessageTooLargeError):
        await producer.send(noise)
    with pytest.raises(MessageTooLargeError):
        await producer.send(b"", properties={"large": noise.hex()})
    with pytest.raises(MessageTooLargeError):
        await producer.send_many([noise])
    with pytest.raises(MessageTooLargeError):
        await producer.send_entry(noise, messages=3, sequence_id=100)
    await producer.send(b"a")
    assert broker.count(BaseCommand.CONNECT) == 1


async def test_messages_that_wait_for_room_are_stored_in_the_order_of_the_calls(
    client: Client, broker: ScriptedBroker
) -> None:
    def hold(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.SEND:
            held.append((peer, command))
        return command.type == BaseCommand.SEND

    held: list[tuple[Peer, BaseCommand]] = []
    settings = ProducerSettings(batching=False, pending_bytes_max=1_000)
    producer = await client.producer("t", settings)
    broker.faults.append(hold)
    sending = [asyncio.create_task(producer.send(bytes(size))) for size in (400, 500, 900, 50)]
    await broker.wait_command(BaseCommand.SEND, 2)
    broker.faults.clear()
    for at, (peer, command) in enumerate(held):
        peer.store(command, bytes(at))
        await sending[at]
    async with asyncio.timeout(5):
        await asyncio.gather(*sending)
    sizes = [len(entry) for entry in broker.entries[2:]]
    assert sizes == sorted(sizes, reverse=True)
