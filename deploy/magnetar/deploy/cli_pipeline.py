"""Commands that run the pipeline's jobs: pipeline archive, pipeline replay, pipeline rollup.

The jobs are in `magnetar.sdk.spark.pipeline`, and run with spark-submit as well; the archive to
Iceberg tables is in `magnetar.arrow.iceberg`, and needs no Spark. Credentials come from the
environment, as for all tools.
"""

from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from magnetar.deploy.errors import MissingProgramError, SettingsError
from magnetar.deploy.options import DEFAULT_URL, UrlOption

if TYPE_CHECKING:
    from magnetar.sdk.spark.pipeline.job import ClusterAddress

pipeline = typer.Typer(no_args_is_help=True, help="Archive topics, replay archives, roll up.")

_BATCH_BYTES = 64 << 20
_SNAPSHOT_AGE_H = 24.0

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"

AdminUrlOption = Annotated[
    str,
    typer.Option("--admin-url", envvar="MAGNETAR_ADMIN_URL", help="HTTP address of the brokers."),
]
MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata-url",
        help="Metadata store, zk://host:port/path: executors then read directly from the bookies.",
    ),
]
MasterOption = Annotated[
    str, typer.Option("--master", help="Spark master; default: this machine, all cores.")
]
ContinuousOption = Annotated[
    bool,
    typer.Option(
        "--continuous", help="Run until stopped; without it, end when everything is archived."
    ),
]


class ArchiveFormat(StrEnum):
    """Format of an archive."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"


FormatOption = Annotated[
    ArchiveFormat,
    typer.Option(
        "--format",
        help="parquet: files with a log, written by Spark. iceberg: a table that Spark, DuckDB, "
        "polars and Trino read, written without Spark.",
    ),
]
CatalogOption = Annotated[
    str,
    typer.Option(
        "--catalog",
        help="Iceberg: URI of the catalog (sqlite:////data/catalog.db, https://host), or its name "
        "in pyiceberg's configuration.",
    ),
]
CatalogPropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-property",
        metavar="NAME=VALUE",
        help="Iceberg: a property of the catalog, by pyiceberg's name. Repeat it for several.",
    ),
]
TableOption = Annotated[
    str, typer.Option("--table", metavar="NAMESPACE.TABLE", help="Iceberg: the table.")
]
BatchBytesOption = Annotated[
    int,
    typer.Option(
        "--batch-bytes",
        min=1 << 20,
        help="Iceberg: rows in memory, in bytes; a commit follows. A message may be as large.",
    ),
]
DecodeOption = Annotated[
    bool,
    typer.Option(
        "--decode/--no-decode",
        help="Iceberg: columns by the topics' schema, or one column with the bytes.",
    ),
]
LossOption = Annotated[
    bool,
    typer.Option(
        "--allow-loss",
        help="Iceberg: go on where messages were deleted before they were archived.",
    ),
]
SnapshotsOption = Annotated[
    float,
    typer.Option("--snapshot-age-h", min=0, help="Iceberg: keep snapshots for so many hours."),
]


@pipeline.command()
def archive(
    output: Annotated[
        str,
        typer.Option(
            help="Directory or URL of the archive. Iceberg: the warehouse, where the catalog's "
            "configuration has none."
        ),
    ] = "",
    archive_format: FormatOption = ArchiveFormat.PARQUET,
    catalog: CatalogOption = "",
    catalog_property: CatalogPropertyOption = None,
    table: TableOption = "",
    batch_bytes: BatchBytesOption = _BATCH_BYTES,
    decode: DecodeOption = True,
    allow_loss: LossOption = False,
    snapshot_age_h: SnapshotsOption = _SNAPSHOT_AGE_H,
    topics: Annotated[str, typer.Option(help="Topics, separated by commas.")] = "",
    topics_pattern: Annotated[
        str, typer.Option(help="Regular expression of topics: tenant/namespace/expression.")
    ] = "",
    continuous: ContinuousOption = False,
    interval_s: Annotated[int, typer.Option(min=0, help="Seconds between two batches.")] = 60,
    entries_max: Annotated[
        int, typer.Option(min=0, help="Maximum entries per batch; 0: no limit.")
    ] = 0,
    mode: Annotated[
        str,
        typer.Option(
            help="On unreadable messages: FAILFAST (end the job) or DROPMALFORMED (leave them out)."
        ),
    ] = "FAILFAST",
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint directory; default: in the archive.")
    ] = "",
    file_bytes: Annotated[
        int,
        typer.Option(min=1, help="Target file size in bytes; files up to half of it are merged."),
    ] = 128 * 1024 * 1024,
    files_min: Annotated[
        int,
        typer.Option(min=2, help="Merge when a topic and day has at least this many small files."),
    ] = 8,
    master: MasterOption = "",
    metadata_url: MetadataOption = "",
    url: UrlOption = DEFAULT_URL,
    admin_url: AdminUrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Archive topics to Parquet files or to an Iceberg table, each message once; merge small files.

    With --format iceberg, messages that cannot be decoded go to a second table, TABLE_undecoded.
    """
    if archive_format is ArchiveFormat.ICEBERG:
        from magnetar.deploy import iceberg_archive

        spark_only = {"--mode": mode != "FAILFAST", "--checkpoint": checkpoint, "--master": master}
        _refuse({**spark_only, "--entries-max": entries_max}, "it is for --format parquet only")
        iceberg_archive.run(
            iceberg_archive.IcebergJob(
                catalog=catalog,
                catalog_properties=tuple(catalog_property or ()),
                warehouse=output,
                table=table,
                topics=topics,
                topics_pattern=topics_pattern,
                once=not continuous,
                interval_s=interval_s,
                batch_bytes=batch_bytes,
                decodes=decode,
                allows_loss=allow_loss,
                file_bytes=file_bytes,
                files_min=files_min,
                snapshot_age_s=snapshot_age_h * 3_600,
                service_url=url,
                admin_url=admin_url,
                metadata_url=metadata_url,
            )
        )
        return
    iceberg_only = {
        "--catalog": catalog,
        "--catalog-property": catalog_property,
        "--table": table,
        "--no-decode": not decode,
        "--allow-loss": allow_loss,
        "--batch-bytes": batch_bytes != _BATCH_BYTES,
        "--snapshot-age-h": snapshot_age_h != _SNAPSHOT_AGE_H,
    }
    _refuse(iceberg_only, "it is for --format iceberg only")
    if not output:
        raise SettingsError("--output: the directory or URL of the archive is required")
    brokers = _brokers(url, admin_url, metadata_url)
    from magnetar.sdk.spark.pipeline import archive as job
    from magnetar.sdk.spark.pipeline.job import Chosen, run_job

    settings = job.ArchiveSettings(
        brokers=brokers,
        output=output,
        topics=topics,
        topics_pattern=topics_pattern,
        once=not continuous,
        interval_s=interval_s,
        entries_max=entries_max,
        mode=mode,
        checkpoint=checkpoint,
        file_bytes=file_bytes,
        files_min=files_min,
    )
    run_job("archive", Chosen(settings, master), job.run)


@pipeline.command()
def replay(
    archive: Annotated[str, typer.Option(help="Directory or URL of the archive.")],
    to: Annotated[str, typer.Option(help="Topic to publish to.")],
    topics: Annotated[
        str, typer.Option(help="Only these topics of the archive; default: all.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of this replay. Starting it again continues it.")
    ] = "",
    by_key: Annotated[
        int,
        typer.Option(
            min=0, help="Number of tasks, each publishes its own keys; 0: one task per topic."
        ),
    ] = 0,
    schema: Annotated[
        str, typer.Option(help="Encoding of topics that had a schema: json or avro.")
    ] = "none",
    compression: Annotated[str, typer.Option(help="none, lz4, zlib, zstd or snappy.")] = "none",
    master: MasterOption = "",
    url: UrlOption = DEFAULT_URL,
    admin_url: AdminUrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Publish an archive to a topic, in order, with original keys, times and properties."""
    brokers = _brokers(url, admin_url, "")
    from magnetar.sdk.spark.pipeline import replay as job
    from magnetar.sdk.spark.pipeline.job import Chosen, run_job

    settings = job.ReplaySettings(
        brokers=brokers,
        archive=archive,
        to=to,
        topics=topics,
        name=name,
        by_key=by_key,
        schema=schema,
        compression=compression,
    )
    run_job("replay", Chosen(settings, master), job.run)


@pipeline.command()
def rollup(
    flights: Annotated[str, typer.Option(help="Topic of flights, lines of CSV.")],
    weather: Annotated[str, typer.Option(help="Topic of hourly weather, lines of CSV.")],
    output: Annotated[str, typer.Option(help="Directory or URL for the result.")],
    lateness: Annotated[str, typer.Option(help="How late a message may arrive.")] = "6 hours",
    continuous: ContinuousOption = False,
    plots: Annotated[str, typer.Option(help="Directory for PNG files; default: none.")] = "",
    master: MasterOption = "",
    metadata_url: MetadataOption = "",
    url: UrlOption = DEFAULT_URL,
    admin_url: AdminUrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Aggregate flight delays per carrier and hour, joined with the weather at the origin."""
    brokers = _brokers(url, admin_url, metadata_url)
    from magnetar.sdk.spark.pipeline import rollup as job
    from magnetar.sdk.spark.pipeline.job import Chosen, run_job

    settings = job.RollupSettings(
        brokers=brokers,
        flights=flights,
        weather=weather,
        output=output,
        lateness=lateness,
        once=not continuous,
        plots=plots,
    )
    run_job("rollup", Chosen(settings, master), job.run)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options that would have no effect."""
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name}: {why}")


def _brokers(url: str, admin_url: str, metadata_url: str) -> "ClusterAddress":
    if find_spec("pyspark") is None:
        raise MissingProgramError("Spark is not installed: pip install 'magnetar[pipeline]'")
    from magnetar.deploy.credentials import ClientCredentials
    from magnetar.sdk.spark.pipeline.job import ClusterAddress

    return ClusterAddress(
        service_url=url,
        admin_url=admin_url,
        authentication=ClientCredentials.of_environment().source_authentication,
        metadata_url=metadata_url,
    )
