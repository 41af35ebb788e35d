"""Batch queries: what was published comes out, whichever way it is stored."""

from datetime import UTC, datetime, timedelta

import pulsar
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.support import load, options_for
from tests.standalone import Standalone

VALUES = [b"value-%d" % number for number in range(2_000)]


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_every_way_of_storing_messages_comes_out_in_order(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, mode: str
) -> None:
    """Single, batched, of one size and of many, compressed, in chunks, with keys and properties."""
    singles = [b"single-%d" % number for number in range(200)]
    publish_to(client, topic, singles, batching_enabled=False)
    publish_to(client, topic, VALUES, batching_enabled=True)
    expected = [*singles, *VALUES]
    for kind in (
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ):
        same_size = [b"%05d" % number * 20 for number in range(300)]
        publish_to(client, topic, same_size, batching_enabled=True, compression_type=kind)
        expected += same_size
    large = [bytes([65 + number]) * 200_000 for number in range(3)]
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    for value in large:
        producer.send(value)
    huge = b"huge" * 3_000_000  # above the largest message: it must be cut
    producer.send(huge)
    producer.send(
        b"rich", properties={"a": "b", "c": ""}, partition_key="key", event_timestamp=1_234_567
    )
    producer.close()
    expected += [*large, huge, b"rich"]

    frame = load(spark, options_for(server, topic=topic, readMode=mode))
    rows = frame.collect()

    assert [row.value for row in rows] == expected
    last, first = rows[-1], rows[0]
    assert (last["__key"], last["__messageProperties"]) == (b"key", {"a": "b", "c": ""})
    assert last["__eventTime"].timestamp() == 1_234.567
    assert (first["__key"], first["__eventTime"], first["__messageProperties"]) == (None, None, {})
    assert {row["__topic"] for row in rows} == {topic}
    age_s = datetime.now(UTC).timestamp() - first["__publishTime"].timestamp()
    assert 0 <= age_s < 600
    ids = [pulsar.MessageId.deserialize(bytes(row["__messageId"])) for row in rows]
    places = [(each.ledger_id(), each.entry_id(), each.batch_index()) for each in ids]
    assert places == sorted(set(places))


def test_partitions_slices_and_columns(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Of a partitioned topic each partition is read by tasks of its own, in many slices, and a
    query has the columns that it asks for."""
    admin(server, "PUT", f"{topic.replace('://', '/')}/partitions", 3)
    publish_to(client, topic, VALUES, batching_enabled=True, batching_max_messages=50)

    frame = (
        spark.read.format("magnetar")
        .options(**options_for(server, topic=topic, sliceBytes="3000"))
        .schema("value string, __topic string")
        .load()
    )

    rows = frame.collect()
    assert sorted(row.value.encode() for row in rows) == sorted(VALUES)
    assert {row["__topic"] for row in rows} == {f"{topic}-partition-{n}" for n in range(3)}
    assert frame.rdd.getNumPartitions() > 3


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_small_partitions_are_read_by_few_tasks(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, mode: str
) -> None:
    admin(server, "PUT", f"{topic.replace('://', '/')}/partitions", 40)
    publish_to(client, topic, VALUES, batching_enabled=True, batching_max_messages=50)
    frame = load(spark, options_for(server, topic=topic, readMode=mode))
    rows = frame.collect()
    assert sorted(row.value for row in rows) == sorted(VALUES)
    places: dict[str, list[tuple[int, int, int]]] = {
        f"{topic}-partition-{n}": [] for n in range(40)
    }
    for row in rows:
        at = pulsar.MessageId.deserialize(bytes(row["__messageId"]))
        assert row["__topic"] == f"{topic}-partition-{at.partition()}"
        places[row["__topic"]].append((at.ledger_id(), at.entry_id(), at.batch_index()))
    assert all(each and each == sorted(set(each)) for each in places.values())
    assert 8 <= frame.rdd.getNumPartitions() <= 10


@pytest.mark.parametrize("pushes", ["true", "false"], ids=["pushed", "not pushed"])
def test_a_filter_leaves_all_rows_to_other_reads_of_its_frame(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, pushes: str
) -> None:
    """Spark keeps what a frame or view was planned with for all that is read of it."""
    for number in range(3):
        publish_to(client, topic, [b"%d" % number])
        admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, pushes)
    try:
        rows = load(spark, options_for(server, topic=topic)).collect()
        other = f.col("__messageId") == rows[1]["__messageId"]
        later = f.col("__publishTime") > f.lit(datetime.now(UTC) + timedelta(days=1))
        for wanted, count in ((other, 1), (later, 0)):
            frame = load(spark, options_for(server, topic=topic))
            assert frame.where(wanted).count() == count
            assert frame.count() == 3, "read again"
            frame = load(spark, options_for(server, topic=topic))
            assert frame.where(wanted).union(frame).count() == count + 3, "within one query"
            load(spark, options_for(server, topic=topic)).createOrReplaceTempView("messages")
            assert spark.table("messages").where(wanted).count() == count
            assert spark.table("messages").count() == 3, "of a view"
    finally:
        spark.conf.unset(name)


def test_a_query_begins_and_ends_where_it_is_told(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Ids within batches, and times."""
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

    def numbers(**options: str) -> list[int]:
        rows = load(spark, options_for(server, topic=topic, **options)).collect()
        return [int(row.value) for row in rows]

    def place(number: int) -> str:
        at = ids[number]
        return f'{{"{topic}": "{at.ledger_id()}:{at.entry_id()}:-1:{at.batch_index()}"}}'

    assert numbers(startingOffsets=place(37)) == list(range(37, 150))
    assert numbers(startingOffsets=place(37), endingOffsets=place(92)) == list(range(37, 93))
    assert numbers(startingOffsets=place(41), endingOffsets=place(43)) == [41, 42, 43]
    assert numbers(startingOffsets="latest") == []
    assert numbers(startingTime=str(middle_ms)) == list(range(100, 150))
    assert numbers(endingTime=str(middle_ms)) == list(range(100))
    iso = datetime.fromtimestamp(middle_ms / 1000, UTC).isoformat()
    assert numbers(startingTime=iso) == list(range(100, 150))
