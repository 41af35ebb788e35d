"""Batch queries over topics that nobody else uses, where brokers delete what is not used."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from magnetar.sdk.spark.batch_reader import BatchReader
from magnetar.sdk.spark.data_source import MagnetarDataSource
from tests.http_calls import admin
from tests.integration.spark.driven import SCHEMA
from tests.integration.spark.support import load, options_for
from tests.standalone import Standalone
from tests.waiting import wait_until

TOPIC = "persistent://public/default/read-only"
OTHER = "persistent://public/default/not-read"
PATH = TOPIC.replace("://", "/")
PARTITIONS = 4
ROWS = 40


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """A server that deletes topics that were not used for a second."""
    monkeypatch.setenv("MAGNETAR_BROKER_INACTIVE_TOPIC_CHECK_INTERVAL_S", "0.1")
    monkeypatch.setenv("MAGNETAR_BROKER_INACTIVE_TOPIC_MAX_S", "1")
    with Standalone(tmp_path / "data") as standalone:
        yield standalone


def planned(server: Standalone) -> BatchReader:
    reader = MagnetarDataSource(options_for(server, topic=TOPIC)).reader(SCHEMA)
    assert isinstance(reader, BatchReader)
    return reader


def test_topics_that_a_batch_query_reads_are_not_deleted_meanwhile(
    server: Standalone, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Executors that read from the bookies have nobody connected to the broker."""
    admin(server, "PUT", f"{PATH}/partitions", PARTITIONS)
    client = pulsar.Client(server.url)
    producers = [client.create_producer(OTHER)]
    for number in range(PARTITIONS):
        producers.append(client.create_producer(f"{TOPIC}-partition-{number}"))
        for row in range(ROWS // PARTITIONS):
            producers[-1].send(b"%d" % row)
    # Whoever is connected keeps a topic: nothing goes before the query is planned.
    reader = planned(server)
    slices = reader.partitions()
    client.close()

    def has_gone() -> bool:
        return OTHER not in admin(server, "GET", "persistent/public/default")

    wait_until(has_gone, "the topic that is not read goes")
    assert sum(batch.num_rows for each in slices for batch in reader.read(each)) == ROWS
    assert load(spark, options_for(server, topic=TOPIC)).count() == ROWS

    admin(server, "DELETE", f"{PATH}-partition-1?force=true")
    with caplog.at_level(logging.WARNING):
        assert load(spark, options_for(server, topic=TOPIC)).count() == ROWS * 3 // 4
        planned(server).partitions()
    assert f"{TOPIC}-partition-1 does not exist" in caplog.text
