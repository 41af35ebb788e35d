"""What producers, consumers and topics see of the connection they belong to."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.ownership.protocol import Destination
    from magnetar.broker.producer import Producer
    from magnetar.broker.topic.publish_batch import PublishBatch


class Peer(Protocol):
    """One client connection, seen from the topics. `Connection` is the real one."""

    @property
    def address(self) -> str:
        """host:port of the client, for logs and statistics."""
        ...

    @property
    def protocol_version(self) -> int:
        """The version that both sides speak."""
        ...

    @property
    def client_version(self) -> str:
        """What the client calls itself."""
        ...

    @property
    def role(self) -> str:
        """Who the client has proven to be; empty: nobody asked."""
        ...

    @property
    def is_partial_producer(self) -> bool:
        """Whether the client makes producers of the partitions it needs only."""
        ...

    @property
    def heard_ms(self) -> int:
        """When the commands that are being handled came to their turn, ms since the epoch."""
        ...

    @property
    def is_writable(self) -> bool:
        """False while too many bytes wait to be sent: dispatch must pause."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens if the connection is gone."""
        ...

    async def is_alive(self) -> bool:
        """Probe the client with a PING. A client that does not answer is disconnected."""
        ...

    def on_publishes_done(self, batch: "PublishBatch") -> None:
        """Publishes of this connection are durable, or have failed: there is room for more."""
        ...

    def producer_closed(self, producer: "Producer", destination: "Destination | None") -> None:
        """The broker closed the producer: tell the client, and where to go; forget the id."""
        ...

    def consumer_closed(self, consumer: "Consumer", destination: "Destination | None") -> None:
        """The broker closed the consumer: tell the client, and where to go; forget the id."""
        ...


async def probe(peers: Iterable[Peer], *, but: Peer) -> None:
    """Have those disconnected, but for one that just spoke, that turn out to be dead."""
    others = dict.fromkeys(each for each in peers if each is not but)
    await asyncio.gather(*(each.is_alive() for each in others))
