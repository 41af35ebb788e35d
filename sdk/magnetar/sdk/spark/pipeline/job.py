"""Common parts of the jobs: session, brokers, command lines, and output.

The options of `magnetar pipeline` are those that the jobs have for spark-submit; each job adds its
own. A job shows its progress while it works, and a summary at its end.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from magnetar.sdk.errors import SdkError
from magnetar.sdk.spark import register

_T = TypeVar("_T")

EXIT_REFUSED = 2

_OWN_ERROR = re.compile(r"\bmagnetar\.[\w.]+Error: (.+)")
"""An error of this package, as Python formats it: module, class, and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Addresses of the cluster, which every job needs."""

    service_url: str
    admin_url: str
    authentication: str = "none"
    metadata_url: str = ""
    """If given, executors read straight from the bookies."""

    def options(self) -> dict[str, str]:
        """Return options for the source and the sink."""
        return {
            "service.url": self.service_url,
            "admin.url": self.admin_url,
            "authentication": self.authentication,
        }

    def source_options(self) -> dict[str, str]:
        found = self.options()
        if self.metadata_url:
            found["metadata.url"] = self.metadata_url
        return found


def spark_session(name: str, master: str = "") -> SparkSession:
    """Return the session that spark-submit has prepared, or one on this machine.

    `master` is where to run; if empty, what spark-submit says, otherwise local[*].
    """
    builder = SparkSession.builder.appName(name)
    if master or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master or os.environ.get("MASTER") or "local[*]")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


@dataclass(frozen=True, slots=True)
class Chosen(Generic[_T]):
    """The parsed command line."""

    settings: _T
    master: str


def run_job(name: str, chosen: Chosen[_T], job: Callable[[SparkSession, _T], None]) -> None:
    """Run a job in its session. An error that the user can correct becomes one line on stderr, and
    status 2."""
    is_ours = SparkSession.getActiveSession() is None
    spark = spark_session(f"magnetar-{name}", chosen.master)
    try:
        job(spark, chosen.settings)
    except (SdkError, PySparkException) as error:
        sys.stderr.write(f"{name}: {one_line(error)}\n")
        sys.exit(EXIT_REFUSED)
    finally:
        if is_ours:
            spark.stop()


def one_line(error: BaseException) -> str:
    """Return the line of this package's own error, also out of the text of Spark that wraps it."""
    text = str(error)
    if not text:
        return type(error).__name__
    own = None if isinstance(error, SdkError) else _OWN_ERROR.search(text)
    return own[1].strip() if own else text.splitlines()[0]


def job_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every job; each job adds its own."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--authentication", default="none")
    parser.add_argument("--master", default="", help="default: what spark-submit says, or local[*]")
    return parser


def brokers_of(found: argparse.Namespace) -> ClusterAddress:
    """Return the addresses of the cluster from these options."""
    return ClusterAddress(
        service_url=found.service_url,
        admin_url=found.admin_url,
        authentication=found.authentication,
        metadata_url=getattr(found, "metadata_url", ""),
    )


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator["Bar"]:
    """Show a bar on stderr; draw nothing without a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield Bar(shown, what, total)


class Bar:
    """One line of progress."""

    def __init__(self, shown: Progress, what: str, total: int | None) -> None:
        self._shown = shown
        self._task = shown.add_task(what, total=total, note="")

    def show(self, completed: int, note: str = "", total: int | None = None) -> None:
        if total is None:
            self._shown.update(self._task, completed=completed, note=note)
        else:
            self._shown.update(self._task, completed=completed, note=note, total=total)


def show_summary(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table to stdout."""
    table = Table(title=title, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*map(_shown, row))
    Console(file=sys.stdout).print(table)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:.1f} MB"
