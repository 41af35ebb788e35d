"""JSON: values as JSON text, described by an Avro definition, as Pulsar does since 2.1."""

import json
from collections.abc import Mapping

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType, T
from magnetar.sdk.schemas.records import shape_of


class JsonSchema(Schema[T]):
    """Of a dataclass or a pydantic model.

    Payloads are what pydantic makes of the value: bytes as text, an Enum by its value, times in
    ISO 8601. Fields that a message does not have get their defaults; those that the class does not
    know are passed over, so no version has to be looked up. A field is written, defined and read by
    its `serialization_alias` (or `alias`); what comes by a `validation_alias` is read, too.
    """

    def __init__(self, kind: type[T], *, namespace: str = "") -> None:
        """
        Raises:
            SchemaDefinitionError: the class has fields that Avro cannot describe, or that it would
                not read by any name (an AliasPath).
        """
        shape = shape_of(kind, namespace=namespace, as_json=True)
        self.info = SchemaInfo(SchemaType.JSON, json.dumps(shape.avro).encode())
        self._renamed = shape.renamed
        self._kind = kind
        self._adapter = TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._kind):
            raise SchemaValueError(
                f"a {self._kind.__name__} was expected, not {type(value).__name__}"
            )
        try:
            return self._adapter.dump_json(value, by_alias=True, warnings="error")
        except PydanticSerializationError as error:
            raise SchemaValueError(f"{self._kind.__name__}: {error}") from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> T:
        try:
            if self._renamed is not None:
                # As JSON again: pydantic makes of JSON what it does not of Python's values.
                data = json.dumps(self._renamed(json.loads(data))).encode()
            return self._adapter.validate_json(data)
        except (ValueError, RecursionError) as error:  # A ValidationError is a ValueError.
            raise SchemaValueError(
                f"a payload that is no {self._kind.__name__}: {error}"
            ) from error


class JsonObjectSchema(Schema[object]):
    """JSON of a definition that is given, or found in the topic: values are what `json` makes."""

    def __init__(self, definition: Mapping[str, object] | bytes) -> None:
        raw = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
        self.info = SchemaInfo(SchemaType.JSON, raw)

    def encode(self, value: object) -> bytes:
        try:
            return json.dumps(value).encode()
        except (TypeError, ValueError) as error:
            raise SchemaValueError(f"a value that JSON cannot hold: {error}") from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> object:
        try:
            found: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SchemaValueError(f"a payload that is no JSON: {error}") from error
        return found
