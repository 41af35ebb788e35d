"""The schema of the topics of a read: as the Spark source finds it, and PROTOBUF_NATIVE besides."""

from collections.abc import Iterable, Mapping, Sequence

from magnetar.arrow.errors import SchemaMismatchError
from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.admin_client import Json
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.topic_schema import SchemaSource, value_schema_of
from magnetar.sdk.wire.topic_name import TopicName


def read_schema_of(source: SchemaSource, topics: Iterable[str]) -> ValueSchema:
    """The schema that all these topics have; bytes if they have none, or one that no columns are
    made of.

    Raises:
        SchemaMismatchError: they have different ones.
        UnreachableError, RefusedError
    """
    named = dict.fromkeys(TopicName.parse(name).partitioned for name in topics)
    told = source.schemas(named, every=False)
    kinds = {str(stored[0].get("type")) if stored else "" for stored in told.values()}
    if kinds != {protobuf_columns.KIND}:
        return value_schema_of(_Told(told), map(str, named))
    definitions = {str(stored[0]["data"]) for stored in told.values()}
    if len(definitions) > 1:
        raise SchemaMismatchError(
            f"they have different definitions of schema {protobuf_columns.KIND}"
        )
    return ValueSchema(protobuf_columns.KIND, definitions.pop())


class _Told:
    """`SchemaSource`: what was answered already."""

    def __init__(self, newest: Mapping[TopicName, Sequence[Json]]) -> None:
        self._newest = newest

    def schemas(
        self, topics: Iterable[TopicName], *, every: bool
    ) -> Mapping[TopicName, Sequence[Json]]:
        assert not every
        return {topic: self._newest[topic] for topic in topics}
