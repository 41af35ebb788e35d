"""Schemas over HTTP: what is answered, with which status; nothing that is sent is a 5xx."""

import json
from typing import Any

import pulsar
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pulsar.schema import StringSchema

from tests.http_calls import admin, call
from tests.standalone import Standalone

MISSING = "schemas/public/nowhere/topic"


@pytest.fixture
def path(topic: str) -> str:
    return "schemas/" + topic.removeprefix("persistent://")


def avro(*fields: Any) -> dict[str, Any]:
    definition = {"type": "record", "name": "R", "fields": list(fields)}
    return {"type": "AVRO", "schema": json.dumps(definition), "properties": {"by": "me"}}


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OR_0 = {"name": "b", "type": "int", "default": 0}


def test_schemas_are_registered_shown_and_deleted(server: Standalone, path: str) -> None:
    assert admin(server, "POST", f"{path}/schema", avro(A)) == {"version": {"version": 0}}
    assert admin(server, "POST", f"{path}/schema", avro(A, B_OR_0)) == {"version": {"version": 1}}
    assert admin(server, "POST", f"{path}/schema", avro(A)) == {"version": {"version": 0}}
    shown = admin(server, "GET", f"{path}/schema")
    assert shown.pop("timestamp") > 0
    assert shown == {
        "version": 1,
        "type": "AVRO",
        "data": avro(A, B_OR_0)["schema"],
        "properties": {"by": "me"},
    }
    assert admin(server, "GET", f"{path}/schema/0")["data"] == avro(A)["schema"]
    every = admin(server, "GET", f"{path}/schemas")["getSchemaResponses"]
    assert [each["version"] for each in every] == [0, 1]
    index = admin(server, "GET", f"{path}/metadata")["index"]
    assert [(each["version"], each["entryId"]) for each in index] == [(0, 0), (1, 0)]
    assert admin(server, "POST", f"{path}/version", avro(A)) == {"version": 0}
    assert admin(server, "DELETE", f"{path}/schema") == {"version": 2}
    call(server, "GET", f"{path}/schema", expect=404)
    call(server, "GET", f"{path}/schema/1", expect=404)
    assert admin(server, "GET", f"{path}/schemas") == {"getSchemaResponses": []}
    assert admin(server, "DELETE", f"{path}/schema?force=true") == {"version": 2}
    call(server, "GET", f"{path}/schema/1", expect=404)


def test_compatibility_is_told_with_the_strategy(server: Standalone, path: str) -> None:
    admin(server, "POST", f"{path}/schema", avro(A))
    for body, fits in ((avro(A, B_OR_0), True), (avro(A, B), False), ({"type": "STRING"}, False)):
        found = call(server, "POST", f"{path}/compatibility", body, expect=202).json
        assert found == {"compatibility": fits, "schemaCompatibilityStrategy": "FULL"}


@pytest.mark.parametrize(
    ("method", "action", "body", "status"),
    [
        ("GET", "schema", None, 404),
        ("GET", "schema/3", None, 404),
        ("GET", "schema/newest", None, 400),
        ("GET", "schemas", None, 404),
        ("GET", "metadata", None, 404),
        ("DELETE", "schema", None, 404),
        ("DELETE", "schema?force=true", None, 404),
        ("POST", "version", avro(A), 404),
        ("POST", "schema", {}, 400),
        ("POST", "schema", [], 400),
        ("POST", "schema", {"type": "AVRO", "schema": {}}, 400),
        ("POST", "schema", {"type": "NOTHING", "schema": ""}, 422),
        ("POST", "schema", {"type": "BYTES", "schema": ""}, 422),
        ("POST", "schema", {"type": "AVRO", "schema": "{"}, 422),
        ("POST", "schema", {"type": "AVRO"}, 422),
        ("POST", "schema", {"type": "KEY_VALUE", "schema": "{}"}, 422),
        ("POST", "schema", {"type": "AVRO", "schema": '"' + "a" * (1 << 20) + '"'}, 422),
        ("POST", "compatibility", {"type": "AVRO", "schema": "{"}, 422),
    ],
)
def test_what_is_missing_or_makes_no_sense_is_refused(
    server: Standalone, path: str, method: str, action: str, body: Any, status: int
) -> None:
    assert call(server, method, f"{path}/{action}", body, expect=status).json["reason"]
    assert call(server, method, f"{MISSING}/{action}", body).status in (404, status)


def test_what_does_not_fit_is_a_conflict(server: Standalone, path: str) -> None:
    admin(server, "POST", f"{path}/schema", avro(A))
    refused = call(server, "POST", f"{path}/schema", avro(A, B), expect=409)
    assert refused.json["reason"] == (
        "Incompatible schema by FULL: the new one cannot read the old one: "
        "/b: it is not written, and has no default"
    )


def test_a_pair_is_json_with_a_key_and_a_value(server: Standalone, path: str) -> None:
    pair = {"key": json.loads(avro(A)["schema"]), "value": ""}
    properties = {"key.schema.type": "AVRO", "value.schema.type": "STRING"}
    body = {"type": "KEY_VALUE", "schema": json.dumps(pair), "properties": properties}
    admin(server, "POST", f"{path}/schema", body)
    shown = admin(server, "GET", f"{path}/schema")
    assert (shown["type"], json.loads(shown["data"])) == ("KEY_VALUE", pair)
    assert admin(server, "POST", f"{path}/version", body) == {"version": 0}


def test_a_schema_that_an_operator_gave_is_that_of_clients(
    client: pulsar.Client, server: Standalone, topic: str, path: str
) -> None:
    admin(server, "POST", f"{path}/schema", {"type": "STRING", "schema": ""})
    producer = client.create_producer(topic, schema=StringSchema())
    producer.send("text")
    assert admin(server, "GET", f"{path}/schema")["version"] == 0


_TEXTS = st.text(max_size=20) | st.sampled_from(
    [
        '{"type": "record", "name": "R", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
        '{"key": "int", "value": {"type": "array", "items": "R"}}',
        '{"fileDescriptorSet": "CgA=", "rootMessageTypeName": "a", "rootFileDescriptorName": ""}',
        "[" * 5000,
        '"int"',
        "null",
    ]
)
_KINDS = ["AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "STRING", "INT8", "EXTERNAL"]
_ACTIONS = ["schema", "compatibility", "version"]
_BODIES = st.fixed_dictionaries(
    {"type": st.sampled_from(_KINDS) | _TEXTS},
    optional={
        "schema": _TEXTS | st.none() | st.integers(),
        "properties": st.dictionaries(
            st.sampled_from(["key.schema.type", "value.schema.type", "kv.encoding.type"]),
            st.sampled_from(["AVRO", "STRING", "INLINE", "KEY_VALUE", ""]) | _TEXTS,
        )
        | st.none()
        | _TEXTS,
    },
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(body={"type": "AVRO", "schema": "\ud800"}, action="schema")
@given(body=_BODIES | st.none() | _TEXTS, action=st.sampled_from(_ACTIONS))
def test_no_body_is_the_servers_fault(server: Standalone, body: Any, action: str) -> None:
    path = "schemas/public/default/fuzzed"
    answer = call(server, "POST", f"{path}/{action}", body)
    assert answer.status < 500, answer
    call(server, "DELETE", f"{path}/schema?force=true")
