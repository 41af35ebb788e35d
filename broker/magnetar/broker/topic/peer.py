"""Client connections, as consumers and topics see them."""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Probed(Protocol):
    """A client whose liveness can be checked."""

    async def is_alive(self) -> bool:
        """Probe the client with a PING. A client that does not answer is disconnected."""
        ...


class Peer(Probed, Protocol):
    """A client connection, as a consumer sees it. `Link` implements it."""

    @property
    def address(self) -> str:
        """host:port of the client, for logs and statistics."""
        ...

    @property
    def protocol_version(self) -> int:
        """Protocol version that both sides use."""
        ...

    @property
    def takes_entry_metadata(self) -> bool:
        """Whether the client gets the prefixes that a broker stored in front of messages."""
        ...

    @property
    def client_version(self) -> str:
        """Name and version that the client reports."""
        ...

    @property
    def role(self) -> str:
        """Role that the client has authenticated as; empty if authentication is off."""
        ...

    @property
    def heard_ms(self) -> int:
        """When the broker began to handle the current commands, ms since the epoch."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether more may be written. False while too many bytes wait to be sent: dispatch must
        pause."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; do nothing if the connection is gone."""
        ...


async def probe(peers: Iterable[Probed], *, but: Probed) -> set[Probed]:
    """Probe peers, disconnect the dead ones, and return these.

    Some of their producers and consumers may leave in later turns of the event loop. `but`: a peer
    that is known to be alive.
    """
    others = dict.fromkeys(each for each in peers if each is not but)
    alive = await asyncio.gather(*(each.is_alive() for each in others))
    return {each for each, is_alive in zip(others, alive, strict=True) if not is_alive}
