"""Seals a topic for a change of a layout: meanwhile, new subscriptions wait.

Segments are sealed when they are split or merged, plain topics and partitions when they are
migrated. Whatever was sealed stays a part of its scalable topic.

When a segment is sealed, its durable subscriptions are made in its children, too. One that is made
on the segment after they were listed, and before clients are told of the children, would begin in
the children where its consumer says, and miss what was published meanwhile. So from the seal on, a
new durable subscription is refused until the record has the segment sealed; those that are being
made at the seal are waited for, and are on the list.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from magnetar.broker.base.errors import ServiceNotReadyError
from magnetar.broker.topic.feature import Feature, TopicPort


class SegmentSealing(Feature):
    """Of one topic."""

    def __init__(
        self, topic: TopicPort, is_settled: Callable[[], Awaitable[bool]], *, is_part: bool
    ) -> None:
        """`is_settled`: whether the record says that it is sealed, or knows of no seal. `is_part`:
        of a scalable topic."""
        self._topic = topic
        self._ask_settled = is_settled
        self.is_part = is_part
        """Whether its life is that of a scalable topic."""
        self._is_settled = False
        """The record says it."""
        self._has_begun = False
        self._placing = 0
        self._placed = asyncio.Event()

    def begin(self) -> None:
        """The segment is being sealed: no subscription begins to be made from here on."""
        self._has_begun = True
        self.is_part = True

    async def wait_placed(self) -> None:
        """Return when all durable subscriptions that began to be made before the seal are there,
        or have failed."""
        while self._placing:
            self._placed.clear()
            await self._placed.wait()

    @asynccontextmanager
    async def placing(self) -> AsyncIterator[None]:
        """While a durable subscription is made.

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
