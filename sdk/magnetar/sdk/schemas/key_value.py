"""KEY_VALUE schemas: a pair of schemas, with the key in the payload or as the message's own key.

Definition, big-endian: int32 size and definition of the key, then int32 size and definition of the
value; the rest is in properties. Payload INLINE: int32 size (-1: none) and bytes of the key, then
of the value. Payload SEPARATED: the value alone; the key is the message's, as bytes. A missing
value or key is marked in the message's metadata (`null_value`, `null_partition_key`).
"""

import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic

from typing_extensions import TypeVar

from magnetar.sdk.errors import SchemaDefinitionError, SchemaValueError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType

K = TypeVar("K")
V = TypeVar("V")

_SIZE = struct.Struct(">i")
ENCODING_PROPERTY = "kv.encoding.type"


class KeyValueEncoding(StrEnum):
    """Where the key of a pair is sent: in the payload, or as the message's key."""

    INLINE = "INLINE"
    SEPARATED = "SEPARATED"


@dataclass(frozen=True, slots=True)
class KeyValue(Generic[K, V]):
    """A key and a value; either may be missing."""

    key: K | None
    value: V | None


class KeyValueSchema(Schema[KeyValue[K, V]], Generic[K, V]):
    """A schema for pairs, made of the schemas of key and value."""

    def __init__(
        self,
        key: Schema[K],
        value: Schema[V],
        encoding: KeyValueEncoding = KeyValueEncoding.INLINE,
    ) -> None:
        self._key, self._value, self._encoding = key, value, encoding
        parts = {"key": _info(key), "value": _info(value)}
        properties = {ENCODING_PROPERTY: encoding.value}
        for side, part in parts.items():
            properties[f"{side}.schema.name"] = part.name
            properties[f"{side}.schema.type"] = part.type.value
            properties[f"{side}.schema.properties"] = json.dumps(dict(part.properties))
        definition = b"".join(
            _SIZE.pack(len(part.definition)) + part.definition for part in parts.values()
        )
        self.info = SchemaInfo(SchemaType.KEY_VALUE, definition, properties)

    def for_topic(self) -> "KeyValueSchema[K, V]":
        return KeyValueSchema(self._key.for_topic(), self._value.for_topic(), self._encoding)

    def encode(self, value: KeyValue[K, V]) -> bytes:
        if not isinstance(value, KeyValue):
            raise SchemaValueError(f"expected a KeyValue, got {type(value).__name__}")
        raw = None if value.value is None else self._value.encode(value.value)
        if self._is_separated:
            return raw or b""
        key = None if value.key is None else self._key.encode(value.key)
        return b"".join(
            _SIZE.pack(-1) if part is None else _SIZE.pack(len(part)) + part for part in (key, raw)
        )

    def encode_key(self, value: KeyValue[K, V]) -> bytes | None:
        if not self._is_separated or value.key is None:
            return None
        return self._key.encode(value.key)

    def is_null(self, value: KeyValue[K, V] | None) -> bool:
        return value is None or (self._is_separated and value.value is None)

    def is_null_key(self, value: KeyValue[K, V]) -> bool:
        return self._is_separated and value.key is None

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> KeyValue[K, V]:
        raw: bytes | None = data
        if not self._is_separated:
            key, at = _cut(data, 0)
            raw, at = _cut(data, at)
            if at != len(data):
                raise SchemaValueError(f"{len(data) - at} bytes behind a KEY_VALUE payload")
        return KeyValue(
            None if key is None else self._key.decode(key, version),
            None if raw is None else self._value.decode(raw, version),
        )

    def decode_null(self, version: bytes = b"", key: bytes | None = None) -> KeyValue[K, V] | None:
        """Return a pair without its value. With SEPARATED the message still has the key; None with
        INLINE."""
        if not self._is_separated:
            return None
        return KeyValue(None if key is None else self._key.decode(key, version), None)

    @property
    def _is_separated(self) -> bool:
        return self._encoding is KeyValueEncoding.SEPARATED

    def is_missing(self, version: bytes) -> bool:
        return self._key.is_missing(version) or self._value.is_missing(version)

    def add_version(self, version: bytes, info: SchemaInfo) -> None:
        key, value, _ = split_info(info)
        self._key.add_version(version, key)
        self._value.add_version(version, value)


def split_info(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo, KeyValueEncoding]:
    """Return the two schemas of a KEY_VALUE schema, and its encoding.

    Raises:
        SchemaDefinitionError: the schema is not a valid KEY_VALUE schema.
    """
    if info.type is not SchemaType.KEY_VALUE:
        raise SchemaDefinitionError(f"expected a KEY_VALUE schema, got {info.type.value}")
    try:
        key, at = _cut(info.definition, 0)
        value, _ = _cut(info.definition, at)
        found = {}
        for side, raw in (("key", key), ("value", value)):
            found[side] = SchemaInfo(
                SchemaType(info.properties[f"{side}.schema.type"]),
                raw or b"",
                json.loads(info.properties.get(f"{side}.schema.properties") or "{}"),
                info.properties.get(f"{side}.schema.name", ""),
            )
        encoding = KeyValueEncoding(info.properties.get(ENCODING_PROPERTY, "INLINE"))
    except (KeyError, ValueError, SchemaValueError) as error:
        raise SchemaDefinitionError(f"invalid KEY_VALUE schema: {error}") from error
    return found["key"], found["value"], encoding


def _info(schema: Schema[K]) -> SchemaInfo:
    info = schema.info or SchemaInfo(SchemaType.BYTES)
    return info if info.name else SchemaInfo(info.type, info.definition, info.properties, info.type)


def _cut(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the part whose size stands at `at`, and the offset of the next one."""
    try:
        size: int = _SIZE.unpack_from(data, at)[0]
    except struct.error as error:
        raise SchemaValueError(f"KEY_VALUE: no size at {at} of {len(data)} bytes") from error
    at += _SIZE.size
    if size == -1:
        return None, at
    if not 0 <= size <= len(data) - at:
        raise SchemaValueError(f"KEY_VALUE: a part of {size} bytes at {at} of {len(data)} bytes")
    return data[at : at + size], at + size
