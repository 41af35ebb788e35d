"""The rollup computed with pandas from the CSV, and how the two are compared."""

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from magnetar.sdk.spark.pipeline.rollup import FLIGHT_COLUMNS, ROLLUP_COLUMNS, WEATHER_COLUMNS

_TOLERANCE = 1e-9


def rollup_by_pandas(flights: Iterable[bytes], weather: Iterable[bytes]) -> list[tuple[Any, ...]]:
    """Rows of `ROLLUP_COLUMNS`, sorted; nothing is None."""
    flown = _frame(flights, FLIGHT_COLUMNS)
    measured = _frame(weather, WEATHER_COLUMNS)
    measured = measured[["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]]
    joined = flown.merge(measured, on=["origin", "time_hour"], how="inner")
    grouped = joined.groupby(["time_hour", "origin", "carrier"])
    found = grouped.agg(
        flights=("carrier", "size"),
        departed=("dep_time", "count"),
        **{name: (name, "mean") for name in ROLLUP_COLUMNS[5:]},
    ).reset_index()
    found = found.rename(columns={"time_hour": "hour"})[list(ROLLUP_COLUMNS)]
    return sorted(map(_plain, found.itertuples(index=False, name=None)), key=lambda row: row[:3])


def rows_of_rollup(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows of Spark, sorted and in the same form."""
    return sorted(map(_plain, rows), key=lambda row: row[:3])


def differences(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> list[str]:
    """What is different, the first few."""
    if len(found) != len(expected):
        return [f"{len(found)} rows instead of {len(expected)}"]
    return [
        f"{row} instead of {right}"
        for row, right in zip(found, expected, strict=True)
        if not all(map(_equal, row, right))
    ][:5]


def _frame(lines: Iterable[bytes], columns: str) -> "pd.DataFrame":
    names = [each.split()[0] for each in columns.split(", ")]
    text = io.BytesIO(b"\n".join(lines))
    frame = pd.read_csv(text, names=names, keep_default_na=False, na_values=["NA"])
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    return frame


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    hour, *rest = row
    stamp = pd.Timestamp(hour)
    stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp.tz_convert("UTC")
    return (stamp.isoformat(), *(None if _is_missing(each) else each for each in rest))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        if one is None or other is None:
            return one is other
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(one == other)
