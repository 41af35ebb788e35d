"""Fields that the newest version of a topic's schema has dropped, and older messages still have."""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

from magnetar.arrow.stored.column_names import widest_of
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.topic_schema import SchemaSource, parsed
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger(__name__)

_KINDS_SHOWN_MAX = 200
"""Most characters of types in a line of the log."""


def older_schemas(source: SchemaSource, topics: Iterable[str]) -> list[ValueSchema]:
    """Return all versions of the schemas of these topics: topics by name, each newest first.

    The order does not depend on that of `topics`: columns would change from one look to the next.

    Raises:
        SchemaMismatchError: a schema KEY_VALUE without the two definitions.
        UnreachableError, RefusedError
    """
    named = {TopicName.parse(name).partitioned: None for name in sorted(topics)}
    return [
        parsed(each)
        for stored in source.schemas(named, every=True).values()
        for each in sorted(stored, key=lambda one: int(one["version"]), reverse=True)
    ]


def with_dropped_fields(
    newest: ValueSchema,
    older: Sequence[ValueSchema],
    *,
    reserved: Collection[str] = (),
    suits: Callable[[ValueSchema], bool] = lambda _: True,
) -> ValueSchema:
    """Return the newest schema, plus the fields of older versions that it has dropped.

    Messages of an older version may still be unread, and their values belong in the archive. Only
    fields whose types have no name of their own are added: a record or an enum could be defined
    twice. A field that had several types gets one that holds the values of all; if there is none,
    it is left out, since messages of the other type could not be read. The log names fields that
    are left out, each once.

    Args:
        older: newest first.
        reserved: names that no added field may have.
        suits: whether the reader can take a schema of one added field. If it cannot take the widest
            type, the field gets the newest of its types that it can take. Asked only if there are
            several.
    """
    if newest.kind not in ("JSON", "AVRO"):
        return newest
    definition = _record_of(newest)
    if definition is None:
        return newest
    fields = list(definition["fields"])
    known = {_lower(name) for field in fields for name in (field["name"], *_aliases(field))}
    known.update(map(_lower, reserved))
    versions = [_record_of(version) for version in older if version.kind == newest.kind]
    for name, kinds in _types_by_name(filter(None, versions)).items():
        if _lower(name) in known:
            continue
        known.add(_lower(name))
        widest = reduce(_wider, kinds) if all(map(_is_plain, kinds)) else None
        if widest is None:
            _tell_left_out(str(definition.get("name")), name, json.dumps(kinds))
            continue
        choices = [_added(name, kind) for kind in (widest, *kinds)]
        suiting = (
            each
            for each in choices
            if suits(replace(newest, definition=json.dumps({**definition, "fields": [each]})))
        )
        is_choice = any(each != choices[0] for each in choices)
        # If none suits, whoever compares the columns reports it.
        fields.append(next(suiting, choices[0]) if is_choice else choices[0])
    if len(fields) == len(definition["fields"]):
        return newest
    return replace(newest, definition=json.dumps({**definition, "fields": fields}))


@lru_cache(maxsize=10_000)
def _tell_left_out(record: str, name: str, kinds: str) -> None:
    """Warn of a field, once: a job that runs on looks at the schemas again and again."""
    _log.warning(
        "record %s: the newest schema has dropped field %s, and it gets no column: no plain type "
        "holds its values in all older versions: %s",
        record,
        name,
        kinds if len(kinds) <= _KINDS_SHOWN_MAX else f"{kinds[:_KINDS_SHOWN_MAX]}...",
    )


def _types_by_name(versions: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the types that each field has had, in the order of the versions."""
    found: dict[str, list[Any]] = {}
    for version in versions:
        for field in version["fields"]:
            found.setdefault(field["name"], []).append(field["type"])
    return found


def _record_of(schema: ValueSchema) -> dict[str, Any] | None:
    try:
        found = json.loads(schema.definition)
    except ValueError:
        return None  # the reader of the schema reports the error
    is_record = isinstance(found, dict) and found.get("type") == "record"
    return found if is_record and isinstance(found.get("fields"), list) else None


def _aliases(field: dict[str, Any]) -> list[str]:
    found = field.get("aliases", [])
    return [str(each) for each in found] if isinstance(found, list) else []


def _lower(name: object) -> str:
    return str(name).lower()


_PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _is_plain(kind: Any) -> bool:
    """Return whether a type defines no name and refers to none."""
    if isinstance(kind, list):
        return all(_is_plain(each) for each in kind)
    if isinstance(kind, dict):
        parts = [kind[name] for name in ("items", "values") if name in kind]
        inner = kind.get("type")
        return all(_is_plain(each) for each in parts) and (
            inner in ("array", "map") or _is_plain(inner)
        )
    return kind in _PLAIN


def _added(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": _nullable(kind), "default": None}


def _nullable(kind: Any) -> list[Any]:
    """Return a union with null as its first member, as the default null requires."""
    members = kind if isinstance(kind, list) else [kind]
    return ["null", *(each for each in members if each != "null")]


def _wider(one: Any, other: Any) -> Any:
    """Return the type that holds the values of two plain types; None if neither does."""
    if one is None or one == other:
        return one
    one, other = _bare(one), _bare(other)
    if one == other:
        return one
    if isinstance(one, list) and isinstance(other, list):
        for narrow, wide in ((other, one), (one, other)):
            if all(each in wide for each in narrow):
                return wide
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for part in ("items", "values"):
            if part in one:
                inner = _wider(one[part], other[part])
                return None if inner is None else {**one, part: _nullable(inner)}
    elif [one, other] in _TO_DOUBLE:
        return "double"
    return widest_of([one, other]) or None


_TO_DOUBLE = (["int", "double"], ["double", "int"])


def _bare(kind: Any) -> Any:
    """Return a plain type without what makes no other values: null at the top, and properties."""
    if isinstance(kind, list):
        members = [_bare(each) for each in kind if each != "null"]
        if len(members) == 1:
            return members[0]
        return widest_of(members) or members
    if not isinstance(kind, dict):
        return kind
    for part in ("items", "values"):
        if part in kind:
            return {"type": kind["type"], part: _nullable(_bare(kind[part]))}
    if "logicalType" in kind:
        return {name: kind[name] for name in _LOGICAL if name in kind}
    return _bare(kind["type"])


_LOGICAL = ("type", "logicalType", "precision", "scale")
