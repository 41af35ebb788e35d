"""Spark reads the Iceberg tables of the archive, from the catalog in which they are written:
`make clients`.

Iceberg's runtime for Spark ends below the release that the project installs, so Spark is one of its
own here.
"""

import base64
import json
import os
import random
import subprocess
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Double, Integer, Long, Record, String

from magnetar.arrow.iceberg.archive_rows import ORDER
from magnetar.arrow.iceberg.archiving import undecoded_name
from tests.clients.suites import needs
from tests.clients.test_clients import CLIENTS, run
from tests.flights import read_flights
from tests.http_calls import admin
from tests.integration.arrow.archives import NAME, Lake
from tests.integration.arrow.support import keep_topics
from tests.integration.pulsar_client.support import connect, publish_to
from tests.processes import ROOT
from tests.standalone import Standalone
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1_200)

SPARK = "4.1.4"
JARS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0:jar",
    "org.xerial:sqlite-jdbc:3.50.3.0:jar",
)
FLIGHTS = 120_000
KILLS = 5
SMALL_BATCHES = ("--batch-bytes", str(1 << 20))
READ_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Spark:
    """A Spark with Iceberg's runtime."""

    python: Path
    jars: Sequence[Path]

    def rows(self, lake: Lake, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """Columns of all rows of a table, in the order of the topics; bytes as base64."""
        done = subprocess.run(
            [
                *(str(self.python), str(CLIENTS / "spark_iceberg" / "read_table.py")),
                *(str(lake.directory / "catalog.db"), lake.warehouse, table),
                *(",".join(columns), ",".join(ORDER), *map(str, self.jars)),
            ],
            env={name: os.environ[name] for name in os.environ if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=READ_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4_000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    def values(self, lake: Lake) -> list[bytes]:
        return [base64.b64decode(value) for (value,) in self.rows(lake, NAME, ["value"])]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Spark:
    needs("java", "mvn")
    place = tmp_path_factory.mktemp("spark")
    for artifact in JARS:
        fetch = ("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={place}")
        run(place, "mvn", "-q", "-B", *fetch)
    home = ROOT / ".venv" / f"spark-{SPARK}"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        packages = ("sh", "deploy/bootstrap/packages.sh", str(home), f"pyspark=={SPARK}")
        subprocess.run(packages, cwd=ROOT, check=True, timeout=600)
        (home / "installed").touch()
    return Spark(home / "bin" / "python", sorted(place.glob("*.jar")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("server") / "data") as standalone:
        keep_topics(standalone)
        yield standalone


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    opened = connect(server.url)
    yield opened
    opened.close()


@pytest.fixture
def lake(server: Standalone, tmp_path: Path) -> Lake:
    return Lake(tmp_path, server)


def test_spark_reads_the_flights_row_for_row_after_five_kills_and_while_more_are_written(
    spark: Spark, lake: Lake, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/flights"
    lines = list(read_flights(FLIGHTS))
    publish_to(client, topic, lines, batching_enabled=True, batching_max_messages=100)
    lake.archive_through_kills(topic, *SMALL_BATCHES, kills=KILLS, chance=random.Random(26))
    done = lake.archive(topic, *SMALL_BATCHES)
    assert done.returncode == 0, done.stderr
    assert spark.values(lake) == lines
    more = [b"more %d" % number for number in range(3_000)]
    with lake.running(topic, "--continuous", "--interval-s", "0", "--files-min", "2"):
        publish_to(client, topic, more[:1_000])
        wait_until(lambda: lake.rows_committed() > FLIGHTS, "more rows", within_s=120)
        publish_to(client, topic, more[1_000:])
        seen = spark.values(lake)
        assert len(seen) > FLIGHTS
        assert seen == (lines + more)[: len(seen)]


class Fare1(Record):  # type: ignore[misc]  # the client has no types
    flight = String()
    seats = Integer()


class Fare2(Record):  # type: ignore[misc]
    """A wider field, and one more."""

    flight = String()
    seats = Long()
    price = Double(required_default=True)


def test_spark_reads_a_table_whose_schema_changed_midway_and_what_could_not_be_decoded(
    spark: Spark, lake: Lake, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/fares"
    admin(
        lake.server,
        "PUT",
        "namespaces/public/default/schemaCompatibilityStrategy",
        "ALWAYS_COMPATIBLE",
    )
    first = client.create_producer(topic, schema=AvroSchema(Fare1))
    for number in range(10):
        first.send(Fare1(flight=f"UA{number}", seats=number))
    lake.archive_here(topic)
    publish_to(client, topic, [b"\xff no record"], batching_enabled=False)
    second = client.create_producer(topic, schema=AvroSchema(Fare2))
    for number in range(10, 20):
        second.send(Fare2(flight=f"UA{number}", seats=number + (1 << 40), price=number / 2))
    lake.archive_here(topic)
    assert spark.rows(lake, NAME, ["flight", "seats", "price"]) == [
        *([f"UA{number}", number, None] for number in range(10)),
        *([f"UA{number}", number + (1 << 40), number / 2] for number in range(10, 20)),
    ]
    ((raw, reason),) = spark.rows(lake, undecoded_name(NAME), ["raw", "reason"])
    assert base64.b64decode(raw) == b"\xff no record"
    assert reason
