"""The consumers of one session, one per topic and partition, read in turn."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import CorruptMessageError, SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.topic_name import TopicName

_log = structlog.get_logger()

_LEDGERS_MAX = 10_000
_TAKE_MAX = 64
"""Messages taken from one consumer before it is the turn of the next."""


class OpenConsumer(Protocol):
    """Opens the consumer of one topic."""

    def __call__(self, topic: TopicName) -> Awaitable[Consumer]: ...


class Sources:
    """Consumers by topic."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called when messages may be available."""
        self._on_ready = on_ready
        self._consumers: dict[TopicName, Consumer] = {}
        # Consumers that may have messages, in the order of their turns.
        self._ready: dict[Consumer, None] = {}
        self._by_ledger: dict[int, Consumer] = {}
        self._cut_off: list[asyncio.Future[Consumer]] = []
        """Openings of an `open` that was cancelled: some of them may have succeeded before that."""
        self._is_closed = False

    @property
    def topics(self) -> list[TopicName]:
        return list(self._consumers)

    @property
    def reached_end(self) -> bool:
        """Whether all topics are terminated and every message in them is acknowledged."""
        return bool(self._consumers) and all(each.reached_end for each in self._consumers.values())

    async def open(self, topics: Sequence[TopicName], open_one: OpenConsumer) -> None:
        """Add topics: all of them or none.

        Raises:
            SdkError: one of them cannot be consumed.
        """
        opening = [asyncio.ensure_future(open_one(topic)) for topic in topics]
        try:
            made = await asyncio.gather(*opening, return_exceptions=True)
            failure = next((each for each in made if isinstance(each, BaseException)), None)
            consumers = [each for each in made if isinstance(each, Consumer)]
            if failure is not None or self._is_closed:
                await asyncio.gather(*(each.close() for each in consumers), return_exceptions=True)
        except asyncio.CancelledError:
            self._cut_off += opening
            raise
        if failure is not None:
            raise failure
        if self._is_closed:
            return
        for topic, consumer in zip(topics, consumers, strict=True):
            self._consumers[topic] = consumer
            consumer.on_ready = partial(self._become_ready, consumer)
            # Messages that arrived in the same read as the answer are there already.
            self._become_ready(consumer)

    def _become_ready(self, consumer: Consumer) -> None:
        self._ready[consumer] = None
        self._on_ready()

    def take(self, messages_max: int) -> tuple[Consumer, list[Message]] | None:
        """Return messages of the consumer whose turn it is; None if no consumer has any."""
        while self._ready:
            consumer = next(iter(self._ready))
            del self._ready[consumer]
            try:
                messages = consumer.take_nowait(min(messages_max, _TAKE_MAX))
            except CorruptMessageError as error:
                # The message stays unacknowledged, as with every client.
                _log.warning("websocket_message_corrupt", topic=consumer.topic, error=str(error))
                self._ready[consumer] = None
                continue
            except SdkError:
                continue  # This consumer is over; the client decides whether to close the session.
            if messages:
                self._ready[consumer] = None
                self._remember(messages, consumer)
                return consumer, messages
        return None

    def _remember(self, messages: Sequence[Message], consumer: Consumer) -> None:
        """Remember the consumer of a ledger. Message ids name a ledger, not a topic; with several
        topics, the ledger tells which one."""
        if len(self._consumers) > 1:
            for ledger_id in {message.ledger_id for message in messages}:
                self._by_ledger.pop(ledger_id, None)
                self._by_ledger[ledger_id] = consumer
            while len(self._by_ledger) > _LEDGERS_MAX:
                del self._by_ledger[next(iter(self._by_ledger))]

    def consumer_of(self, message_id: MessageId) -> Consumer | None:
        """Return the consumer that a message came from; None if that is unknown."""
        if len(self._consumers) == 1:
            return next(iter(self._consumers.values()))
        found = self._by_ledger.get(message_id.ledger_id)
        if found is not None or message_id.partition < 0:
            return found
        parents = {topic.partitioned for topic in self._consumers}
        if len(parents) > 1:
            return None
        return self._consumers.get(parents.pop().partition(message_id.partition))

    async def unsubscribe(self) -> None:
        """Delete the subscriptions. Raises: SdkError: one of them still exists."""
        consumers = list(self._consumers.values())
        results = await asyncio.gather(
            *(each.unsubscribe() for each in consumers), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Close all consumers. Does not raise."""
        self._is_closed = True
        self._on_ready = _tell_nobody  # Drop the reference to the session, to free both.
        for consumer in self._consumers.values():
            consumer.on_ready = None
        self._ready.clear()
        cut_off = await asyncio.gather(*self._cut_off, return_exceptions=True)
        opened = [each for each in cut_off if isinstance(each, Consumer)]
        results = await asyncio.gather(
            *(each.close() for each in [*self._consumers.values(), *opened]),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, SdkError):
                _log.error("websocket_close_failed", exc_info=result)


def _tell_nobody() -> None:
    """Do nothing: the session is over."""
