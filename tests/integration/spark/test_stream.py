"""Streaming queries: every message once over restarts, growth and failures."""

from pathlib import Path

import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.streams import Collected, run, start
from tests.integration.spark.support import guide_examples, options_for, replaced
from tests.standalone import Standalone


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def test_a_restarted_query_goes_on_behind_its_checkpoint(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """Within its limit per trigger, and with what it may still need held by its subscription."""
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        maxEntriesPerTrigger="40",
        subscriptionName="held",
    )
    publish_to(client, topic, numbered(0, 100), batching_enabled=False)
    collected = run(spark, options, tmp_path)
    assert collected.values == numbered(0, 100)
    assert [len(batch) for batch in collected.batches.values()] == [40, 40, 20]

    cursors = admin(server, "GET", f"{path_of(topic)}/internalStats")["cursors"]
    assert cursors["held"]["markDeletePosition"].endswith(":99"), "all of it was read"

    publish_to(client, topic, numbered(100, 130), batching_enabled=True)
    assert run(spark, options, tmp_path).values == numbered(100, 130)
    assert run(spark, options, tmp_path).values == []


def test_a_batch_that_was_planned_and_not_finished_is_read_again_alike(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    options = options_for(server, topic=topic, startingOffsets="earliest")
    publish_to(client, topic, numbered(0, 50), batching_enabled=True)
    collected = Collected()
    collected.fails_in = 0
    with pytest.raises(StreamingQueryException):
        run(spark, options, tmp_path, collected)
    assert collected.batches == {}

    publish_to(client, topic, numbered(50, 80), batching_enabled=True)
    collected = run(spark, options, tmp_path)

    assert collected.batches[0] == numbered(0, 50)
    assert collected.values == numbered(0, 80)
    assert len(admin(server, "GET", f"{path_of(topic)}/subscriptions")) == 1


def test_new_partitions_and_topics_appear_in_a_running_query(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    name = topic.rpartition("/")[2]
    first, second = f"{topic}-first", f"{topic}-second"
    admin(server, "PUT", f"{path_of(first)}/partitions", 1)
    options = options_for(
        server, topicsPattern=f"public/default/{name}-.*", startingOffsets="earliest"
    )
    publish_to(client, first, numbered(0, 10))
    collected = Collected()
    query = start(spark, options, tmp_path, collected, available_now=False)
    try:
        collected.wait_for(10)
        admin(server, "POST", f"{path_of(first)}/partitions", 3)
        other = pulsar.Client(server.url)  # a producer that knows of the new partitions
        publish_to(other, first, numbered(10, 40), batching_enabled=False)
        publish_to(other, second, numbered(40, 60))
        other.close()
        collected.wait_for(60)
    finally:
        query.stop()
    assert sorted(collected.values) == sorted(numbered(0, 60))
    assert collected.topics == {second, *(f"{first}-partition-{n}" for n in range(3))}


def test_the_example_of_the_guide_runs(
    spark: SparkSession, server: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """From its session to its end, in the session of the tests."""
    topic = "persistent://public/default/flights-of-the-guide"
    publish_to(client, topic, numbered(0, 20))
    options = options_for(server)
    example = replaced(
        guide_examples()[0],
        {
            "pulsar://broker-1:6650,broker-2:6650": options["service.url"],
            "http://broker-1:8080,http://broker-2:8080": options["admin.url"],
            "zk://zookeeper-1:2181/magnetar": options["metadata.url"],
            "persistent://public/default/flights": topic,
            "/lake/": f"{tmp_path}/",
        },
    )
    exec(example, {})
    rows = spark.read.parquet(str(tmp_path / "flights")).select("value").collect()
    assert sorted(bytes(row[0]) for row in rows) == sorted(numbered(0, 20))


def test_a_topic_that_is_deleted_under_a_query_fails_it_in_one_line(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """What else is lost, or goes on without: test_stream_reader.py."""
    first, second = f"{topic}-a", f"{topic}-b"
    pattern = f"public/default/{topic.rpartition('/')[2]}-."
    options = options_for(server, topicsPattern=pattern, startingOffsets="earliest")
    publish_to(client, first, numbered(0, 10))
    publish_to(client, second, numbered(10, 20))
    assert sorted(run(spark, options, tmp_path).values) == sorted(numbered(0, 20))
    admin(server, "DELETE", f"{path_of(first)}?force=true")

    with pytest.raises(StreamingQueryException) as failure:
        run(spark, options, tmp_path)

    assert f"{first}: the topic was deleted" in str(failure.value)
    assert "Traceback" not in str(failure.value)
