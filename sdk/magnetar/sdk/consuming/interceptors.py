"""Interceptors: called for every message that a consumer delivers, acknowledges, or gives back.

They are called on the event loop and must not block. What one of them raises is logged and goes no
further (`intercepting.py`): a broken interceptor must not lose a message.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from magnetar.sdk.intercepting import InterceptorChain
from magnetar.sdk.message_id import MessageId

if TYPE_CHECKING:
    from magnetar.sdk.message import Message


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
