"""Schema types with their names and numbers, and a schema as clients send it. Pure.

Source: binary sheet, sections 4 and 13; HTTP sheet, section 10.
"""

from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

from magnetar.broker.schemas.errors import InvalidSchemaError
from magnetar.sdk.wire import pulsar_pb2 as pb


class SchemaType(StrEnum):
    """Schema types under the names of Pulsar's tools. They are stored under these names: never
    rename one."""

    NONE = "NONE"
    """Sent by clients that declare no schema, as Go's does for bytes; counts as a type of its
    own."""
    BYTES = "BYTES"
    """Type of a part of KEY_VALUE only: a topic of bytes has no schema."""
    STRING = "STRING"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"
    """Protobuf messages, described by an Avro definition."""
    AVRO = "AVRO"
    BOOLEAN = "BOOLEAN"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    KEY_VALUE = "KEY_VALUE"
    INSTANT = "INSTANT"
    LOCAL_DATE = "LOCAL_DATE"
    LOCAL_TIME = "LOCAL_TIME"
    LOCAL_DATE_TIME = "LOCAL_DATE_TIME"
    PROTOBUF_NATIVE = "PROTOBUF_NATIVE"
    EXTERNAL = "EXTERNAL"
    """Kept in a registry outside the broker."""


_NUMBERS: Final = {
    SchemaType.NONE: pb.Schema.NoSchema,
    SchemaType.STRING: pb.Schema.String,
    SchemaType.JSON: pb.Schema.Json,
    SchemaType.PROTOBUF: pb.Schema.Protobuf,
    SchemaType.AVRO: pb.Schema.Avro,
    SchemaType.BOOLEAN: pb.Schema.Bool,
    SchemaType.INT8: pb.Schema.Int8,
    SchemaType.INT16: pb.Schema.Int16,
    SchemaType.INT32: pb.Schema.Int32,
    SchemaType.INT64: pb.Schema.Int64,
    SchemaType.FLOAT: pb.Schema.Float,
    SchemaType.DOUBLE: pb.Schema.Double,
    SchemaType.DATE: pb.Schema.Date,
    SchemaType.TIME: pb.Schema.Time,
    SchemaType.TIMESTAMP: pb.Schema.Timestamp,
    SchemaType.KEY_VALUE: pb.Schema.KeyValue,
    SchemaType.INSTANT: pb.Schema.Instant,
    SchemaType.LOCAL_DATE: pb.Schema.LocalDate,
    SchemaType.LOCAL_TIME: pb.Schema.LocalTime,
    SchemaType.LOCAL_DATE_TIME: pb.Schema.LocalDateTime,
    SchemaType.PROTOBUF_NATIVE: pb.Schema.ProtobufNative,
    SchemaType.EXTERNAL: pb.Schema.External,
}
_TYPES: Final = {int(number): kind for kind, number in _NUMBERS.items()}

WITH_AVRO: Final = frozenset((SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF))
"""Types with an Avro definition."""

PRIMITIVES: Final = frozenset(SchemaType) - {
    *WITH_AVRO,
    SchemaType.KEY_VALUE,
    SchemaType.PROTOBUF_NATIVE,
    SchemaType.EXTERNAL,
}
"""Types without a definition: the name says all."""


@dataclass(frozen=True, slots=True)
class SchemaData:
    """A schema: its type, its definition as the client wrote it, its properties."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of the definition and its properties."""
        properties = self.properties.items()
        return len(self.data) + sum(len(key) + len(value) for key, value in properties)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    """Number of the version; 0 for the first one."""
    timestamp_ms: int
    schema: SchemaData


def schema_of_wire(schema: pb.Schema) -> SchemaData:
    """Return the schema in a command.

    Raises:
        InvalidSchemaError: the type is not a data type, or a property is not UTF-8.
    """
    kind = _TYPES.get(schema.type)
    if kind is None:
        raise InvalidSchemaError(f"{pb.Schema.Type.Name(schema.type)} is not a data type")
    properties = {each.key: each.value for each in _pairs(schema)}
    for text in (*properties, *properties.values()):
        if not isinstance(text, str):  # Protobuf returns bytes for text that is not UTF-8.
            raise InvalidSchemaError("a property of the schema is not valid UTF-8")
    return SchemaData(kind, schema.schema_data, properties)


def wire_of_schema(schema: SchemaData, name: str) -> pb.Schema:
    """Return the schema as a part of a command. `name` is the topic's, as tenant/namespace/name."""
    found = pb.Schema(name=name, schema_data=schema.data, type=_NUMBERS[schema.type])
    _pairs(found).extend(
        pb.KeyValue(key=key, value=value) for key, value in schema.properties.items()
    )
    return found


def _pairs(schema: pb.Schema) -> MutableSequence[pb.KeyValue]:
    """Return the properties of a schema. The cast is for the type checker, which takes the field
    for the enumerator `properties` of Schema."""
    return cast("MutableSequence[pb.KeyValue]", schema.properties)


def version_to_bytes(version: int) -> bytes:
    """Encode a version as in commands and messages: a signed long, big-endian."""
    return version.to_bytes(8, "big", signed=True)


def version_of_bytes(value: bytes) -> int:
    """Decode a version.

    Raises:
        InvalidSchemaError: the value is not 8 bytes long, so this broker did not make it.
    """
    if len(value) != 8:
        raise InvalidSchemaError(f"the schema version has {len(value)} bytes, expected 8")
    return int.from_bytes(value, "big", signed=True)
