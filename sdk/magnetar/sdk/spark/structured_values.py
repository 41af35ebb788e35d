"""Values of JSON and AVRO schemas as columns.

JSON is parsed by Arrow, all values of a batch at once; when that does not like them (numbers as
texts, bytes as texts, NaN and infinity in words), one after the other. AVRO is read with the
version of the schema that each message was written with; columns are matched by name.
"""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro
import fastavro.read
import pyarrow as pa
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.sdk.spark.avro_types import fields_of
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import NO_VERSION, ValueSchema

Part = bytes | memoryview

_VALUE_CHARACTERS_MAX = 100

_JSON_SPACE = b" \t\r\n"

_OURS = "magnetar-"
_TIMES = {"date": "int", "timestamp-millis": "long", "timestamp-micros": "long"}
"""Logical types that are columns of times, and what they are written as."""


class StructuredValues:
    """One column for each field of the schema that the query asks for."""

    def __init__(self, wanted: StructType, value_schema: ValueSchema) -> None:
        """
        Raises:
            SchemaMismatchError: columns that the schema does not have, or of another type.
        """
        is_json = value_schema.kind == "JSON"
        known = {
            each.name: each.dataType for each in fields_of(value_schema.definition, is_json=is_json)
        }
        for each in wanted.fields:
            if each.name not in known:
                raise SchemaMismatchError(
                    f"column {each.name}: the topic's schema has no such field; it has "
                    f"{', '.join(known)}"
                )
            if each.dataType != known[each.name]:
                raise SchemaMismatchError(
                    f"column {each.name} of type {each.dataType.simpleString()}: in the topic's "
                    f"schema it is {known[each.name].simpleString()}"
                )
        self._schema = to_arrow_schema(wanted, timezone="UTC")
        self._is_json = is_json
        # What a column of this name may hold, where it holds numbers with a point.
        self._odd_numbers = {
            each.name: read
            for each in self._schema
            if (read := _odd_numbers(each.type)) is not None
        }
        self._avro: dict[int, Any] = {}
        if not is_json:
            versions = dict(value_schema.versions) or {0: value_schema.definition}
            self._avro = {
                version: fastavro.parse_schema(_as_columns(json.loads(definition)))
                for version, definition in versions.items()
            }

    def columns(
        self,
        parts: Sequence[Part],
        lengths: Sequence[int],
        nulls: Sequence[int],
        versions: Sequence[tuple[int, int]],
    ) -> dict[str, pa.Array]:
        if not self._schema.names:
            return {}
        values = _cut(parts, lengths)
        if self._is_json:
            table = None if nulls else self._fast_json(values)
            made = table if table is not None else self._slow_json(values, set(nulls))
        else:
            made = self._from_avro(values, set(nulls), versions)
        return {name: made.column(at) for at, name in enumerate(made.schema.names)}

    def _fast_json(self, values: Sequence[Part]) -> pa.RecordBatch | None:
        text = _objects(values)
        if text is None:
            # Producers that write lines end each value with one.
            text = _objects([bytes(each).strip(_JSON_SPACE) for each in values])
        if text is None:
            return None
        try:
            table = pyarrow.json.read_json(
                io.BytesIO(text),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._schema,
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        batches = table.combine_chunks().to_batches()
        if len(batches) != 1 or batches[0].num_rows != len(values):
            return None
        return batches[0].cast(self._schema) if batches[0].schema != self._schema else batches[0]

    def _slow_json(self, values: Sequence[Part], nulls: set[int]) -> pa.RecordBatch:
        rows: list[Mapping[str, object]] = []
        for row, value in enumerate(values):
            if row in nulls:
                rows.append({})
                continue
            try:
                found = json.loads(bytes(value))
            except ValueError as error:
                raise _unfit(value, f"no JSON: {error}") from None
            if not isinstance(found, dict):
                raise _unfit(value, "no JSON object")
            for name, read in self._odd_numbers.items():
                if name in found:
                    found[name] = read(found[name])
            rows.append(found)
        return self._made(rows)

    def _from_avro(
        self, values: Sequence[Part], nulls: set[int], versions: Sequence[tuple[int, int]]
    ) -> pa.RecordBatch:
        rows: list[Mapping[str, object]] = []
        for version, count in versions:
            schema = self._written_with(version)
            for value in values[len(rows) : len(rows) + count]:
                if len(rows) in nulls:
                    rows.append({})
                    continue
                try:
                    found = fastavro.schemaless_reader(io.BytesIO(value), schema)
                except (ValueError, EOFError, IndexError, KeyError, TypeError) as error:
                    raise _unfit(value, f"not of the schema's version {version}: {error}") from None
                assert isinstance(found, dict)
                rows.append(found)
        return self._made(rows)

    def _written_with(self, version: int) -> Any:
        """What says how the bytes are to be read: another version may read them, and wrongly."""
        if version == NO_VERSION:  # from a producer without a schema
            return self._avro[min(self._avro)]
        schema = self._avro.get(version)
        if schema is None:
            known = ", ".join(map(str, sorted(self._avro)))
            raise SchemaMismatchError(
                f"a value was written with version {version} of the topic's schema, which the "
                f"topic does not have; it has {known}"
            )
        return schema

    def _made(self, rows: list[Mapping[str, object]]) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise SchemaMismatchError(f"a value is not of the topic's schema: {error}") from None


_ODD_NUMBERS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "INF": math.inf,
    "+INF": math.inf,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}
"""Numbers that JSON has no form for, in the words of Spark and of the Java client."""


def _odd_numbers(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes numbers of such words in a value of this type; None: it holds no such numbers."""
    if pa.types.is_floating(kind):
        return lambda value: _ODD_NUMBERS.get(value, value) if isinstance(value, str) else value
    if pa.types.is_list(kind):
        item = _odd_numbers(kind.value_type)
        if item is not None:
            return lambda value: [*map(item, value)] if isinstance(value, list) else value
    elif pa.types.is_map(kind):
        each = _odd_numbers(kind.item_type)
        if each is not None:
            return lambda value: (
                {name: each(one) for name, one in value.items()}
                if isinstance(value, dict)
                else value
            )
    elif pa.types.is_struct(kind):
        fields = {one.name: read for one in kind if (read := _odd_numbers(one.type)) is not None}
        if fields:
            return lambda value: (
                {name: fields[name](one) if name in fields else one for name, one in value.items()}
                if isinstance(value, dict)
                else value
            )
    return None


def _or_null(read: Callable[..., object]) -> Callable[..., object]:
    def reader(*arguments: Any) -> object:
        try:
            return read(*arguments)
        except (OverflowError, ValueError):
            return None  # a time that Python does not have must not stop a query

    return reader


for _name, _base in _TIMES.items():
    # Under names of our own: others in this process may read with the library, too.
    fastavro.read.LOGICAL_READERS[f"{_base}-{_OURS}{_name}"] = _or_null(
        fastavro.read.LOGICAL_READERS[f"{_base}-{_name}"]
    )


def _as_columns(schema: Any) -> Any:
    """With the logical types only that `avro_types` has a column for: what is of another one is a
    column of what it is written as."""
    if isinstance(schema, list):
        return [_as_columns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: _as_columns(value) if name in ("type", "items", "values") else value
        for name, value in schema.items()
        if name != "logicalType"
    }
    if "fields" in schema:
        made["fields"] = [{**each, "type": _as_columns(each["type"])} for each in schema["fields"]]
    logical = schema.get("logicalType")
    if logical == "decimal":
        made["logicalType"] = logical
    elif logical in _TIMES:
        made["logicalType"] = _OURS + logical
    return made


def _objects(values: Sequence[Part]) -> bytes | None:
    """One value per line; None if it is not sure that each is an object: one value may be two of
    them and another nothing, which would give the rows between them the fields of others."""
    text = b"\n".join(values)
    is_sure = (
        text.startswith(b"{") and text.endswith(b"}") and text.count(b"}\n{") == len(values) - 1
    )
    return text if is_sure else None


def _cut(parts: Sequence[Part], lengths: Sequence[int]) -> list[Part]:
    """Each value by itself."""
    if len(parts) == len(lengths):
        return list(parts)
    whole = memoryview(b"".join(parts))
    values: list[Part] = []
    at = 0
    for length in lengths:
        values.append(whole[at : at + length])
        at += length
    return values


def _unfit(value: Part, problem: str) -> SchemaMismatchError:
    shown = bytes(value[:_VALUE_CHARACTERS_MAX])
    return SchemaMismatchError(f"a value is {problem}: {shown!r}")
