"""JSON: values as JSON text, described by an Avro definition, as Pulsar does since 2.1."""

import json
import math
import re
from collections.abc import Iterable, Mapping

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType, T
from magnetar.sdk.schemas.records import shape_of

_STAND_FOR_ODD = (b"null", b"NaN", b"Infinity")
"""What pydantic may write for numbers that JSON has no form for; in most payloads is none."""


_LARGE = re.compile(rb"\d{10}")
"""In what JSON writes of a whole number that may be too large for 32 bits."""


def _odd_number(plain: object, written: object) -> tuple[str, float] | None:
    """A number that is none in JSON, and where it is in a value; None: there is none."""
    if isinstance(plain, float):
        # Text is a form of the class's own, which it reads, too.
        return None if math.isfinite(plain) or isinstance(written, str) else ("", plain)
    pairs: Iterable[tuple[object, object, object]] = ()
    if isinstance(plain, dict) and isinstance(written, dict):
        pairs = ((key, each, written.get(key)) for key, each in plain.items())
    elif isinstance(plain, list | tuple) and isinstance(written, list):
        pairs = ((at, *both) for at, both in enumerate(zip(plain, written, strict=False)))
    for where, each, as_json in pairs:
        found = _odd_number(each, as_json)
        if found is not None:
            return f".{where}{found[0]}", found[1]
    return None


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
        definition = json.dumps(shape.avro)
        self.info = SchemaInfo(SchemaType.JSON, definition.encode())
        self._has_reals = '"double"' in definition or '"float"' in definition
        self._to_avro = shape.to_avro
        """Refuses whole numbers that the definition has no room for, as AVRO would."""
        self._renamed = shape.renamed
        self._kind = kind
        self._adapter = TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._kind):
            raise SchemaValueError(
                f"a {self._kind.__name__} was expected, not {type(value).__name__}"
            )
        try:
            raw = self._adapter.dump_json(value, by_alias=True, warnings="error")
            if self._has_reals and any(each in raw for each in _STAND_FOR_ODD):
                self._check_numbers(value, raw)
            if self._to_avro is not None and _LARGE.search(raw):
                self._to_avro(value)
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise SchemaValueError(f"{self._kind.__name__}: {error}") from error
        return raw

    def _check_numbers(self, value: T, raw: bytes) -> None:
        """Raises: SchemaValueError: a number was written as something that is none."""
        plain = self._adapter.dump_python(value, by_alias=True)
        try:
            json.dumps(plain, allow_nan=False, default=repr)  # The fastest look at all of them.
        except ValueError:
            found = _odd_number(plain, json.loads(raw))
        else:
            return
        if found is not None:
            where, number = found
            raise SchemaValueError(
                f"{self._kind.__name__}{where} is {number}, which JSON has no form for: leave it "
                "out (None), or give the class ser_json_inf_nan='strings'"
            )

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
            return json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise SchemaValueError(f"a value that JSON cannot hold: {error}") from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> object:
        try:
            found: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SchemaValueError(f"a payload that is no JSON: {error}") from error
        return found

    def check(self, data: bytes) -> None:
        parse_json(data)


def parse_json(data: bytes) -> object:
    """What is in a payload of JSON, as every parser of JSON would read it.

    Raises:
        SchemaValueError: it is none, or JSON to Python alone (NaN).
    """
    try:
        found: object = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaValueError(f"a payload that is no JSON: {error}") from error
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"it has no form for {name}")
