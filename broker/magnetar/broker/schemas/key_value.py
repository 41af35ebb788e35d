"""KEY_VALUE schemas: two schemas in one. Pure.

    schema_data   length of the key's definition, int32 big-endian; the definition; the same of
                  the value
    properties    key.schema.name, key.schema.type, key.schema.properties (JSON), value.schema.*,
                  kv.encoding.type: SEPARATED (the key is the message's) or INLINE

Over HTTP the definition is {"key": ..., "value": ...}. Source: HTTP sheet, section 10.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

from magnetar.broker.schemas.errors import InvalidSchemaError
from magnetar.broker.schemas.model import SchemaData, SchemaType

ENCODING = "kv.encoding.type"
SEPARATED = "SEPARATED"
INLINE = "INLINE"

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class KeyValueParts:
    """The two schemas of a KEY_VALUE schema."""

    key: SchemaData
    value: SchemaData
    encoding: str


def parts_of(schema: SchemaData) -> KeyValueParts:
    """Split a KEY_VALUE schema into its parts.

    Raises:
        InvalidSchemaError: it is not a KEY_VALUE schema.
    """
    key, behind = _cut(schema.data, 0)
    value, end = _cut(schema.data, behind)
    if end != len(schema.data):
        raise InvalidSchemaError(
            f"the KEY_VALUE schema has {len(schema.data) - end} bytes too many"
        )
    encoding = schema.properties.get(ENCODING, INLINE)
    if encoding not in (SEPARATED, INLINE):
        raise InvalidSchemaError(f"{ENCODING} is {encoding[:100]!r}, not {SEPARATED} or {INLINE}")
    return KeyValueParts(_part(schema, "key", key), _part(schema, "value", value), encoding)


def joined(key: bytes, value: bytes) -> bytes:
    """Return the schema_data of two definitions."""
    return _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value


def data_of_text(text: str) -> bytes:
    """Return the schema_data of a definition in its HTTP form.

    Raises:
        InvalidSchemaError: the text is not an object with a key and a value.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the KEY_VALUE schema is not JSON: {error}") from error
    if not isinstance(found, dict) or not found.keys() >= {"key", "value"}:
        raise InvalidSchemaError('a KEY_VALUE schema is {"key": ..., "value": ...}')
    return joined(_bytes_of(found["key"]), _bytes_of(found["value"]))


def text_of_data(data: bytes) -> str:
    """Return the JSON text of a joined KEY_VALUE definition.

    Raises:
        InvalidSchemaError: the data is not a KEY_VALUE definition.
    """
    key, behind = _cut(data, 0)
    value, _ = _cut(data, behind)
    return json.dumps({"key": _json_of(key), "value": _json_of(value)})


def _cut(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the definition whose length is at `at`, and its end."""
    start = at + _LENGTH.size
    if start > len(data):
        raise InvalidSchemaError("the KEY_VALUE schema is cut off")
    (length,) = _LENGTH.unpack_from(data, at)
    length = max(0, length)  # A length of -1 means no definition.
    if start + length > len(data):
        raise InvalidSchemaError("the KEY_VALUE schema is cut off")
    return data[start : start + length], start + length


def _part(schema: SchemaData, part: str, data: bytes) -> SchemaData:
    name = schema.properties.get(f"{part}.schema.type", SchemaType.BYTES.value)
    try:
        kind = SchemaType(name)
    except ValueError:
        raise InvalidSchemaError(f"the {part} has a schema of type {name[:100]!r}") from None
    if kind is SchemaType.KEY_VALUE:
        raise InvalidSchemaError(f"the {part} of a KEY_VALUE schema is a KEY_VALUE schema itself")
    return SchemaData(kind, data)


def _bytes_of(value: Any) -> bytes:
    if value is None:
        return b""
    try:
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(f"the KEY_VALUE schema is not text: {error}") from error


def _json_of(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, (dict, list)) else text
