"""Which schema the topics of a query have, and which columns that gives."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructType

from magnetar.sdk.spark.admin_client import AdminClient, RefusedError
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import ValueSchema
from magnetar.sdk.spark.value_types import PRIMITIVE_TYPES, wants_bytes_only
from magnetar.sdk.wire.topic_name import TopicName

_NOT_FOUND = 404
_STRUCTURED = ("JSON", "AVRO")


def value_schema_of(
    admin: AdminClient, topics: Iterable[str], wanted: StructType | None = None
) -> ValueSchema:
    """The schema that all these topics have; bytes if they have none, or one that no columns are
    made of. Its versions are left out: they are each topic's own, see `with_versions`.

    Args:
        wanted: the columns of the query, where it has some of its own.

    Raises:
        SchemaMismatchError: topics of one query have different ones, and it wants more than bytes.
        UnreachableError, RefusedError
    """
    found: dict[ValueSchema, TopicName] = {}
    for topic in dict.fromkeys(TopicName.parse(name).partitioned for name in topics):
        found.setdefault(_schema_of(admin, topic), topic)
    if len(found) > 1:
        if wanted is not None and wants_bytes_only(wanted):
            return ValueSchema()
        shown = ", ".join(f"{topic} has {each.kind}" for each, topic in found.items())
        raise SchemaMismatchError(
            f"the topics of a query must have one schema, but {shown}"
            f"{' of different fields' if len({each.kind for each in found}) == 1 else ''}: read "
            f"them by queries of their own, or take their bytes: "
            f'.schema("value binary, __topic string")'
        )
    return next(iter(found), ValueSchema())


def _schema_of(admin: AdminClient, topic: TopicName) -> ValueSchema:
    try:
        schema = admin.get(_path(topic))
    except RefusedError as error:
        if error.status == _NOT_FOUND:
            return ValueSchema()
        raise
    return parsed(schema)


def parsed(answer: Mapping[str, Any]) -> ValueSchema:
    """A schema as a broker's administration interface gives it."""
    kind = str(answer.get("type", "BYTES"))
    if kind == "KEY_VALUE":
        definitions = json.loads(answer["data"])
        properties = answer.get("properties") or {}
        parts = {}
        for part in ("key", "value"):
            definition = definitions[part]
            parts[part] = parsed(
                {
                    "type": properties.get(f"{part}.schema.type", "BYTES"),
                    "data": definition if isinstance(definition, str) else json.dumps(definition),
                }
            )
        is_separate = properties.get("kv.encoding.type") == "SEPARATED"
        return ValueSchema(
            kind, key=parts["key"], value=parts["value"], has_separate_key=is_separate
        )
    if kind in _STRUCTURED:
        return ValueSchema(kind, str(answer["data"]))
    return ValueSchema(kind) if kind in PRIMITIVE_TYPES else ValueSchema()


def with_versions(admin: AdminClient, topic: TopicName, schema: ValueSchema) -> ValueSchema:
    """With all versions that messages of the topic may have been written with, where one is needed
    to read them: as AVRO.

    Asked for *after* it was decided up to where the topic is read: producers register a version
    before they write with it, so that none is missing.

    Raises:
        UnreachableError, RefusedError
    """
    if not has_versions(schema):
        return schema
    try:
        listed = admin.get(_path(topic) + "s")["getSchemaResponses"]
    except RefusedError as error:
        if error.status == _NOT_FOUND:
            return schema
        raise
    return _with(schema, [(int(each["version"]), parsed(each)) for each in listed])


def has_versions(schema: ValueSchema) -> bool:
    """Whether values can only be read by the version that they were written with."""
    return schema.kind == "AVRO" or any(
        part is not None and has_versions(part) for part in (schema.key, schema.value)
    )


def _with(schema: ValueSchema, versions: list[tuple[int, ValueSchema]]) -> ValueSchema:
    if schema.key is not None and schema.value is not None:
        return replace(
            schema,
            key=_with(schema.key, [(version, each.key) for version, each in versions if each.key]),
            value=_with(
                schema.value, [(version, each.value) for version, each in versions if each.value]
            ),
        )
    if schema.kind != "AVRO":
        return schema
    return replace(
        schema,
        versions=tuple(
            (version, each.definition) for version, each in versions if each.kind == "AVRO"
        ),
    )


def _path(topic: TopicName) -> str:
    from urllib.parse import quote

    name = quote(topic.local_name, safe="")
    return f"/admin/v2/schemas/{topic.tenant}/{topic.namespace}/{name}/schema"
