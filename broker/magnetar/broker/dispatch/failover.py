"""Failover: many consumers, one of them active; the others stand by in a known order.

The active consumer is chosen whenever one joins or leaves: among those with the lowest priority
level, by partition index on a partitioned topic, else by a consistent hash ring of their names.
When the choice falls on another consumer, sending stops for `failover_delay_ms`, so that
acknowledgements of the former one can still arrive; then it starts again at the first
unacknowledged entry.

Source: protocol sheet section 11.
"""

import asyncio
from bisect import bisect_left
from functools import lru_cache

from magnetar.broker import replies
from magnetar.broker.consumer import FAILOVER, Consumer
from magnetar.broker.dispatch.base import DispatchContext, SingleActiveDispatcher
from magnetar.sdk.wire.key_hashes import murmur3_hash

NOTICE_VERSION_MIN = 12
"""Clients below this protocol version are not told who is active."""

_POINTS_PER_CONSUMER = 100


@lru_cache(maxsize=4096)
def _ring_points(name: str) -> tuple[int, ...]:
    return tuple(murmur3_hash(f"{name}{point}".encode()) for point in range(_POINTS_PER_CONSUMER))


def choose_active(consumers: list[Consumer], *, topic: str, partition: int) -> Consumer | None:
    """The consumer that should be active, the same on every broker that knows the same consumers.

    Names are compared by UTF-16 code units, as Java's strings are.
    """
    if not consumers:
        return None
    top = min(consumer.priority for consumer in consumers)
    group = sorted(
        (consumer for consumer in consumers if consumer.priority == top),
        key=lambda consumer: consumer.name.encode("utf-16-be"),
    )
    if partition >= 0:
        return group[partition % len(group)]
    # Later consumers overwrite equal points, as in a map that is filled in order.
    ring: dict[int, Consumer] = {}
    for consumer in group:
        for point in _ring_points(consumer.name):
            ring[point] = consumer
    points = sorted(ring)
    at = bisect_left(points, murmur3_hash(topic.encode()))
    return ring[points[at % len(points)]]


def tell_active(consumer: Consumer, *, is_active: bool) -> None:
    """Tell a consumer whether it is the active one, if its client knows the word."""
    if consumer.is_closed or consumer.peer.protocol_version < NOTICE_VERSION_MIN:
        return
    consumer.peer.write(replies.active_consumer_change(consumer.consumer_id, is_active=is_active))


class FailoverDispatcher(SingleActiveDispatcher):
    """Sends to the active consumer; tells all of them who that is."""

    sub_type = FAILOVER

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._chosen: Consumer | None = None
        """The consumer that is active, or will be after the delay."""
        self._switch: asyncio.TimerHandle | None = None

    def add(self, consumer: Consumer) -> None:
        is_first = not self.consumers and self._switch is None
        self.consumers.append(consumer)
        if not self._choose(delay=not is_first):
            # The choice stands. The newcomer alone is told, after the answer to its SUBSCRIBE.
            asyncio.get_running_loop().call_soon(self._notify, consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if consumer is self.active:
            self.active = None
            self.source.close()
        self._choose(delay=True)

    def close(self) -> None:
        super().close()
        self._cancel_switch()

    def _choose(self, *, delay: bool) -> bool:
        """Choose again; True if the choice fell on another consumer."""
        chosen = choose_active(
            self.consumers, topic=self.context.topic, partition=self.context.partition
        )
        if chosen is self._chosen:
            return False
        self._chosen = chosen
        self._cancel_switch()
        self.active = None
        self.source.close()
        if chosen is not None:
            delay_ms = self.context.limits.failover_delay_ms if delay else 0
            self._switch = asyncio.get_running_loop().call_later(delay_ms / 1000, self._activate)
        return True

    def _activate(self) -> None:
        self._switch = None
        self.active = self._chosen
        self.rewind()
        for consumer in self.consumers:
            self._notify(consumer)
        self.wake()

    def _notify(self, consumer: Consumer) -> None:
        tell_active(consumer, is_active=consumer is self._chosen)

    def _cancel_switch(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
