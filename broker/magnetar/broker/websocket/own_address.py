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
        self, network: Network, *, own: Callable[[], set[Address]], local: Callable[[], Address]
    ) -> None:
        self._network = network
        self._own, self._local = own, local

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect. Raises: OSError, TimeoutError: nobody answered."""
        if Address(host, port) in self._own():
            local = self._local()
            host, port = local.host, local.port
        return await self._network.connect(host, port, factory, timeout_s=timeout_s)
