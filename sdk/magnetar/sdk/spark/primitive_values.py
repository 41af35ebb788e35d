"""Values of primitive schemas as a column. Layouts: `magnetar.sdk.schemas.primitives`."""

import struct
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from magnetar.sdk.spark.columns import VALUE
from magnetar.sdk.spark.stored_values import StoredValues, arrow_schema

_INT64 = range(-(1 << 63), 1 << 63)
_INT32 = range(-(1 << 31), 1 << 31)
_DAY_MICROS = 86_400_000_000

Fields = tuple[int, ...]


def _first(fields: Fields) -> int | None:
    return fields[0]


def _micros(fields: Fields) -> int | None:
    micros = fields[0] * 1_000
    return micros if micros in _INT64 else None  # producers write what they like


def _instant(fields: Fields) -> int | None:
    micros = fields[0] * 1_000_000 + fields[1] // 1_000
    return micros if micros in _INT64 else None


def _day(fields: Fields) -> int | None:
    return fields[0] if fields[0] in _INT32 else None


def _local(fields: Fields) -> int | None:
    micros = fields[0] * _DAY_MICROS + fields[1] // 1_000
    return micros if micros in _INT64 else None


_LAYOUTS: dict[str, tuple[str, Callable[[Fields], int | None], pa.DataType | None]] = {
    "BOOLEAN": (">?", _first, None),
    "INT8": (">b", _first, None),
    "INT16": (">h", _first, None),
    "INT32": (">i", _first, None),
    "INT64": (">q", _first, None),
    "FLOAT": (">f", _first, None),
    "DOUBLE": (">d", _first, None),
    "DATE": (">q", _micros, pa.int64()),
    "TIMESTAMP": (">q", _micros, pa.int64()),
    "INSTANT": (">qi", _instant, pa.int64()),
    "LOCAL_DATE": (">q", _day, pa.int32()),
    "LOCAL_DATE_TIME": (">qq", _local, pa.int64()),
    "TIME": (">q", _first, None),
    "LOCAL_TIME": (">q", _first, None),
}
"""Layout, what it becomes, and as what Arrow takes it: it takes integers faster than times."""


class PrimitiveValues:
    """One column `value`; a time that Spark does not have is null."""

    needs_keys = False

    def __init__(self, kind: str, column: DataType) -> None:
        self._kind = kind
        layout, self._convert, self._as = _LAYOUTS[kind]
        self._layout = struct.Struct(layout)
        self._column = arrow_schema(StructType([StructField(VALUE, column)])).field(0).type

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        size = self._layout.size
        nulls = set(stored.nulls)
        if nulls or any(length != size for length in stored.lengths):
            data = self._fitting(stored, nulls)
        else:
            data = b"".join(stored.parts)
        unpacked = self._layout.iter_unpack(data)
        if self._convert is _first:
            values = [value for (value,) in unpacked]
        else:
            values = list(map(self._convert, unpacked))
        for row in nulls:
            values[row] = None
        for row in stored.unfit:
            values[row] = None
        made = pa.array(values, self._as or self._column)
        return {VALUE: made if self._as is None else made.view(self._column)}

    def _fitting(self, stored: StoredValues, nulls: set[int]) -> bytes:
        """The values, with zeros where there is none of this size."""
        size = self._layout.size
        parts = []
        for row, value in enumerate(stored.cut()):
            if row not in nulls and len(value) == size:
                parts.append(value)
                continue
            parts.append(bytes(size))
            if row not in nulls:
                stored.unfit[row] = (
                    f"a value of {len(value)} bytes is no {self._kind}, which has {size}: "
                    f"{bytes(value[:100])!r}"
                )
        return b"".join(parts)
