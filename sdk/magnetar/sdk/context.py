"""State shared by the producers, consumers and readers of a client."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.connection import Connection
from magnetar.sdk.consuming.message_copies import CopyClient
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.ports import Clock
from magnetar.sdk.producing.send_room import MemoryLimit
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.topic_name import TopicName


class Closable(Protocol):
    """A producer or consumer, as the client sees it when it closes."""

    async def close(self, *, flush: bool = True) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Services of a client, passed to everything that it makes."""

    settings: ClientSettings
    find: Callable[[TopicName], Awaitable[Connection]]
    """Returns a connection to the broker that serves a topic."""
    find_any: Callable[[], Awaitable[Connection]]
    """Returns a connection to any broker."""
    memory: MemoryLimit | None
    """Limit on the pending bytes of all producers together; None: no limit."""
    lookup: Lookup
    """Lookups that any broker answers."""
    remember_plain: Callable[[TopicName], None]
    """Records that a topic has no partitions."""
    next_consumer_id: Callable[[], int]
    """Returns a consumer id that is unique within the client."""
    client: CopyClient
    """The client itself, for copies of messages in other topics."""
    clock: Clock
    random: random.Random
    forget: Callable[[Closable], None]
    """Called by a producer or consumer after it was closed."""
