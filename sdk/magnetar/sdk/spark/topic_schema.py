"""Which schema the topics of a query have, and which columns that gives."""

from collections.abc import Iterable, Sequence

from magnetar.sdk.spark.admin_client import AdminClient, Json
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
    named = {TopicName.parse(name).partitioned: None for name in topics}
    for topic, stored in _stored(admin, named).items():
        found.setdefault(_schema_of(stored), topic)
    if len(found) > 1:
        shown = ", ".join(f"{topic} has {each.kind}" for each, topic in found.items())
        raise SchemaMismatchError(
            f"the topics of a query must have one schema, but {shown}"
            f"{' of different fields' if len({each.kind for each in found}) == 1 else ''}: read "
            f"them by queries of their own"
        )
    return next(iter(found), ValueSchema())


def _schema_of(stored: Sequence[Json]) -> ValueSchema:
    kind = str(stored[0].get("type", "BYTES")) if stored else "BYTES"
    if kind not in _STRUCTURED:
        return ValueSchema()
    return ValueSchema(kind, str(stored[0]["data"]))


def written_versions(
    admin: AdminClient, topics: Iterable[TopicName]
) -> dict[TopicName, tuple[tuple[int, str], ...]]:
    """All versions that messages of each topic may have been written with, as AVRO.

    Asked for *after* it was decided up to where the topic is read: producers register a version
    before they write with it, so that none is missing.

    Raises:
        UnreachableError, RefusedError
    """
    stored = _stored(admin, dict.fromkeys(topics), every=True)
    return {
        topic: tuple(
            (int(each["version"]), str(each["data"])) for each in found if each["type"] == "AVRO"
        )
        for topic, found in stored.items()
    }


def _stored(
    admin: AdminClient, topics: Iterable[TopicName], *, every: bool = False
) -> dict[TopicName, Sequence[Json]]:
    """The newest schema of each topic, or all its versions, as brokers tell of them; none of
    topics that have gone."""
    names = {str(topic): topic for topic in topics}
    answers = admin.ask_topics("schemas?allVersions=true" if every else "schemas", names.keys())
    for refusal in answers.refused.values():
        if refusal.status != _NOT_FOUND:
            raise refusal
    return {topic: answers.found.get(name, ()) for name, topic in names.items()}
