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
    path = f"/admin/v2/schemas/{topic.tenant}/{topic.namespace}/{_quoted(topic)}/schema"
    try:
        schema = admin.get(path)
    except RefusedError as error:
        if error.status == _NOT_FOUND:
            return ValueSchema()
        raise
    kind = str(schema.get("type", "BYTES"))
    if kind not in _STRUCTURED:
        return ValueSchema()
    definition = str(schema["data"])
    if kind == "JSON":
        return ValueSchema(kind, definition)
    listed = admin.get(path + "s")["getSchemaResponses"]
    versions = tuple(
        (int(each["version"]), str(each["data"])) for each in listed if each.get("type") == kind
    )
    return ValueSchema(kind, definition, versions)


def _quoted(topic: TopicName) -> str:
    from urllib.parse import quote

    return quote(topic.local_name, safe="")
