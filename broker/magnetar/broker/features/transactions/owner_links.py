"""Client connections of a broker to the owners of topics, which may be the broker itself."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.ledger.ports import Network
from magnetar.sdk.errors import InvalidUrlError, SdkError
from magnetar.sdk.service_url import Address, ServiceUrl
from magnetar.sdk.wire import TopicName

if TYPE_CHECKING:
    from magnetar.sdk.connection import Connection, ConnectionPool
    from magnetar.sdk.lookup import Lookup


class OwnAddressNetwork:
    """Network that connects to the broker's own listening socket for its advertised addresses.

    An advertised address may be unreachable from within the broker's own network.
    """

    def __init__(
        self,
        network: Network,
        plain_network: Network,
        *,
        host: str,
        port: Callable[[], int],
        advertised: Callable[[], list[str]],
    ) -> None:
        """`network` leads to other brokers; `plain_network` leads directly to this one. `host` and
        `port`: where this broker listens. `advertised`: URLs by which others reach it."""
        self._network = network
        self._plain_network = plain_network
        self._host, self._port = host, port
        self._advertised = advertised

    @property
    def local(self) -> Address:
        """Address at which this machine reaches the broker."""
        host = self._host
        return Address(
            {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), self._port()
        )

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect. Raises: OSError, TimeoutError: no answer."""
        address, local = Address(host, port), self.local
        if address == local or address in self._own():
            return await self._plain_network.connect(
                local.host, local.port, factory, timeout_s=timeout_s
            )
        return await self._network.connect(host, port, factory, timeout_s=timeout_s)

    def _own(self) -> set[Address]:
        found: set[Address] = set()
        for url in self._advertised():
            try:
                found.update(ServiceUrl.parse(url).addresses)
            except (InvalidUrlError, SdkError):
                continue  # of a kind that the client does not speak
        return found


class OwnerLinks:
    """Finds the owners of topics, and keeps a connection to each of them."""

    def __init__(
        self,
        network: Network,
        *,
        plain_network: Network,
        over_tls: bool,
        host: str,
        port: Callable[[], int],
        advertised: Callable[[], list[str]],
        client_token: Callable[[], bytes],
        timeout_ms: int,
    ) -> None:
        """`network` leads to other brokers, to their TLS ports if `over_tls`; `plain_network` leads
        to this one. `host` and `port`: where this broker listens. `advertised`: URLs by which
        others reach it. `client_token`: the token with which it authenticates; empty if none is
        needed."""
        self._network = OwnAddressNetwork(
            network, plain_network, host=host, port=port, advertised=advertised
        )
        self._scheme = "pulsar+ssl" if over_tls else "pulsar"
        self._client_token = client_token
        self._timeout_ms = timeout_ms
        self._lookup: Lookup | None = None
        self._pool: ConnectionPool | None = None

    async def find(self, topic: TopicName) -> "Connection":
        """Return a connection to the broker that owns a topic, or takes it now.

        Raises:
            SdkError: no broker owns it now, or the owner is not reachable.
        """
        if self._lookup is None:
            # Only brokers that use transactions load the client and its codecs.
            from magnetar.sdk.connection import ConnectionPool
            from magnetar.sdk.lookup import Lookup
            from magnetar.sdk.settings import ClientSettings

            token = self._client_token()
            settings = ClientSettings(
                operation_timeout_ms=self._timeout_ms,
                auth_method_name="token" if token else "none",
                auth_data=token,
            )
            self._pool = ConnectionPool(settings, self._network)
            url = ServiceUrl.parse(f"{self._scheme}://{self._network.local}")
            self._lookup = Lookup(url, self._pool, listener_name="")
        return await self._lookup.connection_for(str(topic))

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
