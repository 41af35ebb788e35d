"""The common schema of the topics of a read."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.admin_client import AdminClient, Json
from magnetar.arrow.stored.column_types import SCHEMA_TYPES
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.sdk.wire.topic_name import TopicName

_NOT_FOUND = 404
_STRUCTURED = ("JSON", "AVRO")


class SchemaSource(Protocol):
    """A source of the topics' schemas."""

    def schemas(
        self, topics: Iterable[TopicName], *, every: bool
    ) -> Mapping[TopicName, Sequence[Json]]:
        """Return the newest schema of each topic, or all its versions, oldest first.

        Schemas are in the form of the brokers' HTTP answers. Topics that are gone have none.

        Raises:
            UnreachableError, RefusedError
        """
        ...


class BrokerSchemas:
    """A `SchemaSource` that asks brokers."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def schemas(
        self, topics: Iterable[TopicName], *, every: bool
    ) -> Mapping[TopicName, Sequence[Json]]:
        names = {str(topic): topic for topic in topics}
        path = "schemas?allVersions=true" if every else "schemas"
        answers = self._admin.ask_topics(path, names.keys())
        for refusal in answers.refused.values():
            if refusal.status != _NOT_FOUND:
                raise refusal
        return {topic: answers.found.get(name, ()) for name, topic in names.items()}


def value_schema_of(
    source: SchemaSource,
    topics: Iterable[str],
    *,
    bytes_do: bool = False,
    takes_protobuf: bool = False,
) -> ValueSchema:
    """Return the common schema of these topics.

    It is bytes if they have no schema, or one that is not decoded into columns. Its versions are
    left out: they differ by topic, see `with_versions`.

    Args:
        bytes_do: whether the query needs the values only as bytes.
        takes_protobuf: whether PROTOBUF_NATIVE is decoded into columns; otherwise it is bytes.

    Raises:
        SchemaMismatchError: the topics have different schemas, and bytes are not enough.
        UnreachableError, RefusedError
    """
    found: dict[ValueSchema, TopicName] = {}
    named = {TopicName.parse(name).partitioned: None for name in topics}
    for topic, stored in source.schemas(named, every=False).items():
        found.setdefault(_newest(stored, takes_protobuf), topic)
    if len(found) > 1:
        if bytes_do:
            return ValueSchema()
        shown = ", ".join(f"{topic} has {each.kind}" for each, topic in found.items())
        raise SchemaMismatchError(
            f"the topics of a query must have one schema, but {shown}"
            f"{' of different fields' if len({each.kind for each in found}) == 1 else ''}: read "
            f"them by queries of their own, or take their bytes: "
            f'.schema("value binary, __topic string")'
        )
    return next(iter(found), ValueSchema())


def _newest(stored: Sequence[Json], takes_protobuf: bool) -> ValueSchema:
    if not stored:
        return ValueSchema()
    newest = stored[0]
    if takes_protobuf and newest.get("type") == protobuf_columns.KIND:
        return ValueSchema(protobuf_columns.KIND, str(newest["data"]))
    return parsed(newest)


def parsed(answer: Mapping[str, Any]) -> ValueSchema:
    """Parse a schema from a broker's administration interface; PROTOBUF_NATIVE becomes bytes.

    Raises:
        SchemaMismatchError: a schema KEY_VALUE without the two definitions.
    """
    kind = str(answer.get("type", "BYTES"))
    if kind == "KEY_VALUE":
        definitions = _definitions(str(answer["data"]))
        properties = answer.get("properties") or {}
        parts = {}
        for part, definition in definitions.items():
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
    return ValueSchema(kind) if kind in SCHEMA_TYPES else ValueSchema()


def _definitions(data: str) -> dict[str, Json]:
    try:
        found = json.loads(data)
        return {part: found[part] for part in ("key", "value")}
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaMismatchError(
            f"the topic's schema KEY_VALUE cannot be read: {error!r}"
        ) from None


def with_versions(
    source: SchemaSource, topics: Iterable[TopicName], schema: ValueSchema
) -> dict[TopicName, ValueSchema]:
    """Return the schema of each topic, with the versions that its messages may have been written
    with.

    Versions are added only where values cannot be read without them: for AVRO. Call this *after*
    the end of the read was determined: producers register a version before they write with it, so
    none is missing.

    Raises:
        UnreachableError, RefusedError
    """
    names = dict.fromkeys(topics)
    if not _has_versions(schema):
        return dict.fromkeys(names, schema)
    return {
        topic: _with(schema, [(int(each["version"]), parsed(each)) for each in stored])
        for topic, stored in source.schemas(names, every=True).items()
    }


def _has_versions(schema: ValueSchema) -> bool:
    """Return whether values can only be read by the version that they were written with."""
    return schema.kind == "AVRO" or any(
        part is not None and _has_versions(part) for part in (schema.key, schema.value)
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
