"""Whether another broker takes connections: asked before clients are sent there.

The lease of a broker that was killed stands until its session ends. A client that is sent there
fails, waits longer and longer between its tries, and is late when somebody else has the topic. A
lookup that waits instead is answered at that very moment.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from magnetar.broker.ownership.listeners import host_and_port
from magnetar.ledger.ports import Clock, Network

_SOONER = 5
"""Who did not answer is asked again after this part of the time: it may be starting."""


class Reachability:
    """Connects to brokers now and then; an answer is good for `fresh_s`."""

    def __init__(self, network: Network, *, clock: Clock, timeout_s: float, fresh_s: float) -> None:
        self._network = network
        self._clock = clock
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._answers: dict[str, tuple[bool, float]] = {}
        """Per URL: whether it took a connection, and until when that is taken for true."""
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def answers(self, url: str) -> bool:
        """Whether somebody takes connections at pulsar://host:port."""
        known = self._answers.get(url)
        if known is not None and self._clock.monotonic_s() < known[1]:
            return known[0]
        asking = self._asking.get(url)
        if asking is None:
            asking = self._asking[url] = asyncio.create_task(self._ask(url), name=f"ask-{url}")
            asking.add_done_callback(partial(self._asked, url))
        return await asyncio.shield(asking)

    def _asked(self, url: str, asking: "asyncio.Task[bool]") -> None:
        del self._asking[url]
        if asking.cancelled() or asking.exception() is not None:
            return
        now_s = self._clock.monotonic_s()
        self._answers = {each: known for each, known in self._answers.items() if now_s < known[1]}
        is_there = asking.result()
        fresh_s = self._fresh_s if is_there else self._fresh_s / _SOONER
        self._answers[url] = (is_there, now_s + fresh_s)

    async def _ask(self, url: str) -> bool:
        make: Callable[[], asyncio.Protocol] = asyncio.Protocol
        try:
            host, port = host_and_port(url)
            transport = await self._network.connect(host, port, make, timeout_s=self._timeout_s)
        except (OSError, TimeoutError, ValueError):
            return False
        transport.close()
        return True

    def close(self) -> None:
        for asking in self._asking.values():
            asking.cancel()
