"""Values of JSON and AVRO schemas as columns.

Arrow parses JSON, all values of a batch at once. If it refuses them (an enum as a number, bytes as
text), they are parsed one after the other. A text column then gets the JSON of a value that is not
text, as in Spark's `from_json`. AVRO: `avro_reading.py`. Columns are matched by name.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.json

from magnetar.arrow.stored.column_names import VALUE
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import Part, StoredValues

_VALUE_CHARACTERS_MAX = 100

_JSON_SPACE = b" \t\r\n"

_NOT_NUMBERS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "+INF": math.inf,
    "INF": math.inf,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}
"""Numbers that JSON cannot represent; Jackson, Spark and the sink write them as texts."""

_MISFITS = (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError)
"""Errors that Arrow raises for a value that does not fit a type."""


class StructuredValues:
    """One column for each selected field of the schema; for a schema that is not a record, one
    column `value`."""

    needs_keys = False

    def __init__(
        self, wanted: pa.Schema, value_schema: ValueSchema, *, is_record: bool = True
    ) -> None:
        """
        Args:
            wanted: columns that the schema has, see `value_fields`.
            is_record: whether the fields of the schema are columns.

        Raises:
            SchemaMismatchError: a definition that cannot be read.
        """
        self._schema = wanted
        self._is_json = value_schema.kind == "JSON"
        self._is_record = is_record
        if not self._is_json:
            from magnetar.arrow.stored.avro_reading import AvroReader

            self._avro = AvroReader(value_schema)

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        made = self._batch(stored)
        return {name: made.column(at) for at, name in enumerate(made.schema.names)}

    def _batch(self, stored: StoredValues) -> pa.RecordBatch:
        values = stored.cut()
        if not self._is_json:
            return self._from_avro(values, stored)
        is_plain = self._is_record and not stored.nulls
        table = self._fast_json(values) if is_plain else None
        return table if table is not None else self._slow_json(values, stored)

    def _fast_json(self, values: Sequence[Part]) -> pa.RecordBatch | None:
        text = _objects(values)
        if text is None:
            # Producers that write lines end each value with a newline.
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

    def _slow_json(self, values: Sequence[Part], stored: StoredValues) -> pa.RecordBatch:
        nulls = set(stored.nulls)
        rows: list[Mapping[str, object]] = []
        for row, value in enumerate(values):
            found: object = {}
            if row not in nulls:
                try:
                    found = json.loads(bytes(value), parse_float=_Real)
                except (ValueError, RecursionError) as error:
                    stored.unfit[row] = _unfit(value, f"no JSON: {error}")
                else:
                    if not self._is_record:
                        found = {VALUE: found}
                    elif not isinstance(found, dict):
                        stored.unfit[row] = _unfit(value, "no JSON object")
            rows.append(found if isinstance(found, dict) else {})
        return self._made(rows, stored)

    def _from_avro(self, values: Sequence[Part], stored: StoredValues) -> pa.RecordBatch:
        from magnetar.arrow.stored.avro_reading import UNFIT

        nulls = set(stored.nulls)
        rows: list[Mapping[str, object]] = []
        is_record = self._is_record
        for version, count in stored.versions:
            first = len(rows)
            try:
                read = self._avro.of_version(version)
            except SchemaMismatchError as error:
                stored.unfit.update(dict.fromkeys(range(first, first + count), str(error)))
                rows += [{}] * count
                continue
            for value in values[first : first + count]:
                found: object = None
                if not nulls or len(rows) not in nulls:
                    try:
                        found = read(value)
                    except UNFIT as error:
                        stored.unfit[len(rows)] = _unfit(
                            value, f"not of the schema's version {version}: {error}"
                        )
                if not is_record:
                    found = {VALUE: found}
                rows.append(found if isinstance(found, dict) else {})
        return self._made(rows, stored)

    def _made(self, rows: list[Mapping[str, object]], stored: StoredValues) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except _MISFITS:
            columns = [self._column(each, rows, stored) for each in self._schema]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(
        self, field: pa.Field, rows: list[Mapping[str, object]], stored: StoredValues
    ) -> pa.Array:
        """Return one column, with null where a value does not fit."""
        values = [row.get(field.name) for row in rows]
        try:
            return pa.array(values, field.type)
        except _MISFITS:
            pass
        if self._is_json:
            values = [_fitting(value, field.type) for value in values]
            try:
                return pa.array(values, field.type)
            except _MISFITS:
                pass
        for row, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except _MISFITS as error:
                values[row] = None
                stored.unfit.setdefault(
                    row,
                    f"a value is not of the topic's schema: field {field.name}: {error}",
                )
        return pa.array(values, field.type)


class _Real(float):
    """A JSON number together with its text."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> "_Real":
        made = super().__new__(cls, text)
        made.text = text
        return made


def _fitting(value: object, kind: pa.DataType) -> object:
    """Convert a parsed JSON value for a column of this type."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else _text(value)
    if pa.types.is_floating(kind) and isinstance(value, str):
        return _NOT_NUMBERS.get(value, value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {each.name: _fitting(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_fitting(each, kind.value_type) for each in value]
    if pa.types.is_map(kind) and isinstance(value, dict):
        return {name: _fitting(each, kind.item_type) for name, each in value.items()}
    return value


def _text(value: object) -> str:
    if isinstance(value, _Real):
        return value.text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _objects(values: Sequence[Part]) -> bytes | None:
    """Return one value per line; None if not every value is certainly one object.

    One value may be two objects and another none, which would shift the rows between them.
    """
    text = b"\n".join(values)
    is_sure = (
        text.startswith(b"{") and text.endswith(b"}") and text.count(b"}\n{") == len(values) - 1
    )
    return text if is_sure else None


def _unfit(value: Part, problem: str) -> str:
    return f"a value is {problem}: {bytes(value[:_VALUE_CHARACTERS_MAX])!r}"
