"""One producer over all partitions: routing, growth, laziness, faults; read by the official one."""

import asyncio
from collections.abc import Callable, Iterator

import pulsar
import pytest

from magnetar.sdk import (
    AccessMode,
    Client,
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
)
from magnetar.sdk.errors import AlreadyClosedError, NotSupportedError, SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.partitioned_producer import PartitionedProducer
from magnetar.sdk.producing.routing import Hashing, RoutingMode
from magnetar.sdk.schemas import STRING
from magnetar.sdk.wire.errors import ProducerFencedError
from tests.http_calls import admin, call
from tests.standalone import Standalone


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("partitions") / "data") as server:
        yield server


@pytest.fixture
def create(standalone: Standalone) -> Callable[[str, int], None]:
    """Makes a partitioned topic, or gives one more partitions."""

    def run(topic: str, partitions: int) -> None:
        path = f"persistent/public/default/{topic}/partitions"
        if call(standalone, "PUT", path, partitions).status == 409:
            admin(standalone, "POST", path, partitions)

    return run


async def partitions_of(
    standalone: Standalone, topic: str, count: int
) -> dict[int, list[tuple[bytes, str]]]:
    """What lies in each partition, in order, as the official client sees it."""

    def run() -> dict[int, list[tuple[bytes, str]]]:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(standalone.url, logger=logger)
        try:
            consumer = client.subscribe(
                topic, "s", initial_position=pulsar.InitialPosition.Earliest
            )
            found: dict[int, list[tuple[bytes, str]]] = {}
            for _ in range(count):
                message = consumer.receive(30_000)
                key = message.partition_key()
                place = message.message_id().partition()
                found.setdefault(place, []).append((message.data(), key))
                consumer.acknowledge(message)
            return found
        finally:
            client.close()

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("hashing", list(Hashing))
async def test_a_key_stays_in_its_partition_and_in_order(
    standalone: Standalone, create: Callable[[str, int], None], batching: bool, hashing: Hashing
) -> None:
    topic = f"keyed-{batching}-{hashing.value}"
    await asyncio.to_thread(create, topic, 3)
    settings = ProducerSettings(batching=batching, hashing=hashing)
    async with Client(standalone.url) as client, await client.producer(topic, settings) as producer:
        for at in range(40):
            producer.send_nowait(b"%d" % at, key=f"k{at % 8}")
        await producer.flush()
        ids = [await producer.send(b"last", key=f"k{at}") for at in range(8)]
        assert [message_id.partition for message_id in ids] == [
            hashing.of(f"k{at}") % 3 for at in range(8)
        ]
        assert producer.stats().messages_stored == 48
    found = await partitions_of(standalone, topic, 48)
    for place, messages in found.items():
        assert {hashing.of(key) % 3 for _, key in messages} == {place}
    for at in range(8):
        key = f"k{at}"
        own = [data for messages in found.values() for data, of in messages if of == key]
        assert own == [b"%d" % n for n in range(at, 40, 8)] + [b"last"]


async def test_what_has_no_key_goes_round_in_batches(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "round", 3)
    # A turn also ends with the delay, which a slow machine may take for ten messages.
    settings = ProducerSettings(batch_messages_max=10, batch_delay_ms=60_000)
    async with Client(standalone.url) as client:
        producer = await client.producer("round", settings)
        assert isinstance(producer, PartitionedProducer)
        await producer.send_many([b"%d" % at for at in range(60)])
        await producer.flush()
        by_partition = producer.stats_by_partition()
        assert {each.messages_stored for each in by_partition.values()} == {20}
        assert {each.entries_stored for each in by_partition.values()} == {2}
        for at in range(60):
            producer.send_nowait(b"%d" % at)
        await producer.flush()
        by_partition = producer.stats_by_partition()
        assert {each.messages_stored for each in by_partition.values()} == {40}
    found = await partitions_of(standalone, "round", 120)
    assert {place: len(messages) for place, messages in found.items()} == {0: 40, 1: 40, 2: 40}


async def test_single_and_custom_routing(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "routed", 3)
    async with Client(standalone.url) as client:
        single = ProducerSettings(routing=RoutingMode.SINGLE_PARTITION)
        async with await client.producer("routed", single) as producer:
            await producer.send_many([b"x"] * 5)
            ids = [await producer.send(b"y") for _ in range(5)]
            assert len({message_id.partition for message_id in ids}) == 1
            assert producer.stats().messages_stored == 10
        own = ProducerSettings(
            routing=lambda message, partitions: int(message.payload) % partitions
        )
        async with await client.producer("routed", own) as producer:
            ids = [await producer.send(b"%d" % at) for at in range(6)]
            assert [message_id.partition for message_id in ids] == [0, 1, 2, 0, 1, 2]
            with pytest.raises(NotSupportedError, match="routed-partition-0"):
                await producer.send_entry(b"", messages=0, sequence_id=1)
        bad = ProducerSettings(routing=lambda message, partitions: partitions)
        async with await client.producer("routed", bad) as producer:
            with pytest.raises(ValueError, match="partition 3; there are 3"):
                await producer.send(b"x")


async def test_new_partitions_are_used_by_themselves(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "growing", 1)
    settings = ProducerSettings(batching=False, partitions_refresh_ms=50)
    async with Client(standalone.url) as client:
        producer = await client.producer("growing", settings, schema=STRING)
        assert isinstance(producer, PartitionedProducer)
        assert (await producer.send("first")).partition == 0
        await asyncio.to_thread(create, "growing", 3)
        async with asyncio.timeout(30):
            used: set[int] = set()
            while used != {0, 1, 2}:
                used.add((await producer.send("more")).partition)
        assert producer.partitions == 3


async def test_lazy_partitions_are_connected_when_they_are_needed(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "lazy", 4)
    settings = ProducerSettings(
        lazy_partitions=True, routing=lambda message, partitions: int(message.payload)
    )
    async with Client(standalone.url) as client:
        producer = await client.producer("lazy", settings)
        assert isinstance(producer, PartitionedProducer)
        assert len(producer.stats_by_partition()) == 1
        results: list[MessageId | None] = []
        for _ in range(10):
            producer.send_nowait(b"2", on_sent=lambda message_id, error: results.append(message_id))
        assert (await producer.send(b"2")).partition == 2
        await producer.flush()
        places = [(each.entry_id, each.batch_index) for each in results if each is not None]
        assert len(places) == 10
        assert places == sorted(places)
        assert len(producer.stats_by_partition()) <= 2
        producer.send_nowait(b"3")
        await producer.close()
    found = await partitions_of(standalone, "lazy", 12)
    assert {place: len(messages) for place, messages in found.items()} == {2: 11, 3: 1}


async def test_exclusive_access_is_to_all_partitions_or_none(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "exclusive-parts", 2)
    exclusive = ProducerSettings(access_mode=AccessMode.EXCLUSIVE)
    async with Client(standalone.url) as client:
        part = await client.producer("exclusive-parts-partition-1", exclusive)
        with pytest.raises(ProducerFencedError):
            await client.producer("exclusive-parts", exclusive)
        await part.close()
        producer = await client.producer("exclusive-parts", exclusive)
        assert producer.is_connected
    with pytest.raises(ValueError, match="lazy_partitions"):
        ProducerSettings(access_mode=AccessMode.EXCLUSIVE, lazy_partitions=True)


async def test_a_transaction_goes_over_partitions(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "together", 2)
    settings = ProducerSettings(lazy_partitions=True)
    async with Client(standalone.url) as client:
        producer = await client.producer("together", settings)
        async with client.transaction() as transaction:
            ids = [
                await producer.send(b"%d" % at, key=f"k{at}", transaction=transaction)
                for at in range(6)
            ]
        assert {message_id.partition for message_id in ids} == {0, 1}
    found = await partitions_of(standalone, "together", 6)
    assert sum(map(len, found.values())) == 6


async def test_messages_of_a_transaction_share_batches_and_end_together(
    standalone: Standalone,
) -> None:
    settings = ProducerSettings(batch_messages_max=1_000, batch_delay_ms=5)
    beginning = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
    async with Client(standalone.url) as client:
        producer = await client.producer("batched-together", settings)
        aborted = await client.transaction().begin()
        await asyncio.gather(*(producer.send(b"no", transaction=aborted) for _ in range(50)))
        await aborted.abort()
        async with client.transaction() as transaction:
            ids = await asyncio.gather(
                *(producer.send(b"%d" % at, transaction=transaction) for at in range(50))
            )
        assert len({message_id.entry for message_id in ids}) < 50
        async with await client.consumer("batched-together", "s", beginning) as consumer:
            found = [(await consumer.receive(timeout_s=60)).data for _ in range(50)]
        assert found == [b"%d" % at for at in range(50)]


async def test_closing_fails_what_waits_and_what_comes(
    standalone: Standalone, create: Callable[[str, int], None]
) -> None:
    await asyncio.to_thread(create, "closing", 2)
    settings = ProducerSettings(
        lazy_partitions=True, routing=lambda message, partitions: int(message.payload)
    )
    fast = ClientSettings(close_timeout_ms=1_000)
    async with Client(standalone.url, fast) as client:
        producer = await client.producer("closing", settings)
        assert isinstance(producer, PartitionedProducer)
        idle = b"%d" % (1 - next(iter(producer.stats_by_partition())))
        told: list[SdkError | None] = []
        for _ in range(2):
            producer.send_nowait(idle, on_sent=lambda _, error: told.append(error))
        waiting = asyncio.create_task(producer.send(idle))
        await asyncio.sleep(0)
        await producer.close(flush=False)
        with pytest.raises(AlreadyClosedError):
            await waiting
        assert [type(error) for error in told] == [AlreadyClosedError] * 2
        with pytest.raises(AlreadyClosedError):
            producer.send_nowait(b"0")
        assert producer.pending_messages == 0
