"""The client over WebSocket: the same messages and settings, for networks that pass only HTTP.

async with WebSocketClient("ws://localhost:8080") as client:
    producer = await client.producer("orders")
    await producer.send(b"hello")

The WebSocket interface has no batches, schemas, seek or cumulative acknowledgement, so neither has
this client. It refuses settings that the interface cannot express: a producer that is to encrypt
must not send plain text. Settings that only tune the binary protocol are left to the server.
"""

import asyncio
import random as random_module
from dataclasses import fields
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from magnetar.sdk.closing import Closing
from magnetar.sdk.errors import AlreadyClosedError, InvalidUrlError, NotSupportedError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    ReaderSettings,
)
from magnetar.sdk.tls import renewed_tls_context, tls_context
from magnetar.sdk.web_socket.consumer import WebSocketConsumer, WebSocketReader
from magnetar.sdk.web_socket.link import Session, WebSocketContext
from magnetar.sdk.web_socket.producer import WebSocketProducer
from magnetar.sdk.wire.topic_name import TopicName

S = TypeVar("S", WebSocketProducer, WebSocketConsumer, WebSocketReader)

_PRODUCER_SETTINGS = frozenset(
    {
        "name",
        "initial_sequence_id",
        "batching",
        "batch_messages_max",
        "batch_delay_ms",
        "pending_messages_max",
        "send_timeout_ms",
        "compression",
        # Left to the server, or bounded by `pending_messages_max`:
        "batch_bytes_max",
        "pending_bytes_max",
        "partitions_refresh_ms",
        "lazy_partitions",
    }
)
_CONSUMER_SETTINGS = frozenset(
    {
        "name",
        "subscription_type",
        "initial_position",
        "durable",
        "receiver_queue_messages",
        "nack_delay_ms",
        "ack_timeout_ms",
        "dead_letters",
        "priority_level",
        # Left to the server, which also acknowledges messages of a batch singly:
        "receiver_queue_messages_total",
        "ack_group_ms",
        "ack_group_max",
        "batch_index_ack",
        "topics_update_ms",
        "verify_checksum",
        # Of calls that this client does not have:
        "batch_receive",
        "handover_ms",
    }
)
_READER_SETTINGS = frozenset(
    {
        "name",
        "receiver_queue_messages",
        # Left to the server:
        "receiver_queue_messages_total",
        "topics_update_ms",
        "verify_checksum",
    }
)


class WebSocketClient(Closing):
    """A client with a session per producer, consumer and reader; `close` ends all of them."""

    def __init__(
        self,
        url: str = "ws://127.0.0.1:8080",
        settings: ClientSettings | None = None,
        *,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
    ) -> None:
        """`settings`: timeouts, reconnects, TLS, and `token` or `basic` authentication.

        Raises:
            InvalidUrlError: not of the form ws://host:port or wss://host:port.
            TlsFileError: a certificate, or list of authorities, cannot be used.
        """
        parsed = urlsplit(url)
        if parsed.scheme not in ("ws", "wss") or not parsed.hostname:
            raise InvalidUrlError(f"{url!r} is not of the form ws://host:port or wss://host:port")
        chosen = settings or ClientSettings()
        self._open: dict[Session, None] = {}
        self._closed = False
        make_tls = None
        if parsed.scheme == "wss":
            tls_context(chosen)  # Unusable files are reported now.
            make_tls = partial(renewed_tls_context, chosen)
        self._context = WebSocketContext(
            base_url=url.rstrip("/"),
            settings=chosen,
            make_tls=make_tls,
            clock=clock or SystemClock(),
            random=random or random_module.Random(),
            forget=lambda session: self._open.pop(session, None) and None,
        )

    async def producer(
        self, topic: str, settings: ProducerSettings | None = None
    ) -> WebSocketProducer:
        """Create a producer.

        Raises:
            TopicNameError
            NotSupportedError: a setting that the WebSocket interface does not have.
            ServiceError: the broker refused.
            BrokerUnavailableError, and others.
        """
        name = self._parse(topic)
        chosen = settings or ProducerSettings()
        _check_supported(f"producer of {name}", chosen, _PRODUCER_SETTINGS)
        return await self._start(WebSocketProducer(self._context, name, chosen))

    async def consumer(
        self, topic: str, subscription: str, settings: ConsumerSettings | None = None
    ) -> WebSocketConsumer:
        """Create a consumer.

        Raises:
            As `producer`.
        """
        name = self._parse(topic)
        chosen = settings or ConsumerSettings()
        _check_supported(f"consumer of {name}", chosen, _CONSUMER_SETTINGS)
        return await self._start(WebSocketConsumer(self._context, name, subscription, chosen))

    async def reader(
        self,
        topic: str,
        start: MessageId = MessageId.EARLIEST,
        settings: ReaderSettings | None = None,
    ) -> WebSocketReader:
        """Create a reader that begins after `start`.

        Raises:
            As `producer`.
        """
        name = self._parse(topic)
        chosen = settings or ReaderSettings()
        _check_supported(f"reader of {name}", chosen, _READER_SETTINGS)
        return await self._start(WebSocketReader(self._context, name, start, chosen))

    async def close(self) -> None:
        """Close all sessions."""
        self._closed = True
        await asyncio.gather(*(each.close() for each in list(self._open)))

    async def _start(self, session: S) -> S:
        self._open[session] = None  # so that `close` also ends a session that still starts
        try:
            await session.start()
        except BaseException:
            self._open.pop(session, None)
            raise
        return session

    def _parse(self, topic: str) -> TopicName:
        if self._closed:
            raise AlreadyClosedError("the client is closed")
        return TopicName.parse(topic)


def _check_supported(
    what: str,
    settings: ProducerSettings | ConsumerSettings | ReaderSettings,
    supported: frozenset[str],
) -> None:
    """Check that all other settings have their defaults.

    Raises:
        NotSupportedError
    """
    default = type(settings)()
    refused = [
        each.name
        for each in fields(settings)
        if each.name not in supported
        and getattr(settings, each.name) != getattr(default, each.name)
    ]
    if refused:
        raise NotSupportedError(
            f"{what}: not supported over WebSocket: {', '.join(refused)}; leave these settings "
            "out, or use magnetar.sdk.Client"
        )
