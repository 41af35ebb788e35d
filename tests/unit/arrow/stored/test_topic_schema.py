"""The topics of a read have one schema, of whatever kind it is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.protobuf_columns import KIND
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.topic_schema import parsed, value_schema_of
from magnetar.sdk.wire.topic_name import TopicName

RECORD = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}'


class Source:
    """Tells the schemas of topics by their local names; counts the questions."""

    def __init__(self, **told: dict[str, Any]) -> None:
        self._told = told
        self.questions = 0

    def schemas(
        self, topics: Iterable[TopicName], *, every: bool
    ) -> Mapping[TopicName, Sequence[Any]]:
        assert not every
        self.questions += 1
        found = {topic: self._told.get(topic.local_name) for topic in topics}
        return {topic: [each] if each else [] for topic, each in found.items()}


def protobuf(data: str) -> dict[str, Any]:
    return {"type": KIND, "data": data}


def read_schema_of(source: Source, topics: Iterable[str]) -> ValueSchema:
    return value_schema_of(source, topics, takes_protobuf=True)


def test_protobuf_is_its_definition() -> None:
    source = Source(a=protobuf("{}"), b=protobuf("{}"))
    partitions = ["a-partition-0", "a-partition-1", "b"]
    assert read_schema_of(source, partitions) == ValueSchema(KIND, "{}")
    assert source.questions == 1
    assert value_schema_of(source, partitions) == ValueSchema()


def test_different_definitions_are_refused() -> None:
    source = Source(a=protobuf("{}"), b=protobuf('{"other": 1}'))
    with pytest.raises(SchemaMismatchError, match=f"b has {KIND} of different fields"):
        read_schema_of(source, ["a", "b"])


def test_topics_of_different_schemas_are_refused() -> None:
    source = Source(a={"type": "JSON", "data": RECORD}, b=protobuf("{}"))
    assert read_schema_of(source, ["a"]) == ValueSchema("JSON", RECORD)
    assert read_schema_of(source, ["none"]) == ValueSchema()
    assert source.questions == 2
    with pytest.raises(SchemaMismatchError, match="must have one schema"):
        read_schema_of(source, ["a", "b"])


@pytest.mark.parametrize("data", ["no JSON", "[]", "5", '{"key": ""}'])
def test_a_schema_of_key_and_value_that_cannot_be_read_is_a_mismatch(data: str) -> None:
    with pytest.raises(SchemaMismatchError, match="KEY_VALUE cannot be read"):
        parsed({"type": "KEY_VALUE", "data": data})
