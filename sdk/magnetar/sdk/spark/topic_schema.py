"""Which schema the topics of a query have, and which columns that gives."""

from collections.abc import Iterable

from magnetar.sdk.spark.admin_client import AdminClient, RefusedError
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import ValueSchema
from magnetar.sdk.wire.topic_name import TopicName

_NOT_FOUND = 404
_STRUCTURED = ("JSON", "AVRO")


def value_schema_of(admin: AdminClient, topics: Iterable[str]) -> ValueSchema:
    """The schema that all these topics have; bytes if they have none, or one without fields.
    Its versions are left out: they are each topic's own, see `written_versions`.

    Raises:
        SchemaMismatchError: topics of one query have different ones.
        UnreachableError, RefusedError
    """
    found: dict[ValueSchema, TopicName] = {}
    for topic in dict.fromkeys(TopicName.parse(name).partitioned for name in topics):
        found.setdefault(_schema_of(admin, topic), topic)
    if len(found) > 1:
        shown = ", ".join(f"{topic} has {each.kind}" for each, topic in found.items())
        raise SchemaMismatchError(
            f"the topics of a query must have one schema, but {shown}"
            f"{' of different fields' if len({each.kind for each in found}) == 1 else ''}: read "
            f"them by queries of their own"
        )
    return next(iter(found), ValueSchema())


def _schema_of(admin: AdminClient, topic: TopicName) -> ValueSchema:
    try:
        schema = admin.get(_path(topic))
    except RefusedError as error:
        if error.status == _NOT_FOUND:
            return ValueSchema()
        raise
    kind = str(schema.get("type", "BYTES"))
    if kind not in _STRUCTURED:
        return ValueSchema()
    return ValueSchema(kind, str(schema["data"]))


def written_versions(admin: AdminClient, topic: TopicName) -> tuple[tuple[int, str], ...]:
    """All versions that messages of the topic may have been written with, as AVRO.

    Asked for *after* it was decided up to where the topic is read: producers register a version
    before they write with it, so that none is missing.

    Raises:
        UnreachableError, RefusedError
    """
    try:
        listed = admin.get(_path(topic) + "s")["getSchemaResponses"]
    except RefusedError as error:
        if error.status == _NOT_FOUND:
            return ()
        raise
    return tuple(
        (int(each["version"]), str(each["data"])) for each in listed if each.get("type") == "AVRO"
    )


def _path(topic: TopicName) -> str:
    from urllib.parse import quote

    name = quote(topic.local_name, safe="")
    return f"/admin/v2/schemas/{topic.tenant}/{topic.namespace}/{name}/schema"
