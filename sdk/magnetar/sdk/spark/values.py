"""The columns that a message's value becomes: the bytes, or the fields of a JSON or AVRO schema."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from magnetar.sdk.spark.columns import METADATA_NAMES, VALUE
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import ValueSchema

Part = bytes | memoryview


class ValueColumns(Protocol):
    """Makes the columns of the values of some rows."""

    def columns(
        self,
        parts: Sequence[Part],
        lengths: Sequence[int],
        nulls: Sequence[int],
        versions: Sequence[tuple[int, int]],
    ) -> dict[str, pa.Array]:
        """`parts` are the values one behind the other, `lengths` theirs, `nulls` the rows without;
        `versions` runs of rows: version of the schema, number of rows.

        Raises:
            SchemaMismatchError: a value that is not of the schema.
        """
        ...


def value_columns(schema: StructType, value_schema: ValueSchema) -> ValueColumns:
    """For the columns of the query that are no metadata.

    Raises:
        SchemaMismatchError: columns that these values do not have.
    """
    wanted = [each for each in schema.fields if each.name not in METADATA_NAMES]
    if value_schema.kind in ("JSON", "AVRO"):
        from magnetar.sdk.spark.structured_values import StructuredValues

        return StructuredValues(StructType(wanted), value_schema)
    for each in wanted:
        if each.name != VALUE or not isinstance(each.dataType, (BinaryType, StringType)):
            raise SchemaMismatchError(
                f"column {each.name} of type {each.dataType.simpleString()}: the topic's values "
                f"are bytes, which are a column value of type binary or string"
            )
    if not wanted:
        return _NoValues()
    text = isinstance(wanted[0].dataType, StringType)
    return _BytesValues(pa.string() if text else pa.binary())


class _NoValues:
    """The query has metadata only."""

    def columns(
        self,
        parts: Sequence[Part],
        lengths: Sequence[int],
        nulls: Sequence[int],
        versions: Sequence[tuple[int, int]],
    ) -> dict[str, pa.Array]:
        return {}


class _BytesValues:
    """Values as they are."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def columns(
        self,
        parts: Sequence[Part],
        lengths: Sequence[int],
        nulls: Sequence[int],
        versions: Sequence[tuple[int, int]],
    ) -> dict[str, pa.Array]:
        rows = len(lengths)
        validity = None
        if nulls:
            bits = bytearray(b"\xff" * ((rows + 7) // 8))
            for row in nulls:
                bits[row // 8] &= ~(1 << row % 8)
            validity = pa.py_buffer(bytes(bits))
        offsets = array("i", accumulate(lengths, initial=0))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
        made = pa.Array.from_buffers(self._kind, rows, buffers)
        if self._kind == pa.string():
            try:
                made.validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaMismatchError(f"a value is no valid UTF-8: {error}") from None
        return {VALUE: made}
