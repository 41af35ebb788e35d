"""What sessions, sockets and the service know of each other, and what is shown of sessions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.sdk.client import Client
from magnetar.sdk.wire.topic_name import TopicName


@dataclass(slots=True)
class Traffic:
    """What went through one session since it began."""

    messages: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SessionStats:
    """One session now."""

    topics: tuple[str, ...]
    """Full names, partitions by their topic; of a pattern, those it has found."""
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
        """The session is open and the client reads what it is sent."""
        ...

    def send(self, frames: Sequence[bytes]) -> None:
        """Send text frames; nothing happens when the socket is closing."""
        ...

    def hold_reading(self, is_held: bool) -> None:
        """Whether the client is to be read no more for now."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the session."""
        ...


class Session(Protocol):
    """A producer, consumer or reader behind a web socket."""

    @property
    def traffic(self) -> Traffic:
        """What went through it."""
        ...

    @property
    def topics(self) -> list[TopicName]:
        """What it is on, each partition by itself."""
        ...

    @property
    def discovers(self) -> bool:
        """Whether its topics may become more: `discover` is to be called from time to time."""
        ...

    async def open(self) -> None:
        """Make what it needs at the brokers, before the upgrade.

        Raises:
            UpgradeRefusedError, SdkError: it cannot be made; nothing is left of it.
        """
        ...

    def begin(self, socket: Socket) -> None:
        """The upgrade is done."""
        ...

    def on_text(self, data: bytes) -> None:
        """A text frame, whole. Raises: BadFrameError: the session ends."""
        ...

    def on_writable(self) -> None:
        """The client reads again."""
        ...

    async def discover(self) -> None:
        """Look for new partitions and topics. Raises: SdkError, RequestError."""
        ...

    async def check_rights(self) -> None:
        """Whether the client may still do what it does.

        Raises:
            UpgradeRefusedError: 403: it may not.
            BrokerMetadataError: that cannot be told now.
        """
        ...

    async def close(self) -> None:
        """Give back what it has at the brokers. Does not raise."""
        ...


class Links(Protocol):
    """What sessions share: clients, and the bound on what is published."""

    @property
    def budget(self) -> PublishBudget:
        """Bytes of publishes of all sessions that are under way."""
        ...

    def client_for(self, topic: TopicName) -> Client:
        """The client for a topic: the same for all partitions of one."""
        ...

    async def topics_of(self, topic: TopicName) -> list[TopicName]:
        """The partitions of a topic, or the topic itself if it has none.

        Raises:
            SdkError
        """
        ...

    async def names_of(self, namespace: str) -> list[str]:
        """Full names of all topics of a namespace, each partition by itself.

        Raises:
            RequestError
        """
        ...
