"""Interceptors of producers: an application's own code around each message."""

from collections.abc import Sequence
from typing import Protocol

from magnetar.sdk.errors import SdkError
from magnetar.sdk.intercepting import InterceptorChain
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage


class ProducerInterceptor(Protocol):
    """Called on the event loop, in the order of the settings; what it raises is logged and passed
    over (`intercepting.py`), because no message shall be lost for it."""

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
    """Those of one producer."""

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
