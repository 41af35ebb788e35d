"""Which schemas are let through while there is no schema registry.

Types that consist of their name only (String and the primitive ones) need no registry: the client
encodes and decodes by itself, and there is nothing to compare but the type. They are accepted and
answered with an empty version. Types with a definition (Avro, Json, Protobuf, KeyValue) promise a
compatibility check that nobody would make: they are refused, not silently waved through.
"""

from magnetar.broker.errors import NotAllowedError
from magnetar.sdk.wire.pulsar_pb2 import Schema

_WITH_DEFINITION = frozenset(
    (
        Schema.Json,
        Schema.Protobuf,
        Schema.Avro,
        Schema.KeyValue,
        Schema.ProtobufNative,
        Schema.External,
    )
)


def check_schema(schema: Schema) -> None:
    """Accept or refuse the schema of a producer or consumer.

    Raises:
        NotAllowedError: a type whose definition would have to be checked.
    """
    if schema.type in _WITH_DEFINITION:
        raise NotAllowedError(
            f"{Schema.Type.Name(schema.type)} schemas are not supported by this broker: "
            "it has no schema registry; use bytes, String or a primitive type"
        )
