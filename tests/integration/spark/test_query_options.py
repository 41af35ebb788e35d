"""What a query may say beside its topics: where it begins, how much it reads, as whom it asks."""

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pyarrow as pa
import pytest
from google.protobuf.type_pb2 import Field, Syntax, Type
from pulsar.schema import ProtobufNativeSchema
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.sdk import Client, ConsumerSettings, InitialPosition
from magnetar.sdk.schemas import INT32, STRING, Schema
from magnetar.sdk.spark import LagListener, MagnetarDataSource, QueryLag
from magnetar.sdk.spark.errors import OffsetError, OptionError
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.driven import Checkpoint, DrivenQuery
from tests.integration.spark.streams import Collected, start
from tests.integration.spark.support import guide_examples, load, options_for
from tests.standalone import Standalone
from tests.waiting import wait_until


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def values_of(options: dict[str, str], columns: StructType | None = None) -> list[Any]:
    """The column `value` of a batch query, by the steps that Spark takes."""
    source = MagnetarDataSource(options)
    reader = source.reader(columns or source.schema())
    return [
        value
        for partition in reader.partitions()
        for batch in cast(Iterator[pa.RecordBatch], reader.read(partition))
        for value in batch.column("value").to_pylist()
    ]


def is_later(at_s: float) -> bool:
    return time.monotonic() > at_s


def held_at(server: Standalone, topic: str, subscription: str = "held") -> str:
    cursors = admin(server, "GET", f"{path_of(topic)}/internalStats")["cursors"]
    return str(cursors[subscription]["markDeletePosition"])


# -- where a query begins


async def test_a_query_begins_behind_what_a_subscription_has_acknowledged(
    server: Standalone, topic: str
) -> None:
    """In a batch query, which is its backlog then, and in a stream, which leaves it alone or is its
    owner from then on."""
    settings = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
    async with Client(server.url) as client, await client.producer(topic) as producer:
        for value in numbered(0, 10):
            await producer.send(value)
        async with await client.consumer(topic, "app", settings) as consumer:
            for _ in range(4):
                await consumer.acknowledge(await consumer.receive())

    def check() -> None:
        wait_until(lambda: held_at(server, topic, "app").endswith(":3"), "four are acknowledged")
        options = options_for(server, topic=topic, startingSubscription="app")
        assert values_of(options) == numbered(4, 10)
        with DrivenQuery({**options, "subscriptionName": "held"}, Checkpoint()) as query:
            assert query.run_available(available_now=True).values == numbered(4, 10)
        assert held_at(server, topic, "app").endswith(":3")
        with DrivenQuery({**options, "subscriptionName": "app"}, Checkpoint()) as query:
            assert query.run_available(available_now=True).values == numbered(4, 10)
        assert held_at(server, topic, "app").endswith(":9")
        with pytest.raises(OffsetError, match=f"{topic} has no subscription other"):
            values_of({**options, "startingSubscription": "other"})

    await asyncio.to_thread(check)


def test_each_topic_begins_at_its_own_time(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    first, second = f"{topic}-a", f"{topic}-b"
    times = []
    for number in range(3):
        times.append(int(time.time() * 1000) + 1)
        wait_until(lambda: int(time.time() * 1000) > times[-1], "a later time")
        for each in (first, second):
            publish_to(client, each, [b"%d %d" % (number, each == second)])
    options = options_for(server, topics=f"{first},{second}")
    begins = json.dumps({first: times[2], second: times[1]})
    found = sorted(values_of({**options, "startingTime": begins}))
    assert found == [b"1 1", b"2 0", b"2 1"]
    ends = json.dumps({second: times[1]})
    found = sorted(values_of({**options, "endingTime": ends}))
    assert found == [b"0 0", b"0 1", b"1 0", b"2 0"]


def test_a_prefix_is_the_beginning_of_the_subscriptions_name(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, numbered(0, 3))
    options = options_for(
        server, topic=topic, startingOffsets="earliest", subscriptionPrefix="lake"
    )
    with DrivenQuery(options, Checkpoint()) as query:
        assert query.run_available().values == numbered(0, 3)
    (name,) = admin(server, "GET", f"{path_of(topic)}/subscriptions")
    assert name.startswith("lake-")


def test_options_of_the_pulsar_connector_are_taken_by_their_names(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(value) for value in numbered(0, 5)]
    producer.close()
    place = [each - 256 if each > 127 else each for each in ids[2].serialize()]
    given = options_for(server)
    options = {
        "pulsar.client.serviceUrl": given["service.url"],
        "admin.url": given["admin.url"],
        "topics": topic,
        "startingOffsets": json.dumps({topic: place}),
        "predefinedSubscription": "held",
        "failOnDataLoss": "false",
        "maxBytesPerTrigger": "1000000",
    }
    with DrivenQuery(options, Checkpoint()) as query:
        assert query.run_available(available_now=True).values == numbered(2, 5)
    assert held_at(server, topic).endswith(":4")


# -- how much a query reads


def batched(client: pulsar.Client, topic: str, entries: int, each: int) -> list[bytes]:
    """Entries of so many messages."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    values = numbered(0, entries * each)
    for number, value in enumerate(values, 1):
        producer.send_async(value, lambda _, __: None)
        if number % each == 0:
            producer.flush()
    producer.close()
    return values


def test_messages_limit_a_micro_batch_also_when_its_broker_has_just_begun_with_the_topic(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Then no counter tells how many messages an entry has, but the last entry does."""
    values = batched(client, topic, 12, 10)
    options = options_for(
        server, topic=topic, startingOffsets="earliest", maxMessagesPerTrigger="50"
    )
    for _ in range(2):
        with DrivenQuery(options, Checkpoint()) as query:
            query.run_available()
        assert query.values == values
        assert query.batch_sizes == [50, 50, 20]
        admin(server, "PUT", f"{path_of(topic)}/unload")


def test_a_micro_batch_waits_for_a_minimum_and_not_longer_than_it_should(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        minMessagesPerTrigger="20",
        maxTriggerDelay="1h",
    )
    checkpoint = Checkpoint()
    with DrivenQuery(options, checkpoint) as query:
        batched(client, topic, 1, 5)
        assert query.run_available().batch_sizes == [5], "the first one does not wait"
        batched(client, topic, 1, 5)
        assert query.run_available().batch_sizes == [5]
        batched(client, topic, 2, 10)
        assert query.run_available().batch_sizes == [5, 25]
        batched(client, topic, 1, 5)
        assert query.run_available().batch_sizes == [5, 25]
        # By the other trigger nothing waits: more need not come.
        assert query.run_available(available_now=True).batch_sizes == [5, 25, 5]
    short = {**options, "maxTriggerDelay": "0"}
    with DrivenQuery(short, checkpoint) as query:
        for _ in range(2):
            batched(client, topic, 1, 5)
            query.run_available()
        assert query.batch_sizes == [5, 5]


def test_spark_waits_for_a_minimum_and_its_listener_hears_of_the_lag(
    spark: SparkSession,
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The limit makes each micro-batch leave something; the last one leaves nothing."""
    publish_to(client, topic, numbered(0, 30), batching_enabled=False)
    seen: list[QueryLag] = []
    listener = LagListener(seen.append)
    examples: list[LagListener] = []
    streams = SimpleNamespace(addListener=examples.append)
    exec(guide_examples()[1], {"spark": SimpleNamespace(streams=streams)})
    for each in (listener, *examples):
        spark.streams.addListener(each)
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        maxEntriesPerTrigger="20",
        minEntriesPerTrigger="10",
        maxTriggerDelay="1h",
    )
    collected = Collected()
    query = start(spark, options, tmp_path, collected, available_now=False)
    try:
        collected.wait_for(30)
        publish_to(client, topic, numbered(30, 35), batching_enabled=False)
        publish_to(client, topic, numbered(35, 40), batching_enabled=False)
        collected.wait_for(40)
        wait_until(
            lambda: len(seen) >= 3 and not seen[-1].topics[0].entries, "all is told", within_s=120
        )
    finally:
        query.stop()
        for each in (listener, *examples):
            spark.streams.removeListener(each)
    assert [len(each) for each in collected.batches.values()] == [20, 10, 10]
    by_batch = {each.batch_id: each for each in seen}
    assert by_batch[0].query_id == str(query.id)
    (lag,) = by_batch[0].topics
    assert (lag.topic, lag.entries, lag.messages) == (topic, 10, 10)
    assert lag.bytes > 0
    assert f"{topic} 10 10" in capsys.readouterr().out


# -- producers under a quota


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server that looks at quotas five times a second."""
    settings = {"BACKLOG_QUOTA_CHECK_INTERVAL_S": "0.2"}
    with Standalone(tmp_path_factory.mktemp("strict") / "data", settings=settings) as standalone:
        yield standalone
        assert standalone.terminate() == 0


def limit_age(server: Standalone, topic: str) -> None:
    """Refuse producers when the oldest message of a backlog is two seconds old."""
    quota = {"limitTime": 2, "policy": "producer_exception"}
    admin(server, "PUT", path_of(topic))
    admin(server, "POST", f"{path_of(topic)}/backlogQuota?backlogQuotaType=message_age", quota)


def publish_anew(server: Standalone, topic: str, first: int) -> None:
    """Five messages by a producer that was not there before.

    Raises:
        ProducerBlockedQuotaExceededException: producers are refused.
    """
    own = pulsar.Client(server.url)
    try:
        publish_to(own, topic, numbered(first, first + 5), batching_enabled=False)
    finally:
        own.close()


def is_refused(server: Standalone, topic: str) -> bool:
    own = pulsar.Client(server.url)
    try:
        own.create_producer(topic).close()
    except pulsar.ProducerBlockedQuotaExceededException:
        return True
    finally:
        own.close()
    return False


def is_released(server: Standalone, topic: str, through: int) -> bool:
    return held_at(server, topic).endswith(f":{through}")


def test_an_age_quota_does_not_stop_producers_because_of_an_idle_query(
    strict: Standalone, topic: str
) -> None:
    """Producers publish again when all that there is has long been read. A query that waits an hour
    for the rest of a message does stop them."""
    limit_age(strict, topic)
    options = options_for(
        strict,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        maxEntriesPerTrigger="4",
    )
    checkpoint = Checkpoint()
    with DrivenQuery({**options, "idleReleaseMs": "0"}, checkpoint) as query:
        for first in (0, 5):
            publish_anew(strict, topic, first)
            query.run_available()
            assert is_released(strict, topic, first + 4)
            wait_until(partial(is_later, time.monotonic() + 4), "more than the quota's age")
        assert not is_refused(strict, topic)
        assert query.values == numbered(0, 10)
    publish_anew(strict, topic, 10)
    with DrivenQuery({**options, "idleReleaseMs": "3600000"}, checkpoint) as query:
        query.run_available()
        wait_until(partial(is_refused, strict, topic), "producers are refused")


def test_producers_go_on_under_an_age_quota_while_spark_waits_for_them(
    spark: SparkSession, strict: Standalone, topic: str, tmp_path: Path
) -> None:
    """The query has read everything, and Spark has not named its last micro-batch as done."""
    limit_age(strict, topic)
    options = options_for(
        strict,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        idleReleaseMs="0",
    )
    collected = Collected()
    query = start(spark, options, tmp_path, collected, available_now=False)
    try:
        for first in (0, 5):
            publish_anew(strict, topic, first)
            collected.wait_for(first + 5)
            wait_until(partial(is_released, strict, topic, first + 4), "all is released")
            wait_until(partial(is_later, time.monotonic() + 4), "more than the quota's age")
        assert not is_refused(strict, topic)
    finally:
        query.stop()
    assert collected.values == numbered(0, 10)


# -- values


async def send(server: Standalone, topic: str, schema: Schema[Any], values: list[Any]) -> None:
    async with (
        Client(server.url) as client,
        await client.producer(topic, schema=schema) as producer,
    ):
        await producer.send_many(values)


async def test_topics_of_different_schemas_are_bytes_by_an_option(
    server: Standalone, topic: str
) -> None:
    await send(server, f"{topic}-0", STRING, ["text"])
    await send(server, f"{topic}-1", INT32, [1])
    options = options_for(server, topics=f"{topic}-0,{topic}-1", allowDifferentTopicSchemas="true")

    def check() -> None:
        assert sorted(values_of(options)) == [b"\0\0\0\1", b"text"]
        with DrivenQuery({**options, "startingOffsets": "earliest"}, Checkpoint()) as query:
            assert sorted(query.run_available().values) == [b"\0\0\0\1", b"text"]

    await asyncio.to_thread(check)


def test_protobuf_messages_are_columns_or_their_bytes(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=ProtobufNativeSchema(Type))
    message = Type(name="t", oneofs=["a", "b"], syntax=Syntax.SYNTAX_PROTO3)
    message.fields.append(Field(name="f", kind=Field.TYPE_BOOL, number=7))
    producer.send(message)
    producer.close()
    options = options_for(server, topic=topic)
    (row,) = load(spark, options).collect()
    assert (row["name"], row["oneofs"], row["syntax"]) == ("t", ["a", "b"], "SYNTAX_PROTO3")
    assert [(each["name"], each["kind"], each["number"]) for each in row["fields"]] == [
        ("f", "TYPE_BOOL", 7)
    ]
    assert row["source_context"] is None
    columns = StructType([StructField("value", BinaryType())])
    (value,) = values_of(options, columns)
    assert Type.FromString(value) == message


def test_a_view_of_sql_is_read_and_written(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """With columns of its own; what is inserted is published."""
    publish_to(client, topic, numbered(0, 5))
    given = options_for(server, topic=topic)
    del given["metadata.url"]  # which the sink has no use for
    listed = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    spark.sql(f"CREATE TEMPORARY VIEW of_topic (value STRING) USING magnetar OPTIONS ({listed})")
    rows = spark.sql("SELECT value, count(*) AS n FROM of_topic GROUP BY value ORDER BY value")
    assert [(row["value"], row["n"]) for row in rows.collect()] == [(str(n), 1) for n in range(5)]
    spark.sql("INSERT INTO of_topic VALUES ('5')")
    assert values_of(options_for(server, topic=topic)) == numbered(0, 6)


# -- as whom a query asks


def test_credentials_of_a_missing_file_are_told_of_in_one_line(
    server: Standalone, topic: str, tmp_path: Path
) -> None:
    options = options_for(
        server,
        topic=topic,
        authentication="oauth2",
        oauth2IssuerUrl="http://127.0.0.1:1/",
        oauth2CredentialsFile=str(tmp_path / "missing.json"),
    )
    with pytest.raises(OptionError, match=r"option authentication: .*missing.json: No such file"):
        MagnetarDataSource(options).schema()
