"""Schemas of joining producers and consumers: registered, or checked for compatibility.

Source: binary sheet, section 13. A client without a schema costs nothing, unless its topic's
policies enforce schemas.
"""

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    ServiceNotReadyError,
)
from magnetar.broker.schemas.errors import IncompatibleSchemaError
from magnetar.broker.schemas.model import SchemaData, SchemaType, schema_of_wire, version_to_bytes
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.topic import Topic
from magnetar.sdk.wire.pulsar_pb2 import CommandProducer, CommandSubscribe, Schema


async def version_for_producer(
    registry: SchemaRegistry, topic: Topic, request: CommandProducer
) -> bytes:
    """Return the schema version of a producer's messages, as sent in the answer; empty without a
    schema.

    Raises:
        IncompatibleSchemaError: the schema is incompatible, or is missing although required.
        RequestError: it cannot be registered now.
    """
    schema = schema_of_wire(request.schema) if request.HasField("schema") else None
    policies = topic.policies
    if schema is None:
        if policies.schema_validation_enforced and await registry.has(topic.name):
            raise IncompatibleSchemaError(
                "Producers cannot connect or send message without a schema to topics with a "
                f"schema: {topic.name} has one, and schemaValidationEnforced is set"
            )
        return b""
    version = await registry.put(
        topic.name, schema, policies, may_add=policies.allows_schema_update
    )
    return version_to_bytes(version)


async def check_consumer(registry: SchemaRegistry, topic: Topic, request: CommandSubscribe) -> None:
    """Refuse a consumer that could not read; on an unused topic, register its schema as the first.

    Raises:
        IncompatibleSchemaError
        ServiceNotReadyError: the schema cannot be checked now. Clients retry after no other error
            (trap 10).
        NotAllowedError: the topic has reached its limit of schemas.
    """
    if not request.HasField("schema") or is_auto_consume(request):
        return
    schema = schema_of_wire(request.schema)
    if schema.type is SchemaType.NONE:
        return  # It takes bytes, and every message is bytes.
    try:
        await _admit(registry, topic, schema)
    except (BrokerMetadataError, BrokerPersistenceError) as error:
        raise ServiceNotReadyError(f"the schemas of {topic.name}: {error}") from error


def is_auto_consume(request: CommandSubscribe) -> bool:
    """Whether a consumer accepts messages with any schema."""
    return request.HasField("schema") and request.schema.type == Schema.AutoConsume


async def _admit(registry: SchemaRegistry, topic: Topic, schema: SchemaData) -> None:
    policies = topic.policies
    if await registry.check_consumer(topic.name, schema, policies.schema_compatibility):
        return
    if _is_in_use(topic):
        raise IncompatibleSchemaError(
            "Failed to add schema to an active topic with empty(BYTES) schema: "
            f"new schema type {schema.type}"
        )
    await registry.put(topic.name, schema, policies, may_add=policies.allows_schema_update)


def _is_in_use(topic: Topic) -> bool:
    """Whether a client may rely on the topic's messages being bytes."""
    log = topic.log
    has_data = log.last_confirmed.entry_id >= 0 and log.first_position() <= log.last_confirmed
    return (
        has_data
        or topic.line.entries_in > 0
        or bool(topic.producers)
        or any(
            not consumer.is_auto_consume
            for subscription in topic.subscriptions.values()
            for consumer in subscription.consumers
        )
    )
