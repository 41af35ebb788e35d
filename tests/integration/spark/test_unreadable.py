"""Messages that cannot be read: what becomes of them is for the query to say; they are named."""

import subprocess
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.support import load, options_for
from tests.standalone import Standalone


class Number(Record):  # type: ignore[misc]
    x = Integer()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "private.pem", folder / "public.pem"
    _openssl("genrsa", "-out", private, "2048")
    _openssl("rsa", "-in", private, "-pubout", "-out", public)
    return pulsar.CryptoKeyReader(str(public), str(private))


def _openssl(*command: str | Path) -> None:
    subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=60)


@pytest.fixture
def filled(server: Standalone, client: pulsar.Client, topic: str) -> str:
    """JSON objects; one value that is none, by a producer without a schema."""
    producer = client.create_producer(topic, schema=JsonSchema(Number))
    for number in range(3):
        producer.send(Number(x=number))
    publish_to(client, topic, [b"poison"])
    producer.send(Number(x=3))
    producer.close()
    return topic


def test_a_value_that_is_not_of_the_schema_is_for_the_mode_to_decide(
    spark: SparkSession, server: Standalone, filled: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=f"{filled}: message [0-9]+:3.*poison.*set mode to"):
        load(spark, options_for(server, topic=filled)).collect()

    frame = load(spark, options_for(server, topic=filled, mode="PERMISSIVE"))
    rows = frame.select("x", "__error", "__messageId").collect()
    assert [row["x"] for row in rows] == [0, 1, 2, None, 3]
    assert [row["__error"] is None for row in rows] == [True, True, True, False, True]
    assert pulsar.MessageId.deserialize(bytes(rows[3]["__messageId"])).entry_id() == 3
    assert frame.where(f.col("__error").isNotNull()).count() == 1

    (bad,) = (
        spark.read.format("magnetar")
        .options(**options_for(server, topic=filled, mode="permissive"))
        .schema("x int, value string, __error string")
        .load()
        .where("__error is not null")
        .collect()
    )
    assert (bad["x"], bad["value"]) == (None, "poison"), "its bytes are there"

    stream = (
        spark.readStream.format("magnetar")
        .options(
            **options_for(server, topic=filled, mode="DROPMALFORMED", startingOffsets="earliest")
        )
        .load()
    )
    query = (
        stream.writeStream.format("memory")
        .queryName("dropped")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    assert [row["x"] for row in spark.table("dropped").collect()] == [0, 1, 2, 3]


def test_an_encrypted_message_is_for_the_mode_to_decide(
    spark: SparkSession,
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
) -> None:
    publish_to(client, topic, [b"plain"])
    publish_to(client, topic, [b"secret"], encryption_key="k", crypto_key_reader=keys)
    publish_to(client, topic, [b"plain, too"])
    with pytest.raises(PySparkException, match=f"{topic}: message [0-9]+:1: it is encrypted"):
        load(spark, options_for(server, topic=topic)).collect()
    frame = load(spark, options_for(server, topic=topic, mode="PERMISSIVE"))
    rows = frame.select("value", "__error").collect()
    assert [row["value"] for row in rows] == [b"plain", None, b"plain, too"]
    assert "encrypted" in rows[1]["__error"]
    frame = load(spark, options_for(server, topic=topic, mode="DROPMALFORMED"))
    assert [row["value"] for row in frame.select("value").collect()] == [b"plain", b"plain, too"]
