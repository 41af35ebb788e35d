"""Columns of messages' values by their schema, for all rows of a batch at once. Pure.

Primitive schemas (layouts: `magnetar.sdk.schemas.primitives`) are read as one array of numbers.
Values of KEY_VALUE are two columns, `key` and `value`. With INLINE, the payload holds both, each
after its size (int32, big-endian; -1: none). With SEPARATED, the payload is the value, and the key
is the message's own. AVRO: `avro_columns.py`; PROTOBUF_NATIVE: `protobuf_columns.py`; JSON is
parsed by Arrow (`magnetar.arrow.stored.structured_values`).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.avro_columns import AvroColumns
from magnetar.arrow.stored.column_names import KEY_PART, VALUE
from magnetar.arrow.stored.column_types import (
    METADATA_NAMES,
    SCHEMA_TYPES,
    is_record,
    value_fields,
    value_type,
)
from magnetar.arrow.stored.ragged import pieces
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import StoredColumn, StoredValues, ValueColumns
from magnetar.arrow.stored.structured_values import StructuredValues

_SHOWN_BYTES_MAX = 100
_SIZE_BYTES = 4


def value_columns(names: Sequence[str], schema: ValueSchema) -> ValueColumns:
    """Return a maker of these columns, which are among `value_fields(schema)` or metadata.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    wanted = pa.schema(
        [each for each in value_fields(schema) if each.name in set(names) - METADATA_NAMES]
    )
    if not wanted.names:
        return _NoColumns()
    if schema.key is not None and schema.value is not None:
        return KeyValueColumns(wanted.names, schema.key, schema.value, schema.has_separate_key)
    return _columns_of(wanted, schema)


def _columns_of(wanted: pa.Schema, schema: ValueSchema) -> ValueColumns:
    """Return a maker of columns for any schema but KEY_VALUE."""
    kind = value_type(schema)
    if schema.kind in ("JSON", "AVRO", protobuf_columns.KIND):
        if wanted.names == [VALUE] and _is_stored(wanted.field(0).type, schema, kind):
            return StoredColumn(pa.binary())
        if schema.kind == protobuf_columns.KIND:
            return protobuf_columns.ProtobufColumns(wanted, schema.definition)
        slowly = structured_values(wanted, schema)
        if schema.kind == "AVRO" and is_record(schema, kind):
            return AvroColumns(wanted, schema, slowly)
        return slowly
    if schema.kind == "STRING" or schema.kind not in SCHEMA_TYPES:
        return StoredColumn(kind)
    return PrimitiveColumn(schema.kind)


def structured_values(wanted: pa.Schema, schema: ValueSchema) -> StructuredValues:
    """Return a maker of JSON and AVRO columns, which reads single values where Arrow cannot parse
    them.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    return StructuredValues(wanted, schema, is_record=is_record(schema, value_type(schema)))


def _is_stored(column: pa.DataType, schema: ValueSchema, kind: pa.DataType) -> bool:
    """Return whether a column `value` has the stored bytes, and is not a field of that name."""
    has_field = is_record(schema, kind) and VALUE in [each.name for each in kind]
    return pa.types.is_binary(column) and not has_field


class _NoColumns:
    """Values of a query that selects metadata alone."""

    needs_keys = False

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        return {}


Numbers = npt.NDArray[np.int64]

_MICROS_PER_DAY = 86_400_000_000
_NANOS_PER_DAY = 1_000 * _MICROS_PER_DAY
_INT64_MAX = (1 << 63) - 1


def _micros(fields: npt.NDArray[np.void]) -> pa.Array:
    return _within(fields["f0"].astype(np.int64), _INT64_MAX // 1_000, lambda each: each * 1_000)


def _instant(fields: npt.NDArray[np.void]) -> pa.Array:
    nanos = fields["f1"].astype(np.int64)
    return _within(
        fields["f0"].astype(np.int64),
        _INT64_MAX // 1_000_000 - 1,
        lambda seconds: seconds * 1_000_000 + nanos // 1_000,
    )


def _day(fields: npt.NDArray[np.void]) -> pa.Array:
    days = fields["f0"].astype(np.int64)
    is_day = days == days.astype(np.int32)
    return pa.array(np.where(is_day, days, 0).astype(np.int32), mask=~is_day)


def _local(fields: npt.NDArray[np.void]) -> pa.Array:
    nanos = np.clip(fields["f1"].astype(np.int64), -_NANOS_PER_DAY, _NANOS_PER_DAY)
    return _within(
        fields["f0"].astype(np.int64),
        _INT64_MAX // _MICROS_PER_DAY - 1,
        lambda days: days * _MICROS_PER_DAY + nanos // 1_000,
    )


def _within(values: Numbers, bound: int, made: Callable[[Numbers], Numbers]) -> pa.Array:
    """Return `made` of the values; null for those beyond the bound, which are not valid times.

    Producers may write any number.
    """
    is_time = (values >= -bound) & (values <= bound)
    return pa.array(made(np.where(is_time, values, 0)), mask=~is_time)


def _plain(fields: npt.NDArray[np.void]) -> pa.Array:
    values = fields["f0"]
    return pa.array(values.astype(values.dtype.newbyteorder("=")))


def _flags(fields: npt.NDArray[np.void]) -> pa.Array:
    return pa.array(fields["f0"] != 0)


_LAYOUTS: Mapping[str, tuple[str, Callable[[npt.NDArray[np.void]], pa.Array]]] = {
    "BOOLEAN": ("u1", _flags),
    "INT8": ("i1", _plain),
    "INT16": (">i2", _plain),
    "INT32": (">i4", _plain),
    "INT64": (">i8", _plain),
    "FLOAT": (">f4", _plain),
    "DOUBLE": (">f8", _plain),
    "DATE": (">i8", _micros),
    "TIMESTAMP": (">i8", _micros),
    "INSTANT": (">i8,>i4", _instant),
    "LOCAL_DATE": (">i8", _day),
    "LOCAL_DATE_TIME": (">i8,>i8", _local),
    "TIME": (">i8", _plain),
    "LOCAL_TIME": (">i8", _plain),
}
"""Layout of a value, and the function that makes a column of many of them."""


class PrimitiveColumn:
    """One column `value`; a time that Arrow cannot represent is null."""

    needs_keys = False

    def __init__(self, kind: str) -> None:
        self._kind = kind
        layout, self._made = _LAYOUTS[kind]
        self._layout = np.dtype([(f"f{at}", each) for at, each in enumerate(layout.split(","))])
        self._type = SCHEMA_TYPES[kind]

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        size = self._layout.itemsize
        rows = len(stored.lengths)
        without = set(stored.nulls)
        if without or stored.lengths.count(size) != rows:
            data = self._fitting(stored, without)
        else:
            data = b"".join(stored.parts)
        made = self._made(np.frombuffer(data, self._layout))
        without.update(stored.unfit)
        if without:
            is_there = np.ones(rows, dtype=np.bool_)
            is_there[sorted(without)] = False
            made = pc.if_else(pa.array(is_there), made, pa.scalar(None, made.type))
        return {VALUE: made if made.type == self._type else made.view(self._type)}

    def _fitting(self, stored: StoredValues, nulls: set[int]) -> bytes:
        """Return the values, with zeros where a value is missing or has another size."""
        size = self._layout.itemsize
        parts = []
        for row, value in enumerate(stored.cut()):
            if row not in nulls and len(value) == size:
                parts.append(value)
                continue
            parts.append(bytes(size))
            if row not in nulls:
                stored.unfit[row] = (
                    f"a value of {len(value)} bytes is no {self._kind}, which has {size}: "
                    f"{bytes(value[:_SHOWN_BYTES_MAX])!r}"
                )
        return b"".join(parts)


class RecordColumn:
    """One column `value`: a struct of fields of a record, null without a value."""

    needs_keys = False

    def __init__(self, wanted: pa.Schema, schema: ValueSchema) -> None:
        """`wanted` has the fields of the record, with their types.

        Raises:
            SchemaMismatchError: a definition that cannot be read.
        """
        self._fields = list(wanted)
        self._values = _columns_of(wanted, schema)

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        made = self._values.columns(stored)
        without = np.zeros(len(stored.lengths), dtype=np.bool_)
        without[[*stored.nulls, *stored.unfit]] = True
        columns = [made[each.name] for each in self._fields]
        mask = pa.array(without)
        return {VALUE: pa.StructArray.from_arrays(columns, fields=self._fields, mask=mask)}


class KeyValueColumns:
    """Both columns of a KEY_VALUE schema, or one of them."""

    def __init__(
        self, names: Sequence[str], key: ValueSchema, value: ValueSchema, has_separate_key: bool
    ) -> None:
        """`names` has the selected ones of `key` and `value`.

        Raises:
            SchemaMismatchError: a definition that cannot be read.
        """
        self._is_separate = self.needs_keys = has_separate_key
        parts = {KEY_PART: key, VALUE: value}
        self._columns = {name: _one_column(parts[name]) for name in names}

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        parts = _with_keys(stored) if self._is_separate else _taken_apart(stored)
        made = {}
        for name, make in self._columns.items():
            part = parts[name]
            made[name] = make(part)
            for row, problem in part.unfit.items():
                stored.unfit.setdefault(row, f"{name}: {problem}")
        return made


def _one_column(schema: ValueSchema) -> Callable[[StoredValues], pa.Array]:
    """Return a maker of one column for a part of a KEY_VALUE; a record becomes a struct."""
    kind = value_type(schema)
    made: ValueColumns
    if is_record(schema, kind):
        made = RecordColumn(pa.schema(list(kind)), schema)
    else:
        made = _columns_of(pa.schema([pa.field(VALUE, kind)]), schema)
    return lambda stored: made.columns(stored)[VALUE]


def _with_keys(stored: StoredValues) -> dict[str, StoredValues]:
    rows = range(len(stored.lengths))
    keys = [stored.keys.get(row, b"") for row in rows]
    without = [row for row in rows if row not in stored.keys]
    value = StoredValues(stored.parts, stored.lengths, stored.nulls, stored.versions)
    return {
        KEY_PART: StoredValues(keys, list(map(len, keys)), without, stored.versions),
        VALUE: value,
    }


def _taken_apart(stored: StoredValues) -> dict[str, StoredValues]:
    """Split payloads into keys and values. A malformed payload is unfit, and null."""
    data = b"".join(stored.parts)
    block = pa.py_buffer(data)
    # A size is read at every possible position; rows where that is beyond the end are unfit.
    padded = data + bytes(2 * _SIZE_BYTES)
    sizes = np.ndarray(len(data) + _SIZE_BYTES + 1, ">i4", padded, strides=(1,))
    lengths = np.array(stored.lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    has_value = np.ones(len(lengths), dtype=np.bool_)
    has_value[list(stored.nulls)] = False
    found: dict[str, StoredValues] = {}
    at = starts
    fits = has_value.copy()
    parts = {}
    for name in (KEY_PART, VALUE):
        fits &= at + _SIZE_BYTES <= ends
        size = np.where(fits, sizes[np.where(fits, at, 0)], 0).astype(np.int64)
        begin = np.where(fits, at + _SIZE_BYTES, at)
        fits &= (size >= -1) & (np.maximum(size, 0) <= ends - begin)
        at = np.where(fits, begin + np.maximum(size, 0), begin)
        parts[name] = (begin, at, size)
    fits &= at == ends
    for row in np.flatnonzero(has_value & ~fits):
        payload = data[starts[row] : ends[row]]
        stored.unfit[int(row)] = f"a value is no key with a value: {payload[:_SHOWN_BYTES_MAX]!r}"
    for name, (begin, end, size) in parts.items():
        is_there = fits & (size >= 0)
        begin = np.where(is_there, begin, starts)
        cut = pieces(block, begin, np.where(is_there, end, begin))
        cut_bytes = np.where(is_there, end - begin, 0)
        found[name] = StoredValues(
            [memoryview(cut.buffers()[2])[: int(cut_bytes.sum())]] if cut_bytes.any() else [],
            cut_bytes.tolist(),
            np.flatnonzero(~is_there).tolist(),
            stored.versions,
        )
    return found
