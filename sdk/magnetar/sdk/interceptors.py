"""Interceptors: an application's own code around each message that is sent or received.

Producers call them before a message is sent and when its outcome is known. Consumers call them for
every message that they deliver, acknowledge, or return for redelivery. Calls run on the event loop,
in the order of the settings, and must not block.

An interceptor may raise any `Exception`, and no message may be lost for it. `InterceptorChain`
catches it, logs a warning with the interceptor's name, the call and the stack, and calls the next
one. Whatever is no `Exception` (a cancellation, a keyboard interrupt) propagates.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage

if TYPE_CHECKING:
    from magnetar.sdk.message import Message


_log = logging.getLogger("magnetar.sdk")

I = TypeVar("I")  # noqa: E741  # An interceptor.
M = TypeVar("M")


class InterceptorChain(Generic[I]):
    """The interceptors of one producer or consumer, in their order."""

    def __init__(self, topic: str, interceptors: Sequence[I]) -> None:
        self.topic = topic
        self._interceptors = interceptors

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def pass_through(self, call: str, message: M, through: Callable[[I, M], M]) -> M:
        """Pass a message through all interceptors and return the result. Results that are no
        message are ignored."""
        kind = type(message)
        for each in self._interceptors:
            try:
                found = through(each, message)
            except Exception as error:  # noqa: BLE001  # See the module's text.
                self._log_failure(each, call, error)
                continue
            if isinstance(found, kind):
                message = found
            else:
                self._log_failure(each, call, TypeError(f"a {type(found).__name__}, not a message"))
        return message

    def tell(self, call: str, one: Callable[[I], None]) -> None:
        """Call `one` with each interceptor."""
        for each in self._interceptors:
            try:
                one(each)
            except Exception as error:  # noqa: BLE001  # See the module's text.
                self._log_failure(each, call, error)

    def _log_failure(self, interceptor: I, call: str, error: Exception) -> None:
        kind = type(interceptor)
        _log.warning(
            "interceptor_failed topic=%s interceptor=%s.%s call=%s: %r",
            self.topic,
            kind.__module__,
            kind.__qualname__,
            call,
            error,
            exc_info=error,
        )


class ProducerInterceptor(Protocol):
    """Interceptor of a producer, called on the event loop, in the order of the settings. An
    exception that it raises is logged and ignored, so that no message is lost for it."""

    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message to send: this one, or a changed copy (`dataclasses.replace`)."""
        ...

    def on_sent(
        self,
        topic: str,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: SdkError | None,
    ) -> None:
        """Handle the outcome of a send: the id of the stored message, or the error."""
        ...


class ProducerInterceptors:
    """The interceptors of one producer."""

    def __init__(self, topic: str, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._topic = topic
        self._chain = InterceptorChain(topic, interceptors)

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        return self._chain.pass_through(
            "before_send", message, lambda each, sent: each.before_send(self._topic, sent)
        )

    def on_sent(
        self, message: OutgoingMessage, message_id: MessageId | None, error: SdkError | None
    ) -> None:
        self._chain.tell(
            "on_sent", lambda each: each.on_sent(self._topic, message, message_id, error)
        )


class ConsumerInterceptor:
    """Interceptor of a consumer. Override the methods that are needed."""

    def before_consume(self, message: "Message") -> "Message":
        """Return the message that the application gets: this one or another."""
        return message

    def on_acknowledge(self, topic: str, message_id: MessageId) -> None:
        """Handle the acknowledgement of a message, or of an entry (`batch_index` -1)."""

    def on_acknowledge_cumulative(self, topic: str, message_id: MessageId) -> None:
        """Handle the acknowledgement of everything up to a message."""

    def on_negative_acknowledge(self, topic: str, message_id: MessageId) -> None:
        """Handle a negative acknowledgement: the message will be delivered again."""

    def on_ack_timeout(self, topic: str, message_id: MessageId) -> None:
        """Handle an ack timeout: an entry was not acknowledged in time and will be delivered
        again."""


class Interceptors:
    """The interceptors of one consumer, in their order."""

    def __init__(self, topic: str, interceptors: tuple[ConsumerInterceptor, ...]) -> None:
        self._topic = topic
        self._chain = InterceptorChain(topic, interceptors)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def before_consume(self, message: "Message") -> "Message":
        """Return the message that the application gets."""
        return self._chain.pass_through(
            "before_consume", message, lambda each, received: each.before_consume(received)
        )

    def tell(self, event: str, ids: Iterable[MessageId]) -> None:
        """Call the method `event` of all interceptors for each id."""
        for message_id in ids:
            self._chain.tell(event, partial(self._call, event, message_id))

    def _call(self, event: str, message_id: MessageId, each: ConsumerInterceptor) -> None:
        getattr(each, event)(self._topic, message_id)
