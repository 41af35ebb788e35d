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
def private_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key `k`."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "k.pem", folder / "public.pem"
    _openssl("genrsa", "-out", private, "2048")
    _openssl("rsa", "-in", private, "-pubout", "-out", public)
    return private


@pytest.fixture(scope="module")
def keys(private_key: Path) -> pulsar.CryptoKeyReader:
    return pulsar.CryptoKeyReader(str(private_key.with_name("public.pem")), str(private_key))


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


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_encrypted_messages_are_read_with_their_key(
    spark: SparkSession,
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    private_key: Path,
    mode: str,
) -> None:
    """Batches, compressed ones, and one in chunks, each of which is encrypted by itself; and none
    that has a key that is not there."""
    how = {"encryption_key": "k", "crypto_key_reader": keys}
    large = bytes(range(256)) * 25_000
    publish_to(client, topic, [b"plain"])
    publish_to(client, topic, [b"a", b"b"], batching_enabled=True, **how)
    packed = pulsar.CompressionType.LZ4
    publish_to(client, topic, [b"c" * 1000], compression_type=packed, **how)
    publish_to(client, topic, [large], batching_enabled=False, chunking_enabled=True, **how)
    options = options_for(server, topic=topic, readMode=mode)
    for path in (private_key, private_key.with_name("{name}.pem")):
        rows = load(spark, {**options, "privateKeyFile": str(path)}).select("value").collect()
        assert [bytes(row["value"]) for row in rows] == [
            b"plain", b"a", b"b", b"c" * 1000, large,
        ]  # fmt: skip
    missing = private_key.with_name("missing.pem")
    with pytest.raises(PySparkException, match=r"privateKeyFile: .*missing.pem: No such file"):
        load(spark, {**options, "privateKeyFile": str(missing)}).collect()
    by_name = {**options, "privateKeyFile": str(private_key.with_name("other-{name}.pem"))}
    with pytest.raises(PySparkException, match="key k: the private key cannot be read"):
        load(spark, by_name).collect()
    rows = load(spark, {**by_name, "mode": "DROPMALFORMED"}).select("value").collect()
    assert [bytes(row["value"]) for row in rows] == [b"plain"]
