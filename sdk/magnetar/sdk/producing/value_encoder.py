"""Turns the arguments of `send` into a message: schema, key, interceptors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, cast

from magnetar.sdk.errors import SchemaValueError, SdkError
from magnetar.sdk.interceptors import ProducerInterceptor, ProducerInterceptors
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.schema import Schema, T


class ValueEncoder(Generic[T]):
    """Encodes the values of one producer."""

    def __init__(
        self, topic: str, schema: Schema[T] | None, interceptors: Sequence[ProducerInterceptor]
    ) -> None:
        """Take the producer's own copy of its schema; None: values are bytes."""
        self.schema = schema
        self.interceptors = ProducerInterceptors(topic, interceptors) if interceptors else None

    def message(
        self,
        value: T | None,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] | None = None,
    ) -> OutgoingMessage:
        """Return the message of a value; for None, a message that is marked as having no value.

        Raises:
            SchemaValueError: the value does not fit.
        """
        schema = self.schema
        payload = b""
        is_null = value is None if schema is None else schema.is_null(value)
        is_null_key = False
        if value is None:
            pass
        elif schema is not None:
            payload = schema.encode(value)
            own_key = schema.encode_key(value)
            if own_key is not None:
                key = own_key
            is_null_key = schema.is_null_key(value)
        else:
            payload = _checked(value)
        return OutgoingMessage(
            payload=payload,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            deliver_at_ms=deliver_at_ms,
            sequence_id=sequence_id,
            replicate_to=replicate_to,
            is_null=is_null,
            is_null_key=is_null_key,
        )

    def intercept(
        self, message: OutgoingMessage, on_sent: OnSent | None, *, unwatched: OnSent
    ) -> tuple[OutgoingMessage, OnSent | None]:
        """Pass a message through the interceptors; return it with the callback for its outcome.

        `unwatched` is called if the application gave no `on_sent`: the callback of the interceptors
        alone would hide the error from `flush`.
        """
        interceptors = self.interceptors
        if interceptors is None:
            return message, on_sent
        message = interceptors.before_send(message)
        tell = partial(interceptors.on_sent, message)
        last = unwatched if on_sent is None else on_sent

        def both(message_id: MessageId | None, error: SdkError | None) -> None:
            tell(message_id, error)
            last(message_id, error)

        return message, both

    def payloads(self, values: Sequence[T | None]) -> Sequence[bytes] | None:
        """Return the payloads if the messages consist of nothing else; None otherwise.

        Raises:
            SchemaValueError: a value does not fit.
        """
        if self.interceptors is not None:
            return None
        schema = self.schema
        if schema is None and list(map(type, values)).count(bytes) == len(values):
            return cast("Sequence[bytes]", values)  # The usual case, by the fastest check.
        if not all(values) and None in values:  # `all` alone is the faster of the two.
            return None
        given = cast("Sequence[T]", values)
        if schema is None:
            return [_checked(value) for value in given]
        if any(
            schema.is_null(value)
            or schema.is_null_key(value)
            or schema.encode_key(value) is not None
            for value in given
        ):
            return None
        return [schema.encode(value) for value in given]


def _checked(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise SchemaValueError(f"expected bytes, got {type(value).__name__}")
    return value
