"""Base of schemas: values to bytes and back, and what the client tells the broker of them. Pure.

A producer or consumer gets its own copy of a `Schema` from `for_topic`, which knows the versions of
one topic. Definitions of other versions come from the broker: `schema_versions.py` checks
`is_missing` first, and passes them to `add_version`.
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
    """Types of schemas, by the names that Pulsar's tools use."""

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
    """A schema as the broker knows it: type, definition, properties."""

    type: SchemaType
    definition: bytes = b""
    """Definition as JSON in Avro's form for AVRO and JSON; empty for primitive types."""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    """Name shown by tools only; empty for the name of the type."""

    def to_wire(self) -> pb.Schema:
        """Return the schema as part of a command."""
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
        """Read the schema from a command.

        Raises:
            SchemaVersionError: the type is one that this client does not know.
        """
        kind = _TYPES.get(schema.type)
        if kind is None:
            raise SchemaVersionError(f"unknown schema type {schema.type}")
        properties = {pair.key: pair.value for pair in _pairs(schema)}
        return cls(kind, schema.schema_data, properties, schema.name)


def _pairs(schema: pb.Schema) -> MutableSequence[pb.KeyValue]:
    """Return the schema's properties. The cast is needed because type checkers resolve the name to
    an enumerator of `Schema`."""
    return cast("MutableSequence[pb.KeyValue]", schema.properties)


class Schema(Generic[T]):
    """Converts values of `T` to bytes and back. The defaults here fit plain bytes; subclasses
    override what differs."""

    info: SchemaInfo | None = None
    """Schema to register with the broker; None to register nothing, as for bytes."""
    takes_topic_schema = False
    """Whether `adopt` must get the topic's own schema before a producer is made with this one."""

    def for_topic(self) -> "Schema[T]":
        """Return a copy that keeps the versions of one topic; the schema itself if it keeps
        none."""
        return self

    def encode(self, value: T) -> bytes:
        """Return the payload of a value.

        Raises:
            SchemaValueError: the value does not fit.
        """
        raise NotImplementedError

    def encode_key(self, value: T) -> bytes | None:
        """Return the message's key, if the schema makes one from the value (KEY_VALUE,
        SEPARATED)."""
        return None

    def is_null(self, value: T | None) -> bool:
        """Whether the message of a value is marked as having none; its payload is then empty."""
        return value is None

    def is_null_key(self, value: T) -> bool:
        """Whether the value lacks the key that the message would have (KEY_VALUE, SEPARATED)."""
        return False

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> T:
        """Return the value of a payload; `version` is the message's `schema_version`, unchanged.

        Raises:
            SchemaValueError: the payload does not fit.
            SchemaVersionError: the definition of that version `is_missing`.
        """
        raise NotImplementedError

    def check(self, data: bytes) -> None:
        """Check that consumers can read a payload.

        Raises:
            SchemaValueError: they cannot.
        """
        self.decode(data)

    def decode_null(self, version: bytes = b"", key: bytes | None = None) -> T | None:
        """Return the value of a message that is marked as having none.

        Raises:
            SchemaValueError, SchemaVersionError: the key does not fit (KEY_VALUE, SEPARATED).
        """
        return None

    def is_missing(self, version: bytes) -> bool:
        """Whether `decode` needs the definition of a version and does not have it yet."""
        return False

    def add_version(self, version: bytes, info: SchemaInfo) -> None:
        """Take the definition of a version, from the broker.

        Raises:
            SchemaVersionError: messages of that version cannot be read with this schema.
        """

    def adopt(self, info: SchemaInfo | None) -> None:
        """Take the topic's own schema for a producer with `takes_topic_schema`; None if the topic
        has none."""


class VersionedSchema(Schema[T]):
    """A schema whose payloads can only be read with the definition they were written with."""

    VERSIONS_MAX = 1_000
    """Definitions that are kept. At this bound all are forgotten, and requested again."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def is_missing(self, version: bytes) -> bool:
        return bool(version) and version not in self._known

    def _remember(self, version: bytes) -> None:
        """Record a version; called by `add_version` before it stores the parsed definition."""
        if len(self._known) >= self.VERSIONS_MAX:
            self._known.clear()
            self._forget_versions()
        self._known.add(version)

    def _forget_versions(self) -> None:
        """Forget all definitions, because there are `VERSIONS_MAX`."""

    def _check_version(self, version: bytes) -> None:
        if self.is_missing(version):
            raise SchemaVersionError(
                f"the definition of schema version {version.hex()} is not loaded: call `await "
                "consumer.load_schemas(messages)`"
            )
