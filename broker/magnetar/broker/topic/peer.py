"""What consumers and topics see of the connection they belong to."""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Probed(Protocol):
    """A client that can be asked whether it is still there."""

    async def is_alive(self) -> bool:
        """Probe the client with a PING. A client that does not answer is disconnected."""
        ...


class Peer(Probed, Protocol):
    """One client connection, seen from a consumer. `Link` is the real one."""

    @property
    def address(self) -> str:
        """host:port of the client, for logs and statistics."""
        ...

    @property
    def protocol_version(self) -> int:
        """The version that both sides speak."""
        ...

    @property
    def takes_entry_metadata(self) -> bool:
        """Whether the client is sent what a broker stored in front of messages."""
        ...

    @property
    def client_version(self) -> str:
        """What the client calls itself."""
        ...

    @property
    def role(self) -> str:
        """Role that the client has authenticated as; empty: authentication is off."""
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


async def probe(peers: Iterable[Probed], *, but: Probed) -> None:
    """Have those disconnected, but for one that just spoke, that turn out to be dead."""
    others = dict.fromkeys(each for each in peers if each is not but)
    await asyncio.gather(*(each.is_alive() for each in others))
