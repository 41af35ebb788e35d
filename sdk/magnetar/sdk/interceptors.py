"""Interceptors: an application's own code around each message that is sent or received.

Producers call them before a message is sent and when its outcome is known; consumers for every
message that they deliver, acknowledge, or give back. They are called on the event loop, in the
order of the settings, and must not block.

Any `Exception` may come out of them, and no message shall be lost for it. It is caught at one place
(`InterceptorChain`) and logged as a warning with the interceptor's name, the call and the stack,
and the next one is called. What is no `Exception` (a cancellation, a keyboard interrupt) goes
through.
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
        """What becomes of a message that goes through all of them; what is none is left out."""
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
        """Tell all of them something."""
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
    """Called on the event loop, in the order of the settings; what it raises is logged and passed
    over, because no message shall be lost for it."""

    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        """Look at a message, and give it back, or another one (`dataclasses.replace`)."""
        ...

    def on_sent(
        self,
        topic: str,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: SdkError | None,
    ) -> None:
        """The message is stored under this id, or not known to be."""
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
    """Override what is wanted."""

    def before_consume(self, message: "Message") -> "Message":
        """A message on its way to the application, which gets what is returned."""
        return message

    def on_acknowledge(self, topic: str, message_id: MessageId) -> None:
        """The application acknowledged a message, or an entry (`batch_index` -1)."""

    def on_acknowledge_cumulative(self, topic: str, message_id: MessageId) -> None:
        """The application acknowledged everything up to a message."""

    def on_negative_acknowledge(self, topic: str, message_id: MessageId) -> None:
        """The application wants a message again."""

    def on_ack_timeout(self, topic: str, message_id: MessageId) -> None:
        """Nobody acknowledged an entry in time: it is asked for again."""


class Interceptors:
    """All of one consumer, in their order."""

    def __init__(self, topic: str, interceptors: tuple[ConsumerInterceptor, ...]) -> None:
        self._topic = topic
        self._chain = InterceptorChain(topic, interceptors)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def before_consume(self, message: "Message") -> "Message":
        """The message that the application gets."""
        return self._chain.pass_through(
            "before_consume", message, lambda each, received: each.before_consume(received)
        )

    def tell(self, event: str, ids: Iterable[MessageId]) -> None:
        """Call the method `event` of all of them for each id."""
        for message_id in ids:
            self._chain.tell(event, partial(self._call, event, message_id))

    def _call(self, event: str, message_id: MessageId, each: ConsumerInterceptor) -> None:
        getattr(each, event)(self._topic, message_id)
