"""What a schema is: values to bytes and back, and what the broker is told of it. Pure.

A `Schema` belongs to nobody until `for_topic` has given a copy to a producer or consumer: a copy
knows the versions of one topic. Definitions of other versions come from the broker; who does the
asking (`schema_versions.py`) looks at `is_missing` first and hands them in by `add_version`.
"""

from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Self, cast

from typing_extensions import TypeVar

from magnetar.sdk.errors import SchemaVersionError
from magnetar.sdk.wire import pulsar_pb2 as pb

T = TypeVar("T", default=bytes)


class SchemaType(StrEnum):
    """As Pulsar's tools name them."""

    BYTES = "BYTES"
    STRING = "STRING"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"
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


_NUMBERS = {
    SchemaType.BYTES: pb.Schema.NoSchema,
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
_TYPES = {int(number): kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as the broker knows it: its type, its definition, its properties."""

    type: SchemaType
    definition: bytes = b""
    """Of AVRO and JSON the Avro definition, as JSON; of primitive types nothing."""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    """Shown by tools only; empty: the name of the type."""

    def to_wire(self) -> pb.Schema:
        """As a part of a command."""
        found = pb.Schema(
            name=self.name or self.type.value,
            schema_data=self.definition,
            type=_NUMBERS[self.type],
        )
        _pairs(found).extend(
            pb.KeyValue(key=key, value=value) for key, value in self.properties.items()
        )
        return found

    @classmethod
    def from_wire(cls, schema: pb.Schema) -> Self:
        """Out of a command.

        Raises:
            SchemaVersionError: a type that this client does not know.
        """
        kind = _TYPES.get(schema.type)
        if kind is None:
            raise SchemaVersionError(f"unknown schema type {schema.type}")
        properties = {pair.key: pair.value for pair in _pairs(schema)}
        return cls(kind, schema.schema_data, properties, schema.name)


def _pairs(schema: pb.Schema) -> MutableSequence[pb.KeyValue]:
    """The schema's properties. The cast is needed: type checkers take the name for the enumerator
    of that name in Schema."""
    return cast("MutableSequence[pb.KeyValue]", schema.properties)


class Schema(Generic[T]):
    """Values of `T` as bytes. What follows is of bytes themselves; others say what differs."""

    info: SchemaInfo | None = None
    """What the broker is told; None: nothing, as for bytes."""
    takes_topic_schema = False
    """Whether `adopt` wants the topic's own schema before a producer is made with it."""

    def for_topic(self) -> "Schema[T]":
        """A copy that keeps the versions of one topic; the schema itself if it keeps none."""
        return self

    def encode(self, value: T) -> bytes:
        """The payload.

        Raises:
            SchemaValueError: the value does not fit.
        """
        raise NotImplementedError

    def encode_key(self, value: T) -> bytes | None:
        """The message's key, if the schema makes one out of the value (KEY_VALUE, SEPARATED)."""
        return None

    def is_null(self, value: T | None) -> bool:
        """Whether the message of this value has none, and says so: its payload is empty then."""
        return value is None

    def is_null_key(self, value: T) -> bool:
        """Whether the value lacks the key that the message would have (KEY_VALUE, SEPARATED)."""
        return False

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> T:
        """The value of a payload; `version` is the message's `schema_version`, as it is there.

        Raises:
            SchemaValueError: the payload does not fit.
            SchemaVersionError: the definition of that version `is_missing`.
        """
        raise NotImplementedError

    def check(self, data: bytes) -> None:
        """Whether others can read a payload, too.

        Raises:
            SchemaValueError: they cannot.
        """
        self.decode(data)

    def decode_null(self, version: bytes = b"", key: bytes | None = None) -> T | None:
        """The value of a message that says it has none.

        Raises:
            SchemaValueError, SchemaVersionError: the key does not fit (KEY_VALUE, SEPARATED).
        """
        return None

    def is_missing(self, version: bytes) -> bool:
        """Whether `decode` needs the definition of this version, and has not got it yet."""
        return False

    def add_version(self, version: bytes, info: SchemaInfo) -> None:
        """The definition of a version, from the broker.

        Raises:
            SchemaVersionError: messages of that version cannot be read with this schema.
        """

    def adopt(self, info: SchemaInfo | None) -> None:
        """The topic's own schema, of a producer with `takes_topic_schema`; None: it has none."""


class VersionedSchema(Schema[T]):
    """A schema whose payloads can only be read with the definition they were written with."""

    VERSIONS_MAX = 1_000
    """Definitions that are kept; then all are forgotten and asked for again."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def is_missing(self, version: bytes) -> bool:
        return bool(version) and version not in self._known

    def _remember(self, version: bytes) -> None:
        """To be called by `add_version`, before it keeps what it has made of the definition."""
        if len(self._known) >= self.VERSIONS_MAX:
            self._known.clear()
            self._forget_versions()
        self._known.add(version)

    def _forget_versions(self) -> None:
        """The bound is reached."""

    def _check_version(self, version: bytes) -> None:
        if self.is_missing(version):
            raise SchemaVersionError(
                f"the definition of schema version {version.hex()} is not loaded: call `await "
                "consumer.load_schemas(messages)`"
            )
