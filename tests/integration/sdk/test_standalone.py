"""The client against the real server: with the official client, kill -9, and the perf tool."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.sdk import (
    Client,
    ClientSettings,
    Compression,
    ConsumerSettings,
    InitialPosition,
    MessageId,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.perf import AckMode, ConsumeOptions, ProduceOptions, run_consume, run_produce
from tests.standalone import Standalone

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("sdk") / "data") as server:
        yield server


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("batching", [True, False])
async def test_official_client_reads_what_we_write(
    standalone: Standalone, codec: Compression, batching: bool
) -> None:
    topic = f"ours-{codec.value}-{batching}"
    async with Client(standalone.url) as client:
        settings = ProducerSettings(compression=codec, batching=batching)
        async with await client.producer(topic, settings) as producer:
            ids = await asyncio.gather(
                *(
                    producer.send(b"%d" % at * 50, key=f"k{at}", properties={"at": str(at)})
                    for at in range(20)
                )
            )
            await producer.send_many([b"plain %d" % at for at in range(20)])

    def read() -> list[tuple[bytes, str, dict[str, str], bytes]]:
        official = pulsar.Client(standalone.url, logger=quiet())
        try:
            reader = official.create_reader(topic, pulsar.MessageId.earliest)
            messages = [reader.read_next(10_000) for _ in range(40)]
            return [
                (m.data(), m.partition_key(), m.properties(), m.message_id().serialize())
                for m in messages
            ]
        finally:
            official.close()

    taken = await asyncio.to_thread(read)
    assert [each[:3] for each in taken[:20]] == [
        (b"%d" % at * 50, f"k{at}", {"at": str(at)}) for at in range(20)
    ]
    assert [each[0] for each in taken[20:]] == [b"plain %d" % at for at in range(20)]
    assert [MessageId.from_bytes(each[3]) for each in taken[:20]] == ids


@pytest.mark.parametrize("codec", list(Compression))
async def test_we_read_what_the_official_client_writes(
    standalone: Standalone, codec: Compression
) -> None:
    topic = f"theirs-{codec.value}"

    def write() -> None:
        official = pulsar.Client(standalone.url, logger=quiet())
        try:
            kinds = {kind.name.lower(): kind for kind in official_codecs()}
            for batching in (True, False):
                producer = official.create_producer(
                    topic, batching_enabled=batching, compression_type=kinds[codec.value]
                )
                for at in range(20):
                    producer.send_async(b"%d" % at * 50, None, {"at": str(at)}, f"k{at}")
                producer.flush()
                producer.close()
        finally:
            official.close()

    await asyncio.to_thread(write)
    async with Client(standalone.url) as client:
        consumer = await client.consumer(topic, "s", ConsumerSettings(initial_position=EARLIEST))
        messages = [await consumer.receive(timeout_s=10) for _ in range(40)]
    assert [(m.data, m.key, dict(m.properties)) for m in messages] == [
        (b"%d" % at * 50, f"k{at}", {"at": str(at)}) for at in range(20)
    ] * 2


async def test_acknowledged_messages_do_not_come_again(standalone: Standalone) -> None:
    async with Client(standalone.url) as client:
        async with await client.producer("acks") as producer:
            await producer.send_many([b"%d" % at for at in range(3_000)])
        settings = ConsumerSettings(initial_position=EARLIEST, batch_index_ack=True)
        async with await client.consumer("acks", "s", settings) as consumer:
            for _ in range(2_500):
                message = await consumer.receive(timeout_s=10)
                if int(message.data) % 2 == 0:
                    consumer.acknowledge(message)
            await consumer.flush_acks(confirmed=True)
        async with await client.consumer("acks", "s", settings) as consumer:
            wanted = list(range(1, 2_500, 2)) + list(range(2_500, 3_000))
            again = [int((await consumer.receive(timeout_s=10)).data) for _ in wanted]
            assert again == wanted
            consumer.acknowledge_cumulative(message)
            await consumer.flush_acks(confirmed=True)
        async with await client.consumer("acks", "s", settings) as consumer:
            assert int((await consumer.receive(timeout_s=10)).data) == 2_500


async def test_shared_consumers_divide_and_redeliver(standalone: Standalone) -> None:
    settings = ConsumerSettings(
        subscription_type=SubscriptionType.SHARED,
        initial_position=EARLIEST,
        receiver_queue_messages=50,
        nack_delay_ms=10,
    )
    async with Client(standalone.url) as client:
        one = await client.consumer("shared", "s", settings)
        other = await client.consumer("shared", "s", settings)
        async with await client.producer("shared", ProducerSettings(batching=False)) as producer:
            await producer.send_many([b"%d" % at for at in range(400)])
        seen: list[int] = []
        redelivered = 0
        refused: set[int] = set()
        while len(seen) < 400:
            for consumer in (one, other):
                for message in await consumer.receive_many(10, timeout_s=0.2):
                    number = int(message.data)
                    if number % 50 == 0 and number not in refused:
                        refused.add(number)
                        consumer.negative_acknowledge(message)
                        continue
                    redelivered += message.redelivery_count
                    seen.append(number)
                    consumer.acknowledge(message)
        assert sorted(seen) == list(range(400))
        assert redelivered == 8


async def test_positions(standalone: Standalone) -> None:
    async with Client(standalone.url) as client:
        async with await client.producer("positions") as producer:
            ids = await asyncio.gather(*(producer.send(b"%d" % at) for at in range(10)))
        settings = ConsumerSettings(initial_position=EARLIEST)
        async with await client.consumer("positions", "s", settings) as consumer:
            first = [await consumer.receive(timeout_s=10) for _ in range(10)]
            assert await consumer.last_message_id() == ids[9]
            await consumer.seek(ids[6])
            assert (await consumer.receive(timeout_s=10)).data == b"6"
            await consumer.seek_to_time(first[0].publish_time_ms)
            assert (await consumer.receive(timeout_s=10)).data == b"0"
        async with await client.reader("positions", ids[3]) as reader:
            taken: list[bytes] = []
            while await reader.has_message_available():
                taken.append((await reader.read_next(timeout_s=10)).data)
            assert taken == [b"%d" % at for at in range(4, 10)]
            await reader.seek(MessageId.EARLIEST)
            assert (await reader.read_next(timeout_s=10)).data == b"0"


async def test_kill_9_while_publishing_loses_nothing_acknowledged(tmp_path: Path) -> None:
    quick = ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=100)
    with Standalone(tmp_path / "data") as server:
        async with Client(server.url, quick) as client:
            settings = ProducerSettings(batching=False, pending_messages_max=500)
            producer = await client.producer("killed", settings)
            confirmed: list[int] = []
            for number in range(3):
                start = number * 5_000
                sending = asyncio.ensure_future(
                    producer.send_many([b"%d" % at for at in range(start, start + 5_000)])
                )
                ids = [await producer.send(b"mark %d" % number)]
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await sending
                await producer.flush()
                confirmed += range(start, start + 5_000)
                assert ids
            reader = await client.reader("killed")
            numbers: list[int] = []
            while await reader.has_message_available():
                for message in await reader.read_many(1_000, timeout_s=10):
                    if not message.data.startswith(b"mark"):
                        numbers.append(int(message.data))
    # Without deduplication, what lost only its receipt is there twice: a run, sent again in order.
    assert list(dict.fromkeys(numbers)) == confirmed


def test_perf_tool_measures_both_ways(standalone: Standalone) -> None:
    for topic, batch_size, messages in (("perf-1", 0, 2_000), ("perf-100", 100, 10_000)):
        produced = run_produce(
            ProduceOptions(
                url=standalone.url, topic=topic, messages=messages, size=64, batch_size=batch_size
            )
        )
        consumed = run_consume(
            ConsumeOptions(
                url=standalone.url,
                topic=topic,
                messages=messages,
                ack=AckMode.CUMULATIVE,
                decode=bool(batch_size),
            )
        )
        for result in (produced, consumed):
            figures = json.loads(result.to_json())
            assert figures["messages"] == messages
            assert figures["msgs_per_s"] > 0
            assert set(figures["latency_ms"]) == {"p50", "p99", "p999", "max"}
            assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["max"]


def test_perf_tool_keeps_a_rate(standalone: Standalone) -> None:
    result = run_produce(
        ProduceOptions(url=standalone.url, topic="perf-rate", messages=300, size=64, rate=1_000)
    )
    assert result.messages == 300
    assert result.seconds >= 0.25


def quiet() -> pulsar.ConsoleLogger:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def official_codecs() -> list[pulsar.CompressionType]:
    kinds = pulsar.CompressionType
    return [kinds.NONE, kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY]
