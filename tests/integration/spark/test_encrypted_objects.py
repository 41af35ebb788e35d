"""Encrypted objects are read by Spark's tasks that have the key, or else through brokers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_encrypted_objects import ONE, write_keys
from tests.integration.pulsar_client.test_offloading import MESSAGES, fill, move
from tests.integration.spark.support import keep_topics, load, options_for
from tests.standalone import Standalone

TOPIC = "persistent://public/default/hidden-from-spark"
NOBODY = {"service.url": "pulsar://127.0.0.1:1"}  # tasks ask no broker


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark-keys") / "keys"
    write_keys(path, one=ONE)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Standalone]:
    store = tmp_path_factory.mktemp("spark-encrypted") / "store"
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_KEY_FILE": str(keys),
        "OBJECT_KEY_ID": "one",
    }
    with Standalone(store.with_name("data"), settings=settings) as standalone:
        keep_topics(standalone)
        client = connect(standalone.url)
        fill(client, TOPIC)
        move(standalone, TOPIC)
        client.close()
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


def values(spark: SparkSession, server: Standalone, **options: str) -> list[bytes]:
    frame = load(spark, options_for(server, topic=TOPIC, sliceBytes="500", **options))
    return [row.value for row in frame.collect()]


def test_a_task_with_the_key_file_reads_encrypted_objects_without_a_broker(
    spark: SparkSession, server: Standalone, keys: Path
) -> None:
    assert values(spark, server, objectKeyFile=str(keys), **NOBODY) == MESSAGES


def test_a_task_without_the_key_file_reads_encrypted_objects_through_a_broker(
    spark: SparkSession, server: Standalone
) -> None:
    assert values(spark, server) == MESSAGES


def test_the_plan_of_a_query_shows_no_key(
    spark: SparkSession, server: Standalone, keys: Path
) -> None:
    frame = load(spark, options_for(server, topic=TOPIC, objectKeyFile=str(keys)))
    plan = frame._jdf.queryExecution().toString()
    assert "magnetar" in plan
    assert ONE not in plan
