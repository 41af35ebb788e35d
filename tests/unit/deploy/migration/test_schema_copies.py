from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote, unquote_plus

import pytest

from magnetar.deploy.migration.schema_copies import comparable, versions_at
from magnetar.deploy.migration.sides import Side
from magnetar.sdk.wire import TopicName

SCHEMA: dict[str, Any] = {
    "version": 0,
    "type": "AVRO",
    "timestamp": 5,
    "data": "{}",
    "properties": {"__alwaysAllowNull": "true"},
}


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", 1), ("type", "JSON"), ("data", "[]"), ("properties", {"a": "b"})],
)
def test_schemas_that_differ_in_anything_but_the_time_are_different(
    field: str, value: object
) -> None:
    assert comparable([SCHEMA]) != comparable([{**SCHEMA, field: value}])
    assert comparable([SCHEMA]) == comparable([{**SCHEMA, "timestamp": 6}])


def test_no_properties_are_the_same_as_empty_ones() -> None:
    without = {name: value for name, value in SCHEMA.items() if name != "properties"}
    assert comparable([without]) == comparable([{**without, "properties": {}}])
    assert comparable([without]) == comparable([{**without, "properties": None}])


class Cluster:
    """A cluster with schemas, by the own names of topics in the namespace public/default."""

    def __init__(self, server_version: str) -> None:
        self.server_version = server_version
        self.schemas: dict[str, Any] = {}

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        kind, tenant, namespace, name, what = path.split("/")
        assert (kind, tenant, namespace, what) == ("schemas", "public", "default", "schemas")
        name = unquote(name)
        if not self.server_version.startswith("Magnetar"):
            name = unquote_plus(name)  # Pulsar decodes names in these paths twice
        return self.schemas.get(name)


@pytest.mark.parametrize("version", ["Magnetar 1", "Pulsar Server4.0.8"])
@pytest.mark.parametrize("name", ["plain", "a:b ü", "a+b", "100%", "a%3Ab"])
async def test_the_schemas_of_a_topic_are_found_whatever_its_name_is(
    version: str, name: str
) -> None:
    cluster = Cluster(version)
    cluster.schemas[name] = {"getSchemaResponses": [SCHEMA]}
    topic = TopicName.parse(f"persistent://public/default/{name}")
    assert await versions_at(cast(Side, cluster), topic) == [SCHEMA]
    other = TopicName.parse("persistent://public/default/other")
    assert await versions_at(cast(Side, cluster), other) == []
