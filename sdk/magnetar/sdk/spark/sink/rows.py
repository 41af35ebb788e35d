"""Maps the columns of a query to the parts of a message; decided once, on the driver.

Rows are already encoded when a producer gets them. Its schema (`RowSchema`) only registers the
definition at the broker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from magnetar.arrow.stored.column_names import (
    ERROR,
    EVENT_TIME,
    KEY,
    MESSAGE_ID,
    NULL_VALUE,
    PROPERTIES,
    PUBLISH_TIME,
    TOPIC,
    VALUE,
)
from magnetar.sdk import Client, Producer, ProducerSettings
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType
from magnetar.sdk.spark.errors import OptionError, SchemaMismatchError
from magnetar.sdk.spark.sink.field_encoding import encode_avro, encode_json, schema_definition
from magnetar.sdk.spark.sink.items import Messages, as_binary
from magnetar.sdk.spark.sink.options import Encoding, SinkOptions


class RowSchema(Schema[bytes]):
    """A schema whose values the sink has already encoded by the definition in `info`."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info

    def encode(self, value: bytes) -> bytes:
        return value


async def make_producer(
    client: Client, topic: str, settings: ProducerSettings, schema: RowSchema | None
) -> Producer:
    """Create a producer, with the schema if there is one.

    Raises:
        SdkError: as `Client.producer`; IncompatibleSchemaError.
    """
    if schema is None:
        return await client.producer(topic, settings)
    return await client.producer(topic, settings, schema=schema)


_SET_BY_BROKERS = (MESSAGE_ID, PUBLISH_TIME, ERROR)
"""Columns of the source that are ignored: a new message gets its own, or they concern reading
alone.
"""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How the rows of one query are encoded."""

    encoding: Encoding
    fields: tuple[str, ...]
    """Columns that make the value; (`value`,) if the value is not encoded."""
    has_key: bool
    has_topic: bool
    has_event_time: bool
    has_properties: bool
    has_null_values: bool
    """Whether a column says which messages have no value."""
    schema: RowSchema | None
    """Schema that the topic gets; None if it gets none."""

    def messages(self, batch: pa.RecordBatch) -> Messages:
        """Convert a batch of rows.

        Raises:
            SchemaMismatchError: a value that the encoding cannot represent.
        """
        return Messages(
            value=self._values(batch),
            key=as_binary(batch.column(KEY)) if self.has_key else None,
            event_time_ms=_milliseconds(batch.column(EVENT_TIME)) if self.has_event_time else None,
            properties=batch.column(PROPERTIES) if self.has_properties else None,
        )

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.encoding is Encoding.VALUE:
            values = as_binary(batch.column(VALUE))
        else:
            columns = [(name, batch.column(name)) for name in self.fields]
            encode = encode_json if self.encoding is Encoding.JSON else encode_avro
            values = encode(columns)
        if not self.has_null_values:
            return values
        is_null = pc.fill_null(batch.column(NULL_VALUE), False)
        return pc.if_else(is_null, pa.scalar(None, values.type), values)


def plan_rows(schema: StructType, options: SinkOptions) -> RowPlan:
    """Check the columns, and decide how rows are encoded.

    Raises:
        SchemaMismatchError: columns that have the wrong type, are missing, or have no place.
        OptionError: the rows have no topic, or `sortBy` names a missing column.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        raise SchemaMismatchError("two columns have the same name")
    _check_type(types, KEY, (BinaryType, StringType), "binary or string")
    _check_type(types, TOPIC, (StringType,), "string")
    _check_type(types, EVENT_TIME, (TimestampType,), "timestamp")
    _check_type(types, NULL_VALUE, (BooleanType,), "boolean")
    if PROPERTIES in types and not _is_text_map(types[PROPERTIES]):
        raise _wrong_type(PROPERTIES, types[PROPERTIES], "map<string,string>")
    if TOPIC not in types and not options.topic:
        raise OptionError("topic", f"it is required where rows have no column {TOPIC}")
    for name in options.sort_by:
        if name not in types:
            raise OptionError("sortBy", f"the rows have no column {name}")
    known = (KEY, TOPIC, EVENT_TIME, PROPERTIES, NULL_VALUE, *_SET_BY_BROKERS)
    rest = tuple(name for name in types if name not in known)
    for name in rest:
        if name.startswith("__"):
            raise SchemaMismatchError(
                f"a message has no field for column {name}; besides the value, there are "
                f"{', '.join(known[:5])}"
            )
    return RowPlan(
        encoding=options.encoding,
        fields=_value_fields(types, rest, options.encoding),
        has_key=KEY in types,
        has_topic=TOPIC in types,
        has_event_time=EVENT_TIME in types,
        has_properties=PROPERTIES in types,
        has_null_values=NULL_VALUE in types,
        schema=_row_schema(options, [(name, types[name]) for name in rest]),
    )


def _row_schema(options: SinkOptions, fields: Sequence[tuple[str, DataType]]) -> RowSchema | None:
    if options.encoding is Encoding.VALUE:
        return None
    definition = schema_definition(options.schema_name, fields, options.encoding)
    kind = SchemaType(options.encoding.value.upper())
    return RowSchema(SchemaInfo(kind, definition.encode()))


def _value_fields(
    types: dict[str, DataType], rest: tuple[str, ...], encoding: Encoding
) -> tuple[str, ...]:
    if encoding is not Encoding.VALUE:
        if not rest:
            raise SchemaMismatchError("the rows have no column for the value")
        return rest
    if rest != (VALUE,):
        raise SchemaMismatchError(
            f"without option schema a row has one column {VALUE}, and here are "
            f"{', '.join(rest) or 'none'}: name it so, or give schema=json or schema=avro"
        )
    _check_type(types, VALUE, (BinaryType, StringType), "binary or string")
    return rest


def _check_type(
    types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], what: str
) -> None:
    if name in types and not isinstance(types[name], allowed):
        raise _wrong_type(name, types[name], what)


def _is_text_map(found: DataType) -> bool:
    return (
        isinstance(found, MapType)
        and isinstance(found.keyType, StringType)
        and isinstance(found.valueType, StringType)
    )


def _wrong_type(name: str, found: DataType, expected: str) -> SchemaMismatchError:
    return SchemaMismatchError(f"column {name} is {found.simpleString()}; expected is {expected}")


def _milliseconds(times: pa.Array) -> pa.Array:
    """Return timestamps as int64 milliseconds since 1970, rounded down: messages have no finer
    ones."""
    # Without the zone, which changes no instant. A cast alone would round times before 1970 up.
    instants = times.view(pa.timestamp(times.type.unit))
    floored = pc.floor_temporal(instants, unit="millisecond")
    return pc.cast(pc.cast(floored, pa.timestamp("ms")), pa.int64())
