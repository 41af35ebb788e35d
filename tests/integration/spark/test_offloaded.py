"""Ledgers in an object store are read by Spark's tasks themselves, or through brokers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import ALL, admin, are, fill, move
from tests.integration.spark.support import keep_topics, load, options_for
from tests.integration.spark.test_slices import bookies_without_ledgers, planned, read
from tests.standalone import Standalone
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark-objects") / "store"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Standalone]:
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
    }
    directory = tmp_path_factory.mktemp("spark-offloaded") / "data"
    with Standalone(directory, settings=settings) as standalone:
        keep_topics(standalone)
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    client = connect(server.url)
    yield client
    client.close()


def values(spark: SparkSession, server: Standalone, topic: str, **options: str) -> list[bytes]:
    frame = load(spark, options_for(server, topic=topic, sliceBytes="500", **options))
    return [row.value for row in frame.collect()]


def test_a_query_spans_objects_and_bookies_without_a_seam(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic)
    move(server, topic)
    admin(server, "DELETE", topic, "offloadPolicies")
    fill(client, topic)
    expected = [b"%04d" % number for number in range(100)] * 2
    nobody = {"service.url": "pulsar://127.0.0.1:1"}  # tasks ask no broker
    assert values(spark, server, topic, **nobody) == expected
    assert values(spark, server, topic, readMode="broker") == expected


def test_what_is_in_both_is_read_from_bookies(
    spark: SparkSession, server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    fill(client, topic)
    admin(server, "POST", topic, "offloadPolicies", ALL)
    wait_until(lambda: are(server, topic, "copied"))
    for each in store.rglob("*.mgo"):
        if topic.rpartition("/")[2] in str(each):
            each.write_bytes(b"not an object")
    nobody = {"service.url": "pulsar://127.0.0.1:1"}
    assert values(spark, server, topic, **nobody) == [b"%04d" % number for number in range(100)]


def test_what_left_the_bookies_after_planning_comes_through_brokers(
    server: Standalone, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, topic)
    reader, slices = planned(options_for(server, topic=topic, sliceBytes="500"))
    move(server, topic)
    bookies_without_ledgers(monkeypatch)
    assert read(reader, slices) == [b"%04d" % number for number in range(100)]
