"""Writing to topics from Spark: what arrives, as the official client reads it; and bad input."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from magnetar.sdk.spark.sink.lane import TaskIdentity
from magnetar.sdk.spark.sink.writer import StreamWriter, Written, stream_writer, write_task
from tests.http_calls import admin
from tests.standalone import Standalone

pytestmark = pytest.mark.timeout(900)  # Spark starts slowly on a busy machine
_ROWS = 20_000


def _write(
    frame: DataFrame, server: Standalone, topic: str | None, mode: str = "append", **options: str
) -> None:
    writer = frame.write.format("magnetar").mode(mode).option("service.url", server.url)
    if options.get("deduplication") not in ("assume", "off"):
        writer = writer.option("admin.url", server.http_url)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def _read(client: pulsar.Client, topic: str, **options: Any) -> list[pulsar.Message]:
    """Everything in a topic that is not partitioned."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **options)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000))
    reader.close()
    return found


def _values(client: pulsar.Client, topic: str) -> list[int]:
    return [int(message.data()) for message in _read(client, topic)]


def _numbers(spark: SparkSession, rows: int = _ROWS, tasks: int = 1) -> DataFrame:
    return spark.range(0, rows, 1, tasks).selectExpr("cast(id AS string) AS value")


_CASES = [
    {},
    {"compressionType": "lz4", "batchingMaxMessages": "7"},
    {"batchingEnabled": "false"},
    {"batchingEnabled": "false", "compressionType": "zstd"},
    {"batcherBuilder": "key"},
]


@pytest.mark.parametrize("options", _CASES, ids=str)
@pytest.mark.parametrize("partitions", [0, 3])
def test_messages_have_what_the_columns_say(
    spark: SparkSession,
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    partitions: int,
    options: dict[str, str],
) -> None:
    if partitions:
        admin(server, "PUT", f"{topic.replace('://', '/')}/partitions", partitions)
    frame = spark.range(0, 200, 1, 1).selectExpr(
        "concat('value ', id) AS value",
        "if(id % 5 = 0, NULL, concat('key ', id % 7)) AS __key",
        "timestamp_millis(1357016400000 + id) AS __eventTime",
        "map('id', cast(id AS string), 'kind', 'test') AS __messageProperties",
    )
    _write(frame, server, topic, **options)
    names = [f"{topic}-partition-{at}" for at in range(partitions)] or [topic]
    found = [message for name in names for message in _read(client, name)]
    assert len(found) == 200
    at_of: dict[str, list[tuple[str, int]]] = {}
    for message in found:
        number = int(message.properties()["id"])
        assert message.data() == b"value %d" % number
        assert message.partition_key() == ("" if number % 5 == 0 else f"key {number % 7}")
        assert message.event_timestamp() == 1_357_016_400_000 + number
        assert message.properties() == {"id": str(number), "kind": "test"}
        at_of.setdefault(message.partition_key(), []).append((message.topic_name(), number))
    del at_of[""]
    for places in at_of.values():  # of one key all are in one place, in order
        assert len({name for name, _ in places}) == 1
        assert places == sorted(places)


def test_rows_go_to_the_topics_that_they_name(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    frame = spark.range(0, 90, 1, 1).selectExpr(
        "cast(id AS string) AS value",
        f"CASE id % 3 WHEN 0 THEN '{topic}-a' WHEN 1 THEN '{topic}-b' END AS __topic",
    )
    _write(frame, server, topic)
    assert _values(client, f"{topic}-a") == list(range(0, 90, 3))
    assert _values(client, f"{topic}-b") == list(range(1, 90, 3))
    assert _values(client, topic) == list(range(2, 90, 3))


@pytest.mark.parametrize("schema", ["json", "avro"])
def test_fields_are_encoded_by_a_registered_schema(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, schema: str
) -> None:
    class Row(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
        _avro_namespace = None
        id = pulsar.schema.Long()
        ratio = pulsar.schema.Double()
        text = pulsar.schema.String()

    frame = spark.range(0, 50, 1, 1).selectExpr(
        "id", "id / 4D AS ratio", "if(id % 2 = 0, concat('\"', id), NULL) AS text", "'k' AS __key"
    )
    _write(frame, server, topic, schema=schema)
    kind = pulsar.schema.JsonSchema if schema == "json" else pulsar.schema.AvroSchema
    found = _read(client, topic, schema=kind(Row))
    assert [(m.value().id, m.value().ratio, m.value().text) for m in found] == [
        (number, number / 4, f'"{number}' if number % 2 == 0 else None) for number in range(50)
    ]
    assert {message.schema_version() for message in found} == {"\0" * 8}
    with pytest.raises(PySparkException, match="columns do not fit its schema"):
        _write(spark.range(1).selectExpr("'text' AS id"), server, topic, schema=schema)


def _failing(frame: DataFrame, after_rows: int) -> DataFrame:
    """The rows, and an error after some of them."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
            if rows >= after_rows:
                raise ValueError("injected")

    return frame.mapInArrow(fail, frame.schema)


@pytest.mark.parametrize("options", [{}, {"batchingEnabled": "false"}], ids=str)
def test_a_job_that_failed_and_runs_again_under_its_name_writes_each_row_once(
    spark: SparkSession,
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    options: dict[str, str],
) -> None:
    frame = _numbers(spark, tasks=2)
    for after_rows in (1, 9_000):
        with pytest.raises(PySparkException, match="injected"):
            _write(_failing(frame, after_rows), server, topic, producerName="job", **options)
    _write(frame, server, topic, producerName="job", **options)
    _write(frame, server, topic, producerName="job", **options)
    found = _values(client, topic)
    assert sorted(found) == list(range(_ROWS))
    for task in (range(_ROWS // 2), range(_ROWS // 2, _ROWS)):  # each in its order
        assert [number for number in found if number in task] == list(task)


def test_attempts_at_the_same_time_write_each_row_once(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """As speculative tasks: only one of them has the name at a time."""
    schema = StructType([StructField("value", StringType())])
    given = {"service.url": server.url, "admin.url": server.http_url, "topic": topic}
    writer = stream_writer(given, schema, False)
    assert isinstance(writer, StreamWriter)
    values = pa.array([str(number) for number in range(_ROWS)])
    batches = pa.Table.from_arrays([values], ["value"]).to_batches(max_chunksize=500)

    def write() -> Written:
        return write_task(writer.plan, TaskIdentity("twice", 7, 0), iter(batches))

    with ThreadPoolExecutor(3) as attempts:
        done = [each.result() for each in [attempts.submit(write) for _ in range(3)]]
    assert [each.rows for each in done] == [_ROWS] * 3
    assert sorted(each.skipped for each in done) == [0, _ROWS, _ROWS]
    assert _values(client, topic) == list(range(_ROWS))


def test_a_retry_with_other_rows_fails_and_writes_nothing(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    _write(_numbers(spark, 5_000), server, topic, producerName="changed")
    turned = spark.range(0, 5_000, 1, 1).selectExpr("cast(4999 - id AS string) AS value")
    with pytest.raises(PySparkException, match="has others, or the same in another order"):
        _write(turned, server, topic, producerName="changed")
    with pytest.raises(PySparkException, match="this one has 1000 rows"):
        _write(_numbers(spark, 1_000), server, topic, producerName="changed")
    assert _values(client, topic) == list(range(5_000))


def test_rows_in_another_order_are_the_same_when_they_are_sorted(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    frame = spark.range(0, 3_000, 1, 1).selectExpr("lpad(id, 5, '0') AS value")
    turned = spark.range(0, 3_000, 1, 1).selectExpr("lpad(2999 - id, 5, '0') AS value")
    _write(frame, server, topic, producerName="sorted", sortBy="value")
    _write(turned, server, topic, producerName="sorted", sortBy="value")
    assert _values(client, topic) == list(range(3_000))


def test_what_is_not_retried_is_written_again_without_deduplication(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """At least once, where that is what was asked for; and topics of others keep their policy."""
    for _ in range(2):
        _write(_numbers(spark, 100), server, topic, producerName="off", deduplication="off")
    assert _values(client, topic) == [*range(100)] * 2
    stats = admin(server, "GET", f"{topic.replace('://', '/')}/stats")
    assert stats["deduplicationStatus"] == "Disabled"


_BAD = [
    ({"topc": "t"}, "value", "did you mean topic"),
    ({"schema": "xml"}, "value", "option schema: 'xml' is not allowed"),
    ({"topic": "non-persistent://public/default/t"}, "value", "is not persistent"),
    ({"topic": "persistent://nobody/nowhere/t"}, "value", "topic persistent://nobody/nowhere/t"),
    ({"service.url": "pulsar://127.0.0.1:1"}, "value", "cannot be written to"),
    ({"batchingMaxMessages": "0"}, "value", "a number from 1"),
    ({}, "value AS text", "one column value, and here are text"),
    ({}, "cast(value AS int) AS value", "column value is int; expected is binary or string"),
    ({}, "value, 1 AS __key", "column __key is int"),
    ({}, "value, 1 AS __kye", "no field for column __kye"),
    ({"schema": "avro"}, "array(value) AS list", "column list is array<string>"),
    ({"sortBy": "nothing"}, "value", "option sortBy: the rows have no column nothing"),
    ({"deduplication": "require"}, "value", "deduplication is off"),
]


@pytest.mark.parametrize(("options", "columns", "message"), _BAD, ids=str)
def test_what_is_wrong_is_one_clear_line_before_a_row_is_written(
    spark: SparkSession,
    server: Standalone,
    topic: str,
    options: dict[str, str],
    columns: str,
    message: str,
) -> None:
    frame = _numbers(spark, 1).selectExpr(*columns.split(", "))
    writer = frame.write.format("magnetar").mode("append")
    given = {"service.url": server.url, "admin.url": server.http_url, "topic": topic}
    with pytest.raises(PySparkException, match=message) as caught:
        writer.options(**{**given, **options}).save()
    assert "Traceback" not in str(caught.value)


def test_no_topic_and_no_admin_url_are_refused(spark: SparkSession, server: Standalone) -> None:
    with pytest.raises(PySparkException, match="option topic: it is required"):
        _write(_numbers(spark, 1), server, None)
    writer = _numbers(spark, 1).write.format("magnetar").mode("append").option("topic", "t")
    with pytest.raises(PySparkException, match=r"option admin.url: it is required"):
        writer.option("service.url", server.url).save()
    with pytest.raises(PySparkException, match="option mode: messages cannot be overwritten"):
        _write(_numbers(spark, 1), server, "t", mode="overwrite")


def test_deduplication_by_the_namespace_is_enough(
    spark: SparkSession, server: Standalone, client: pulsar.Client
) -> None:
    admin(server, "PUT", "namespaces/public/deduplicating")
    admin(server, "POST", "namespaces/public/deduplicating/deduplication", True)
    topic = "persistent://public/deduplicating/t"
    for mode in ("require", "assume"):
        _write(_numbers(spark, 100), server, topic, producerName="n", deduplication=mode)
    assert _values(client, topic) == list(range(100))


def test_a_stream_resumes_where_it_was_and_its_values_are_json(
    spark: SparkSession,
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("stream")
    for number in range(3):
        (directory / f"{number}.txt").write_text(
            "".join(f"{number * 1000 + line}\n" for line in range(1_000))
        )

    def run(*, fails: bool) -> None:
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory))
        rows = rows.selectExpr("cast(value AS long) AS number")
        if fails:
            rows = _failing(rows, 1_000)
        query = (
            rows.writeStream.format("magnetar")
            .option("service.url", server.url)
            .option("admin.url", server.http_url)
            .option("topic", topic)
            .option("schema", "json")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException, match="injected"):
        run(fails=True)
    run(fails=False)
    numbers = [json.loads(message.data())["number"] for message in _read(client, topic)]
    assert sorted(numbers) == list(range(3_000))
