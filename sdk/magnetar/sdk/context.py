"""What a client's producers, consumers and readers share."""

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
    client: CopyClient
    """The client itself: for copies of messages in other topics."""
    clock: Clock
    random: random.Random
    forget: Callable[[Closable], None]
    """Called by a producer or consumer that was closed."""
