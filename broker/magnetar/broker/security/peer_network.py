"""The network on which brokers connect to each other over TLS.

Brokers know each other by the addresses of their plain ports. A connection to one of these
addresses goes to the TLS port of that broker instead; a broker without a TLS port is refused. The
protocol on top, HTTP or binary, does not change.
"""

import asyncio
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.ledger.ports import Listener, Network

_Place = tuple[str, int]


class PeerNetwork:
    """A network that reaches only registered brokers, over TLS."""

    def __init__(
        self,
        plain: Network,
        *,
        tls: Callable[[], Network | None],
        brokers: Callable[[], Iterable[BrokerRecord]],
    ) -> None:
        """`tls` returns None until its files have been read."""
        self._plain = plain
        self._tls = tls
        self._brokers = brokers

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect to a broker by any of its addresses.

        Raises:
            OSError, TimeoutError: no registered broker has that address with TLS, or it does not
                answer.
        """
        tls = self._tls()
        place = self._places().get((host, port))
        if tls is None or place is None:
            raise ConnectionError(
                f"no broker advertises {host}:{port} with TLS, which broker_client_tls requires"
            )
        return await tls.connect(*place, factory, timeout_s=timeout_s)

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        return await self._plain.listen(host, port, factory)

    def _places(self) -> dict[_Place, _Place]:
        """Return the TLS address of the matching port, by each address of a broker."""
        found: dict[_Place, _Place] = {}
        for record in self._brokers():
            for plain, over_tls in (
                (record.native_url, record.native_url_tls),
                (record.http_url, record.http_url_tls),
            ):
                place = _place_of(over_tls)
                if place is not None:
                    found[place] = place
                    known = _place_of(plain)
                    if known is not None:
                        found[known] = place
        return found


def _place_of(url: str) -> _Place | None:
    try:
        parts = urlsplit(url)
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None
