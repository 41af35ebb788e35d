"""A producer over WebSocket. Unanswered messages are sent again after a reconnect, in order."""

import asyncio
from collections.abc import Iterable, Mapping

from magnetar.sdk.closing import Closing
from magnetar.sdk.errors import SdkError, SendTimeoutError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.web_socket.frames import parse_outcome, publish_frame
from magnetar.sdk.web_socket.link import WebSocketContext, WebSocketLink
from magnetar.sdk.wire.errors import UnknownServiceError
from magnetar.sdk.wire.topic_name import TopicName


class WebSocketProducer(Closing):
    """A producer over WebSocket. Made by `WebSocketClient.producer`."""

    def __init__(
        self, context: WebSocketContext, topic: TopicName, settings: ProducerSettings
    ) -> None:
        self.topic = str(topic)
        self._context = context
        self._settings = settings
        self._next_number = 0
        # By context, in the order of sending.
        self._pending: dict[str, tuple[str, asyncio.Future[MessageId]]] = {}
        # The semaphore is fair: messages are sent in the order of the calls.
        self._room = asyncio.Semaphore(settings.pending_messages_max)
        url = context.url("producer", topic, _parameters(settings))
        self._link = WebSocketLink(
            context,
            lambda: url,
            f"producer of {topic}",
            produces=True,
            on_open=self._on_open,
            on_text=self._on_text,
            on_failed=self._on_failed,
        )

    async def start(self) -> None:
        """Open the session; called once by the client.

        Raises:
            SdkError
        """
        await self._link.start()

    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Send a message and wait until it is stored. A payload of None is stored as a null value.

        Apache Pulsar's interface cannot express null values or keys of bytes: there they become an
        empty payload, and the text of their base64.

        Cancelling the call does not take the message back: it may be stored nevertheless.

        Raises:
            SendTimeoutError: no answer in time; the outcome is unknown.
            ServiceError: the broker's text says why it is not stored.
            AlreadyClosedError
        """
        timeout_ms = self._settings.send_timeout_ms
        context = ""
        try:
            async with asyncio.timeout(timeout_ms / 1000 if timeout_ms else None):
                await self._room.acquire()
                try:
                    self._link.check_usable()
                    context = str(self._next_number)
                    frame = publish_frame(
                        payload,
                        context,
                        key=key,
                        properties=properties,
                        event_time_ms=event_time_ms,
                        deliver_at_ms=deliver_at_ms,
                    )
                except BaseException:
                    self._room.release()
                    raise
                self._next_number += 1
                future: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
                self._pending[context] = (frame, future)
                self._link.send(frame)
                return await future
        except TimeoutError:
            self._end(context)
            raise SendTimeoutError(
                f"{self.topic}: no answer within {timeout_ms} ms; the message may be stored"
            ) from None

    async def send_many(self, payloads: Iterable[bytes | None]) -> list[MessageId]:
        """Send many messages in order, and wait for all of them.

        Raises:
            As `send`.
        """
        return await asyncio.gather(*(self.send(each) for each in payloads))

    async def close(self) -> None:
        """End the session; calls that wait for an answer get AlreadyClosedError."""
        await self._link.close()
        self._context.forget(self)

    def _on_open(self) -> None:
        for frame, _ in self._pending.values():
            self._link.send(frame)

    def _on_text(self, text: str | bytes) -> None:
        outcome = parse_outcome(text)
        future = self._end(outcome.context)
        if future is None or future.done():
            return
        if outcome.message_id is not None:
            future.set_result(outcome.message_id)
        else:
            future.set_exception(
                UnknownServiceError(f"{self.topic}: not known to be stored: {outcome.error}")
            )

    def _on_failed(self) -> None:
        failure = self._link.failure
        assert isinstance(failure, SdkError)
        for context in list(self._pending):
            future = self._end(context)
            if future is not None and not future.done():
                future.set_exception(failure)

    def _end(self, context: str) -> "asyncio.Future[MessageId] | None":
        """Remove a pending message; return its future, if it was pending."""
        _, future = self._pending.pop(context, ("", None))
        if future is not None:
            self._room.release()
        return future


def _parameters(settings: ProducerSettings) -> dict[str, object]:
    parameters: dict[str, object] = {"sendTimeoutMillis": settings.send_timeout_ms}
    if settings.name:
        parameters["producerName"] = settings.name
    if settings.initial_sequence_id is not None:
        parameters["initialSequenceId"] = settings.initial_sequence_id - 1
    if settings.compression.value != "none":
        parameters["compressionType"] = settings.compression.name
    if settings.batching and settings.batch_delay_ms:
        # The server batches what it gets: ask it to wait only if the caller wants delayed batches.
        parameters |= {
            "batchingEnabled": True,
            "batchingMaxMessages": settings.batch_messages_max,
            "batchingMaxPublishDelay": max(1, round(settings.batch_delay_ms)),
        }
    return parameters
