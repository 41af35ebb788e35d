"""JSON and AVRO schemas: values of a class, or of a given definition, as payloads.

Both are described by an Avro definition (JSON since Pulsar 2.1). JSON is written as text. AVRO is
Avro's binary form, read with the definition that the value was written with. It needs the package
fastavro (`pip install magnetar[avro]`), which is loaded when a schema is created.
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
"""What pydantic may write for numbers that JSON cannot represent; most payloads contain none of
it."""


_LARGE = re.compile(rb"\d{10}")
"""Digits that JSON has for a whole number that may be too large for 32 bits."""


def _odd_number(plain: object, written: object) -> tuple[str, float] | None:
    """Return a number in a value that JSON cannot represent, with its path; None if there is
    none."""
    if isinstance(plain, float):
        # Text is a form that the class chose, and reads, too.
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
    """JSON schema of a dataclass or a pydantic model.

    Payloads are pydantic's JSON of the value: bytes as text, an Enum by its value, times in ISO
    8601. Missing fields get their defaults, and unknown fields are ignored, so no version has to be
    looked up. A field is written, defined and read by its `serialization_alias` (or `alias`). A
    `validation_alias` is read, too.
    """

    def __init__(self, kind: type[T], *, namespace: str = "") -> None:
        """Derive the definition from a class.

        Raises:
            SchemaDefinitionError: Avro cannot describe a field, or the class would not read it by
                any name (an AliasPath).
        """
        shape = shape_of(kind, namespace=namespace, as_json=True)
        definition = json.dumps(shape.avro)
        self.info = SchemaInfo(SchemaType.JSON, definition.encode())
        self._has_reals = '"double"' in definition or '"float"' in definition
        self._to_avro = shape.to_avro
        """Refuses whole numbers that are too large for the definition, as AVRO would; None if not
        needed."""
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
        """Check that all numbers were written as numbers.

        Raises:
            SchemaValueError: a number has no form in JSON.
        """
        plain = self._adapter.dump_python(value, by_alias=True)
        try:
            json.dumps(plain, allow_nan=False, default=repr)  # the fastest check of all of them
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
                # Back to JSON first, because pydantic converts JSON more freely than Python values.
                data = json.dumps(self._renamed(json.loads(data))).encode()
            return self._adapter.validate_json(data)
        except (ValueError, RecursionError) as error:  # A ValidationError is a ValueError.
            raise SchemaValueError(
                f"the payload is not a {self._kind.__name__}: {error}"
            ) from error


class JsonObjectSchema(Schema[object]):
    """JSON schema of a definition that is given, or from the topic; values are those of Python's
    `json`."""

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
    """Return the value of a JSON payload, as strictly as every JSON parser reads it.

    Raises:
        SchemaValueError: the payload is not JSON, or only Python's dialect of it (NaN).
    """
    try:
        found: object = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaValueError(f"the payload is not JSON: {error}") from error
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"it has no form for {name}")


_FOREIGN = (ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, AttributeError)
"""Errors that fastavro raises for values and bytes that do not fit; it has no error tree."""


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ImportError as error:
        raise SchemaDefinitionError(
            "AVRO schemas need the package fastavro: pip install 'magnetar[avro]'"
        ) from error
    return fastavro


class _AvroBase(VersionedSchema[T]):
    """AVRO schema of a parsed definition. `to` and `back` convert between its values and
    fastavro's."""

    def __init__(self, raw: bytes, *, to: Convert | None, back: Convert | None) -> None:
        super().__init__()
        self.info = SchemaInfo(SchemaType.AVRO, raw)
        self._raw = raw
        self._to, self._back = to, back
        self._avro = _fastavro()
        self._own = self._parse(raw)
        # fastavro returns the default object itself for each value that lacks the field.
        self._has_shared_defaults = _has_containers(self._own)
        self._others: dict[bytes, tuple[object, object]] = {}
        """By version: the writer's definition, and this schema's definition as a reader of it."""

    def encode(self, value: T) -> bytes:
        out = io.BytesIO()
        try:
            plain: object = value if self._to is None else self._to(value)
            if self._to is None:  # It might write another value otherwise: 1 for 1.5.
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
        # Pulsar allows renaming the top record; fastavro reads it under an alias.
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
    """Whether any default in a definition is a list or a dict."""
    if isinstance(definition, list):
        return any(map(_has_containers, definition))
    return isinstance(definition, dict) and (
        isinstance(definition.get("default"), list | dict)
        or any(
            _has_containers(definition.get(part)) for part in ("type", "fields", "items", "values")
        )
    )


class AvroSchema(_AvroBase[T]):
    """AVRO schema of a dataclass or a pydantic model."""

    def __init__(self, kind: type[T], *, namespace: str = "") -> None:
        """Derive the definition from a class.

        Raises:
            SchemaDefinitionError: Avro cannot hold a field, or fastavro is not installed.
        """
        shape = shape_of(kind, namespace=namespace)
        self._kind, self._namespace = kind, namespace
        super().__init__(json.dumps(shape.avro).encode(), to=shape.to_avro, back=shape.from_avro)

    def for_topic(self) -> "AvroSchema[T]":
        return AvroSchema(self._kind, namespace=self._namespace)


class AvroObjectSchema(_AvroBase[object]):
    """AVRO schema of a definition that is given, or from the topic; records are dicts."""

    def __init__(self, definition: Mapping[str, object] | bytes) -> None:
        """Parse the definition.

        Raises:
            SchemaDefinitionError: it is not an Avro definition, or fastavro is not installed.
        """
        raw = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
        super().__init__(raw, to=None, back=None)

    def for_topic(self) -> "AvroObjectSchema":
        return AvroObjectSchema(self._raw)

    def encode_strictly(self, value: object) -> bytes:
        """Encode a value that people wrote; a field that the definition lacks is an error.

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
