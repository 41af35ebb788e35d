"""Consumers and readers over WebSocket.

The server sends as many messages as it has permits for (pull mode). A consumer grants new permits
when half of its queue was taken. After a reconnect the server sends unacknowledged messages again,
and the messages in the queue are dropped. A reader continues after the last message that was taken.
"""

import asyncio
import base64
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from magnetar.sdk.closing import Closing
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import ConsumerSettings, ReaderSettings, SubscriptionType
from magnetar.sdk.web_socket.frames import (
    IS_END_FRAME,
    UNSUBSCRIBE_FRAME,
    WebSocketMessage,
    acknowledge_frame,
    id_text_of,
    is_end_answer,
    negative_acknowledge_frame,
    parse_message,
    permit_frame,
)
from magnetar.sdk.web_socket.link import WebSocketContext, WebSocketLink
from magnetar.sdk.wire.topic_name import TopicName


class _Receiving(Closing):
    """Common part of consumers and readers: the queue of messages, and waiting for them."""

    def __init__(self, context: WebSocketContext, topic: TopicName) -> None:
        self.topic = str(topic)
        self._context = context
        self._messages: deque[WebSocketMessage] = deque()
        self._news = asyncio.Event()
        self._link: WebSocketLink

    async def start(self) -> None:
        """Open the session; called once by the client.

        Raises:
            SdkError
        """
        await self._link.start()

    async def _next(self, timeout_s: float | None) -> WebSocketMessage:
        """Return the next message; wait for it.

        The message is taken only after the last wait, so a cancelled call loses none.
        """
        async with asyncio.timeout(timeout_s):
            while not self._messages:
                self._link.check_usable()
                self._news.clear()
                await self._news.wait()
        message = self._messages.popleft()
        self._taken(message)
        return message

    def _taken(self, message: WebSocketMessage) -> None:
        raise NotImplementedError

    def _make_link(
        self, url: Callable[[], str], name: str, on_open: Callable[[], None]
    ) -> WebSocketLink:
        return WebSocketLink(
            self._context,
            url,
            name,
            produces=False,
            on_open=on_open,
            on_text=self._on_text,
            on_failed=self._on_failed,
        )

    def _on_failed(self) -> None:
        self._news.set()

    def _on_text(self, text: str | bytes) -> None:
        if is_end_answer(text) is None:
            self._messages.append(parse_message(text, self.topic))
            self._news.set()

    async def close(self) -> None:
        """End the session."""
        try:
            await self._link.flush()
        finally:
            await self._link.close()
            self._context.forget(self)


class WebSocketConsumer(_Receiving):
    """A consumer over WebSocket. Made by `WebSocketClient.consumer`."""

    def __init__(
        self,
        context: WebSocketContext,
        topic: TopicName,
        subscription: str,
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(context, topic)
        self.subscription = subscription
        self._queue_messages = settings.receiver_queue_messages
        self._due = 0
        url = context.url("consumer", topic, _parameters(settings), subscription)
        self._link = self._make_link(
            lambda: url, f"consumer of {subscription} on {topic}", self._on_open
        )

    async def receive(self, *, timeout_s: float | None = None) -> Message:
        """Return the next message; wait for it.

        Raises:
            TimeoutError: none came in time.
            AlreadyClosedError, SdkError: the consumer is closed, or lost for good.
        """
        return await self._next(timeout_s)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages for ever."""
        while True:
            yield await self._next(None)

    def acknowledge(self, what: Message | MessageId) -> None:
        """Acknowledge one message. The interface does not answer it, and has no cumulative one."""
        self._link.check_usable()
        self._link.send(acknowledge_frame(id_text_of(what)))

    def acknowledge_many(self, what: Iterable[Message | MessageId]) -> None:
        for one in what:
            self.acknowledge(one)

    def negative_acknowledge(self, what: Message | MessageId) -> None:
        """Request redelivery of a message, after `nack_delay_ms`."""
        self._link.check_usable()
        self._link.send(negative_acknowledge_frame(id_text_of(what)))

    async def unsubscribe(self) -> None:
        """Delete the subscription, and close. The interface does not report the result."""
        self._link.check_usable()
        self._link.send(UNSUBSCRIBE_FRAME)
        await self.close()

    def _taken(self, message: WebSocketMessage) -> None:
        self._due += 1
        if self._due >= max(1, self._queue_messages // 2):
            self._link.send(permit_frame(self._due))
            self._due = 0

    def _on_open(self) -> None:
        self._messages.clear()
        self._due = 0
        self._link.send(permit_frame(self._queue_messages))


class WebSocketReader(_Receiving):
    """A reader over WebSocket. Made by `WebSocketClient.reader`."""

    def __init__(
        self,
        context: WebSocketContext,
        topic: TopicName,
        start: MessageId,
        settings: ReaderSettings,
    ) -> None:
        super().__init__(context, topic)
        self._name = settings.name
        self._queue_messages = min(1_000, settings.receiver_queue_messages)
        self._position = _position(start)
        self._topic = topic
        self._questions: deque[asyncio.Future[bool]] = deque()
        """Calls of `reached_end` without an answer. The server answers in order."""
        self._link = self._make_link(self._url, f"reader of {topic}", self._on_open)

    async def read_next(self, *, timeout_s: float | None = None) -> Message:
        """Return the next message; wait for it.

        Raises:
            As `WebSocketConsumer.receive`.
        """
        return await self._next(timeout_s)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages for ever."""
        while True:
            yield await self._next(None)

    async def reached_end(self) -> bool:
        """Return whether the topic was terminated and everything in it was read.

        Raises:
            AlreadyClosedError, SdkError: the reader is closed.
            TimeoutError: no answer in time.
        """
        self._link.check_usable()
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(answer)
        self._link.send(IS_END_FRAME)
        async with asyncio.timeout(self._context.settings.operation_timeout_ms / 1000):
            return await answer and not self._messages

    def _on_text(self, text: str | bytes) -> None:
        end = is_end_answer(text)
        if end is None:
            super()._on_text(text)
        elif self._questions:
            answer = self._questions.popleft()
            if not answer.done():  # its caller may have given up
                answer.set_result(end)

    def _on_open(self) -> None:
        self._questions = deque(each for each in self._questions if not each.done())
        for _ in self._questions:
            self._link.send(IS_END_FRAME)

    def _on_failed(self) -> None:
        super()._on_failed()
        failure = self._link.failure
        assert failure is not None
        for each in self._questions:
            if not each.done():
                each.set_exception(failure)
        self._questions.clear()

    def _taken(self, message: WebSocketMessage) -> None:
        self._position = message.id_text
        # Any frame frees a place in the server's window.
        self._link.send(acknowledge_frame(message.id_text))

    def _url(self) -> str:
        # The server sends all messages after this position: those in the queue must not be taken,
        # too.
        self._messages.clear()
        parameters: dict[str, object] = {
            "messageId": self._position,
            "receiverQueueSize": self._queue_messages,
        }
        if self._name:
            parameters["readerName"] = self._name
        return self._context.url("reader", self._topic, parameters)


def _position(start: MessageId) -> str:
    if start == MessageId.EARLIEST:
        return "earliest"
    if start == MessageId.LATEST:
        return "latest"
    return base64.b64encode(start.to_bytes()).decode()


def _parameters(settings: ConsumerSettings) -> dict[str, object]:
    parameters: dict[str, object] = {
        "subscriptionType": _TYPES[settings.subscription_type],
        "subscriptionMode": "Durable" if settings.durable else "NonDurable",
        "subscriptionInitialPosition": settings.initial_position.value.capitalize(),
        "receiverQueueSize": min(1_000, settings.receiver_queue_messages),
        "negativeAckRedeliveryDelay": settings.nack_delay_ms,
        "priorityLevel": settings.priority_level,
        "pullMode": True,
    }
    if settings.name:
        parameters["consumerName"] = settings.name
    if settings.ack_timeout_ms:
        parameters["ackTimeoutMillis"] = settings.ack_timeout_ms
    if settings.dead_letters is not None:
        parameters["maxRedeliverCount"] = settings.dead_letters.redeliveries_max
        if settings.dead_letters.topic:
            parameters["deadLetterTopic"] = settings.dead_letters.topic
        if settings.dead_letters.initial_subscription:
            parameters["deadLetterInitialSubscription"] = settings.dead_letters.initial_subscription
    return parameters


_TYPES = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
