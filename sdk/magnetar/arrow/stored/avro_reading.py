"""AVRO values, each by the schema version that it was written with, as the newest version has them.

This is Avro's own resolution: a new field gets its default, a renamed field is found by its alias,
numbers become wider. Versions may not resolve, for instance when the newest lacks an enum's symbol.
A value is then read as it was written, and its fields are found by their name.

A union of several types is read as a record of its member (`column_types.py`): a record of one
field is encoded as that field is.
"""

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import fastavro.read
import fastavro.schema

from magnetar.arrow.stored.column_names import is_decimal, members_of
from magnetar.arrow.stored.column_types import parsed_definition
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import NO_VERSION, ValueSchema

Part = bytes | memoryview
ReadValue = Callable[[Part], object]

UNFIT = (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors that reading a value raises if it does not fit its schema."""

_OURS = "magnetar-"
_TIMES = {"date": "int", "timestamp-millis": "long", "timestamp-micros": "long"}
"""Logical types that are columns of times, and their base types."""

_MEMBER = "magnetar_member"
"""Prefix of the names of the records that members of unions are read as."""

_TAKEN = [
    ["int", "long"],
    ["int", "double"],
    ["float", "double"],
    ["string", "bytes"],
    ["bytes", "string"],
]
"""Types that Arrow converts column by column as Avro's resolution does. They need no resolution
here."""

_DEFAULT = "magnetar-default"
"""Key of a field's default, as values are read. Nothing checks it, since it may be of a type that
only columns have."""


class AvroReader:
    """Reads the values of one topic."""

    def __init__(self, value_schema: ValueSchema) -> None:
        """
        Raises:
            SchemaMismatchError: a definition is not JSON.
        """
        self._newest = parsed_definition(value_schema.definition)
        self._definitions = {
            version: parsed_definition(definition) for version, definition in value_schema.versions
        } or {0: self._newest}
        self._readers: dict[int, ReadValue] = {}

    def of_version(self, version: int) -> ReadValue:
        """Return a reader of the values of a version; see `UNFIT` for the errors that it raises.

        Raises:
            SchemaMismatchError: the topic has no such version. Another version would decode the
                bytes wrongly.
        """
        found = self._readers.get(version)
        if found is None:
            found = self._readers[version] = self._made(version)
        return found

    def _made(self, version: int) -> ReadValue:
        # A producer without a schema sends no version.
        known = min(self._definitions) if version == NO_VERSION else version
        written = self._definitions.get(known)
        if written is None:
            raise SchemaMismatchError(
                f"a value was written with version {version} of the topic's schema, which the "
                f"topic does not have; it has {', '.join(map(str, sorted(self._definitions)))}"
            )
        read = fastavro.schemaless_reader
        own = _parsed(written, written)
        if written == self._newest:
            return lambda value: read(io.BytesIO(value), own)
        change = _change(_Columns(False).of(written, ""), _Columns(False).of(self._newest, ""))
        if change is not None:
            return _changed(own, *change)
        writer = _parsed(written, written, is_writer=True)
        reader = _parsed(self._newest, written)

        def resolved(value: Part) -> object:
            try:
                return read(io.BytesIO(value), writer, reader)
            except fastavro.read.SchemaResolutionError:
                return read(io.BytesIO(value), own)

        return resolved


def _change(written: Any, newest: Any) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Return new names and defaults of fields, if the newest version differs in these alone.

    Such values are read several times faster than by resolving each. Returns None if it differs in
    more.
    """
    if not (isinstance(written, dict) and isinstance(newest, dict)):
        return None
    if not ("fields" in written and "fields" in newest):
        return None
    types = {each["name"]: each["type"] for each in written["fields"]}
    names: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for each in newest["fields"]:
        name = each["name"]
        before = next((old for old in (name, *each.get("aliases", ())) if old in types), None)
        if before is None:
            defaults[name] = each.get(_DEFAULT)
        elif not _is_alike(types[before], each["type"]):
            return None
        elif before != name:
            names[before] = name
    return names, defaults


def _is_alike(written: Any, newest: Any) -> bool:
    """Return whether a column of the newest type takes values as they were written."""
    before, now = _without_null(written), _without_null(newest)
    return bool(before == now or [before, now] in _TAKEN)


def _without_null(schema: Any) -> Any:
    others = [each for each in schema if each != "null"] if isinstance(schema, list) else []
    return others[0] if len(others) == 1 else schema


def _changed(own: Any, names: Mapping[str, str], defaults: Mapping[str, Any]) -> ReadValue:
    read: Callable[..., Any] = fastavro.schemaless_reader

    def filled(value: Part) -> object:
        return {**defaults, **read(io.BytesIO(value), own)}

    def renamed(value: Part) -> object:
        found = read(io.BytesIO(value), own)
        return {**defaults, **{names.get(name, name): each for name, each in found.items()}}

    return renamed if names else filled


def _parsed(definition: Any, written: Any, *, is_writer: bool = False) -> Any:
    """Parse a definition for fastavro.

    Raises:
        SchemaMismatchError: the definition is not Avro.
    """
    try:
        columns = _Columns(is_writer).of(definition, "")
        if isinstance(columns, dict) and isinstance(written, dict) and "name" in written:
            # Pulsar lets the record at the top be renamed.
            columns["aliases"] = [*(columns.get("aliases") or ()), written["name"]]
        parsed = fastavro.parse_schema(columns)
    except (*UNFIT, AttributeError, fastavro.schema.SchemaParseException) as error:
        raise SchemaMismatchError(f"the topic's schema is not Avro: {error!r}") from None
    _set_defaults(parsed)
    return parsed


class _Columns:
    """Rewrites a definition for reading into columns.

    It keeps only the logical types that `column_types` has a column for, and turns members of
    unions into records. `is_writer`: the definition is to be resolved with another version, whose
    members may have other numbers, so members are named by their types.
    """

    def __init__(self, is_writer: bool) -> None:
        self._is_writer = is_writer
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, at: str) -> Any:
        if isinstance(schema, list):
            members = members_of(schema)
            if not members:
                return [self.of(each, at) for each in schema]
            return [
                each if each == "null" else self._member(members.index(each), each, at)
                for each in schema
            ]
        if not isinstance(schema, dict):
            return schema
        made = {name: value for name, value in schema.items() if name != "logicalType"}
        if "name" in schema:
            self._named[schema["name"]] = made
            if schema.get("namespace"):
                self._named[f"{schema['namespace']}.{schema['name']}"] = made
        if "fields" in schema:
            made["fields"] = []
            for each in schema["fields"]:
                made["fields"].append(self._field(each, at))
            return made
        for name in ("type", "items", "values"):
            if name in schema:
                made[name] = self.of(schema[name], at)
        logical = schema.get("logicalType")
        if is_decimal(schema):
            made["logicalType"] = logical
        elif logical in _TIMES:
            made["logicalType"] = _OURS + logical
        return made

    def _field(self, field: Mapping[str, Any], at: str) -> dict[str, Any]:
        made = {name: value for name, value in field.items() if name != "default"}
        made["type"] = self.of(field["type"], f"{at}_{field['name']}")
        if "default" in field:
            made[_DEFAULT] = self._default(made["type"], field["default"])
        return made

    def _member(self, number: int, of: Any, at: str) -> dict[str, Any]:
        kind = re.sub(r"\W", "_", _name_of(of))
        at = f"{at}_{kind}"
        field = {"name": f"member{number}", "type": self.of(of, at)}
        if self._is_writer:
            field["name"] = f"of_{kind}"
        else:
            field["aliases"] = [f"of_{kind}"]
        return {"type": "record", "name": _MEMBER + at, "fields": [field]}

    def _default(self, schema: Any, default: Any) -> Any:
        """Return a default as values of this type are read."""
        if isinstance(schema, list):
            # Avro takes the default from the first type; many writers take it from any.
            if default is None:
                return None
            return self._default(next(each for each in schema if each != "null"), default)
        if isinstance(schema, str):
            if schema == "bytes" and isinstance(default, str):
                return default.encode("latin-1")
            return self._default(self._named[schema], default) if schema in self._named else default
        kind = schema["type"]
        if "fields" in schema:
            return self._record_default(schema, default)
        if kind == "array":
            return [self._default(schema["items"], each) for each in default]
        if kind == "map":
            return {name: self._default(schema["values"], each) for name, each in default.items()}
        raw = default.encode("latin-1") if kind == "fixed" else self._default(kind, default)
        logical = schema.get("logicalType")
        if logical is None or kind == "enum":
            return raw
        read = fastavro.read.LOGICAL_READERS.get(f"{kind}-{logical}")
        return raw if read is None else read(raw, schema, None)

    def _record_default(self, schema: Mapping[str, Any], default: Any) -> dict[str, Any]:
        fields = schema["fields"]
        if schema["name"].startswith(_MEMBER):
            return {fields[0]["name"]: self._default(fields[0]["type"], default)}
        return {
            each["name"]: self._default(each["type"], default[each["name"]])
            if each["name"] in default
            else each.get(_DEFAULT)
            for each in fields
        }


def _name_of(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name") or _name_of(schema["type"]))
    return str(schema)


def _set_defaults(parsed: Any) -> None:
    if isinstance(parsed, list):
        for each in parsed:
            _set_defaults(each)
    elif isinstance(parsed, dict):
        for field in parsed.get("fields", ()):
            if _DEFAULT in field:
                field["default"] = field[_DEFAULT]
            _set_defaults(field["type"])
        for name in ("items", "values", "type"):
            _set_defaults(parsed.get(name))


def _or_null(read: Callable[..., object]) -> Callable[..., object]:
    def reader(*arguments: Any) -> object:
        try:
            return read(*arguments)
        except (OverflowError, ValueError):
            return None  # a time that Python cannot represent must not stop a query

    return reader


for _name, _base in _TIMES.items():
    # Under separate names: other code in this process may read with the library, too.
    fastavro.read.LOGICAL_READERS[f"{_base}-{_OURS}{_name}"] = _or_null(
        fastavro.read.LOGICAL_READERS[f"{_base}-{_name}"]
    )
