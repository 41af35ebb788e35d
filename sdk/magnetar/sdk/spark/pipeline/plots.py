"""The rollup as pictures. Needs matplotlib: the extra `pipeline`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from magnetar.sdk.spark.pipeline.errors import PipelineError

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
    """Mean over flights, not over windows."""
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
