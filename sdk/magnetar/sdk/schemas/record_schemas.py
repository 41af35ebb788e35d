"""JSON and AVRO: values of a class, or of a definition that is given, as payloads.

Both are described by an Avro definition (JSON does so since Pulsar 2.1). JSON is written as text.
AVRO is Avro's binary form, read with the definition that the value was written with; it needs the
package fastavro (`pip install magnetar[avro]`), which is loaded when a schema is made.
"""

import copy
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import cast

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from magnetar.sdk.errors import SchemaDefinitionError, SchemaValueError, SchemaVersionError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType, T, VersionedSchema
from magnetar.sdk.schemas.records import Convert, shape_of

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
            raise SchemaValueError(f"expected a {self._kind.__name__}, got {type(value).__name__}")
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
                f"{self._kind.__name__}{where} is {number}, which JSON cannot represent: leave it "
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
                f"the payload is not a {self._kind.__name__}: {error}"
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
            raise SchemaValueError(f"JSON cannot represent the value: {error}") from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> object:
        try:
            found: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SchemaValueError(f"the payload is not JSON: {error}") from error
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
        raise SchemaValueError(f"the payload is not JSON: {error}") from error
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"it has no form for {name}")


_FOREIGN = (ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, AttributeError)
"""What fastavro raises for values and bytes that do not fit; it has no tree of its own."""


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ImportError as error:
        raise SchemaDefinitionError(
            "AVRO schemas need the package fastavro: pip install 'magnetar[avro]'"
        ) from error
    return fastavro


class _AvroBase(VersionedSchema[T]):
    """Of a parsed definition; `to` and `back` between its values and fastavro's."""

    def __init__(self, raw: bytes, *, to: Convert | None, back: Convert | None) -> None:
        super().__init__()
        self.info = SchemaInfo(SchemaType.AVRO, raw)
        self._raw = raw
        self._to, self._back = to, back
        self._avro = _fastavro()
        self._own = self._parse(raw)
        # fastavro puts the default itself into each value that lacks the field.
        self._has_shared_defaults = _has_containers(self._own)
        self._others: dict[bytes, tuple[object, object]] = {}
        """By version: what was written with, and our own definition as it can read that."""

    def encode(self, value: T) -> bytes:
        out = io.BytesIO()
        try:
            plain: object = value if self._to is None else self._to(value)
            if self._to is None:  # What it would write otherwise may be another value: 1 for 1.5.
                self._avro.validate(plain, self._own)
            self._avro.schemaless_writer(out, self._own, plain)
        except (*_FOREIGN, self._avro.validation.ValidationError) as error:
            raise SchemaValueError(f"the value does not match the schema: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> T:
        self._check_version(version)
        writer, reader = self._others.get(version, (self._own, None))
        try:
            plain = self._avro.schemaless_reader(io.BytesIO(data), writer, reader)
            if reader is not None and self._has_shared_defaults:
                plain = copy.deepcopy(plain)
            return cast("T", plain if self._back is None else self._back(plain))
        except _FOREIGN as error:
            raise SchemaValueError(
                f"the payload of schema version {version.hex() or 'unknown'} does not match the "
                f"schema: {error!r}"
            ) from error

    def add_version(self, version: bytes, info: SchemaInfo) -> None:
        if info.type is not SchemaType.AVRO:
            raise SchemaVersionError(f"version {version.hex()} is {info.type.value}, not AVRO")
        writer = self._parse(info.definition)
        # Pulsar lets the record at the top be renamed; fastavro reads it under an alias.
        reader = self._parse(self._raw, alias_of=writer)
        self._remember(version)
        if info.definition != self._raw:
            self._others[version] = writer, reader

    def _forget_versions(self) -> None:
        self._others.clear()

    def _parse(self, raw: bytes, *, alias_of: object = None) -> object:
        try:
            definition = json.loads(raw)
            if isinstance(alias_of, dict) and "name" in alias_of and isinstance(definition, dict):
                definition["aliases"] = [*(definition.get("aliases") or []), alias_of["name"]]
            parsed: object = self._avro.parse_schema(definition)
        except (*_FOREIGN, RecursionError) as error:
            raise SchemaDefinitionError(f"not an Avro definition: {error}") from error
        return parsed


def _has_containers(definition: object) -> bool:
    """Whether a default anywhere in a definition is a list or a dict."""
    if isinstance(definition, list):
        return any(map(_has_containers, definition))
    return isinstance(definition, dict) and (
        isinstance(definition.get("default"), list | dict)
        or any(
            _has_containers(definition.get(part)) for part in ("type", "fields", "items", "values")
        )
    )


class AvroSchema(_AvroBase[T]):
    """Of a dataclass or a pydantic model."""

    def __init__(self, kind: type[T], *, namespace: str = "") -> None:
        """Raises: SchemaDefinitionError: a field that Avro cannot hold, or no fastavro."""
        shape = shape_of(kind, namespace=namespace)
        self._kind, self._namespace = kind, namespace
        super().__init__(json.dumps(shape.avro).encode(), to=shape.to_avro, back=shape.from_avro)

    def for_topic(self) -> "AvroSchema[T]":
        return AvroSchema(self._kind, namespace=self._namespace)


class AvroObjectSchema(_AvroBase[object]):
    """AVRO of a definition that is given, or found in the topic: records are dicts."""

    def __init__(self, definition: Mapping[str, object] | bytes) -> None:
        """Raises: SchemaDefinitionError: no Avro definition, or no fastavro."""
        raw = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
        super().__init__(raw, to=None, back=None)

    def for_topic(self) -> "AvroObjectSchema":
        return AvroObjectSchema(self._raw)

    def encode_strictly(self, value: object) -> bytes:
        """`encode` of a value that people wrote: a field that the definition lacks is no oversight.

        Raises:
            SchemaValueError: the value does not fit.
        """
        out = io.BytesIO()
        try:
            self._avro.validate(value, self._own)
            self._avro.schemaless_writer(out, self._own, value, strict_allow_default=True)
        except (*_FOREIGN, self._avro.validation.ValidationError) as error:
            raise SchemaValueError(f"the value does not match the schema: {error!r}") from error
        return out.getvalue()
