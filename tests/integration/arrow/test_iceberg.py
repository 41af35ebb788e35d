"""Topics become Iceberg tables: each message once, whatever is killed, lost, or written twice."""

import random
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import AvroSchema, Double, Float, Integer, JsonSchema, Long, Record, String
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import Table

from magnetar.arrow.errors import CatalogError, DataLossError
from magnetar.arrow.iceberg import watermark
from magnetar.arrow.iceberg.archive_rows import archive_fields
from magnetar.arrow.iceberg.archiving import undecoded_name
from magnetar.arrow.stored.slices import ValueSchema
from tests.flights import read_flights
from tests.http_calls import admin, topic_path
from tests.integration.arrow.archives import (
    NAME,
    Lake,
    by_duckdb,
    by_polars,
    by_pyiceberg,
    marks_of,
)
from tests.integration.arrow.support import Server, keep_topics
from tests.integration.pulsar_client.support import publish_to
from tests.processes import ROOT, magnetar_command, magnetar_environment
from tests.standalone import Standalone
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

FLIGHTS = 120_000
KILLS = 5
SMALL_BATCHES = ("--batch-bytes", str(1 << 20))
PAGE = ROOT / "docs" / "pipeline.md"


@pytest.fixture
def lake(server: Standalone, tmp_path: Path) -> Lake:
    return Lake(tmp_path, server)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def padded(count: int, first: int = 0) -> list[bytes]:
    """Large ones, so that there are several commits with small batches."""
    return [b"%01000d" % number for number in range(first, first + count)]


def values_of(lake: Lake) -> list[bytes]:
    found: list[bytes] = by_pyiceberg(lake.table())["value"].to_pylist()
    return found


def test_the_flights_are_there_row_for_row_after_five_kills(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    lines = list(read_flights(FLIGHTS))
    publish_to(client, topic, lines, batching_enabled=True, batching_max_messages=100)
    lake.archive_through_kills(topic, *SMALL_BATCHES, kills=KILLS, chance=random.Random(26))
    done = lake.archive(topic, *SMALL_BATCHES)
    assert done.returncode == 0, done.stderr
    table = lake.table()
    assert by_pyiceberg(table)["value"].to_pylist() == lines
    assert [value for (value,) in by_duckdb(table, "value")] == lines
    assert by_polars(table)["value"].to_list() == lines


def test_engines_that_read_while_it_is_written_see_whole_commits(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, numbered(1_000))
    with lake.running(topic, "--continuous", "--interval-s", "0", "--files-min", "2") as archiver:
        wait_until(lambda: lake.rows_committed() >= 1_000, "the first rows", within_s=120)
        for first in range(1_000, 6_000, 500):
            publish_to(client, topic, numbered(500, first))
            table = lake.table()
            seen = by_pyiceberg(table)["value"].to_pylist()
            assert seen == numbered(len(seen))
            assert [value for (value,) in by_duckdb(table, "value")] == seen
            assert by_polars(table)["value"].to_list() == seen
        wait_until(lambda: lake.rows_committed() == 6_000, "all rows", within_s=120)
        archiver.send_signal(signal.SIGTERM)
        assert archiver.wait(timeout=60) == 0
    assert values_of(lake) == numbered(6_000)


def test_two_archivers_at_once_lose_nothing_and_add_nothing_twice(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, padded(20_000))
    more = (*SMALL_BATCHES, "--continuous", "--interval-s", "0")
    with lake.running(topic, *more) as one, lake.running(topic, *more) as other:
        for first in range(20_000, 30_000, 1_000):
            publish_to(client, topic, padded(1_000, first))
        wait_until(lambda: lake.rows_committed() >= 30_000, "all rows", within_s=240)
        for archiver in (one, other):
            archiver.send_signal(signal.SIGTERM)
        assert [archiver.wait(timeout=60) for archiver in (one, other)] == [0, 0]
    assert values_of(lake) == padded(30_000)


class LostAnswers(SqlCatalog):
    """Every second commit is applied, and its answer lost; every third one is not applied."""

    count = 0

    def commit_table(self, *arguments: Any, **named: Any) -> Any:
        type(self).count += 1
        if self.count % 3 == 0:
            raise OSError("the request was lost")
        answer = super().commit_table(*arguments, **named)
        if self.count % 2 == 0:
            raise CommitStateUnknownException("the answer was lost")
        return answer


def test_a_lost_answer_to_a_commit_adds_nothing_twice(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, padded(20_000))
    LostAnswers.count = 0
    done = lake.archive_here(topic, kind=LostAnswers, batch_bytes=1 << 20)
    assert LostAnswers.count > done.commits > 2
    assert done.rows == 20_000
    assert values_of(lake) == padded(20_000)


class InterruptedCatalog(SqlCatalog):
    """Ends the job between the rows that are written and their commit."""

    left = 3

    def commit_table(self, *arguments: Any, **named: Any) -> Any:
        type(self).left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().commit_table(*arguments, **named)


def test_rows_that_were_written_and_not_committed_are_written_again(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, padded(20_000))
    InterruptedCatalog.left = 3
    with pytest.raises(KeyboardInterrupt):
        lake.archive_here(topic, kind=InterruptedCatalog, batch_bytes=1 << 20)
    assert 0 < lake.rows_committed() < 20_000
    lake.archive_here(topic)
    assert values_of(lake) == padded(20_000)


class RacingCatalog(SqlCatalog):
    """Before each commit of rows, somebody else commits something to the table."""

    others = 0

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        if type(self).others and any(each.action == "add-snapshot" for each in updates):
            type(self).others -= 1
            fresh = super().load_table(table.name())
            columns = fresh.schema().as_arrow()
            empty = pa.Table.from_batches([], columns)
            transaction = fresh.transaction()
            transaction.append(empty)
            updated = transaction._updates, transaction._requirements
            super().commit_table(fresh, updated[1], updated[0])
        return super().commit_table(table, requirements, updates)


def test_a_commit_is_not_moved_onto_a_newer_snapshot_unseen(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    """pyiceberg would do that by itself: the table decides what is to be done."""
    publish_to(client, topic, numbered(100))
    lake.archive_here(topic)
    publish_to(client, topic, numbered(100, 100))
    RacingCatalog.others = 2
    lake.archive_here(topic, kind=RacingCatalog)
    assert RacingCatalog.others == 0
    assert values_of(lake) == numbered(200)


class OvertakenCatalog(SqlCatalog):
    """Before its first commit of rows, another archiver adds everything there is."""

    other: Callable[[], object] | None = None

    def commit_table(self, *arguments: Any, **named: Any) -> Any:
        other, type(self).other = self.other, None
        if other is not None:
            other()
        return super().commit_table(*arguments, **named)


def test_an_archiver_that_was_overtaken_reads_again_what_is_left(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, padded(5_000))
    lake.archive_here(topic)
    publish_to(client, topic, padded(5_000, 5_000))
    OvertakenCatalog.other = staticmethod(lambda: lake.archive_here(topic))
    done = lake.archive_here(topic, kind=OvertakenCatalog)
    assert done.rows == 0
    assert values_of(lake) == padded(10_000)


class SlowCatalog(SqlCatalog):
    """Behind the archiver's first look at the table, before it looks at the topics, something
    happens."""

    meanwhile: Callable[[], object] | None = None

    def load_table(self, *arguments: Any) -> Table:
        found = super().load_table(*arguments)
        meanwhile, type(self).meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


def _trim_all_but_the_last(server: Server, topic: str) -> None:
    path = topic_path(topic).removeprefix("/admin/v2/")

    def ledgers() -> list[int]:
        stats = admin(server, "GET", f"{path}/internalStats")
        return [each["ledgerId"] for each in stats["ledgers"]]

    before = ledgers()
    admin(server, "POST", f"{path}/trim")
    wait_until(lambda: not set(before[:-1]) & set(ledgers()), "trimmed ledgers")


@pytest.mark.parametrize("more", [0, 100], ids=["nothing more", "more in the ledger of the mark"])
def test_another_archiver_that_has_gone_on_since_the_look_at_the_table_is_no_loss(
    lake: Lake, client: pulsar.Client, topic: str, more: int
) -> None:
    """The watermark is older then, and its ledger was trimmed; the subscription is newer."""
    path = topic_path(topic).removeprefix("/admin/v2/")
    publish_to(client, topic, numbered(100))
    lake.archive_here(topic)
    if more:
        publish_to(client, topic, numbered(more, 100))
    admin(lake.server, "PUT", f"{path}/unload")
    publish_to(client, topic, numbered(100, 100 + more))

    def archive_and_trim() -> None:
        lake.archive_here(topic)
        admin(lake.server, "PUT", f"{path}/unload")
        publish_to(client, topic, numbered(100, 200 + more))
        lake.archive_here(topic)
        _trim_all_but_the_last(lake.server, topic)

    SlowCatalog.meanwhile = staticmethod(archive_and_trim)
    lake.archive_here(topic, kind=SlowCatalog)
    assert SlowCatalog.meanwhile is None
    assert values_of(lake) == numbered(300 + more)


@pytest.mark.parametrize("allows_loss", [False, True])
def test_what_was_trimmed_before_it_was_archived_is_a_loss(
    lake: Lake, client: pulsar.Client, topic: str, allows_loss: bool
) -> None:
    path = topic_path(topic).removeprefix("/admin/v2/")
    publish_to(client, topic, numbered(100))
    lake.archive_here(topic)
    publish_to(client, topic, numbered(100, 100))
    admin(lake.server, "PUT", f"{path}/unload")
    publish_to(client, topic, numbered(100, 200))
    subscription = f"archive-{lake.table().metadata.table_uuid}"
    admin(lake.server, "DELETE", f"{path}/subscription/{subscription}?force=true")
    client.subscribe(topic, "another").close()
    _trim_all_but_the_last(lake.server, topic)
    if not allows_loss:
        with pytest.raises(DataLossError, match="--allow-loss"):
            lake.archive_here(topic)
        return
    lake.archive_here(topic, allows_loss=True)
    assert values_of(lake) == numbered(100) + numbered(100, 200)


def test_partitions_are_archived_each_up_to_its_own_mark(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    path = topic_path(topic).removeprefix("/admin/v2/")
    admin(lake.server, "PUT", f"{path}/partitions", 3)
    publish_to(client, topic, numbered(300))
    lake.archive_here(topic)
    publish_to(client, topic, numbered(300, 300))
    assert lake.archive_here(topic).rows == 300
    assert sorted(map(int, values_of(lake))) == list(range(600))
    assert set(marks_of(lake.table())) == {f"{topic}-partition-{number}" for number in range(3)}


def test_a_table_that_was_made_with_partitions_keeps_them(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    columns = pa.schema([*archive_fields(ValueSchema())])
    catalog = lake.catalog()
    catalog.create_namespace("lake")
    with catalog.create_table_transaction(NAME, columns) as made, made.update_spec() as spec:
        spec.add_identity("__topic")
    path = topic_path(topic).removeprefix("/admin/v2/")
    admin(lake.server, "PUT", f"{path}/partitions", 2)
    for part in range(2):
        publish_to(client, topic, numbered(100, part * 100), batching_enabled=False)
        lake.archive_here(topic)
    files = [task.file for task in lake.table().scan().plan_files()]
    assert len(files) == 2, "merged, and each of one topic"
    assert {each.partition[0] for each in files} == {f"{topic}-partition-{n}" for n in (0, 1)}
    assert sorted(map(int, values_of(lake))) == list(range(200))


class Order1(Record):  # type: ignore[misc]
    customer = String()
    count = Integer()
    price = Float()
    note = String()


class Order2(Record):  # type: ignore[misc]
    """A field more, two that are wider, and one less."""

    customer = String()
    count = Long()
    price = Double()
    gift = Integer(default=None, required_default=True)


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_versions_of_a_schema_become_columns_midway(
    lake: Lake, client: pulsar.Client, topic: str, kind: Any
) -> None:
    admin(
        lake.server,
        "PUT",
        "namespaces/public/default/schemaCompatibilityStrategy",
        "ALWAYS_COMPATIBLE",
    )
    first = client.create_producer(topic, schema=kind(Order1))
    for number in range(10):
        first.send(Order1(customer="a", count=number, price=number / 2, note=f"n{number}"))
    lake.archive_here(topic)
    # Of the old version, and read when there is a new one that has no note.
    for number in range(10, 15):
        first.send(Order1(customer="b", count=number, price=0.5, note=f"n{number}"))
    second = client.create_producer(topic, schema=kind(Order2))
    for number in range(15, 20):
        second.send(Order2(customer="c", count=number + (1 << 40), price=1e300, gift=number))
    lake.archive_here(topic)
    table = lake.table()
    found = by_pyiceberg(table)
    names = ["customer", "count", "price", "note", "gift"]
    rows = [tuple(each[name] for name in names) for each in found.select(names).to_pylist()]
    assert rows == [
        *[("a", number, number / 2, f"n{number}", None) for number in range(10)],
        *[("b", number, 0.5, f"n{number}", None) for number in range(10, 15)],
        *[("c", number + (1 << 40), 1e300, None, number) for number in range(15, 20)],
    ]
    assert by_polars(table).select(names).rows() == rows


def test_a_column_that_cannot_become_the_field_ends_the_job_with_one_line(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    catalog = lake.catalog()
    catalog.create_namespace("lake")
    catalog.create_table(NAME, pa.schema([("value", pa.int64())]))
    publish_to(client, topic, [b"x"])
    ended = lake.archive(topic)
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert "column value is int64 in the table and binary" in line
    assert "Traceback" not in ended.stderr


def test_a_message_that_cannot_be_decoded_goes_to_the_second_table(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Order1))
    good = [Order1(customer="a", count=number, price=0.0, note="") for number in range(6)]
    for each in good[:3]:
        producer.send(each)
    publish_to(client, topic, [b"\xff no record"], batching_enabled=False)
    for each in good[3:]:
        producer.send(each)
    for _ in range(2):  # the second time there is nothing to do
        lake.archive_here(topic)
    assert by_pyiceberg(lake.table())["count"].to_pylist() == list(range(6))
    (bad,) = by_pyiceberg(lake.table(undecoded_name(NAME))).to_pylist()
    assert bad["raw"] == b"\xff no record"
    assert not bad["raw_is_entry"]
    assert bad["reason"]
    at = pulsar.MessageId.deserialize(bad["__messageId"])
    assert (at.ledger_id(), at.entry_id()) == (bad["__ledgerId"], bad["__entryId"])


def test_a_crash_between_the_two_tables_adds_nothing_twice(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Order1))
    producer.send(Order1(customer="a", count=1, price=0.0, note=""))
    publish_to(client, topic, [b"\xff"])
    # The first commit is that of the second table.
    InterruptedCatalog.left = 1
    with pytest.raises(KeyboardInterrupt):
        lake.archive_here(topic, kind=InterruptedCatalog)
    assert lake.rows_committed() == 0
    lake.archive_here(topic)
    assert by_pyiceberg(lake.table())["count"].to_pylist() == [1]
    assert len(by_pyiceberg(lake.table(undecoded_name(NAME)))) == 1


def test_a_message_that_is_too_large_after_a_crash_between_the_two_tables_is_not_lost(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    """The second table is ahead of that message, which the killed job had decoded."""
    producer = client.create_producer(
        topic,
        schema=AvroSchema(Order1),
        compression_type=pulsar.CompressionType.LZ4,
        batching_enabled=False,
    )
    producer.send(Order1(customer="a", count=1, price=0.0, note="x" * (9 << 20)))
    publish_to(client, topic, [b"\xff"])
    InterruptedCatalog.left = 1
    with pytest.raises(KeyboardInterrupt):
        lake.archive_here(topic, kind=InterruptedCatalog)
    lake.archive_here(topic, batch_bytes=1 << 20)
    assert not by_pyiceberg(lake.table())["count"].to_pylist()
    large, bad = by_pyiceberg(lake.table(undecoded_name(NAME))).to_pylist()
    assert large["raw_is_entry"]
    assert bad["raw"] == b"\xff"


def test_what_a_producer_encrypted_is_kept_as_it_is(
    lake: Lake, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    subprocess.run(
        ["openssl", "genrsa", "-out", str(tmp_path / "key.pem"), "2048"],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        [
            *("openssl", "rsa", "-in", str(tmp_path / "key.pem"), "-pubout"),
            *("-out", str(tmp_path / "public.pem")),
        ],
        check=True,
        capture_output=True,
    )
    reader = pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "key.pem"))
    publish_to(client, topic, [b"secret"], encryption_key="k", crypto_key_reader=reader)
    publish_to(client, topic, [b"plain"])
    lake.archive_here(topic)
    assert values_of(lake) == [b"plain"]
    (kept,) = by_pyiceberg(lake.table(undecoded_name(NAME))).to_pylist()
    assert kept["raw_is_entry"]
    assert "encrypted" in kept["reason"]
    assert b"secret" not in kept["raw"]


def test_small_files_are_merged_and_the_watermark_stays(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    for part in range(6):
        publish_to(client, topic, numbered(100, part * 100))
        lake.archive_here(topic, files_min=100)  # the end of each job merges two and more
    table = lake.table()
    assert len(list(table.scan().plan_files())) == 1
    assert values_of(lake) == numbered(600)
    assert set(marks_of(table)) == {topic}
    publish_to(client, topic, numbered(1, 600))
    assert lake.archive_here(topic).rows == 1


def test_old_snapshots_go_with_their_files(lake: Lake, client: pulsar.Client, topic: str) -> None:
    for part in range(12):
        publish_to(client, topic, numbered(10, part * 10))
        lake.archive_here(topic, snapshot_age_s=0)
    table = lake.table()
    assert len(table.snapshots()) <= 12
    needed = {
        entry.data_file.file_path.removeprefix("file://")
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    stored = {str(each) for each in (lake.directory / "warehouse").rglob("*.parquet")}
    assert stored <= needed
    assert values_of(lake) == numbered(120)


def test_a_deleted_topic_leaves_a_large_watermark_and_comes_back_whole(
    lake: Lake, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "MARKS_PRUNED_ABOVE", 1)
    pair = [topic, f"{topic}-other"]
    for each in pair:
        publish_to(client, each, numbered(10))
    lake.archive_here(",".join(pair))
    admin(lake.server, "DELETE", f"{topic_path(topic).removeprefix('/admin/v2/')}?force=true")
    publish_to(client, pair[1], numbered(10, 10))
    lake.archive_here(",".join(pair))
    assert list(marks_of(lake.table())) == pair[1:]
    publish_to(client, topic, numbered(10, 20))
    lake.archive_here(",".join(pair))
    assert sorted(values_of(lake)) == sorted([*numbered(10), *numbered(30)])


def test_no_more_snapshots_are_kept_than_have_room_for_their_watermarks(
    lake: Lake, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "WATERMARKS_BYTES_MAX", 1)
    for part in range(14):
        publish_to(client, topic, numbered(10, part * 10))
        lake.archive_here(topic)
    assert len(lake.table().snapshots()) <= 12
    assert values_of(lake) == numbered(140)


def test_what_is_archived_is_held_no_longer(lake: Lake, client: pulsar.Client, topic: str) -> None:
    publish_to(client, topic, numbered(100))
    lake.archive_here(topic)
    path = topic_path(topic).removeprefix("/admin/v2/")
    stats = admin(lake.server, "GET", f"{path}/stats")["subscriptions"]
    ((name, found),) = stats.items()
    assert name == f"archive-{lake.table().metadata.table_uuid}"
    assert found["msgBacklog"] == 0


def test_a_table_of_somebody_else_is_refused(lake: Lake, client: pulsar.Client, topic: str) -> None:
    catalog = lake.catalog()
    catalog.create_namespace("lake")
    rows = pa.table({"value": [b"x"]})
    catalog.create_table(NAME, rows.schema).append(rows)
    publish_to(client, topic, [b"y"])
    ended = lake.archive(topic)
    assert ended.returncode == 1
    assert "none of them carries an archive's watermark" in ended.stderr
    assert len(by_pyiceberg_unordered(lake)) == 1


def by_pyiceberg_unordered(lake: Lake) -> pa.Table:
    return lake.table().scan().to_arrow()


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("--catalog", ""), 2, "--catalog"),
        (("--table", ""), 2, "--table"),
        (("--table", "rows"), 2, "namespace.table"),
        (("--topics", ""), 2, "--topics"),
        (("--mode", "DROPMALFORMED"), 2, "--format parquet only"),
        (("--catalog", "nowhere"), 1, "catalog nowhere cannot be opened"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(
    lake: Lake, topic: str, arguments: tuple[str, ...], status: int, line: str
) -> None:
    ended = lake.archive(topic, *arguments)
    assert ended.returncode == status
    assert line in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_topic_that_does_not_exist_is_told(lake: Lake, topic: str) -> None:
    ended = lake.archive("persistent://public/default/nobody-made-this")
    assert ended.returncode == 14, ended.stderr


def test_a_catalog_that_fails_ends_the_job_and_the_next_one_goes_on(
    lake: Lake, client: pulsar.Client, topic: str
) -> None:
    class Failing(SqlCatalog):
        def commit_table(self, *arguments: Any, **named: Any) -> Any:
            raise OSError("no space left")

    publish_to(client, topic, numbered(10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magnetar.arrow.iceberg.iceberg_table.COMMIT_TRIES_MAX", 2)
        with pytest.raises(CatalogError, match="no space left"):
            lake.archive_here(topic, kind=Failing)
    lake.archive_here(topic)
    assert values_of(lake) == numbered(10)


@pytest.fixture(scope="module")
def on_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server whose topic has the name that the page gives it."""
    with Standalone(tmp_path_factory.mktemp("iceberg-page") / "data") as server:
        keep_topics(server)
        yield server


def test_the_example_of_the_page_runs(
    on_the_page: Standalone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text().partition("# Archive to an Iceberg table")[2]
    text = text.replace("/data/", f"{tmp_path}/")
    (command,) = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    examples = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    client = pulsar.Client(
        on_the_page.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null")
    )
    publish_to(client, "flights", list(read_flights(500)))
    client.close()
    command = command.replace("pulsar://localhost:6650", on_the_page.url)
    command = command.replace("http://localhost:8080", on_the_page.http_url)
    name, *arguments = command.replace("\\\n", " ").split()
    assert name == "magnetar"
    done = subprocess.run(
        magnetar_command(*arguments), env=magnetar_environment(), check=False, timeout=240
    )
    assert done.returncode == 0
    names: dict[str, Any] = {}
    assert len(examples) >= 2
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    for line in re.findall(r"# prints (.*)", text):
        assert line in printed
