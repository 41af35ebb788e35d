"""Transactions on one real server process, with this project's client."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar.sdk import (
    Client,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    InitialPosition,
    Producer,
    ProducerSettings,
    SubscriptionType,
    Transaction,
    TransactionState,
)
from magnetar.sdk.errors import TransactionEndedError
from magnetar.sdk.wire.errors import (
    InvalidTransactionStatusError,
    NotAllowedError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from tests.standalone import Standalone

FROM_START = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
SHARED = ConsumerSettings(
    initial_position=InitialPosition.EARLIEST, subscription_type=SubscriptionType.SHARED
)
PATIENT = ClientSettings(operation_timeout_ms=60_000)
ABORTED = (InvalidTransactionStatusError, TransactionNotFoundError)
"""The answer to a commit of what was aborted; after a while, the transaction is forgotten."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("transactions") / "data") as running:
        yield running


@pytest.fixture
async def client(server: Standalone) -> AsyncIterator[Client]:
    async with Client(server.url, PATIENT) as running:
        yield running


async def received(consumer: Consumer, *, wait_s: float = 20.0) -> list[bytes]:
    """What comes until `end` does."""
    payloads: list[bytes] = []
    while True:
        message = await consumer.receive(timeout_s=wait_s)
        consumer.acknowledge(message)
        if message.data == b"end":
            return payloads
        payloads.append(message.data)


async def begun_for_short(client: Client, producer: Producer) -> Transaction:
    """One that holds a message and is over soon after: of the times, the shortest one in which the
    disk got so far, as the begin, the use of the topic and the message are each synced."""
    for timeout_ms in (300, 3_000, 20_000):
        txn = await client.transaction(timeout_ms=timeout_ms).begin()
        try:
            await producer.send(b"too slow", transaction=txn)
        except (*ABORTED, NotAllowedError):
            continue
        return txn
    raise AssertionError("no message can be sent within 20 s")


class TestMessages:
    async def test_they_are_seen_after_the_commit_and_not_before(self, client: Client) -> None:
        producer = await client.producer("commit")
        consumer = await client.consumer("commit", "s", FROM_START)
        async with client.transaction() as txn:
            await producer.send(b"one", transaction=txn)
            await producer.send(b"two", transaction=txn)
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout_s=0.5)
        assert txn.state is TransactionState.COMMITTED
        assert [(await consumer.receive(timeout_s=20)).data for _ in range(2)] == [b"one", b"two"]

    async def test_producers_of_one_name_go_on_where_the_one_before_ended(
        self, client: Client
    ) -> None:
        consumer = await client.consumer("named", "s", FROM_START)
        async with client.transaction() as txn:
            for payload in (b"one", b"two", b"three"):
                producer = await client.producer("named", ProducerSettings(name="unit"))
                await producer.send(payload, transaction=txn)
                await producer.close()
        producer = await client.producer("named")
        await producer.send(b"end")
        assert await received(consumer) == [b"one", b"two", b"three"]

    async def test_they_hold_back_what_is_behind_them(self, client: Client) -> None:
        producer = await client.producer("order")
        consumer = await client.consumer("order", "s", FROM_START)
        async with client.transaction() as txn:
            await producer.send(b"in it", transaction=txn)
            await producer.send(b"plain")
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout_s=0.5)
        await producer.send(b"end")
        assert await received(consumer) == [b"in it", b"plain"]

    @pytest.mark.parametrize("settings", [FROM_START, SHARED], ids=["exclusive", "shared"])
    async def test_those_of_an_aborted_one_never_come(
        self, client: Client, settings: ConsumerSettings
    ) -> None:
        topic = f"abort-{settings.subscription_type.name}"
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "s", settings)
        txn = client.transaction()

        async def change_mind() -> None:
            async with txn:
                await producer.send(b"aborted", transaction=txn)
                await producer.send(b"plain")
                raise RuntimeError("changed my mind")

        with pytest.raises(RuntimeError, match="changed my mind"):
            await change_mind()
        assert txn.state is TransactionState.ABORTED
        await producer.send(b"end")
        assert await received(consumer) == [b"plain"]
        late = await client.consumer(topic, "late", settings)
        assert await received(late) == [b"plain"]

    async def test_a_transaction_whose_time_is_over_is_aborted(self, client: Client) -> None:
        producer = await client.producer("timeout")
        consumer = await client.consumer("timeout", "s", FROM_START)
        txn = await begun_for_short(client, producer)
        await producer.send(b"end")
        assert await received(consumer, wait_s=60) == []
        with pytest.raises(ABORTED):
            await txn.commit()
        assert txn.state is TransactionState.ABORTED

    async def test_nothing_can_be_sent_in_one_that_has_ended(self, client: Client) -> None:
        producer = await client.producer("ended")
        async with client.transaction() as txn:
            await producer.send(b"x", transaction=txn)
        with pytest.raises(TransactionEndedError):
            await producer.send(b"y", transaction=txn)
        with pytest.raises(TransactionEndedError):
            await txn.commit()


class TestAcknowledgements:
    @pytest.mark.parametrize("settings", [FROM_START, SHARED], ids=["exclusive", "shared"])
    async def test_a_commit_makes_them_real(
        self, client: Client, settings: ConsumerSettings
    ) -> None:
        topic = f"ack-commit-{settings.subscription_type.name}"
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "s", settings)
        for number in range(4):
            await producer.send(b"%d" % number)
        messages = [await consumer.receive(timeout_s=20) for _ in range(4)]
        async with client.transaction() as txn:
            await consumer.acknowledge(messages[0], transaction=txn)
            await consumer.acknowledge(messages[2], transaction=txn)
        await consumer.close()
        again = await client.consumer(topic, "s", settings)
        await producer.send(b"end")
        assert sorted(await received(again)) == [b"1", b"3"]

    @pytest.mark.parametrize("settings", [FROM_START, SHARED], ids=["exclusive", "shared"])
    async def test_an_abort_has_the_messages_come_again(
        self, client: Client, settings: ConsumerSettings
    ) -> None:
        topic = f"ack-abort-{settings.subscription_type.name}"
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "s", settings)
        await producer.send(b"0")
        first = await consumer.receive(timeout_s=20)
        txn = await client.transaction().begin()
        await consumer.acknowledge(first, transaction=txn)
        await txn.abort()
        second = await consumer.receive(timeout_s=20)
        assert second.data == b"0"
        assert second.message_id == first.message_id

    async def test_two_transactions_cannot_acknowledge_the_same(self, client: Client) -> None:
        producer = await client.producer("conflict")
        consumer = await client.consumer("conflict", "s", SHARED)
        await producer.send(b"0")
        message = await consumer.receive(timeout_s=20)
        one = await client.transaction().begin()
        other = await client.transaction().begin()
        await consumer.acknowledge(message, transaction=one)
        with pytest.raises(TransactionConflictError):
            await consumer.acknowledge(message, transaction=other)
        with pytest.raises(TransactionEndedError, match="is aborted"):
            await other.commit()
        await one.commit()
        third = await client.transaction().begin()
        with pytest.raises(TransactionConflictError):
            await consumer.acknowledge(message, transaction=third)
        await third.abort()

    async def test_a_cumulative_one_counts_with_the_commit(self, client: Client) -> None:
        producer = await client.producer("cumulative")
        consumer = await client.consumer("cumulative", "s", FROM_START)
        for number in range(5):
            await producer.send(b"%d" % number)
        messages = [await consumer.receive(timeout_s=20) for _ in range(5)]
        aborted = await client.transaction().begin()
        await consumer.acknowledge_cumulative(messages[4], transaction=aborted)
        await aborted.abort()
        again = [await consumer.receive(timeout_s=20) for _ in range(5)]
        assert [each.data for each in again] == [b"0", b"1", b"2", b"3", b"4"]
        async with client.transaction() as txn:
            await consumer.acknowledge_cumulative(again[2], transaction=txn)
        await consumer.close()
        rest = await client.consumer("cumulative", "s", FROM_START)
        await producer.send(b"end")
        assert await received(rest) == [b"3", b"4"]

    async def test_messages_of_one_batch_can_be_in_two_transactions(self, client: Client) -> None:
        producer = await client.producer("batch")
        consumer = await client.consumer("batch", "s", SHARED)
        await producer.send_many([b"0", b"1", b"2"])
        await producer.flush()
        messages = [await consumer.receive(timeout_s=20) for _ in range(3)]
        assert messages[0].batch_size == 3
        one = await client.transaction().begin()
        other = await client.transaction().begin()
        await consumer.acknowledge(messages[0], transaction=one)
        await consumer.acknowledge(messages[2], transaction=other)
        with pytest.raises(TransactionConflictError):
            await consumer.acknowledge(messages[0], transaction=other)
        await one.commit()
        with pytest.raises(TransactionEndedError):
            await other.commit()
        await consumer.close()
        again = await client.consumer(
            "batch",
            "s",
            ConsumerSettings(subscription_type=SubscriptionType.SHARED, batch_index_ack=True),
        )
        await producer.send(b"end")
        assert sorted(await received(again)) == [b"1", b"2"]


class TestAcrossRestarts:
    async def test_all_survives_a_kill_of_the_server(self, tmp_path: Path) -> None:
        with Standalone(tmp_path / "data") as server:
            async with Client(server.url, PATIENT) as client:
                source = await client.producer("in")
                results = await client.producer("out")
                consumer = await client.consumer("in", "s", SHARED)
                reader = await client.consumer("out", "r", FROM_START)
                for number in range(3):
                    await source.send(b"%d" % number)
                messages = [await consumer.receive(timeout_s=20) for _ in range(3)]
                transactions = []
                for message, timeout_ms in zip(messages, (15_000, 60_000, 60_000), strict=True):
                    # Each is used at once: the first one has little time.
                    txn = await client.transaction(timeout_ms).begin()
                    await consumer.acknowledge(message, transaction=txn)
                    await results.send(b"of " + message.data, transaction=txn)
                    transactions.append(txn)
                left_open, aborted, kept = transactions
                await aborted.abort()
                server.kill()
                await asyncio.to_thread(server.start)
                await kept.commit()
                await results.send(b"end", properties={})
                assert await received(reader, wait_s=60) == [b"of 2"]
                again = {(await consumer.receive(timeout_s=60)).data for _ in range(2)}
                assert again == {b"0", b"1"}
                with pytest.raises(ABORTED):
                    await left_open.commit()


class TestSwitchedOff:
    async def test_every_use_is_refused(self, tmp_path: Path) -> None:
        config = tmp_path / "magnetar.toml"
        config.write_text("[broker]\ntransaction_coordinator_enabled = false\n")
        with Standalone(tmp_path / "data", arguments=["--config", str(config)]) as server:
            async with Client(server.url, PATIENT) as client:
                with pytest.raises(NotAllowedError):
                    await client.transaction().begin()
