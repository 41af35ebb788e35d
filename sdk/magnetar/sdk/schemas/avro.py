"""AVRO: values in Avro's binary form, read with the definition they were written with.

Needs the package fastavro (`pip install magnetar[avro]`), which is loaded when a schema is made.
"""

import copy
import io
import json
from collections.abc import Mapping
from types import ModuleType
from typing import cast

from magnetar.sdk.errors import SchemaDefinitionError, SchemaValueError, SchemaVersionError
from magnetar.sdk.schema import SchemaInfo, SchemaType, T, VersionedSchema
from magnetar.sdk.schemas.records import Convert, shape_of

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
            raise SchemaValueError(f"a value that does not fit: {error}") from error
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
                f"a payload of version {version.hex() or 'unknown'} that does not fit: {error!r}"
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
            raise SchemaDefinitionError(f"no Avro definition: {error}") from error
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
            raise SchemaValueError(f"a value that does not fit: {error!r}") from error
        return out.getvalue()
