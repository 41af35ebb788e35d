"""Schemas of the topic: AUTO_CONSUME to read, AUTO_PRODUCE to write, AutoText for text."""

from collections.abc import Callable
from functools import partial
from typing import cast

from magnetar.sdk.errors import SchemaDefinitionError, SchemaValueError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType, VersionedSchema
from magnetar.sdk.schemas.key_value import KeyValueSchema, split_info
from magnetar.sdk.schemas.primitives import BYTES, PRIMITIVES, STRING
from magnetar.sdk.schemas.record_schemas import AvroObjectSchema, JsonObjectSchema, parse_json


def schema_of(info: SchemaInfo) -> Schema[object]:
    """Return the schema for a definition from the broker; its records are dicts.

    Raises:
        SchemaDefinitionError: this client cannot read the type (PROTOBUF, EXTERNAL, …).
    """
    if info.type is SchemaType.BYTES:
        return cast("Schema[object]", BYTES)
    if info.type in PRIMITIVES:
        return PRIMITIVES[info.type]
    if info.type is SchemaType.JSON:
        return JsonObjectSchema(info.definition)
    if info.type is SchemaType.AVRO:
        return AvroObjectSchema(info.definition)
    if info.type is SchemaType.KEY_VALUE:
        key, value, encoding = split_info(info)
        pair = KeyValueSchema(schema_of(key), schema_of(value), encoding)
        return cast("Schema[object]", pair)
    raise SchemaDefinitionError(f"messages with a {info.type.value} schema cannot be decoded")


class AutoConsumeSchema(VersionedSchema[object]):
    """Decodes each message with the schema it was written with; a message without one is bytes.

    The consumer sends the broker no schema: the broker would check nothing, and older ones do not
    know this type.
    """

    def __init__(self) -> None:
        super().__init__()
        self._schemas: dict[bytes, Schema[object]] = {}

    def for_topic(self) -> "AutoConsumeSchema":
        return AutoConsumeSchema()

    def encode(self, value: object) -> bytes:
        raise SchemaValueError("AUTO_CONSUME only decodes; use AUTO_PRODUCE to publish")

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> object:
        if not version:
            return data
        self._check_version(version)
        return self._schemas[version].decode(data, b"", key)

    def decode_null(self, version: bytes = b"", key: bytes | None = None) -> object:
        if not version:
            return None
        self._check_version(version)
        return self._schemas[version].decode_null(b"", key)

    def add_version(self, version: bytes, info: SchemaInfo) -> None:
        schema = schema_of(info)
        self._remember(version)
        self._schemas[version] = schema

    def _forget_versions(self) -> None:
        self._schemas.clear()


class AutoProduceSchema(Schema[bytes]):
    """Takes encoded payloads, and checks them against the topic's own schema."""

    takes_topic_schema = True

    def __init__(self) -> None:
        self._schema: Schema[object] | None = None

    def for_topic(self) -> "AutoProduceSchema":
        return AutoProduceSchema()

    def adopt(self, info: SchemaInfo | None) -> None:
        if info is not None:
            self.info, self._schema = info, schema_of(info)

    def encode(self, value: bytes) -> bytes:
        BYTES.encode(value)
        if self._schema is not None:
            self._schema.check(value)
        return value

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> bytes:
        return data


class AutoTextSchema(Schema[bytes]):
    """Encodes text that people write, as UTF-8, by the topic's own schema.

    AVRO takes JSON: an object with the fields of the record, and nothing else. JSON takes an
    object, numbers take JSON, STRING takes any text. A topic without a schema takes the bytes as
    they are. Schemas whose values have no usual text (times, KEY_VALUE, PROTOBUF, …) take nothing.
    """

    takes_topic_schema = True

    def __init__(self) -> None:
        self._encode: Callable[[bytes], bytes] | None = None

    def for_topic(self) -> "AutoTextSchema":
        return AutoTextSchema()

    def adopt(self, info: SchemaInfo | None) -> None:
        if info is None or info.type is SchemaType.BYTES:
            return
        self.info = info
        try:
            self._encode = _text_encoder(info)
        except SchemaDefinitionError as error:  # AVRO without its package: reported for each text
            self._encode = partial(_refuse, f"it takes no text here: {error}")

    def encode(self, value: bytes) -> bytes:
        BYTES.encode(value)
        if self._encode is None:
            return value
        try:
            return self._encode(value)
        except SchemaValueError as error:
            assert self.info is not None
            raise SchemaValueError(
                f"the topic's schema is {self.info.type.value}: {error}"
            ) from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> bytes:
        return data


_NUMBERS = (
    SchemaType.BOOLEAN,
    SchemaType.INT8,
    SchemaType.INT16,
    SchemaType.INT32,
    SchemaType.INT64,
    SchemaType.FLOAT,
    SchemaType.DOUBLE,
)


def _text_encoder(info: SchemaInfo) -> Callable[[bytes], bytes]:
    """Return the function that encodes text by a schema.

    Raises:
        SchemaDefinitionError: AVRO, and its package is not installed.
    """
    if info.type is SchemaType.AVRO:
        avro = AvroObjectSchema(info.definition)
        return lambda text: avro.encode_strictly(parse_json(text))
    if info.type is SchemaType.STRING:
        return lambda text: STRING.encode(STRING.decode(text))
    if info.type is SchemaType.JSON:
        return _json_object
    if info.type in _NUMBERS:
        number = PRIMITIVES[info.type]
        return lambda text: number.encode(parse_json(text))
    return partial(_refuse, "its values have no usual text; publish bytes that are encoded already")


def _json_object(text: bytes) -> bytes:
    if not isinstance(parse_json(text), dict):
        raise SchemaValueError("expected an object")
    return text


def _refuse(why: str, text: bytes) -> bytes:
    raise SchemaValueError(why)
