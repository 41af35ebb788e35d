"""Errors that refuse a schema. They belong to the error tree in `broker/base/errors.py`."""

from magnetar.broker.base.errors import RequestError
from magnetar.sdk.wire.pulsar_pb2 import ServerError


class IncompatibleSchemaError(RequestError):
    """The schema is not compatible with those of the topic, by the topic's strategy."""

    code = ServerError.IncompatibleSchema


class InvalidSchemaError(IncompatibleSchemaError):
    """The definition is not valid for its type. On the wire it has the code of an incompatible
    schema, which is final for clients."""


class SchemaNotFoundError(RequestError):
    """The topic has no schema, or none of that version."""

    code = ServerError.TopicNotFound
