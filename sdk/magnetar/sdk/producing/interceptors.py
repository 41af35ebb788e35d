"""Interceptors of producers: an application's own code around each message."""

import logging
from collections.abc import Sequence
from typing import Protocol

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage

_log = logging.getLogger("magnetar.sdk")


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
    """Those of one producer."""

    def __init__(self, topic: str, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._topic = topic
        self._interceptors = interceptors

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        for each in self._interceptors:
            try:
                message = each.before_send(self._topic, message)
            except Exception:  # noqa: BLE001  # The application's own code: anything may come.
                _log.warning("interceptor_failed topic=%s call=before_send", self._topic)
        return message

    def on_sent(
        self, message: OutgoingMessage, message_id: MessageId | None, error: SdkError | None
    ) -> None:
        for each in self._interceptors:
            try:
                each.on_sent(self._topic, message, message_id, error)
            except Exception:  # noqa: BLE001  # As above.
                _log.warning("interceptor_failed topic=%s call=on_sent", self._topic)
