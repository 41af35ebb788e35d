"""The schema of rows that are encoded already: what the broker is told, and nothing to do."""

from magnetar.sdk import Client, Producer, ProducerSettings
from magnetar.sdk.schema import Schema, SchemaInfo


class RowSchema(Schema[bytes]):
    """Values are bytes that the sink has made by the definition in `info`."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info

    def encode(self, value: bytes) -> bytes:
        return value


async def make_producer(
    client: Client, topic: str, settings: ProducerSettings, schema: RowSchema | None
) -> Producer:
    """`Client.producer`, with the schema if there is one.

    Raises:
        SdkError: as there; IncompatibleSchemaError.
    """
    if schema is None:
        return await client.producer(topic, settings)
    return await client.producer(topic, settings, schema=schema)
