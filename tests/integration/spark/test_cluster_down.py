"""With every server stopped, Spark reads what was moved to the object store, row by row.

One test publishes and moves several topics, and stops the server for good; the others read.
"""

import asyncio
import json
import logging
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String
from pyspark.sql import Row, SparkSession

from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    manifest_key,
    newest_manifests,
    parse_manifest_key,
    read_manifest,
)
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import open_object_store
from magnetar.sdk import Client, MessageId
from magnetar.sdk.spark import MagnetarDataSource
from magnetar.sdk.spark.errors import (
    DataLossError,
    MagnetarSparkError,
    OffsetError,
    OptionError,
    TopicNotFoundError,
)
from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import ALL, LAG, admin
from tests.integration.spark.support import (
    guide_examples,
    keep_topics,
    load,
    options_for,
    replaced,
)
from tests.s3_server import S3Server
from tests.standalone import Standalone
from tests.waiting import wait_until

PARTITIONS = 3
MESSAGES = 120
NAMESPACE = "persistent://public/default/"
KEY_ID, KEY = "test", "07" * 32


class Flight(Record):  # type: ignore[misc]
    number = Integer()


class LongerFlight(Record):  # type: ignore[misc]
    number = Integer()
    gate = String(default="none", required_default=True)


@dataclass
class Stored:
    """What a cluster that is no more has left, and what was read of it before."""

    store: Path
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By topic, in the order of the log: through the brokers, before they stopped."""
    ids: dict[str, list[MessageId]] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        return {"objects": self.store.as_uri(), "objectKeyFile": str(self.key_file)}

    @property
    def key_file(self) -> Path:
        return self.store.with_name("keys")


def publish_flights(server: Standalone, topic: str) -> None:
    """By two versions of a schema, with keys and properties, some of them in batches."""
    client = connect(server.url)
    for schema, numbers in (
        (Flight, range(MESSAGES // 2)),
        (LongerFlight, range(MESSAGES // 2, MESSAGES)),
    ):
        producer = client.create_producer(
            topic, schema=AvroSchema(schema), batching_enabled=schema is Flight
        )
        for number in numbers:
            gate = {"gate": f"B{number}"} if schema is LongerFlight else {}
            producer.send(
                schema(number=number, **gate),
                partition_key=f"k{number}",
                properties={"n": str(number)},
            )
        producer.close()
    client.close()


async def publish_transactions(server: Standalone, topic: str) -> None:
    async with Client(server.url) as client:
        producer = await client.producer(topic)
        for number in range(20):
            transaction = await client.transaction().begin()
            await producer.send(b"t%02d" % number, transaction=transaction)
            if number % 3:
                await transaction.commit()
            else:
                await transaction.abort()


def publish_plain(server: Standalone, topic: str) -> None:
    client = connect(server.url)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(35):
        producer.send(b"%04d" % number)
    producer.close()
    client.close()


def parts_of(topic: str, partitions: int) -> list[str]:
    return [f"{topic}-partition-{index}" for index in range(partitions)] if partitions else [topic]


def move_all(server: Standalone, topic: str) -> None:
    """Wait until every ledger that was written so far is in the object store only."""
    call(server, "PUT", f"{topic_path(topic)}/unload", expect=204)

    def is_moved() -> bool:
        ledgers = admin(server, "GET", topic, "internalStats")["ledgers"]
        states = [each.get("object", {}).get("state") for each in ledgers]
        return bool(states) and set(states) == {"only"}

    wait_until(is_moved)


TOPICS: Mapping[str, tuple[Callable[[Standalone, str], Any], int]] = {
    f"{NAMESPACE}flights": (publish_flights, 0),
    f"{NAMESPACE}trains": (publish_flights, PARTITIONS),
    f"{NAMESPACE}café au lait": (publish_plain, 0),
    f"{NAMESPACE}deals": (
        lambda server, topic: asyncio.run(publish_transactions(server, topic)),
        0,
    ),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Stored:
    found = Stored(tmp_path_factory.mktemp("down") / "store")
    found.key_file.touch(mode=0o600)
    found.key_file.write_text(f"{KEY_ID} {KEY}\n")
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": found.store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_KEY_FILE": str(found.key_file),
        "OBJECT_KEY_ID": KEY_ID,
    }
    directory = tmp_path_factory.mktemp("cluster-down") / "data"
    with Standalone(directory, settings=settings) as server:
        keep_topics(server)
        for topic, (publish, partitions) in TOPICS.items():
            if partitions:
                call(server, "PUT", f"{topic_path(topic)}/partitions", partitions, expect=204)
            publish(server, topic)
            frame = load(spark, options_for(server, topic=topic))
            found.rows[topic] = in_order(frame.collect())
            admin(server, "POST", topic, "offloadPolicies", {**ALL, **LAG})
            for part in parts_of(topic, partitions):
                move_all(server, part)
        wait_until(lambda: all(is_told(found.store, topic) for topic in TOPICS))
        assert server.terminate() == 0
        server.assert_log_clean()
    shutil.rmtree(directory)
    return found


def is_told(store: Path, topic: str) -> bool:
    """Whether the manifests say that all of a topic is in the store."""
    driver = SourceDriver(SourceOptions.read({"objects": store.as_uri(), "topic": topic}))
    try:
        states = driver.topics()
    except MagnetarSparkError:
        return False
    finally:
        driver.close()
    complete = [each for each in states.values() if each.ledgers and not each.unread]
    return len(complete) == len(parts_of(topic, TOPICS[topic][1]))


def id_of(row: Row) -> MessageId:
    return MessageId.from_bytes(bytes(row["__messageId"]))


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["__topic"], id_of(row)))


def read(spark: SparkSession, stored: Stored, **options: str) -> list[Row]:
    return in_order(load(spark, {**stored.options, **options}).collect())


@pytest.mark.parametrize("topic", TOPICS)
def test_a_stopped_clusters_topics_are_read_row_by_row_as_before(
    spark: SparkSession, stored: Stored, topic: str
) -> None:
    rows = read(spark, stored, topic=topic, sliceBytes="500")
    assert rows == stored.rows[topic]
    assert rows


def test_rows_are_what_was_published(spark: SparkSession, stored: Stored) -> None:
    for name in ("flights", "trains"):
        rows = read(spark, stored, topic=name)
        found = sorted((row["number"], row["gate"], row["__key"]) for row in rows)
        assert found == [
            (number, "none" if number < MESSAGES // 2 else f"B{number}", b"k%d" % number)
            for number in range(MESSAGES)
        ]
        assert all(row["__messageProperties"] == {"n": str(row["number"])} for row in rows)
    assert {row["__topic"] for row in rows} == set(parts_of(f"{NAMESPACE}trains", PARTITIONS))
    deals = [bytes(row["value"]) for row in read(spark, stored, topic="deals")]
    assert deals == [b"t%02d" % number for number in range(20) if number % 3]


def test_the_example_of_the_guide_runs_without_a_server(
    spark: SparkSession, stored: Stored
) -> None:
    example = guide_examples()[-1]
    here = {
        "s3://my-bucket/magnetar": stored.store.as_uri(),
        ".load()": f'.option("objectKeyFile", "{stored.key_file}").load()',
    }
    names: dict[str, Any] = {"spark": spark}
    exec(replaced(example, here), names)
    assert len(names["flights"].collect()) == MESSAGES


def test_patterns_lists_and_single_partitions_select_topics(
    spark: SparkSession, stored: Stored
) -> None:
    both = [*stored.rows[f"{NAMESPACE}flights"], *stored.rows[f"{NAMESPACE}trains"]]
    assert read(spark, stored, topicsPattern="public/default/(flights|tra.*)") == in_order(both)
    part = f"{NAMESPACE}trains-partition-1"
    one = [row for row in stored.rows[f"{NAMESPACE}trains"] if row["__topic"] == part]
    assert read(spark, stored, topics=f"{part},flights") == in_order(
        [*one, *stored.rows[f"{NAMESPACE}flights"]]
    )


def test_offsets_bound_what_is_read(spark: SparkSession, stored: Stored) -> None:
    topic = f"{NAMESPACE}café au lait"
    rows = stored.rows[topic]
    first, last = id_of(rows[7]), id_of(rows[21])
    starting = json.dumps({topic: f"{first.ledger_id}:{first.entry_id}"})
    ending = json.dumps({topic: f"{last.ledger_id}:{last.entry_id}"})
    found = read(spark, stored, topic=topic, startingOffsets=starting, endingOffsets=ending)
    assert found == rows[7:22]
    beyond = json.dumps({topic: f"{last.ledger_id + 1000}:0"})
    with pytest.raises(OffsetError, match="does not exist; the last one is"):
        partitions_of(stored, topic=topic, startingOffsets=beyond)


@pytest.mark.parametrize("name", ["café au lait", "flights"])
def test_times_bound_what_is_read_to_the_entry(
    spark: SparkSession, stored: Stored, name: str
) -> None:
    topic = f"{NAMESPACE}{name}"
    rows = stored.rows[topic]
    times = [round(row["__publishTime"].timestamp() * 1000) for row in rows]
    for at in (0, 3, 17, len(rows) - 1):
        expected = [row for row, time_ms in zip(rows, times, strict=True) if time_ms >= times[at]]
        assert read(spark, stored, topic=topic, startingTime=str(times[at])) == expected
        expected = [row for row, time_ms in zip(rows, times, strict=True) if time_ms <= times[at]]
        assert read(spark, stored, topic=topic, endingTime=str(times[at])) == expected
    assert read(spark, stored, topic=topic, startingTime=str(times[-1] + 1)) == []


def partitions_of(stored: Stored, **options: str) -> list[Any]:
    """The plan of a query, made in this process."""
    source = MagnetarDataSource({**stored.options, **options})
    return [*source.reader(source.schema()).partitions()]


def test_no_secret_and_no_server_is_in_a_plan(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-in-the-environment")
    plan = pickle.dumps(partitions_of(stored, topic="flights", sliceBytes="500"))
    assert b"hidden" not in plan
    assert KEY.encode() not in plan
    assert bytes.fromhex(KEY) not in plan
    assert b"pulsar://" not in plan


def test_what_has_no_manifest_is_not_found(stored: Stored) -> None:
    with pytest.raises(TopicNotFoundError, match=r"topic .*/nothing has no manifest in file:///"):
        partitions_of(stored, topic="nothing")
    with pytest.raises(TopicNotFoundError, match=r"matches 'x\.\*'"):
        partitions_of(stored, topicsPattern="x.*")


def copy_of(stored: Stored, directory: Path) -> Stored:
    """A copy that a test may change."""
    copied = Stored(directory / "store", stored.rows)
    shutil.copytree(stored.store, copied.store)
    shutil.copy(stored.key_file, copied.key_file)
    return copied


def test_several_clusters_in_one_place_are_named_with_the_option_that_chooses(
    spark: SparkSession, stored: Stored, tmp_path: Path
) -> None:
    copied = copy_of(stored, tmp_path)
    (own,) = [each.name for each in copied.store.iterdir()]
    shutil.copytree(copied.store / own, copied.store / "another")
    (copied.store / "neither").mkdir()
    with pytest.raises(OptionError, match=f"objectsInstance: .*: {own}, another|another, {own}"):
        partitions_of(copied, topic="flights")
    found = read(spark, copied, topic="flights", objectsInstance=own)
    assert found == stored.rows[f"{NAMESPACE}flights"]


def test_a_place_without_manifests_says_what_to_set(stored: Stored, tmp_path: Path) -> None:
    empty = Stored(tmp_path / "store")
    empty.store.mkdir()
    with pytest.raises(OptionError, match=r"there are no manifests in file://.*objectsPrefix"):
        MagnetarDataSource({"objects": empty.store.as_uri(), "topic": "t"}).schema()


def test_objects_below_a_prefix_of_the_brokers_are_found(stored: Stored, tmp_path: Path) -> None:
    copied = copy_of(stored, tmp_path)
    (own,) = list(copied.store.iterdir())
    (copied.store / "one" / "two").mkdir(parents=True)
    own.rename(copied.store / "one" / "two" / own.name)
    assert partitions_of(copied, topic="flights", objectsPrefix="one/two/")
    assert partitions_of(
        copied,
        topic="flights",
        objectsPrefix="one/two/",
        objects=json.dumps([{"name": "main", "url": copied.store.as_uri()}]),
    )
    with pytest.raises(OptionError, match="main"):
        partitions_of(
            copied,
            topic="flights",
            objectsPrefix="one/two/",
            objects=json.dumps([{"name": "other", "url": copied.store.as_uri()}]),
        )


def change(stored: Stored, name: str, make: Callable[[LogManifest], LogManifest]) -> LogManifest:
    """Write another manifest of a topic, newer than the last one."""
    (directory,) = stored.store.glob(f"*/manifests/*/{name}")
    prefix = f"{directory.relative_to(stored.store).as_posix()}/"
    keys = [f"{prefix}{each.name}" for each in directory.iterdir()]
    newest = newest_manifests(keys)[prefix]
    parsed = parse_manifest_key(newest)
    assert parsed is not None
    store = DirectoryStore(stored.store)
    manifest = asyncio.run(read_manifest(store, newest))
    key = manifest_key(
        prefix,
        through=parsed.through,
        version=parsed.version + 1,
        written_ms=parsed.written_ms,
    )
    assert asyncio.run(store.create(key, make(manifest).to_json()))
    return manifest


def without_object(manifest: LogManifest, *at: int) -> LogManifest:
    """A manifest in which some ledgers lie on bookies only."""
    ledgers = [
        replace(each, object=None) if number in at else each
        for number, each in enumerate(manifest.node.ledgers)
    ]
    return replace(manifest, node=manifest.node.with_ledgers(ledgers))


def test_reading_ends_where_bookies_alone_had_more_and_says_so(
    stored: Stored, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = copy_of(stored, tmp_path)
    last = len(change(copied, "flights", lambda found: found).node.ledgers) - 1
    before = change(copied, "flights", lambda found: without_object(found, last))
    *_, end, left = before.node.ledgers
    with caplog.at_level(logging.WARNING):
        slices = partitions_of(copied, topic="flights")
    read_of = [part.ledger_id for each in slices for part in each.parts]
    assert read_of == [each.ledger_id for each in before.node.ledgers[:-1]]
    (line,) = [each.getMessage() for each in caplog.records]
    expected = f"reading ends at {end.ledger_id}:{end.entries - 1}: ledger {left.ledger_id} was in"
    assert expected in line
    assert line.startswith(f"{NAMESPACE}flights: ")


def test_a_hole_is_an_error_unless_loss_is_allowed(
    spark: SparkSession, stored: Stored, tmp_path: Path
) -> None:
    copied = copy_of(stored, tmp_path)
    before = change(copied, "flights", lambda found: without_object(found, 2))
    hole = before.node.ledgers[2].ledger_id
    with pytest.raises(DataLossError, match=f"flights: ledger {hole} is in no object"):
        partitions_of(copied, topic="flights")
    rows = read(spark, copied, topic="flights", failOnDataLoss="false")
    expected = [row for row in stored.rows[f"{NAMESPACE}flights"] if id_of(row).ledger_id != hole]
    assert rows == expected


def test_an_object_that_is_gone_fails_the_query_unless_loss_is_allowed(
    spark: SparkSession, stored: Stored, tmp_path: Path
) -> None:
    copied = copy_of(stored, tmp_path)
    gone, *_ = sorted(copied.store.glob("*/ledgers/*/*flights*/*.mgo"))
    gone.unlink()
    ledger_id = int(gone.name.partition("-")[0])
    with pytest.raises(Exception, match=f"ledger {ledger_id}"):
        read(spark, copied, topic="flights")
    rows = read(spark, copied, topic="flights", failOnDataLoss="false")
    assert rows == [
        row for row in stored.rows[f"{NAMESPACE}flights"] if id_of(row).ledger_id != ledger_id
    ]


def test_a_bucket_is_read_with_credentials_of_the_environment(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-from-plans")
    s3 = S3Server(tmp_path)
    try:
        s3.create_bucket("ledgers")
        place = {
            "objects": "s3://ledgers/magnetar",
            "objectsEndpoint": s3.endpoint,
            "objectsAllowHttp": "true",
        }
        files = [each for each in sorted(stored.store.rglob("*")) if each.is_file()]
        bodies = {each.relative_to(stored.store).as_posix(): each.read_bytes() for each in files}
        asyncio.run(upload(bodies, s3.endpoint))
        for topic, rows in stored.rows.items():
            source = MagnetarDataSource({**stored.options, **place, "topic": topic})
            reader = source.reader(source.schema())
            partitions = reader.partitions()
            assert b"hidden" not in pickle.dumps(partitions)
            batches = [
                batch
                for each in partitions
                for batch in reader.read(each)
                if isinstance(batch, pa.RecordBatch)
            ]
            assert sum(batch.num_rows for batch in batches) == len(rows)
            found = sorted(
                MessageId.from_bytes(each.as_py())
                for batch in batches
                for each in batch.column("__messageId")
            )
            assert found == sorted(map(id_of, rows))
    finally:
        s3.stop()


async def upload(bodies: Mapping[str, bytes], endpoint: str) -> None:
    settings = ObjectStoreSettings(
        name="s3", url="s3://ledgers/magnetar", endpoint=endpoint, allow_http=True
    )
    bucket = open_object_store(settings)
    for key, body in bodies.items():
        await bucket.create(key, body)
    await bucket.close()


def test_a_stream_is_refused_with_what_to_do(spark: SparkSession, stored: Stored) -> None:
    frame = spark.readStream.format("magnetar").options(**stored.options, topic="flights").load()
    with pytest.raises(Exception, match="it is for batch queries only"):
        frame.writeStream.format("noop").start().awaitTermination()
