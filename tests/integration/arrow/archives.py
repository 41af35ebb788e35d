"""Archives in Iceberg tables, for tests: archivers as processes and in this one, and readers."""

import random
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from magnetar.arrow.iceberg.archive_rows import ORDER
from magnetar.arrow.iceberg.archiving import (
    Archiver,
    ArchiveSettings,
    Progress,
    undecoded_name,
)
from magnetar.arrow.iceberg.iceberg_table import WATERMARK, IcebergTable
from magnetar.arrow.iceberg.watermark import parse_watermark
from magnetar.deploy.iceberg_archive import JobWorld
from tests.integration.arrow.support import Server
from tests.processes import magnetar_command, magnetar_environment
from tests.waiting import wait_until

NAME = "lake.rows"
JOB_TIMEOUT_S = 240.0
PAUSE_S_MAX = 1.0
"""Between a commit of an archiver and its kill."""


@dataclass
class Lake:
    """A catalog in a SQLite file, and the directory of its tables."""

    directory: Path
    server: Server
    table_name: str = NAME

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.directory}/catalog.db"

    @property
    def warehouse(self) -> str:
        return f"file://{self.directory}/warehouse"

    def catalog(self, kind: type[SqlCatalog] = SqlCatalog) -> SqlCatalog:
        return kind("default", uri=self.uri, warehouse=self.warehouse)

    def table(self, name: str | None = None) -> Table:
        return self.catalog().load_table(name or self.table_name)

    def command(self, topic: str, *more: str) -> list[str]:
        return magnetar_command(
            *("pipeline", "archive", "--format", "iceberg", "--topics", topic),
            *("--catalog", self.uri, "--output", self.warehouse, "--table", self.table_name),
            *("--url", self.server.url, "--admin-url", self.server.http_url),
            *("--metadata-url", self.server.metadata_url, *more),
        )

    def start(self, topic: str, *more: str) -> "subprocess.Popen[bytes]":
        """An archiver of its own process; its log is kept beside the catalog."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "archiver.log").open("ab") as log:
            return subprocess.Popen(
                self.command(topic, *more), stdout=log, stderr=log, env=magnetar_environment()
            )

    @contextmanager
    def running(self, topic: str, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
        process = self.start(topic, *more)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def archive(self, topic: str, *more: str) -> "subprocess.CompletedProcess[str]":
        """Run an archiver to its end."""
        return subprocess.run(
            self.command(topic, *more),
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
            env=magnetar_environment(),
        )

    def archive_through_kills(
        self, topic: str, *more: str, kills: int, chance: random.Random
    ) -> None:
        """Start archivers, each of which is killed some time after its first commit."""
        for _ in range(kills):
            before = self.rows_committed()
            with self.running(topic, *more) as archiver:
                wait_until(
                    lambda before=before, archiver=archiver: (  # type: ignore[misc]
                        self.rows_committed() > before or archiver.poll() is not None
                    ),
                    "the archiver gets on",
                    within_s=120,
                )
                assert archiver.poll() in (None, 0), "see archiver.log"
                threading.Event().wait(chance.uniform(0, PAUSE_S_MAX))
                archiver.send_signal(signal.SIGKILL)
                archiver.wait()

    def archive_here(
        self, topic: str, *, kind: type[SqlCatalog] = SqlCatalog, **settings: Any
    ) -> Progress:
        """Run an archiver in this process."""
        catalog, world = self.catalog(kind), JobWorld()
        source = {
            "service.url": self.server.url,
            "admin.url": self.server.http_url,
            "metadata.url": self.server.metadata_url,
            "topics": topic,
        }
        archiver = Archiver(
            ArchiveSettings(source=source, table=self.table_name, **settings),
            IcebergTable(catalog, self.table_name, world),
            IcebergTable(catalog, undecoded_name(self.table_name), world),
            world,
            lambda _: None,
        )
        try:
            return archiver.run()
        finally:
            archiver.close()

    def rows_committed(self) -> int:
        """Rows of the newest snapshot; 0 if there is none yet."""
        catalog = self.catalog()
        if not catalog.table_exists(self.table_name):
            return 0
        snapshot = catalog.load_table(self.table_name).current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary.additional_properties.get("total-records", 0))


def by_pyiceberg(table: Table) -> pa.Table:
    """All rows, in the order of the topics."""
    return table.scan().to_arrow().sort_by([(name, "ascending") for name in ORDER])


def by_duckdb(table: Table, columns: str) -> list[tuple[Any, ...]]:
    """Rows in the order of the topics, read by DuckDB from the files of the newest snapshot: its
    own extension for Iceberg is not a part of its package."""
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    if not files:
        return []
    order = ", ".join(ORDER)
    query = f"SELECT {columns} FROM read_parquet(?, union_by_name=true) ORDER BY {order}"
    with duckdb.connect() as connection:
        return connection.execute(query, [files]).fetchall()


def by_polars(table: Table) -> pl.DataFrame:
    """Rows in the order of the topics, read by polars' own reader of Iceberg."""
    return pl.scan_iceberg(table, reader_override="native").collect().sort(ORDER)


def marks_of(table: Table) -> Mapping[str, Any]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return parse_watermark(snapshot.summary.additional_properties[WATERMARK])
