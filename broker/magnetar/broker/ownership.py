"""Who serves a topic. The seam for leases; until there are several brokers, one owns everything.

Ownership is a hint for routing: safety comes from fencing the topic's ledgers when it is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.wire import TopicName


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker that serves a topic."""

    service_url: str
    """pulsar://host:port"""
    is_self: bool


class Ownership(Protocol):
    """Decides who serves a topic."""

    async def owner_of(self, topic: TopicName) -> Owner:
        """The owner, assigned now if there was none.

        Raises:
            BrokerMetadataError: that cannot be told now.
        """
        ...

    async def acquire(self, topic: TopicName) -> None:
        """Make sure that this broker owns the topic, before it is loaded.

        Raises:
            ServiceNotReadyError: another broker does.
        """
        ...

    async def release(self, topic: TopicName) -> None:
        """The topic was closed here."""
        ...


class SoleOwner:
    """The only broker there is: it owns every topic."""

    def __init__(self, service_url: Callable[[], str]) -> None:
        self._service_url = service_url

    async def owner_of(self, topic: TopicName) -> Owner:
        return Owner(self._service_url(), is_self=True)

    async def acquire(self, topic: TopicName) -> None:
        """Nobody else could own it."""

    async def release(self, topic: TopicName) -> None:
        """Nobody else is waiting for it."""
