"""Interfaces between sessions, sockets and the service, and the statistics of sessions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.sdk.client import Client
from magnetar.sdk.wire.topic_name import TopicName


@dataclass(slots=True)
class Traffic:
    """Messages and bytes that passed through one session since it began."""

    messages: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Statistics of one session at one time."""

    topics: tuple[str, ...]
    """Full names; a partition counts as its topic. For a pattern, the topics found so far."""
    namespaces: tuple[str, ...]
    is_producer: bool
    subscription: str
    subscription_type: str
    remote: str
    age_s: float
    traffic: Traffic = field(default_factory=Traffic)


class Socket(Protocol):
    """A web socket, as a session sees it."""

    @property
    def is_writable(self) -> bool:
        """Whether the session is open and the client reads what it is sent."""
        ...

    def send(self, frames: Sequence[bytes]) -> None:
        """Send text frames; do nothing if the socket is closing."""
        ...

    def hold_reading(self, is_held: bool) -> None:
        """Pause reading from the client (True), or resume it (False)."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the session."""
        ...


class Session(Protocol):
    """A producer, consumer or reader behind a web socket."""

    @property
    def traffic(self) -> Traffic:
        """Messages and bytes that passed through the session."""
        ...

    @property
    def topics(self) -> list[TopicName]:
        """Topics of the session, each partition by itself."""
        ...

    @property
    def discovers(self) -> bool:
        """Whether the session may gain topics: `discover` is then to be called periodically."""
        ...

    async def open(self) -> None:
        """Create what the session needs at the brokers, before the upgrade.

        Raises:
            UpgradeRefusedError, SdkError: that failed; nothing is left at the brokers.
        """
        ...

    def begin(self, socket: Socket) -> None:
        """Start the session on a socket whose upgrade is done."""
        ...

    def on_text(self, data: bytes) -> None:
        """Handle a whole text frame. Raises: BadFrameError: the session must end."""
        ...

    def on_writable(self) -> None:
        """Continue to send: the client reads again."""
        ...

    async def discover(self) -> None:
        """Look for new partitions and topics. Raises: SdkError, RequestError."""
        ...

    async def check_rights(self) -> None:
        """Check that the client still has the rights that the session uses.

        Raises:
            UpgradeRefusedError: 403 if a right is missing.
            BrokerMetadataError: the grants cannot be read now.
        """
        ...

    async def close(self) -> None:
        """Release everything that the session has at the brokers. Does not raise."""
        ...


class Links(Protocol):
    """What sessions share: clients, and the budget of bytes in flight."""

    @property
    def budget(self) -> PublishBudget:
        """Budget of publish bytes in flight, for all sessions together."""
        ...

    def client_for(self, topic: TopicName) -> Client:
        """Return the client for a topic; all partitions of a topic get the same one."""
        ...

    async def topics_of(self, topic: TopicName) -> list[TopicName]:
        """Return the partitions of a topic, or the topic itself if it has none.

        Raises:
            SdkError
        """
        ...

    async def names_of(self, namespace: str) -> list[str]:
        """Return the full names of all topics of a namespace, each partition by itself.

        Raises:
            RequestError
        """
        ...
