"""AVRO values as columns, decoded a field at a time for all rows of a batch. Pure.

A definition is compiled once into a `Decode` per field. It takes the position of the field in every
row, and returns the column and the position of the next field. Everything is an operation on whole
columns, at a tenth of the cost of making an object of each value first.

Cases that this does not support go to the reader of single values
(`magnetar.arrow.stored.avro_reading`), which also reports what is wrong with a value: arrays, maps,
unions of several types, decimals, versions that differ in more than new, renamed or wider fields,
and every batch with a value that does not fit its schema. Both give the same columns.

Binary encoding: Avro 1.11, "Binary Encoding". An int or long is a zigzag varint of up to ten bytes;
text and bytes are a long, which is the size, and the bytes; a union is the number of its branch and
the value; a record is its fields.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.arrow.stored.column_types import INSTANT, parsed_definition
from magnetar.arrow.stored.ragged import Places, pieces, spread
from magnetar.arrow.stored.slices import NO_VERSION, ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues, ValueColumns

_PADDING = bytes(16)
"""Follows the last value: decoders look at eight bytes from each position."""

_BLOCK_BYTES_MAX = (1 << 31) - 64
_DEPTH_MAX = 32

_DAY_MIN, _DAY_MAX = -719_162, 2_932_896
_MICROS_MIN, _MICROS_MAX = _DAY_MIN * 86_400_000_000, (_DAY_MAX + 1) * 86_400_000_000 - 1
"""The years 1 to 9999. Values outside are null, as in the reader of single values."""


class MisfitError(Exception):
    """A value does not fit the definition, or needs the reader of single values."""


class Block:
    """The values of a batch, concatenated."""

    def __init__(self, data: bytes) -> None:
        padded = data + _PADDING
        self.buffer = pa.py_buffer(padded)
        self.octets = np.frombuffer(padded, np.uint8)
        places = len(data) + 8
        self._words = np.ndarray(places, "<u8", padded, strides=(1,))
        self._doubles = np.ndarray(places, "<f8", padded, strides=(1,))
        self._floats = np.ndarray(places, "<f4", padded, strides=(1,))

    def doubles(self, at: Places) -> npt.NDArray[np.float64]:
        return self._doubles[at]

    def floats(self, at: Places) -> npt.NDArray[np.float32]:
        return self._floats[at]

    def longs(self, at: Places, ends: Places) -> tuple[npt.NDArray[np.int64], Places]:
        """Decode the varints at these positions; return them, and the positions after them.

        Eight bytes of each are read as one number. The lowest top bit that is not set is the end of
        the varint, and its groups of seven bits are pushed together in three steps.

        Raises:
            MisfitError: a varint goes beyond the end of its row.
        """
        words = self._words[at]
        stops = ~words & np.uint64(0x8080808080808080)
        lowest = stops & (~stops + np.uint64(1))
        sizes = ((lowest >> np.uint64(7)) * np.uint64(0x0102030405060708)) >> np.uint64(56)
        bits = words & (lowest - np.uint64(1)) & np.uint64(0x7F7F7F7F7F7F7F7F)
        for width, high, low in (
            (1, 0x7F007F007F007F00, 0x007F007F007F007F),
            (2, 0x3FFF00003FFF0000, 0x00003FFF00003FFF),
            (4, 0x0FFFFFFF00000000, 0x000000000FFFFFFF),
        ):
            bits = ((bits & np.uint64(high)) >> np.uint64(width)) | (bits & np.uint64(low))
        behind: Places = at + sizes.astype(np.int64)
        for row in np.flatnonzero(lowest == 0):  # nine or ten bytes: very large numbers
            bits[row], behind[row] = self._long(int(at[row]))
        _check_ends(behind, ends)
        half = (bits >> np.uint64(1)).astype(np.int64)
        return half ^ -(bits & np.uint64(1)).astype(np.int64), behind

    def _long(self, at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            octet = int(self.octets[at])
            at += 1
            value |= (octet & 127) << shift
            if octet < 128:
                if value >> 64:
                    break
                return value, at
            if at >= len(self.octets):
                break
        raise MisfitError("a varint of more than 64 bits")


def _check_ends(behind: Places, ends: Places) -> None:
    if (behind > ends).any():
        raise MisfitError("a value ends before its last field")


Decode = Callable[[Block, Places, Places], tuple[pa.Array | None, Places]]
"""Decodes a field of rows, whose positions and ends are given: returns the column, and the
positions after it. The column is None where Arrow has no type for it: null."""


class AvroColumns:
    """The selected columns of a record."""

    needs_keys = False

    def __init__(self, wanted: pa.Schema, schema: ValueSchema, slowly: ValueColumns) -> None:
        """
        Args:
            wanted: fields of the record, with their types (`column_types.value_fields`).
            slowly: reads single values where reading by columns is not supported.

        Raises:
            SchemaMismatchError: a definition is not JSON.
        """
        self._wanted = wanted
        self._schema = schema
        self._slowly = slowly
        self._newest = parsed_definition(schema.definition)
        self._written = {
            version: parsed_definition(definition) for version, definition in schema.versions
        } or {0: self._newest}
        self._plans: dict[int, _Plan | None] = {}

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        """Return the columns by name; add to `stored.unfit`."""
        try:
            return self._columns(stored)
        except MisfitError:
            return self._slowly.columns(stored)

    def _columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        data = b"".join(stored.parts)
        if len(data) > _BLOCK_BYTES_MAX:
            raise MisfitError("more than one block takes")
        block = Block(data)
        ends = np.cumsum(np.array(stored.lengths, dtype=np.int64))
        starts = ends - np.array(stored.lengths, dtype=np.int64)
        is_there = np.ones(len(ends), dtype=np.bool_)
        is_there[list(stored.nulls)] = False
        runs: list[dict[str, pa.Array]] = []
        for version, first, behind in _runs(stored.versions, len(ends)):
            plan = self._plan(version)
            if plan is None:
                raise MisfitError(f"version {version} is not read this way")
            has_value = is_there[first:behind]
            rows = np.flatnonzero(has_value) + first
            made = plan.run(block, starts[rows], ends[rows])
            runs.append({name: spread(each, has_value) for name, each in made.items()})
        return {
            name: _joined([run[name] for run in runs], self._wanted.field(name).type)
            for name in self._wanted.names
        }

    def _plan(self, version: int) -> "_Plan | None":
        if version not in self._plans:
            # A producer without a schema sends no version.
            known = min(self._written) if version == NO_VERSION else version
            written = self._written.get(known)
            self._plans[version] = (
                None if written is None else _plan_of(written, self._newest, self._wanted)
            )
        return self._plans[version]


def _runs(versions: Sequence[tuple[int, int]], rows: int) -> list[tuple[int, int, int]]:
    """Return version, first row, and the row after the last one; neighbours of one version are
    joined."""
    found: list[tuple[int, int, int]] = []
    behind = accumulate(count for _, count in versions)
    for (version, count), end in zip(versions, behind, strict=True):
        if found and found[-1][0] == version:
            found[-1] = (version, found[-1][1], end)
        elif count:
            found.append((version, end - count, end))
    assert not rows or found[-1][2] == rows
    return found


def _joined(runs: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if not runs:
        return pa.array([], kind)
    return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


@dataclass(frozen=True, slots=True)
class _Step:
    """One field as it was written."""

    decode: Decode
    column: str
    """Name of the column; empty if the field is only skipped."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How values of one version are read."""

    steps: tuple[_Step, ...]
    types: Mapping[str, pa.DataType]
    constants: Mapping[str, pa.Scalar]
    """Values of the columns that this version does not have."""

    def run(self, block: Block, at: Places, ends: Places) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        rows = len(at)
        for each in self.steps:
            column, at = each.decode(block, at, ends)
            if each.column:
                assert column is not None
                found[each.column] = _as(column, self.types[each.column])
        for name, value in self.constants.items():
            found[name] = pa.repeat(value, rows)
        return found


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisfitError(str(error)) from error


def _plan_of(written: Any, newest: Any, wanted: pa.Schema) -> _Plan | None:
    """Return the plan for a version; None if its values have to be read one by one."""
    try:
        return _made_plan(written, newest, wanted)
    except (_TooMuchError, KeyError, TypeError, AttributeError, pa.ArrowException):
        return None


def _made_plan(written: Any, newest: Any, wanted: pa.Schema) -> _Plan:
    fields = {each["name"]: each for each in written["fields"]}
    types = {name: wanted.field(name).type for name in wanted.names}
    columns: dict[str, str] = {}
    constants: dict[str, pa.Scalar] = {}
    for each in newest["fields"]:
        name = each["name"]
        if name not in types:
            continue
        before = next((old for old in (name, *each.get("aliases", ())) if old in fields), None)
        if before is None:
            constants[name] = _default(each, types[name])
        elif written is not newest and not _is_alike(fields[before]["type"], each["type"]):
            raise _TooMuchError(name)
        else:
            columns[before] = name
    compiler = _Compiler()
    steps = tuple(
        _Step(compiler.of(each["type"], 0), columns.get(each["name"], ""))
        for each in written["fields"]
    )
    return _Plan(steps, types, constants)


_TAKEN = (["int", "long"], ["int", "double"], ["float", "double"], ["string", "bytes"])
"""Types that Arrow converts column by column as Avro's resolution does."""


def _is_alike(written: Any, newest: Any) -> bool:
    before, now = _without_null(written), _without_null(newest)
    return bool(before == now or [before, now] in _TAKEN)


def _without_null(schema: Any) -> Any:
    others = [each for each in schema if each != "null"] if isinstance(schema, list) else []
    return others[0] if len(others) == 1 else schema


def _default(field: Mapping[str, Any], kind: pa.DataType) -> pa.Scalar:
    value = field.get("default")
    if value is None:
        return pa.scalar(None, kind)
    if not isinstance(value, bool | int | float | str) or _without_null(field["type"]) not in (
        "boolean", "int", "long", "float", "double", "string",
    ):  # fmt: skip
        raise _TooMuchError(field["name"])
    return pa.scalar(value, kind)


class _TooMuchError(Exception):
    """A definition that cannot be read by columns."""


class _Compiler:
    """Compiles the types of one definition, which may refer to earlier ones by name."""

    def __init__(self) -> None:
        self._named: dict[str, Decode] = {}

    def of(self, schema: Any, depth: int) -> Decode:
        """Compile a type.

        Raises:
            _TooMuchError: the type cannot be read by columns.
        """
        if depth > _DEPTH_MAX:
            raise _TooMuchError("nested too deep")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            found = _PRIMITIVES.get(schema) or self._named.get(schema)
            if found is None:
                raise _TooMuchError(schema)  # a record within itself, or no type
            return found
        kind = schema["type"]
        if kind == "record":
            return self._name(schema, self._record(schema, depth))
        if kind == "enum":
            return self._name(schema, _enum(schema["symbols"]))
        logical = schema.get("logicalType")
        if logical == "decimal":
            raise _TooMuchError(logical)
        if kind == "fixed":
            return self._name(schema, _fixed(int(schema["size"])))
        if kind in ("array", "map"):
            raise _TooMuchError(kind)
        if logical in _LOGICAL and isinstance(kind, str):
            base, made = _LOGICAL[logical]
            if base == kind:
                return made
        return self.of(kind, depth + 1)

    def _name(self, schema: Mapping[str, Any], made: Decode) -> Decode:
        name = str(schema["name"])
        self._named[name] = made
        if schema.get("namespace"):
            self._named[f"{schema['namespace']}.{name}"] = made
        return made

    def _union(self, union: list[Any], depth: int) -> Decode:
        others = [each for each in union if each != "null"]
        if len(others) != 1 or len(union) > 2:
            raise _TooMuchError("a union of several types")
        return _nullable(self.of(others[0], depth + 1), union.index(others[0]), len(union))

    def _record(self, schema: Mapping[str, Any], depth: int) -> Decode:
        fields = [(each["name"], self.of(each["type"], depth + 1)) for each in schema["fields"]]

        def decode(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
            names: list[str] = []
            columns: list[pa.Array] = []
            for name, each in fields:
                column, at = each(block, at, ends)
                if column is not None:
                    names.append(name)
                    columns.append(column)
            return (pa.StructArray.from_arrays(columns, names) if columns else None), at

        return decode


def _null(_: Block, at: Places, __: Places) -> tuple[pa.Array | None, Places]:
    return None, at


def _boolean(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    behind = at + 1
    _check_ends(behind, ends)
    values = block.octets[at]
    if (values > 1).any():
        raise MisfitError("a boolean that is neither 0 nor 1")
    return pa.array(values.astype(np.bool_)), behind


def _long(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    values, behind = block.longs(at, ends)
    return pa.array(values), behind


def _int(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    values, behind = block.longs(at, ends)
    made = values.astype(np.int32)
    if (made != values).any():
        raise MisfitError("an int of more than 32 bits")
    return pa.array(made), behind


def _double(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    behind = at + 8
    _check_ends(behind, ends)
    return pa.array(block.doubles(at)), behind


def _float(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    behind = at + 4
    _check_ends(behind, ends)
    return pa.array(block.floats(at)), behind


def _bytes(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    sizes, starts = block.longs(at, ends)
    if (sizes < 0).any() or (sizes > ends - starts).any():
        raise MisfitError("bytes beyond the end of their value")
    behind = starts + sizes
    return pieces(block.buffer, starts, behind), behind


def _string(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    found, behind = _bytes(block, at, ends)
    assert found is not None
    try:
        return found.cast(pa.string()), behind
    except pa.ArrowInvalid as error:
        raise MisfitError("text that is no UTF-8") from error


def _date(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
    days, behind = block.longs(at, ends)
    is_day = (days >= _DAY_MIN) & (days <= _DAY_MAX)
    return pa.array(np.where(is_day, days, 0).astype(np.int32), mask=~is_day).view(
        pa.date32()
    ), behind


def _moment(micros_per_unit: int) -> Decode:
    low, high = _MICROS_MIN // micros_per_unit, _MICROS_MAX // micros_per_unit

    def decode(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
        values, behind = block.longs(at, ends)
        is_time = (values >= low) & (values <= high)
        micros = np.where(is_time, values, 0) * micros_per_unit
        return pa.array(micros, mask=~is_time).view(INSTANT), behind

    return decode


def _fixed(size: int) -> Decode:
    def decode(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
        behind = at + size
        _check_ends(behind, ends)
        return pieces(block.buffer, at, behind), behind

    return decode


def _enum(symbols: Sequence[str]) -> Decode:
    names = pa.array([str(each) for each in symbols], pa.string())

    def decode(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
        numbers, behind = block.longs(at, ends)
        if ((numbers < 0) | (numbers >= len(names))).any():
            raise MisfitError("a number that is no symbol of its enum")
        return names.take(pa.array(numbers)), behind

    return decode


def _nullable(of: Decode, branch: int, branches: int) -> Decode:
    """Return a decoder of a union with null.

    `of` decodes the branch that is not null, whose number is `branch`. `branches` is their count,
    at most two.
    """

    def decode(block: Block, at: Places, ends: Places) -> tuple[pa.Array | None, Places]:
        numbers, behind = block.longs(at, ends)
        if ((numbers < 0) | (numbers >= branches)).any():
            raise MisfitError("a number that is no branch of its union")
        is_there = numbers == branch
        if is_there.all():
            return of(block, behind, ends)
        found, after = of(block, behind[is_there], ends[is_there])
        behind[is_there] = after
        return (None if found is None else spread(found, is_there)), behind

    return decode


_PRIMITIVES: Mapping[str, Decode] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}

_LOGICAL: Mapping[str, tuple[str, Decode]] = {
    "date": ("int", _date),
    "timestamp-millis": ("long", _moment(1_000)),
    "timestamp-micros": ("long", _moment(1)),
}
"""Logical types that are columns of times: their base type, and their decoder."""
