"""Schema requests to the broker: get a topic's schemas, and register new ones."""

from collections.abc import Iterable

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import SchemaError, ServiceError, service_error
from magnetar.sdk.schema import Schema, SchemaInfo, T
from magnetar.sdk.wire.errors import TopicNotFoundError
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, CommandGetOrCreateSchema, CommandGetSchema


async def get_schema(
    connection: Connection, topic: str, version: bytes = b""
) -> tuple[SchemaInfo, bytes] | None:
    """Return a version of a topic's schema (the latest, if empty) with its version; None if there
    is none.

    Raises:
        ServiceError, BrokerUnavailableError, OperationTimeoutError
        SchemaVersionError: the type is one that this client does not know.
    """
    request_id = connection.next_request_id()
    command = await connection.request(
        request_id,
        BaseCommand(
            type=BaseCommand.GET_SCHEMA,
            getSchema=CommandGetSchema(
                request_id=request_id, topic=topic, schema_version=version or None
            ),
        ),
    )
    answer = command.getSchemaResponse
    if answer.HasField("error_code"):
        error = service_error(answer.error_code, str(answer.error_message))
        if isinstance(error, TopicNotFoundError):
            return None
        raise error
    return SchemaInfo.from_wire(answer.schema), answer.schema_version


async def get_or_create_schema(connection: Connection, topic: str, info: SchemaInfo) -> bytes:
    """Register a schema at the broker that serves the topic, and return its version.

    Raises:
        IncompatibleSchemaError: the schema does not fit the topic's schemas.
        ServiceError, BrokerUnavailableError, OperationTimeoutError
    """
    request_id = connection.next_request_id()
    command = await connection.request(
        request_id,
        BaseCommand(
            type=BaseCommand.GET_OR_CREATE_SCHEMA,
            getOrCreateSchema=CommandGetOrCreateSchema(
                request_id=request_id, topic=topic, schema=info.to_wire()
            ),
        ),
    )
    answer = command.getOrCreateSchemaResponse
    if answer.HasField("error_code"):
        raise service_error(answer.error_code, str(answer.error_message))
    return answer.schema_version


async def load_versions(
    connection: Connection, topic: str, schema: Schema[T], versions: Iterable[bytes]
) -> None:
    """Give a schema its missing definitions. A definition that cannot be read stays missing.

    `Message.value` then raises an error, so that no message is lost for it.

    Raises:
        BrokerUnavailableError, OperationTimeoutError
    """
    for version in dict.fromkeys(versions):
        if schema.is_missing(version):
            try:
                found = await get_schema(connection, topic, version)
                if found is not None:
                    schema.add_version(version, found[0])
            except (ServiceError, SchemaError):
                continue  # `Message.value` raises, with the version
