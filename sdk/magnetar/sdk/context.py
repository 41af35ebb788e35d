"""What a client's producers, consumers and readers share."""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import SdkError
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock
from magnetar.sdk.producing.send_room import MemoryLimit
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from magnetar.sdk.wire.topic_name import TopicName


class Closable(Protocol):
    """A producer or consumer, as the client sees it when it closes."""

    async def close(self, *, flush: bool = True) -> None: ...


class Sender(Protocol):
    """A producer, as dead letters need it."""

    async def send(
        self,
        payload: bytes,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> MessageId: ...

    def send_encoded_nowait(
        self,
        body: bytes,
        metadata: MessageMetadata,
        *,
        on_sent: Callable[[MessageId | None, SdkError | None], None] | None = None,
    ) -> None: ...

    async def close(self, *, flush: bool = True) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Passed to everything that a client makes."""

    settings: ClientSettings
    find: Callable[[TopicName], Awaitable[Connection]]
    """The connection to the broker that serves a topic."""
    find_any: Callable[[], Awaitable[Connection]]
    """A connection to any broker."""
    memory: MemoryLimit | None
    """What all producers together may have under way; None: no limit."""
    lookup: Lookup
    """For what is asked of any broker."""
    remember_plain: Callable[[TopicName], None]
    """The topic was found to have no partitions."""
    next_consumer_id: Callable[[], int]
    """Unique within the client."""
    open_sender: Callable[[str], Awaitable[Sender]]
    """A producer that does not batch, for a topic by name. Raises: SdkError"""
    make_subscription: Callable[[str, str], Awaitable[None]]
    """Make a subscription of a topic, from its beginning on. Raises: SdkError"""
    clock: Clock
    random: random.Random
    forget: Callable[[Closable], None]
    """Called by a producer or consumer that was closed."""
