"""Values as they were stored, and what makes columns of them; the columns that are just that.

How a schema makes others: `values.py` and `structured_values.py`; which of them a query takes:
`values.py`. Pure.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

import pyarrow as pa

from magnetar.sdk.spark.column_names import VALUE

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Part = bytes | memoryview

Schema: TypeAlias = Union[pa.Schema, "StructType"]
"""Columns, by Arrow's types or by Spark's: PySpark is imported for the latter alone."""


@dataclass(slots=True)
class StoredValues:
    """The values of some rows as they were stored, one behind the other."""

    parts: Sequence[Part]
    """Cut in any way."""
    lengths: Sequence[int]
    """Of the values."""
    nulls: Sequence[int] = ()
    """Rows without a value."""
    versions: Sequence[tuple[int, int]] = ()
    """Runs of rows: version of the schema, number of rows."""
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """Row -> key of the message; only for what has `needs_keys`."""
    unfit: dict[int, str] = field(default_factory=dict)
    """Row -> why its value is none of its schema: filled while columns are made. It has null."""

    def cut(self) -> list[Part]:
        """Each value by itself."""
        if len(self.parts) == len(self.lengths):
            return list(self.parts)
        whole = memoryview(b"".join(self.parts))
        values: list[Part] = []
        at = 0
        for length in self.lengths:
            values.append(whole[at : at + length])
            at += length
        return values


class ValueColumns(Protocol):
    """Makes the columns of the values of some rows."""

    needs_keys: bool

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        """By name; adds to `stored.unfit`."""
        ...


def arrow_schema(schema: Schema) -> pa.Schema:
    """Columns as Spark wants batches to be, to the letter."""
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)  # Spark 4.1 takes UTC without being told


def _kind_of(kind: "DataType") -> pa.DataType:
    from pyspark.sql.types import StringType

    return pa.string() if isinstance(kind, StringType) else pa.binary()


class StoredColumn:
    """Values as they are, as bytes or text."""

    needs_keys = False

    def __init__(self, kind: "pa.DataType | DataType") -> None:
        """`kind`: binary, or text."""
        self._kind = kind if isinstance(kind, pa.DataType) else _kind_of(kind)

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        rows = len(stored.lengths)
        validity = None
        if stored.nulls:
            bits = bytearray(b"\xff" * ((rows + 7) // 8))
            for row in stored.nulls:
                bits[row // 8] &= ~(1 << row % 8)
            validity = pa.py_buffer(bytes(bits))
        offsets = array("i", accumulate(stored.lengths, initial=0))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(stored.parts))]
        made = pa.Array.from_buffers(self._kind, rows, buffers)
        if self._kind == pa.string():
            try:
                made.validate(full=True)
            except pa.ArrowInvalid:
                return {VALUE: self._valid_only(stored)}
        return {VALUE: made}

    def _valid_only(self, stored: StoredValues) -> pa.Array:
        nulls = set(stored.nulls)
        found: list[str | None] = []
        for row, value in enumerate(stored.cut()):
            try:
                found.append(None if row in nulls else bytes(value).decode())
            except UnicodeDecodeError as error:
                stored.unfit[row] = f"a value is no valid UTF-8: {error}"
                found.append(None)
        return pa.array(found, self._kind)
