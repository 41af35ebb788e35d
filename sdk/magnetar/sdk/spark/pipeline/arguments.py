"""The jobs' command lines, for spark-submit. `magnetar pipeline` has the same options."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from magnetar.sdk.errors import SdkError
from magnetar.sdk.spark.pipeline.archive import ArchiveSettings
from magnetar.sdk.spark.pipeline.compaction import CompactionSettings
from magnetar.sdk.spark.pipeline.replay import ReplaySettings
from magnetar.sdk.spark.pipeline.session import BrokerSettings, spark_session
from magnetar.sdk.spark.slices import FAILFAST

if TYPE_CHECKING:
    from magnetar.sdk.spark.pipeline.rollup import RollupSettings

_T = TypeVar("_T")

EXIT_REFUSED = 2


@dataclass(frozen=True, slots=True)
class Chosen(Generic[_T]):
    """What a command line says."""

    settings: _T
    master: str


def run_job(name: str, chosen: Chosen[_T], job: Callable[[SparkSession, _T], None]) -> None:
    """Run it in its session; what the user can put right is one line on stderr, and status 2."""
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
    """Our own line out of what Spark has made of it."""
    text = str(error)
    for line in text.splitlines():
        _, found, rest = line.partition("magnetar.sdk.")
        if found and ": " in rest:
            return rest.partition(": ")[2].strip()
    return text.splitlines()[0] if text else type(error).__name__


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--authentication", default="none")
    parser.add_argument("--master", default="", help="default: what spark-submit says, or local[*]")
    return parser


def _brokers(found: argparse.Namespace) -> BrokerSettings:
    return BrokerSettings(
        service_url=found.service_url,
        admin_url=found.admin_url,
        authentication=found.authentication,
        metadata_url=getattr(found, "metadata_url", ""),
    )


def archive_arguments(arguments: list[str] | None = None) -> Chosen[ArchiveSettings]:
    parser = _parser("archive", "Topics to Parquet, each message once.")
    parser.add_argument("--metadata-url", default="", help="read straight from the bookies")
    parser.add_argument("--output", required=True)
    parser.add_argument("--topics", default="")
    parser.add_argument("--topics-pattern", default="")
    parser.add_argument("--continuous", action="store_true", help="go on until it is stopped")
    parser.add_argument("--interval-s", type=int, default=60)
    parser.add_argument("--entries-max", type=int, default=0, help="of a micro-batch")
    parser.add_argument("--mode", default=FAILFAST, help="of messages that cannot be read")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--file-bytes", type=int, default=CompactionSettings().file_bytes)
    parser.add_argument("--files-min", type=int, default=CompactionSettings().files_min)
    found = parser.parse_args(arguments)
    settings = ArchiveSettings(
        brokers=_brokers(found),
        output=found.output,
        topics=found.topics,
        topics_pattern=found.topics_pattern,
        once=not found.continuous,
        interval_s=found.interval_s,
        entries_max=found.entries_max,
        mode=found.mode,
        checkpoint=found.checkpoint,
        compaction=CompactionSettings(file_bytes=found.file_bytes, files_min=found.files_min),
    )
    return Chosen(settings, found.master)


def replay_arguments(arguments: list[str] | None = None) -> Chosen[ReplaySettings]:
    parser = _parser("replay", "An archive back into a topic.")
    parser.add_argument("--archive", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--topics", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--by-key", type=int, default=0)
    parser.add_argument("--schema", default="none", choices=("none", "json", "avro"))
    parser.add_argument("--compression", default="none")
    found = parser.parse_args(arguments)
    settings = ReplaySettings(
        brokers=_brokers(found),
        archive=found.archive,
        to=found.to,
        topics=found.topics,
        name=found.name,
        by_key=found.by_key,
        schema=found.schema,
        compression=found.compression,
    )
    return Chosen(settings, found.master)


def rollup_arguments(arguments: list[str] | None = None) -> Chosen["RollupSettings"]:
    from magnetar.sdk.spark.pipeline.rollup import LATENESS, RollupSettings

    parser = _parser("rollup", "Delays per carrier and hour, with the weather at the origin.")
    parser.add_argument("--metadata-url", default="", help="read straight from the bookies")
    parser.add_argument("--flights", required=True, help="topic of flights")
    parser.add_argument("--weather", required=True, help="topic of weather")
    parser.add_argument("--output", required=True)
    parser.add_argument("--lateness", default=LATENESS)
    parser.add_argument("--continuous", action="store_true", help="go on until it is stopped")
    parser.add_argument("--plots", default="", help="directory for PNG files")
    found = parser.parse_args(arguments)
    settings = RollupSettings(
        brokers=_brokers(found),
        flights=found.flights,
        weather=found.weather,
        output=found.output,
        lateness=found.lateness,
        once=not found.continuous,
        plots=found.plots,
    )
    return Chosen(settings, found.master)
