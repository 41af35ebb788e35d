"""Why a schema is refused. They are a part of the broker's tree; see `broker/base/errors.py`."""

from magnetar.broker.base.errors import RequestError
from magnetar.sdk.wire.pulsar_pb2 import ServerError


class IncompatibleSchemaError(RequestError):
    """The schema does not fit those of the topic, by the topic's strategy."""

    code = ServerError.IncompatibleSchema


class InvalidSchemaError(IncompatibleSchemaError):
    """The definition is none of its type. On the wire it has the code of an incompatible schema,
    which is final for clients."""


class SchemaNotFoundError(RequestError):
    """The topic has no schema, or none of that version."""

    code = ServerError.TopicNotFound
