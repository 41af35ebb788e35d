"""`magnetar pipeline archive --format iceberg`: runs the archiver of `magnetar.arrow.iceberg`.

SIGTERM and SIGINT end it after the current batch: what it has read is committed, and the exit
status is 0. Each commit logs a line with the progress and the lag; a summary is printed at the end.
"""

import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import (
    BrokerUnreachableError,
    DeployError,
    MissingProgramError,
    NotAllowedError,
    NotFoundError,
    SettingsError,
)
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.sdk.errors import SdkError

if TYPE_CHECKING:
    from magnetar.arrow.iceberg.archiving import Progress

_INSTALL = "install it: pip install 'magnetar[iceberg]'"
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergJob:
    """Options of the command line."""

    catalog: str
    catalog_properties: tuple[str, ...]
    """Properties of the catalog, each as `NAME=VALUE`."""
    warehouse: str
    """Directory or URL of the warehouse; empty: the catalog's configuration has it."""
    table: str
    topics: str
    topics_pattern: str
    once: bool
    interval_s: float
    batch_bytes: int
    decodes: bool
    allows_loss: bool
    file_bytes: int
    files_min: int
    snapshot_age_s: float
    service_url: str
    admin_url: str
    metadata_url: str

    def source(self) -> dict[str, str]:
        """Return the options of the source.

        Raises:
            SettingsError: topics are given twice, or not at all.
        """
        if bool(self.topics) == bool(self.topics_pattern):
            raise SettingsError("give either --topics or --topics-pattern")
        given = {
            "service.url": self.service_url,
            "admin.url": self.admin_url,
            "metadata.url": self.metadata_url,
            "topics": self.topics,
            "topicsPattern": self.topics_pattern,
            "authentication": ClientCredentials.of_environment().source_authentication,
        }
        return {name: value for name, value in given.items() if value}

    def properties(self) -> dict[str, str]:
        """Return the properties of the catalog.

        Raises:
            SettingsError: one is not of the form NAME=VALUE.
        """
        found = {"warehouse": self.warehouse} if self.warehouse else {}
        for text in self.catalog_properties:
            name, is_pair, value = text.partition("=")
            if not name or not is_pair:
                raise SettingsError(f"--catalog-property: {text!r} is not of the form NAME=VALUE")
            found[name] = value
        return found


def run(job: IcebergJob) -> None:
    """Run the job.

    Raises:
        DeployError: the job cannot begin, or cannot continue.
    """
    for module, package in (("pyiceberg", "pyiceberg"), ("pyarrow", "pyarrow")):
        if find_spec(module) is None:
            raise MissingProgramError(f"{package} is not installed; {_INSTALL}")
    if not job.catalog:
        raise SettingsError("--catalog: a URI or a name of pyiceberg's configuration is required")
    if not job.table:
        raise SettingsError("--table: NAMESPACE.TABLE is required")
    configure_logging(LogLevel.INFO, LogFormat.AUTO, stream=sys.stderr)
    from magnetar.arrow.errors import MagnetarArrowError

    try:
        progress = _archive(job)
    except MagnetarArrowError as error:
        raise _refusal(error) from error
    _show(job, progress)


def _archive(job: IcebergJob) -> "Progress":
    import structlog

    from magnetar.arrow.iceberg.archiving import Archiver, ArchiveSettings, undecoded_name
    from magnetar.arrow.iceberg.iceberg_table import IcebergTable, open_catalog

    log = structlog.get_logger()

    def report(progress: "Progress") -> None:
        log.info(
            "iceberg_committed",
            table=job.table,
            rows=progress.rows,
            undecoded_rows=progress.undecoded_rows,
            commits=progress.commits,
            lag_entries=progress.entries_left,
            lag_bytes=progress.bytes_left,
        )

    settings = ArchiveSettings(
        source=job.source(),
        table=job.table,
        once=job.once,
        interval_s=job.interval_s,
        batch_bytes=job.batch_bytes,
        decodes=job.decodes,
        allows_loss=job.allows_loss,
        file_bytes=job.file_bytes,
        files_min=job.files_min,
        snapshot_age_s=job.snapshot_age_s,
    )
    world = JobWorld()
    catalog = open_catalog(job.catalog, job.properties())
    archiver = Archiver(
        settings,
        IcebergTable(catalog, job.table, world),
        IcebergTable(catalog, undecoded_name(job.table), world),
        world,
        report,
    )
    try:
        with world.ended_by_signals():
            return archiver.run()
    finally:
        archiver.close()


class JobWorld:
    """The machine's clocks and random numbers, and the signals that end the job."""

    def __init__(self) -> None:
        self._ending = threading.Event()

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """End the job on SIGTERM and SIGINT. Python takes signals in its main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: Mapping[signal.Signals, object] = {
            each: signal.signal(each, lambda *_: self._ending.set())
            for each in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)  # type: ignore[arg-type]  # as it came from there

    def token(self) -> str:
        return secrets.token_hex(_TOKEN_BYTES)

    def jitter(self) -> float:
        return random.uniform(0.5, 1.5)

    def wait(self, seconds: float) -> bool:
        return self._ending.wait(seconds)

    def is_ending(self) -> bool:
        return self._ending.is_set()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


def _refusal(error: SdkError) -> DeployError:
    """Return the error that ends the command: one line and a status."""
    from magnetar.arrow import errors

    text = " ".join(str(error).split())
    match error:
        case errors.AccessDeniedError():
            return NotAllowedError(text)
        case errors.TopicNotFoundError():
            return NotFoundError(text)
        case errors.UnreachableError():
            return BrokerUnreachableError(text)
        case errors.OptionError() | errors.OffsetError() | errors.EvolutionError():
            return SettingsError(text)
        case errors.SchemaMismatchError():
            return SettingsError(text)
    return DeployError(text)


def _show(job: IcebergJob, progress: "Progress") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"Table {job.table}: {progress.rows:,} rows added in {progress.commits:,} commits, "
        f"{progress.undecoded_rows:,} not decoded",
        title_justify="left",
    )
    table.add_column("topic")
    table.add_column("archived up to", justify="right")
    for topic, mark in sorted(progress.marks.items()):
        table.add_row(topic, str(mark))
    Console(file=sys.stdout).print(table)
