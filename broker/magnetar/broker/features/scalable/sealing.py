"""Sealing of a topic for a change of a layout: meanwhile, new subscriptions wait.

Segments are sealed when they are split or merged, plain topics and partitions when they are
migrated. A sealed topic stays a part of its scalable topic.

When a segment is sealed, its durable subscriptions are made in its children, too. Consider one made
on the segment after they were listed, and before clients learn of the children. In the children it
would begin where its consumer says, and miss what was published meanwhile. So from the seal on, a
new durable subscription is refused until the record has the segment sealed. The seal waits for
those that are being made, and lists them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from magnetar.broker.base.errors import ServiceNotReadyError
from magnetar.broker.topic.feature import Feature, TopicPort


class SegmentSealing(Feature):
    """The seal of one topic."""

    def __init__(
        self, topic: TopicPort, is_settled: Callable[[], Awaitable[bool]], *, is_part: bool
    ) -> None:
        """`is_settled`: whether the record has it sealed, or knows of no seal. `is_part`: whether
        it belongs to a scalable topic."""
        self._topic = topic
        self._ask_settled = is_settled
        self.is_part = is_part
        """Whether it belongs to a scalable topic, and is created and deleted with that."""
        self._is_settled = False
        """Whether `is_settled` has been true."""
        self._has_begun = False
        self._placing = 0
        self._placed = asyncio.Event()

    def begin(self) -> None:
        """Begin to seal: no new durable subscription may be made from here on."""
        self._has_begun = True
        self.is_part = True

    async def wait_placed(self) -> None:
        """Return when all durable subscriptions that were being made before the seal exist or have
        failed."""
        while self._placing:
            self._placed.clear()
            await self._placed.wait()

    @asynccontextmanager
    async def placing(self) -> AsyncIterator[None]:
        """Context in which a durable subscription is made; `wait_placed` waits for its end.

        Raises:
            ServiceNotReadyError: the segment is being sealed; a retry helps.
            BrokerMetadataError
        """
        while not self._is_settled and (self._has_begun or self._topic.log.terminated is not None):
            if not await self._ask_settled():
                raise ServiceNotReadyError(
                    f"{self._topic.name} is being sealed: subscribe again in a moment"
                )
            self._is_settled = True
        self._placing += 1
        try:
            yield
        finally:
            self._placing -= 1
            if not self._placing:
                self._placed.set()
