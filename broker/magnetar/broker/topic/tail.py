"""The tail of a topic: its newest entries, and the subscriptions that they wake."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.position import Position


class TailReader(Protocol):
    """A feature that reads the newest entries from the tail, as subscriptions do.

    The tail does not wake it: it learns of stored entries by itself.
    """

    @property
    def read_after(self) -> Position | None:
        """Last entry that it has taken; None if the tail need not keep anything for it now."""
        ...


class Tail:
    """The tail cache of one topic. Wakes and trims at most once per turn of the loop."""

    def __init__(self, cache: TailCache) -> None:
        self.cache = cache
        self._subscriptions: Mapping[str, Subscription] = {}
        self.readers: list[TailReader] = []
        """Readers other than subscriptions."""
        self._loop = asyncio.get_running_loop()
        self._is_wake_scheduled = False
        self._is_trim_scheduled = False

    def follow(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Wake these subscriptions from now on, and keep the entries that they need."""
        self._subscriptions = subscriptions

    def add(self, run: Run) -> None:
        """Cache durable entries for tailing readers, and wake the dispatchers once."""
        self.cache.add(run)
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_wake_scheduled = False
        self._is_trim_scheduled = True  # trims below, however many dispatchers move on
        self.wake_all()
        self.trim()

    def wake_all(self) -> None:
        """Wake every subscription now."""
        for subscription in list(self._subscriptions.values()):
            subscription.wake()

    def trim_soon(self) -> None:
        """Trim once in this turn of the loop, however many dispatchers move on."""
        if not self._is_trim_scheduled and len(self.cache):
            self._is_trim_scheduled = True
            self._loop.call_soon(self.trim)

    def trim(self) -> None:
        """Drop from the cache what every connected subscription and every reader has passed."""
        self._is_trim_scheduled = False
        if not len(self.cache):
            return
        slowest: Position | None = None
        for subscription in self._subscriptions.values():
            dispatcher = subscription.dispatcher
            if dispatcher is not None and dispatcher.consumers:
                after = dispatcher.read_after
                if slowest is None or after < slowest:
                    slowest = after
        for reader in self.readers:
            taken = reader.read_after
            if taken is not None and (slowest is None or taken < slowest):
                slowest = taken
        if slowest is None:
            self.cache.clear()  # no connected consumer could use it
        else:
            self.cache.evict_through(slowest)
