"""Definitions of schema versions: which of them the broker is asked for again."""

from typing import cast

import pytest

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import SchemaVersionError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType
from magnetar.sdk.schema_versions import load_versions
from magnetar.sdk.schemas import STRING, AutoConsumeSchema, KeyValueSchema
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, CommandGetSchemaResponse, ServerError

VERSION = bytes(8)
PROTOBUF = CommandGetSchemaResponse(schema=SchemaInfo(SchemaType.PROTOBUF).to_wire())
MISSING = CommandGetSchemaResponse(error_code=ServerError.TopicNotFound)
REFUSED = CommandGetSchemaResponse(error_code=ServerError.AuthorizationError)


class Broker:
    """Gives one answer to each GET_SCHEMA, and counts them."""

    def __init__(self, answer: CommandGetSchemaResponse) -> None:
        self.answer = answer
        self.asked = 0

    def next_request_id(self) -> int:
        return self.asked

    async def request(self, request_id: int, _: BaseCommand) -> BaseCommand:
        self.asked += 1
        answer = CommandGetSchemaResponse(request_id=request_id)
        answer.MergeFrom(self.answer)
        return BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=answer)


async def load(broker: Broker, schema: Schema[object]) -> None:
    for _ in range(3):
        await load_versions(cast(Connection, broker), "t", schema, (VERSION,))


@pytest.mark.parametrize(
    "schema", [AutoConsumeSchema(), KeyValueSchema(STRING, AutoConsumeSchema())]
)
@pytest.mark.parametrize(("answer", "why"), [(PROTOBUF, "PROTOBUF"), (MISSING, "no definition")])
async def test_a_definition_that_cannot_be_read_is_asked_for_once(
    schema: Schema[object], answer: CommandGetSchemaResponse, why: str
) -> None:
    broker, own = Broker(answer), schema.for_topic()
    await load(broker, own)
    assert broker.asked == 1
    assert not own.is_missing(VERSION)
    payload = b"\0\0\0\1k\0\0\0\1v"
    with pytest.raises(SchemaVersionError, match=f"{VERSION.hex()} cannot be read: .*{why}"):
        own.decode(payload, VERSION)


async def test_a_definition_that_the_broker_refuses_is_asked_for_again() -> None:
    broker, schema = Broker(REFUSED), AutoConsumeSchema()
    await load(broker, schema)
    assert broker.asked == 3
    with pytest.raises(SchemaVersionError, match="load_schemas"):
        schema.decode(b"", VERSION)


def test_versions_that_cannot_be_read_are_bounded() -> None:
    schema = AutoConsumeSchema()
    schema.VERSIONS_MAX = 2
    for number in range(3):
        schema.reject_version(bytes([number]), "odd")
    assert [schema.is_missing(bytes([number])) for number in range(3)] == [True, True, False]
