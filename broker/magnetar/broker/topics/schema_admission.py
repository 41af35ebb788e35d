"""What producers and consumers bring along: their schemas, registered or compared.

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
    """The version that its messages have, as it is answered; empty: it has no schema.

    Raises:
        IncompatibleSchemaError: it does not fit, or it is missing and must not be.
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
    """Refuse a consumer that could not read; on a topic that is not in use its schema is the first.

    Raises:
        IncompatibleSchemaError
        ServiceNotReadyError: nothing can be told now. A client takes no other error that it may
            try again (trap 10).
        NotAllowedError: there are as many schemas as may be.
    """
    if not request.HasField("schema") or is_auto_consume(request):
        return
    schema = schema_of_wire(request.schema)
    if schema.type is SchemaType.NONE:
        return  # It takes bytes, which every message is.
    try:
        await _admit(registry, topic, schema)
    except (BrokerMetadataError, BrokerPersistenceError) as error:
        raise ServiceNotReadyError(f"the schemas of {topic.name}: {error}") from error


def is_auto_consume(request: CommandSubscribe) -> bool:
    """Whether a consumer takes whatever schema a message has."""
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
    """Whether somebody may rely on its messages being bytes."""
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
