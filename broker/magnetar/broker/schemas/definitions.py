"""Parsed definitions: what compatibility checks compare, and the fingerprint of equal ones.
Pure."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from magnetar.broker.schemas import avro, key_value, protobuf_native
from magnetar.broker.schemas.avro import AvroType
from magnetar.broker.schemas.errors import InvalidSchemaError
from magnetar.broker.schemas.model import PRIMITIVES, WITH_AVRO, SchemaData, SchemaType
from magnetar.broker.schemas.protobuf_native import ProtobufDefinition


@dataclass(frozen=True, slots=True)
class JsonSchemaObject:
    """A JSON schema of Java clients before 2.1: a JSON Schema, and no Avro definition."""

    id: str


@dataclass(frozen=True, slots=True)
class KeyValueDefinition:
    key: "Definition"
    value: "Definition"
    encoding: str


Body = AvroType | JsonSchemaObject | ProtobufDefinition | KeyValueDefinition | None


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A schema with a valid definition."""

    type: SchemaType
    body: Body
    """Parsed definition. None if the type says all, or if this broker cannot interpret the type."""
    fingerprint: str
    """Hash that is equal for equal schemas: those that differ only in white space, in the order of
    attributes or in docs. It is stored in metadata, so its computation must never change."""


def parse(schema: SchemaData) -> Definition:
    """Parse the definition of a schema.

    Raises:
        InvalidSchemaError: the definition is not valid for its type; it must not be stored.
    """
    kind, data = schema.type, schema.data
    if kind in WITH_AVRO:
        return _of_avro(kind, data)
    if kind is SchemaType.PROTOBUF_NATIVE:
        found = protobuf_native.parse(data)
        return Definition(kind, found, _fingerprint(kind, found.canonical))
    if kind is SchemaType.KEY_VALUE:
        return _of_key_value(schema)
    if kind in PRIMITIVES:
        _check_primitive(kind, data)
        return Definition(kind, None, _fingerprint(kind, b""))
    return Definition(kind, None, _fingerprint(kind, data))


def _of_avro(kind: SchemaType, data: bytes) -> Definition:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the {kind} schema is not JSON: {error}") from error
    body: Body
    if kind is SchemaType.JSON and isinstance(found, dict) and found.get("type") == "object":
        body = JsonSchemaObject(str(found.get("id", "")))
    else:
        body = avro.parse(found)
    canonical = json.dumps(_without_docs(found), sort_keys=True, separators=(",", ":"))
    return Definition(kind, body, _fingerprint(kind, canonical.encode()))


def _of_key_value(schema: SchemaData) -> Definition:
    parts = key_value.parts_of(schema)
    key, value = parse(parts.key), parse(parts.value)
    body = KeyValueDefinition(key, value, parts.encoding)
    canonical = f"{key.fingerprint} {value.fingerprint} {parts.encoding}".encode()
    return Definition(schema.type, body, _fingerprint(schema.type, canonical))


def _check_primitive(kind: SchemaType, data: bytes) -> None:
    if kind in (SchemaType.STRING, SchemaType.BYTES, SchemaType.NONE):
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise InvalidSchemaError(f"the definition of {kind} is not text: {error}") from error
    elif data not in (b"", b"null"):
        raise InvalidSchemaError(f"{kind} has no definition, only a name")


def _without_docs(found: Any) -> Any:
    """Return a definition without its `doc` attributes; values of defaults stay as they are."""
    if isinstance(found, list):
        return [_without_docs(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {
        name: value if name == "default" else _without_docs(value)
        for name, value in found.items()
        if name != "doc"
    }


def _fingerprint(kind: SchemaType, canonical: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + canonical).hexdigest()
