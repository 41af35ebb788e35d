"""Definitions of every type, from bytes at random and from good ones with a few bytes changed."""

import base64
import json

from google.protobuf import descriptor_pb2
from google.protobuf.wrappers_pb2 import DESCRIPTOR
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.schemas import InvalidSchemaError, SchemaData, SchemaType
from magnetar.broker.schemas.compatibility import why_unreadable
from magnetar.broker.schemas.definitions import parse
from magnetar.broker.schemas.key_value import data_of_text, joined, text_of_data
from magnetar.broker.schemas.model import schema_of_wire, wire_of_schema

_SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _protobuf() -> bytes:
    file = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(file)
    encoded = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(encoded).decode(),
            "rootMessageTypeName": "google.protobuf.Int64Value",
            "rootFileDescriptorName": DESCRIPTOR.name,
        }
    ).encode()


AVRO = json.dumps(
    {
        "type": "record",
        "name": "R",
        "namespace": "n",
        "fields": [
            {"name": "next", "type": ["null", "R"], "default": None},
            {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "many", "type": {"type": "map", "values": {"type": "array", "items": "E"}}},
        ],
    }
).encode()
GOOD = [AVRO, joined(b"", AVRO), _protobuf(), b"", b"null"]
PROPERTIES = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            at = draw(st.integers(0, len(data) - 1))
            data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@_SETTINGS
@given(st.sampled_from(SchemaType), changed() | st.binary(max_size=50))
def test_any_bytes_are_a_definition_or_refused(kind: SchemaType, data: bytes) -> None:
    schema = SchemaData(kind, data, PROPERTIES)
    try:
        definition = parse(schema)
    except InvalidSchemaError:
        return
    # Who has a schema reads what was written with it.
    assert why_unreadable(reader=definition, writer=definition) is None
    assert parse(schema).fingerprint == definition.fingerprint


@_SETTINGS
@given(
    st.sampled_from([each for each in SchemaType if each is not SchemaType.BYTES]),
    st.binary(max_size=50),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_a_schema_passes_through_a_command(
    kind: SchemaType, data: bytes, properties: dict[str, str]
) -> None:
    schema = SchemaData(kind, data, properties)
    assert schema_of_wire(wire_of_schema(schema, "t")) == schema


_JSON = st.recursive(
    st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: isinstance(value, (list, dict)))


@_SETTINGS
@given(_JSON, _JSON)
def test_a_pair_passes_through_http(key: object, value: object) -> None:
    text = json.dumps({"key": key, "value": value})
    assert json.loads(text_of_data(data_of_text(text))) == {"key": key, "value": value}
