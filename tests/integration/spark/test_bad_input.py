"""Bad input is one clear line when the query begins, not a stack from a worker later."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pulsar
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader

from magnetar.arrow.stored import broker_reads
from magnetar.arrow.stored.slices import Address
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.spark import MagnetarDataSource, register
from magnetar.sdk.spark.errors import (
    DataLossError,
    MagnetarSparkError,
    OffsetError,
    OptionError,
    UnreachableError,
)
from magnetar.sdk.spark.partitions import SlicePartition
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.driven import SCHEMA
from tests.integration.spark.support import load, options_for
from tests.processes import HOST, free_ports
from tests.standalone import Standalone

BAD: dict[str, tuple[Mapping[str, str | None], str]] = {
    "unknown name": ({"startingOfsets": "x"}, "startingofsets: .*did you mean startingOffsets"),
    "Kafka's name": (
        {"kafka.bootstrap.servers": "a:1"},
        r"kafka\.bootstrap\.servers: .*it is option service\.url",
    ),
    "a group": ({"groupId": "g"}, "groupid: .*it is option subscriptionName"),
    "a rate": ({"maxOffsetsPerTrigger": "5"}, "maxoffsetspertrigger: .*maxEntriesPerTrigger"),
    "a plugin": (
        {"pulsar.client.authPluginClassName": "a.B"},
        "authpluginclassname: the plugin is one of AuthenticationToken",
    ),
    "a key": ({"encryption.key": "k"}, r"encryption\.key: .*option privateKeyFile"),
    "of a table": ({"provider": "magnetar"}, "provider: .*CREATE TEMPORARY VIEW"),
    "of the sink": ({"producerName": "p"}, "producername: .*it is for writing only"),
    "bad mode of reading": (
        {"mode": "LENIENT"},
        "mode: 'LENIENT' is not allowed; it is one of FAIL",
    ),
    "no topic": ({"topic": None}, "topic: exactly one of topic, topics and topicsPattern"),
    "two ways": ({"topics": "a,b"}, "topic, topics are given"),
    "bad topic name": ({"topic": "a/b"}, "'a/b' is not of the form"),
    "missing topic": ({"topic": "never-made"}, "never-made does not exist"),
    "pattern of nothing": (
        {"topic": None, "topicsPattern": "public/default/none-[0-9]+"},
        "no topic of public/default matches",
    ),
    "no expression": ({"topic": None, "topicsPattern": "a("}, r"topicsPattern: 'a\('"),
    "bad word": ({"startingOffsets": "erliest"}, "startingOffsets: 'erliest' is not allowed"),
    "bad JSON": ({"startingOffsets": "{"}, "startingOffsets: '{' is not allowed"),
    "foreign topic": ({"startingOffsets": '{"other": "1:1"}'}, "is not among the topics"),
    "beyond the end": ({"startingOffsets": '{"TOPIC": "999999:1"}'}, "999999:1 does not exist"),
    "bad number": ({"sliceBytes": "many"}, "sliceBytes: 'many' is not allowed; it is a number"),
    "foreign time": ({"startingTime": '{"other": 1}'}, "startingTime: .* is not among the topics"),
    "no subscription": ({"startingSubscription": "s"}, "has no subscription s: begin by"),
    "bad time": ({"startingTime": "yesterday"}, "startingTime: 'yesterday' is not allowed"),
    "bad mode": ({"readMode": "fast"}, "readMode: 'fast' is not allowed; it is one of"),
    "for streams": ({"maxEntriesPerTrigger": "5"}, "it is for streaming queries only"),
    "bad flag": ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: 'perhaps' is not allowed"),
    "no URL": ({"service.url": "localhost"}, "service.url: 'localhost' is not of the form"),
    "no admin": ({"admin.url": None}, "admin.url: it is required"),
    "no store": ({"metadata.url": "etcd://a"}, "metadata.url: 'etcd://a' is not of the form"),
    "bad login": ({"authentication": "password"}, "authentication: it is none, tls, token"),
    "half of TLS": (
        {"bookieTlsKeyFile": "/key.pem"},
        "bookieTlsTrustCertsFile: .*go together",
    ),
    "nobody there": ({"admin.url": "NOBODY"}, "admin.url: no broker answers"),
}


def changed(server: Standalone, topic: str, name: str) -> dict[str, str]:
    """Good options, but for what the case of this name changes."""
    options: dict[str, str] = options_for(server, topic=topic)
    for option, value in BAD[name][0].items():
        if value is None:
            del options[option]
        else:
            nobody = f"http://{HOST}:{free_ports(1)[0]}"
            options[option] = value.replace("TOPIC", topic).replace("NOBODY", nobody)
    return options


@pytest.fixture(scope="module")
def filled(server: Standalone) -> str:
    topic = "persistent://public/default/spark-bad-input"
    client = pulsar.Client(server.url)
    publish_to(client, topic, [b"one"])
    client.close()
    return topic


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_runs(
    server: Standalone, filled: str, name: str
) -> None:
    """By the steps that Spark takes on the driver."""
    source = MagnetarDataSource(changed(server, filled, name))
    with pytest.raises(MagnetarSparkError, match=BAD[name][1]) as refusal:
        source.reader(source.schema()).partitions()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["unknown name", "missing topic", "beyond the end"])
def test_spark_shows_it_in_one_line(
    spark: SparkSession, server: Standalone, filled: str, name: str
) -> None:
    with pytest.raises(PySparkException, match=BAD[name][1]) as failure:
        load(spark, changed(server, filled, name)).count()
    text = str(failure.value).split("SQLSTATE")[0].strip()
    assert "Traceback" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("made", "message"), [(False, "no such file"), (True, "it holds no cluster")]
)
async def test_a_metadata_store_of_nobody_is_told_from_ledgers_that_are_gone(
    server: Standalone, filled: str, tmp_path: Path, made: bool, message: str
) -> None:
    """Nothing would be read of it, which with failOnDataLoss false nobody would notice."""
    url = f"embedded:{tmp_path / 'metadata.db'}"
    if made:
        await (await open_store(url)).close()
    options = options_for(server, topic=filled, failOnDataLoss="false") | {"metadata.url": url}
    source = MagnetarDataSource(options)
    reader = await asyncio.to_thread(source.reader, source.schema())
    with pytest.raises(OptionError, match=f"option metadata.url: .*{message}"):
        await asyncio.to_thread(reader.partitions)
    assert (tmp_path / "metadata.db").exists() is made


def test_an_offset_that_was_trimmed(server: Standalone, client: pulsar.Client, topic: str) -> None:
    """Batch and stream are told before anything is read; or go on with what is left."""
    path = topic.replace("://", "/")
    publish_to(client, topic, [b"trimmed"])
    ledger = admin(server, "GET", f"{path}/internalStats")["ledgers"][0]["ledgerId"]
    admin(server, "PUT", f"{path}/unload")
    publish_to(client, topic, [b"left"])
    admin(server, "POST", f"{path}/trim")
    options = options_for(server, topic=topic, startingOffsets=f'{{"{topic}": "{ledger}:0"}}')
    source = MagnetarDataSource(options)
    expected = f"{ledger}:0 was trimmed; the topic begins with ledger"
    with pytest.raises(DataLossError, match=expected):
        source.reader(SCHEMA).partitions()
    stream = source.streamReader(SCHEMA)
    with pytest.raises(DataLossError, match=expected):
        stream.initialOffset()
    stream.stop()
    ending = {"startingOffsets": "earliest", "endingOffsets": options["startingOffsets"]}
    with pytest.raises(DataLossError, match=f"option endingOffsets: .*{expected}"):
        MagnetarDataSource({**options, **ending}).reader(SCHEMA).partitions()
    reader = MagnetarDataSource({**options, "failOnDataLoss": "false"}).reader(SCHEMA)
    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch[0]]
    assert [row.as_py() for row in rows] == [b"left"]


def test_an_end_before_the_beginning(server: Standalone, client: pulsar.Client, topic: str) -> None:
    publish_to(client, topic, [b"0", b"1", b"2"], batching_enabled=False)
    ledger = admin(server, "GET", f"{topic.replace('://', '/')}/internalStats")["ledgers"][0]
    places = [f'{{"{topic}": "{ledger["ledgerId"]}:{entry}"}}' for entry in range(3)]
    options = options_for(server, topic=topic, startingOffsets=places[1], endingOffsets=places[0])
    with pytest.raises(OffsetError, match=r"endingOffsets: .*:0 is before .*:1, where starting"):
        MagnetarDataSource(options).reader(SCHEMA).partitions()
    reader = MagnetarDataSource({**options, "endingOffsets": places[1]}).reader(SCHEMA)
    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch[0]]
    assert [row.as_py() for row in rows] == [b"1"]


def test_spark_has_no_tables_and_no_paths_of_topics_and_says_so_in_one_line(
    spark: SparkSession, server: Standalone, filled: str
) -> None:
    """Spark gives a source the options of a table for its columns, and none to read it."""
    options = options_for(server, topic=filled)
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    with pytest.raises(PySparkException, match=r"CREATE TEMPORARY VIEW name USING magnetar"):
        spark.sql(f"CREATE TABLE no_table USING magnetar OPTIONS ({given})")
    spark.sql(f"CREATE TABLE no_rows (value binary) USING magnetar OPTIONS ({given})")
    try:
        with pytest.raises(PySparkException, match=r"CREATE TEMPORARY VIEW name USING magnetar"):
            spark.sql("SELECT * FROM no_rows").collect()
    finally:
        spark.sql("DROP TABLE no_rows")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW a_view USING magnetar OPTIONS ({given})")
    assert [row.value for row in spark.table("a_view").collect()] == [b"one"]
    del options["topic"]
    reader = spark.read.format("magnetar").options(**options)
    with pytest.raises(PySparkException, match=r"option path: .*it is option topic"):
        reader.load("spark-bad-input")


def test_a_second_session_may_be_told_of_the_source_again(
    spark: SparkSession, server: Standalone, filled: str
) -> None:
    second = spark.newSession()
    register(second)
    register(second)
    assert load(second, options_for(server, topic=filled)).count() == 1


def test_a_spark_that_is_too_old_is_told_in_one_line(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    with pytest.raises(MagnetarSparkError, match=r"needs Spark 4\.1 or newer.*this is 4\.0\.1"):
        register(spark)


def test_a_spark_without_limits_of_micro_batches_is_told_in_one_line(
    server: Standalone, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of 4.1, which reads batches."""
    for name in ("batch_reader", "stream_reader"):
        monkeypatch.delitem(sys.modules, f"magnetar.sdk.spark.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    source = MagnetarDataSource(options_for(server, topic=filled))
    reader = source.streamReader(SCHEMA)
    with pytest.raises(MagnetarSparkError, match=r"streaming queries need Spark 4\.2"):
        reader.initialOffset()
    batch = source.reader(SCHEMA)
    rows = [row for each in batch.partitions() for row in batch.read(each)]
    assert sum(each.num_rows for each in cast(list[pa.RecordBatch], rows)) == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("endingOffsets", "latest", "endingOffsets: it is for batch queries only"),
        ("startingOfsets", "earliest", "did you mean startingOffsets"),
    ],
)
def test_a_stream_with_columns_of_its_own_is_refused_in_the_same_line(
    spark: SparkSession, server: Standalone, filled: str, tmp_path: Path,
    name: str, value: str, message: str,
) -> None:  # fmt: skip
    """Spark asks for no columns then, and hides what making the reader raises."""
    reader = spark.readStream.format("magnetar").options(**options_for(server, topic=filled))
    frame = reader.option(name, value).schema("value binary").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=message):
        query.awaitTermination(180)


def test_columns_that_a_topic_does_not_have(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, [b"one"])
    reader = spark.read.format("magnetar").options(**options_for(server, topic=topic))
    with pytest.raises(PySparkException, match="column carrier of type int"):
        reader.schema("carrier int").load().collect()


def out_of_reach(server: Standalone, topic: str) -> tuple[DataSourceReader, SlicePartition]:
    """A planned query whose one slice names bookies where nobody listens."""
    source = MagnetarDataSource(options_for(server, topic=topic))
    reader = source.reader(source.schema())
    (slice_,) = reader.partitions()
    assert isinstance(slice_, SlicePartition)
    slice_.addresses = {name: Address(HOST, free_ports(1)[0]) for name in slice_.addresses}
    return reader, slice_


def test_what_no_bookie_gives_is_read_through_brokers(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    values = [b"%d" % number for number in range(500)]
    publish_to(client, topic, values)
    reader, slice_ = out_of_reach(server, topic)
    batches = list(reader.read(slice_))
    assert all(isinstance(each, pa.RecordBatch) for each in batches)
    rows = pa.Table.from_batches(batches).column(0).to_pylist()
    assert rows == values


def test_bookies_and_brokers_that_nobody_reaches_are_named(
    server: Standalone, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every replica is tried, and each one's answer is in the one line."""
    monkeypatch.setattr(broker_reads, "PATIENCE_S", 0.0)
    publish_to(client, topic, [b"one"])
    reader, slice_ = out_of_reach(server, topic)
    nobody = f"pulsar://{HOST}:{free_ports(1)[0]}"
    slice_.settings = replace(slice_.settings, service_url=nobody)
    with pytest.raises(
        UnreachableError, match=r"bookie .*bookie .*nor through brokers: .*no broker"
    ) as refusal:
        list(reader.read(slice_))
    assert "\n" not in str(refusal.value)
