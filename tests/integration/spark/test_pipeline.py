"""Archive, replay and rollup on a part of the flights, in one Spark session."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Long, Record, String, StringSchema
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from magnetar.deploy.cli import app
from magnetar.sdk import Client
from magnetar.sdk.errors import SdkError
from magnetar.sdk.spark.errors import ArchiveBusyError, PipelineError
from magnetar.sdk.spark.pipeline.archive import (
    ArchiveSettings,
    archive,
    show_archive,
)
from magnetar.sdk.spark.pipeline.archive_log import UNKNOWN_DAY, Commit
from magnetar.sdk.spark.pipeline.archive_store import ArchiveStore
from magnetar.sdk.spark.pipeline.job import ClusterAddress
from magnetar.sdk.spark.pipeline.replay import ReplaySettings, replay, show_replayed
from magnetar.sdk.spark.pipeline.rollup import (
    RollupSettings,
    rollup,
    show_rollup,
)
from magnetar.sdk.spark.query_schema import ArchivedColumns
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from tests.chaos.pipeline.archives import Row, read_rows, state_of
from tests.chaos.pipeline.expected import differences, rollup_by_pandas, rows_of_rollup
from tests.chaos.pipeline.publishing import (
    flight_rows,
    publish_end,
    publish_rows,
    weather_rows,
)
from tests.http_calls import admin
from tests.processes import ROOT
from tests.standalone import Standalone

pytestmark = pytest.mark.timeout(900)  # Spark starts slowly on a busy machine
_FLIGHTS = 3_000
_WEATHER_ROWS = 300
"""Of the first days of January, as the flights."""
_TOPIC = "persistent://public/default/pipeline-flights"
_AGAIN = "persistent://public/default/pipeline-flights-again"
_WEATHER = "persistent://public/default/pipeline-weather"


@dataclass(frozen=True)
class Stage:
    """What the tests of the module share; each goes on where the one before has ended."""

    brokers: ClusterAddress
    rows: list[Row]
    directory: Path
    log_path: str
    url: str

    def archive_of(self, topic: str, name: str, **settings: object) -> ArchiveSettings:
        return ArchiveSettings(
            brokers=self.brokers,
            output=str(self.directory / name),
            topics=topic,
            **settings,  # type: ignore[arg-type]  # fields of the settings
        )


@pytest.fixture(scope="module")
def stage(server: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("pipeline")
    brokers = ClusterAddress(
        service_url=server.url,
        admin_url=server.http_url,
        metadata_url=f"embedded:{server.directory.resolve() / 'metadata.db'}",
    )
    # Topics that nobody is connected to would go after a minute.
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin(server, "POST", "namespaces/public/default/retention", forever)
    rows = flight_rows(_FLIGHTS)
    log_path = str(directory / "client.log")
    publish_rows(server.url, _TOPIC, rows, log_path)
    yield Stage(brokers, rows, directory, log_path, server.url)
    admin(server, "DELETE", "namespaces/public/default/retention")  # others see topics trimmed


@pytest.fixture(scope="module")
def first(spark: SparkSession, stage: Stage) -> Path:
    """The archive of the flights, in several batches, its small files put together."""
    settings = stage.archive_of(
        _TOPIC,
        "first",
        entries_max=12,
        files_min=3,
    )
    store = archive(spark, settings)
    show_archive(store)
    return stage.directory / "first"


def test_the_archive_holds_every_message_once_and_in_order(stage: Stage, first: Path) -> None:
    found = read_rows(first)
    assert found.rows == stage.rows
    assert len(set(found.ids)) == len(found.ids)


def test_its_small_files_are_put_together_and_its_watermark_is_the_last_message(
    stage: Stage, first: Path
) -> None:
    state = state_of(first)
    assert state.rows == _FLIGHTS
    assert len(state.files) == len({each.day for each in state.files.values()})
    last = read_rows(first).ids[-1]
    mark = state.watermarks[_TOPIC]
    assert (mark.ledger_id, mark.entry_id, mark.batch_index) == last
    on_disk = {str(each.relative_to(first)) for each in (first / "data").rglob("*.parquet")}
    assert on_disk == set(state.files)


def test_a_table_reader_finds_the_same_rows(spark: SparkSession, stage: Stage, first: Path) -> None:
    table = spark.read.parquet(str(first / "data"))
    assert table.count() == _FLIGHTS
    assert {row["topic"] for row in table.select("topic").distinct().collect()} == {_TOPIC}


def test_what_came_later_is_added_also_without_the_checkpoint(
    spark: SparkSession, stage: Stage
) -> None:
    topic = "persistent://public/default/pipeline-growing"
    third = len(stage.rows) // 3
    for number, (name, part) in enumerate(
        (
            ("a", stage.rows[:third]),
            ("b", stage.rows[third : 2 * third]),
            ("c", stage.rows[2 * third :]),
        )
    ):
        client = pulsar.Client(stage.url)
        producer = client.create_producer(topic, producer_name=name, block_if_queue_full=True)
        for value, *_ in part:
            producer.send_async(value, lambda *_: None)
        producer.flush()
        client.close()
        checkpoint = str(stage.directory / f"checkpoint-{number // 2}")
        archive(spark, stage.archive_of(topic, "growing", checkpoint=checkpoint))
    found = read_rows(stage.directory / "growing")
    assert [value for value, *_ in found.rows] == [value for value, *_ in stage.rows]


def test_a_lost_checkpoint_makes_no_row_come_twice_over_several_batches(
    spark: SparkSession, server: Standalone, stage: Stage
) -> None:
    """A new query reads from the beginning again, in batches smaller than what is archived."""
    topic = "persistent://public/default/pipeline-lost-checkpoint"
    publish_rows(stage.url, topic, stage.rows[:500], stage.log_path)
    for number in range(2):
        checkpoint = str(stage.directory / f"lost-checkpoint-{number}")
        settings = stage.archive_of(topic, "lost", checkpoint=checkpoint, entries_max=2)
        archive(spark, settings)
    assert [row[0] for row in read_rows(stage.directory / "lost").rows] == [
        value for value, *_ in stage.rows[:500]
    ]
    subscriptions = admin(server, "GET", f"{topic.replace('://', '/')}/subscriptions")
    assert len(subscriptions) == 1, "none is left behind, which would hold messages for ever"


class Narrow(Record):  # type: ignore[misc]
    number = Integer()


class Wide(Record):  # type: ignore[misc]
    number = Long()


def test_a_field_that_was_widened_is_wide_in_the_whole_archive(
    spark: SparkSession, server: Standalone, stage: Stage
) -> None:
    topic = "persistent://public/default/pipeline-widened"
    path = topic.replace("://", "/")
    admin(server, "PUT", path)
    admin(server, "PUT", f"{path}/schemaCompatibilityStrategy", "BACKWARD")
    for kind, number in ((Narrow, 1), (Wide, 1 << 40)):
        client = pulsar.Client(stage.url)
        client.create_producer(topic, schema=AvroSchema(kind)).send(kind(number=number))
        client.close()
        store = archive(spark, stage.archive_of(topic, "widened"))
    assert {row["number"] for row in store.read().collect()} == {1, 1 << 40}
    assert len(store.state.files) == 1, "put together at the end"


class Older(Record):  # type: ignore[misc]
    number = Integer()
    old = String(default=None, required_default=True)


class Newer(Record):  # type: ignore[misc]
    number = Integer()
    new = String(default=None, required_default=True)


_BOTH = [(1, "x", None), (2, None, "y")]
"""Rows of a message of each: number, old and new."""


def _send(stage: Stage, topic: str, schema: Any, message: Any) -> None:
    client = pulsar.Client(stage.url)
    client.create_producer(topic, schema=schema(type(message))).send(message)
    client.close()


def _archived(store: ArchiveStore) -> list[tuple[int, str | None, str | None]]:
    rows = store.read().select("number", "old", "new").collect()
    return sorted((row["number"], row["old"], row["new"]) for row in rows)


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_a_field_that_the_newest_version_dropped_is_archived_from_older_messages(
    spark: SparkSession, stage: Stage, schema: Any
) -> None:
    topic = f"persistent://public/default/pipeline-dropped-{schema.__name__}"
    _send(stage, topic, schema, Older(number=1, old="x"))
    _send(stage, topic, schema, Newer(number=2, new="y"))
    store = archive(spark, stage.archive_of(topic, f"dropped-{schema.__name__}"))
    assert _archived(store) == _BOTH


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_a_field_that_comes_while_a_job_runs_is_archived(
    spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch, schema: Any
) -> None:
    """The job has its columns by the time that the version of the second message is registered."""
    topic = f"persistent://public/default/pipeline-added-{schema.__name__}"
    _send(stage, topic, schema, Older(number=1, old="x"))

    class Late(ArchivedColumns):
        is_late = False

        def now(self, *, missing_ok: bool = False) -> StructType:
            found = super().now(missing_ok=missing_ok)
            if not self.is_late:
                self.is_late = True
                _send(stage, topic, schema, Newer(number=2, new="y"))
            return found

    monkeypatch.setattr("magnetar.sdk.spark.pipeline.archive.ArchivedColumns", Late)
    store = archive(spark, stage.archive_of(topic, f"added-{schema.__name__}"))
    assert _archived(store) == _BOTH


@pytest.mark.parametrize("change", ["version", "new topic"])
def test_a_running_job_goes_on_while_its_topics_have_different_schemas(
    spark: SparkSession,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    """One of them gets its next version first, or the pattern selects one without a schema."""
    base = f"persistent://public/default/pipeline-differing-{change.replace(' ', '-')}"
    for number, name in enumerate("xy", 1):
        _send(stage, f"{base}-{name}", AvroSchema, Older(number=number, old=name))

    class Differing(ArchivedColumns):
        def now(self, *, missing_ok: bool = False) -> StructType:
            if missing_ok and change == "version":
                _send(stage, f"{base}-x", AvroSchema, Newer(number=3, new="z"))
            elif missing_ok:
                client = pulsar.Client(stage.url)
                client.create_producer(f"{base}-z")
                client.close()
            return super().now(missing_ok=missing_ok)

    monkeypatch.setattr("magnetar.sdk.spark.pipeline.archive.ArchivedColumns", Differing)
    settings = stage.archive_of(
        "", f"differing-{change.replace(' ', '-')}", topics_pattern=f"{base}-.*"
    )
    store = archive(spark, settings)
    rows = store.read().select("number", "old").collect()
    assert sorted((row["number"], row["old"]) for row in rows) == [(1, "x"), (2, "y")]
    (line,) = [each.getMessage() for each in caplog.records if "different schemas now" in each.msg]
    assert base in line


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_a_message_without_a_value_is_replayed_as_one(
    spark: SparkSession, stage: Stage, schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A record of nulls would bring a deleted key back."""
    topic = f"persistent://public/default/pipeline-tombstone-{schema.__name__}"
    _send(stage, topic, schema, Older(number=1, old="x"))
    _send(stage, topic, schema, Older())
    asyncio.run(_delete(stage.url, topic, "k"))
    first = archive(spark, stage.archive_of(topic, f"tombstone-{schema.__name__}"))
    encoding = "avro" if schema is AvroSchema else "json"
    replay(
        spark,
        ReplaySettings(
            brokers=stage.brokers, archive=first.storage.url, to=f"{topic}-again", schema=encoding
        ),
    )
    again = archive(spark, stage.archive_of(f"{topic}-again", f"tombstone-{encoding}-again"))
    for store in (first, again):
        rows = store.read().orderBy("__ledgerId", "__entryId", "__batchIndex").collect()
        assert [(row["number"], row["__key"], row["__nullValue"]) for row in rows] == [
            (1, None, False),
            (None, None, False),
            (None, b"k", True),
        ]
    assert not caplog.records


async def _delete(url: str, topic: str, key: str) -> None:
    async with Client(url) as client, await client.producer(topic) as producer:
        fields = MessageMetadata(partition_key=key, null_value=True).SerializePartialToString()
        await producer.send_entry(b"", messages=0, sequence_id=0, extra=fields)
        await producer.flush()


def test_a_replay_of_an_older_archive_says_that_tombstones_are_not_known(
    spark: SparkSession, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    store = ArchiveStore(spark, str(stage.directory / "without-flags"))
    directory = store.new_directory()
    frame = spark.createDataFrame(
        [(1, 0), (None, 1)], "number int, __entryId bigint"
    ).selectExpr(
        "number", "'t' AS topic", "'2013-01-01' AS day", "__entryId", "0L AS __ledgerId",
        "-1 AS __batchIndex", "CAST(NULL AS BINARY) AS __key", "CAST(NULL AS TIMESTAMP) AS "
        "__eventTime", "CAST(NULL AS BINARY) AS __messageId", "now() AS __publishTime",
        "map('a', 'b') AS __messageProperties",
    )  # fmt: skip
    frame.write.partitionBy("topic", "day").parquet(store.storage.at(directory))
    store.commit(Commit(add=store.written(directory).files))
    topic = "persistent://public/default/pipeline-without-flags"
    settings = ReplaySettings(
        brokers=stage.brokers, archive=store.storage.url, to=topic, schema="json"
    )
    assert replay(spark, settings).rows == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("1 archived rows have no value")


def test_an_archive_has_the_bytes_of_what_is_no_record(spark: SparkSession, stage: Stage) -> None:
    """Text would be another column than in the archives that there are, and none for a replay."""
    topic = "persistent://public/default/pipeline-text"
    client = pulsar.Client(stage.url)
    client.create_producer(topic, schema=StringSchema()).send("text")
    client.close()
    store = archive(spark, stage.archive_of(topic, "text"))
    assert [row["value"] for row in store.read().collect()] == [b"text"]


def test_an_archive_goes_on_behind_a_message_that_cannot_be_read_if_it_is_told_to(
    spark: SparkSession, stage: Stage
) -> None:
    topic = "persistent://public/default/pipeline-poison"
    client = pulsar.Client(stage.url)
    producer = client.create_producer(topic, schema=AvroSchema(Narrow))
    producer.send(Narrow(number=1))
    client.create_producer(topic).send(b"\xff")
    producer.send(Narrow(number=2))
    client.close()
    with pytest.raises(PySparkException, match=f"{topic}: message [0-9]+:1: a value is not of"):
        archive(spark, stage.archive_of(topic, "poison"))
    store = archive(spark, stage.archive_of(topic, "poison", mode="DROPMALFORMED"))
    assert sorted(row["number"] for row in store.read().collect()) == [1, 2]


def test_a_message_of_an_absurd_time_leaves_the_archive_usable(
    spark: SparkSession, stage: Stage
) -> None:
    """Producers may write anything into the time of publishing, for instance nanoseconds."""
    topic = "persistent://public/default/pipeline-absurd-times"
    times_ms = (1_385_000_000_000, 1_385_000_000_000_000, 1_385_000_000_000_000_000)
    asyncio.run(_publish_at(stage.url, topic, times_ms))
    expected = {b"%d" % each for each in times_ms}
    for _ in range(2):
        store = archive(spark, stage.archive_of(topic, "absurd"))
        # Python's times end with the year 9999.
        assert {row["value"] for row in store.read().select("value").collect()} == expected
    days = {each.day for each in store.state.files.values()}
    assert {"2013-11-21", UNKNOWN_DAY} < days


async def _publish_at(url: str, topic: str, times_ms: Iterable[int]) -> None:
    async with Client(url) as client, await client.producer(topic) as producer:
        for number, time_ms in enumerate(times_ms):
            fields = MessageMetadata(publish_time=time_ms).SerializePartialToString()
            await producer.send_entry(b"%d" % time_ms, messages=0, sequence_id=number, extra=fields)
        await producer.flush()


def test_a_job_that_starts_takes_no_rows_from_one_that_runs(
    spark: SparkSession, stage: Stage
) -> None:
    """What the first one has written and not committed looks like that of a job that was killed."""
    output = str(stage.directory / "contended")
    one = ArchiveStore(spark, output)
    directory = one.new_directory()
    frame = spark.range(5).selectExpr(
        "id", "'t' AS topic", "'2013-01-01' AS day", "id AS __ledgerId", "id AS __entryId",
        "cast(id AS int) AS __batchIndex",
    )  # fmt: skip
    frame.write.partitionBy("topic", "day").parquet(one.storage.at(directory))
    other = ArchiveStore(spark, output)
    assert other.remove_leftovers() == 1
    written = one.written(directory)
    late = Commit(add=written.files, query="q", batch_id=0, watermarks=written.watermarks)
    with pytest.raises(ArchiveBusyError, match="another job"):
        one.commit(late)
    assert other.remove_leftovers() == 0


def test_two_jobs_on_one_archive_are_noticed(spark: SparkSession, first: Path) -> None:
    one, other = (ArchiveStore(spark, str(first)) for _ in range(2))
    one.commit(Commit())
    with pytest.raises(ArchiveBusyError, match="another job"):
        other.commit(Commit())


def test_replay_and_archive_again_give_the_same_rows(
    spark: SparkSession, stage: Stage, first: Path
) -> None:
    # The second time there is nothing left to do, however the archive is named.
    for path in (f"{first}", f"{first}/"):
        settings = ReplaySettings(brokers=stage.brokers, archive=path, to=_AGAIN)
        show_replayed(settings, replay(spark, settings))
    archive(spark, stage.archive_of(_AGAIN, "second"))
    assert read_rows(stage.directory / "second").rows == stage.rows


def test_a_replay_by_key_keeps_the_order_of_each_key(
    spark: SparkSession, stage: Stage, first: Path
) -> None:
    topic = "persistent://public/default/pipeline-by-key"
    replay(spark, ReplaySettings(brokers=stage.brokers, archive=str(first), to=topic, by_key=3))
    archive(spark, stage.archive_of(topic, "by-key"))
    found = read_rows(stage.directory / "by-key").rows
    assert len(found) == len(stage.rows)
    for key in {key for _, key, *_ in stage.rows}:
        assert [row for row in found if row[1] == key] == [r for r in stage.rows if r[1] == key]


def test_the_rollup_is_the_same_as_with_pandas(spark: SparkSession, stage: Stage) -> None:
    weather = weather_rows()[:_WEATHER_ROWS]
    half = len(weather) // 2
    settings = RollupSettings(
        brokers=stage.brokers,
        flights=_TOPIC,
        weather=_WEATHER,
        output=str(stage.directory / "rolled"),
        plots=str(stage.directory / "plots"),
    )
    publish_rows(stage.url, _WEATHER, weather[:half], stage.log_path)
    rollup(spark, settings)
    publish_rows(stage.url, _WEATHER, weather[half:], stage.log_path)
    publish_end(stage.url, _TOPIC, stage.rows[-1], stage.log_path)
    publish_end(stage.url, _WEATHER, weather[-1], stage.log_path)
    rows = rollup(spark, settings)
    show_rollup(spark, settings, rows)
    expected = rollup_by_pandas(
        [value for value, *_ in stage.rows if value], [value for value, *_ in weather if value]
    )
    assert expected
    found = [tuple(row.values()) for row in rows.toArrow().to_pylist()]
    assert not differences(rows_of_rollup(found), expected)
    for name in ("delay_by_hour.png", "delay_by_weather.png"):
        assert (stage.directory / "plots" / name).read_bytes()[:4] == b"\x89PNG"


def test_what_is_wrong_is_one_clear_line(spark: SparkSession, stage: Stage) -> None:
    with pytest.raises(PipelineError, match="give either topics or a pattern"):
        stage.archive_of("", "nothing")
    missing = ReplaySettings(brokers=stage.brokers, archive=str(stage.directory / "no"), to="t")
    with pytest.raises(PipelineError, match="holds none of these topics"):
        replay(spark, missing)
    with pytest.raises(PipelineError, match="mode must be FAILFAST or DROPMALFORMED"):
        stage.archive_of("t", "nothing", mode="PERMISSIVE")
    with pytest.raises(SdkError, match="nowhere"):
        archive(spark, stage.archive_of("persistent://nobody/nowhere/t", "nowhere"))


_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_guide_run_from_the_first_to_the_last(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    for topic, rows in (("flights", stage.rows[:500]), ("weather", weather_rows()[:100])):
        publish_rows(stage.url, topic, rows, stage.log_path)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text("a line\n" * 10)
    known = {
        "pulsar://localhost:6650": stage.url,
        "http://localhost:8080": stage.brokers.admin_url,
        "/data/": f"{tmp_path}/",
    }
    found = _BLOCK.findall((ROOT / "docs" / "pipeline.md").read_text())
    assert len(found) >= 5
    names: dict[str, object] = {"spark": spark}
    for language, text in found:
        for name, value in known.items():
            text = text.replace(name, value)
        if language == "python":
            exec(text, names)
            continue
        command, *arguments = text.split()
        assert command == "magnetar"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert names["counts"][0]["count"] == 500  # type: ignore[index]
    assert (tmp_path / "plots" / "delay_by_hour.png").exists()


def test_the_command_has_the_jobs() -> None:
    runner = CliRunner()
    for job in ("archive", "replay", "rollup"):
        result = runner.invoke(app, ["pipeline", job, "--help"])
        assert result.exit_code == 0
        assert "--master" in result.output
