"""What is read is what was published: row for row what the official client's reader gives."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from magnetar.arrow import read, scan
from magnetar.sdk import Client, MessageId
from magnetar.sdk.schemas import STRING
from tests.http_calls import admin
from tests.integration.arrow.support import (
    at_bookies,
    rows_of,
    rows_of_client,
    through_brokers,
)
from tests.integration.pulsar_client.support import publish_to
from tests.standalone import Standalone

SMALL_SLICES = {"sliceBytes": "20000"}
WAYS: list[tuple[Callable[[Any], dict[str, Any]], dict[str, Any]]] = [
    (at_bookies, {}),
    (through_brokers, {}),
    (at_bookies, {"workers": 3, "options": SMALL_SLICES}),
    (through_brokers, {"workers": 2, "options": SMALL_SLICES}),
    (at_bookies, {"workers": 2, "processes": True, "options": SMALL_SLICES}),
]
WAY_NAMES = [
    "from bookies",
    "through brokers",
    "by threads",
    "by threads, through brokers",
    "by processes",
]


@pytest.fixture(scope="module")
def filled(server: Standalone) -> str:
    """Messages stored in every way that the official client has, over several ledgers."""
    topic = "persistent://public/default/arrow-every-way"
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for codec in (
            pulsar.CompressionType.NONE,
            pulsar.CompressionType.LZ4,
            pulsar.CompressionType.ZLib,
            pulsar.CompressionType.ZSTD,
            pulsar.CompressionType.SNAPPY,
        ):
            _publish_every_way(client, topic, codec)
            admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
        huge = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
        huge.send(bytes(range(256)) * 48_000)  # 12 MB: three chunks
        huge.send(b"after it")
    finally:
        client.close()
    return topic


def _publish_every_way(client: pulsar.Client, topic: str, codec: pulsar.CompressionType) -> None:
    for batches in (True, False):
        producer = client.create_producer(
            topic,
            compression_type=codec,
            batching_enabled=batches,
            batching_max_messages=100,
            batching_max_publish_delay_ms=1_000,
        )
        for number in range(250 if batches else 25):
            producer.send_async(b"%d" % number * (1 + number % 7), lambda *_: None)
        for number in range(60 if batches else 6):
            producer.send_async(
                b"payload %d" % number,
                lambda *_: None,
                partition_key=f"key-{number % 5}",
                properties={"n": str(number), "ä": "€"} if number % 3 else None,
                event_timestamp=1_700_000_000_000 + number if number % 2 else None,
            )
        for number in range(100):  # all of one size, so that a batch is taken apart as a whole
            producer.send_async(b"%099d!" % number, lambda *_: None)
        producer.flush()
        producer.close()


@pytest.mark.parametrize(("where", "how"), WAYS, ids=WAY_NAMES)
def test_rows_are_those_of_the_official_reader(
    server: Standalone,
    filled: str,
    where: Callable[[Any], dict[str, Any]],
    how: dict[str, Any],
) -> None:
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    expected = rows_of_client(client, filled)
    client.close()
    table = read(filled, **where(server), **how).read_all()
    found = rows_of(table)
    # The reader of the official client tells no place within a batch of one.
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    assert [row.place[:2] for row in found] == [row.place[:2] for row in expected]
    assert len(found) > 2_000
    assert set(table.column("__topic").to_pylist()) == {filled}


@pytest.mark.parametrize(("where", "how"), WAYS, ids=WAY_NAMES)
def test_entries_with_an_index_are_read_like_those_without(
    server: Standalone,
    client: pulsar.Client,
    indexed: str,
    where: Callable[[Any], dict[str, Any]],
    how: dict[str, Any],
) -> None:
    table = read(indexed, **where(server), **how).read_all()
    assert table.column("value").to_pylist() == [b"%04d" % number for number in range(600)]
    expected = rows_of_client(client, indexed)
    assert [row[:5] for row in rows_of(table)] == [row[:5] for row in expected]


@pytest.fixture(scope="module")
def indexed(server: Standalone) -> str:
    """Messages with and without an index: it is switched on and off between them."""
    namespace = "public/arrow-indexed"
    topic = f"persistent://{namespace}/t"
    admin(server, "PUT", f"namespaces/{namespace}")
    admin(server, "PUT", topic.replace("://", "/"))
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for part in range(4):
            admin(server, "POST", f"namespaces/{namespace}/entryMetadata", part % 2 == 1)
            admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
            payloads = [b"%04d" % number for number in range(150 * part, 150 * part + 150)]
            publish_to(client, topic, payloads, batching_enabled=part > 1)
    finally:
        client.close()
    return topic


def test_a_read_ends_with_what_was_confirmed_when_it_began(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, [b"a", b"b"])
    reader = read(topic, **at_bookies(server))
    described = scan(topic, **at_bookies(server))
    publish_to(client, topic, [b"later"])
    assert reader.read_all().column("value").to_pylist() == [b"a", b"b"]
    assert described.table().column("value").to_pylist() == [b"a", b"b", b"later"]
    assert described.table().num_rows == 3, "and once more"


@pytest.mark.parametrize("where", [at_bookies, through_brokers])
def test_an_empty_topic_has_columns_and_no_rows(
    server: Standalone, topic: str, where: Callable[[Any], dict[str, Any]]
) -> None:
    admin(server, "PUT", topic.replace("://", "/"))
    table = read(topic, **where(server)).read_all()
    assert table.num_rows == 0
    assert table.schema == scan(topic, **where(server)).schema
    assert table.schema.names[0] == "value"


@pytest.mark.parametrize(("where", "how"), WAYS, ids=WAY_NAMES)
def test_partitions_come_one_after_the_other(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    where: Callable[[Any], dict[str, Any]],
    how: dict[str, Any],
) -> None:
    admin(server, "PUT", f"{topic.replace('://', '/')}/partitions", 11)
    values = [(f"k{number % 30}", b"%d" % number) for number in range(600)]
    publish_to(client, topic, values)
    table = read(topic, **where(server), **how).read_all()
    expected = [
        (f"{topic}-partition-{number}", row.value)
        for number in range(11)
        for row in rows_of_client(client, f"{topic}-partition-{number}")
    ]
    columns = (table.column("__topic").to_pylist(), table.column("value").to_pylist())
    assert list(zip(*columns, strict=True)) == expected
    assert len(expected) == 600


def _numbers(reader: pa.RecordBatchReader) -> list[int]:
    return [int(each) for each in reader.read_all().column("value").to_pylist()]


def test_a_read_begins_and_ends_at_ids_and_times(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1_000
    )
    ids: list[pulsar.MessageId] = []
    for number in range(100):
        producer.send_async(b"%d" % number, lambda _, at: ids.append(at))
    producer.flush()
    middle_ms = int(datetime.now(UTC).timestamp() * 1000) + 1
    while int(datetime.now(UTC).timestamp() * 1000) <= middle_ms:
        pass
    for number in range(100, 150):
        producer.send_async(b"%d" % number, lambda _, at: ids.append(at))
    producer.flush()
    producer.close()
    where = at_bookies(server)

    def place(number: int) -> MessageId:
        at = ids[number]
        return MessageId(at.ledger_id(), at.entry_id(), batch_index=at.batch_index())

    def text(number: int) -> str:
        return f"{ids[number].ledger_id()}:{ids[number].entry_id()}"

    assert _numbers(read(topic, start=place(37), **where)) == list(range(37, 150))
    assert _numbers(read(topic, start=place(41), end=place(43), **where)) == [41, 42, 43]
    assert _numbers(read(topic, start=text(37), **where)) == list(range(30, 150))
    assert _numbers(read(topic, start=ids[40].serialize(), **where)) == list(range(40, 150))
    assert _numbers(read(topic, start={topic: place(140)}, **where)) == list(range(140, 150))
    assert _numbers(read(topic, start="latest", **where)) == []
    assert _numbers(read(topic, start=middle_ms, **where)) == list(range(100, 150))
    assert _numbers(read(topic, end=middle_ms, **where)) == list(range(100))
    middle = datetime.fromtimestamp(middle_ms / 1000, UTC)
    assert _numbers(read(topic, start=middle, **where)) == list(range(100, 150))


def test_columns_and_keys_are_chosen(server: Standalone, client: pulsar.Client, topic: str) -> None:
    publish_to(client, topic, [(f"k{number % 3}", b"%d" % number) for number in range(30)])
    publish_to(client, topic, [b"without"])
    where = at_bookies(server)
    table = read(topic, columns=["value"], keys=["k1", b"k2"], **where).read_all()
    assert table.schema.names == ["value"]
    assert [int(each) for each in table.column(0).to_pylist()] == [
        number for number in range(30) if number % 3
    ]
    table = read(topic, columns=["__topic", "__key"], **where).read_all()
    assert table.schema.names == ["__topic", "__key"]
    assert table.num_rows == 31
    assert read(topic, keys=[], **where).read_all().num_rows == 0


async def test_a_tombstone_is_null_and_no_text(server: Standalone, topic: str) -> None:
    async with Client(server.url) as client:
        producer = await client.producer(topic, schema=STRING)
        await producer.send("x", key="k")
        await producer.send(None, key="k")
        await producer.send("", key="k")
    assert read(topic, **at_bookies(server)).read_all().column("value").to_pylist() == [
        "x", None, "",
    ]  # fmt: skip


def test_a_reader_that_is_not_read_to_its_end_lets_its_workers_go(
    server: Standalone, filled: str
) -> None:
    reader = read(filled, workers=2, options={"sliceBytes": "1000"}, **at_bookies(server))
    assert reader.read_next_batch().num_rows
    reader.close()
