"""The network as the broker's own sessions use it: its advertised address is this process."""

import asyncio
from collections.abc import Callable

from magnetar.ledger.ports import Network
from magnetar.sdk.service_url import Address


class OwnAddressNetwork:
    """Goes to the listening socket for addresses that others know this broker by.

    What a broker advertises may lead nowhere from within its own network.
    """

    def __init__(
        self,
        network: Network,
        plain_network: Network,
        *,
        own: Callable[[], set[Address]],
        local: Callable[[], Address],
    ) -> None:
        """`network` leads to other brokers; `plain_network` to this one, without a detour."""
        self._network = network
        self._plain_network = plain_network
        self._own, self._local = own, local

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect. Raises: OSError, TimeoutError: nobody answered."""
        address, local = Address(host, port), self._local()
        if address == local or address in self._own():
            return await self._plain_network.connect(
                local.host, local.port, factory, timeout_s=timeout_s
            )
        return await self._network.connect(host, port, factory, timeout_s=timeout_s)
