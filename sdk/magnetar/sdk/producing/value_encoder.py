"""Turns the arguments of `send` into a message: schema, key, interceptors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, cast

from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.interceptors import ProducerInterceptor, ProducerInterceptors
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
        elif isinstance(value, bytes):
            payload = value
        else:
            raise SchemaValueError(f"expected bytes, got {type(value).__name__}")
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
        self, message: OutgoingMessage, on_sent: OnSent | None
    ) -> tuple[OutgoingMessage, OnSent | None]:
        """Pass a message through the interceptors; return it with the callback for its outcome."""
        interceptors = self.interceptors
        if interceptors is None:
            return message, on_sent
        message = interceptors.before_send(message)
        tell = partial(interceptors.on_sent, message)
        if on_sent is None:
            return message, tell
        asked = on_sent

        def both(message_id: object, error: object) -> None:
            tell(message_id, error)  # type: ignore[arg-type]  # Those of OnSent, passed on.
            asked(message_id, error)  # type: ignore[arg-type]  # As above.

        return message, both

    def payloads(self, values: Sequence[T | None]) -> Sequence[bytes] | None:
        """Return the payloads if the messages consist of nothing else; None otherwise.

        Raises:
            SchemaValueError: a value does not fit.
        """
        if self.interceptors is not None:
            return None
        if not all(values) and None in values:  # `all` alone is the faster of the two.
            return None
        schema = self.schema
        given = cast("Sequence[T]", values)
        if schema is None:
            return cast("Sequence[bytes]", given)
        if any(
            schema.is_null(value)
            or schema.is_null_key(value)
            or schema.encode_key(value) is not None
            for value in given
        ):
            return None
        return [schema.encode(value) for value in given]
