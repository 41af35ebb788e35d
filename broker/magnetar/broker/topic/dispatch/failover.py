"""Failover dispatch: many consumers, one of them active; the others stand by in a known order.

The active consumer is chosen whenever one joins or leaves: among those with the lowest priority
level, by partition index on a partitioned topic, else by a consistent hash ring of their names.
When the choice changes, sending stops for `failover_delay_ms`, so that acknowledgements of the
former consumer can still arrive. It then starts again at the first unacknowledged entry. The first
consumer waits as well: otherwise, in a group that starts, it could be sent entries that another one
then gets again. Another change during the delay does not prolong it, since nothing has been sent in
it.

Source: protocol sheet section 11.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import takewhile

from magnetar.broker.base import replies
from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic.consumer import FAILOVER, Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext, SingleActiveDispatcher
from magnetar.sdk.wire.key_hashes import murmur3_hash

NOTICE_VERSION_MIN = 12
"""Lowest protocol version whose clients are told which consumer is active."""

_POINTS_PER_CONSUMER = 100

NOTICES_PER_TURN = 200
"""Consumers notified of the active one in a single turn of the event loop."""


@lru_cache(maxsize=4096)
def _ring_points(name: str) -> tuple[int, ...]:
    return tuple(murmur3_hash(f"{name}{point}".encode()) for point in range(_POINTS_PER_CONSUMER))


@lru_cache(maxsize=4096)
def _ring_place(name: str, topic_hash: int) -> tuple[bool, int]:
    """Return the place of a consumer's first ring point after the topic's, as a sort key."""
    return min((point < topic_hash, point) for point in _ring_points(name))


class ActiveChoice:
    """The choice of the active consumer: equal on all brokers that know the same consumers.

    Only consumers with the lowest priority level count. On a partition, the partition index chooses
    from them in the order of their names; else, the consumer whose point comes first after the
    topic's on a ring of names. If several have that point, the last one by name counts, as in a map
    that is filled in that order. Names are compared by UTF-16 code units, like strings in Java.
    Joining and leaving cost a search.
    """

    def __init__(self, *, topic: str, partition: int) -> None:
        self._partition = partition
        self._topic_hash = murmur3_hash(topic.encode())
        self._levels: dict[int, list[tuple[bool, int, bytes, int, Consumer]]] = {}
        """Consumers by priority, ascending in each level. The fourth field, a number, distinguishes
        those of one name."""
        self._joined = 0

    def add(self, consumer: Consumer) -> None:
        place = (False, 0)
        if self._partition < 0:
            place = _ring_place(consumer.name, self._topic_hash)
        self._joined += 1
        level = self._levels.setdefault(consumer.priority, [])
        insort(level, (*place, consumer.name.encode("utf-16-be"), self._joined, consumer))

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        gone = set(consumers)
        for priority in {consumer.priority for consumer in gone}:
            level = [each for each in self._levels[priority] if each[-1] not in gone]
            if level:
                self._levels[priority] = level
            else:
                del self._levels[priority]

    def chosen(self) -> Consumer | None:
        if not self._levels:
            return None
        level = self._levels[min(self._levels)]
        if self._partition >= 0:
            return level[self._partition % len(level)][-1]
        first = level[0][:2]
        return list(takewhile(lambda each: each[:2] == first, level))[-1][-1]


class Notices:
    """Tells consumers which one is active, some in each turn, and newcomers only when they can
    listen.

    A newcomer is notified at its first FLOW, or after the failover delay if it sends none. Some
    clients register a consumer only after they have processed the answer to SUBSCRIBE, and lose a
    notice that arrives with it; they send FLOW after that.
    """

    def __init__(self, is_active: Callable[[Consumer], bool | None], *, delay_ms: int) -> None:
        """`is_active` returns None for a consumer that will be notified later, with all others."""
        self._is_active = is_active
        self._delay_ms = delay_ms
        self._newcomers: dict[Consumer, asyncio.TimerHandle] = {}

    def welcome(self, consumer: Consumer) -> None:
        self._newcomers[consumer] = asyncio.get_running_loop().call_later(
            self._delay_ms / 1000, self.begin, consumer
        )

    def begin(self, consumer: Consumer) -> None:
        """Begin to notify a consumer: it has sent a FLOW, or the time for that is over."""
        if consumer in self._newcomers:
            self.forget((consumer,))
            self._tell(consumer)

    def forget(self, consumers: Collection[Consumer]) -> None:
        for consumer in consumers:
            timer = self._newcomers.pop(consumer, None)
            if timer is not None:
                timer.cancel()

    def tell_all(self, consumers: Sequence[Consumer]) -> None:
        for consumer in consumers[:NOTICES_PER_TURN]:
            if consumer not in self._newcomers:
                self._tell(consumer)
        rest = consumers[NOTICES_PER_TURN:]
        if rest:
            asyncio.get_running_loop().call_soon(self.tell_all, rest)

    def _tell(self, consumer: Consumer) -> None:
        if consumer.is_closed or consumer.peer.protocol_version < NOTICE_VERSION_MIN:
            return
        is_active = self._is_active(consumer)
        if is_active is not None:
            consumer.peer.write(
                replies.active_consumer_change(consumer.consumer_id, is_active=is_active)
            )


class FailoverDispatcher(SingleActiveDispatcher):
    """Sends to the active consumer, and tells all consumers which one is active."""

    sub_type = FAILOVER

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._choice = ActiveChoice(topic=context.topic, partition=context.partition)
        self._chosen: Consumer | None = None
        """Consumer that is active, or will be after the delay."""
        self._switch: asyncio.TimerHandle | None = None
        self._notices = Notices(
            weakly(self._is_active), delay_ms=context.settings.failover_delay_ms
        )

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._choice.add(consumer)
        self._notices.welcome(consumer)
        self._choose()

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        gone = self._without(consumers)
        if not gone:
            return
        self._choice.remove_all(gone)
        self._notices.forget(gone)
        if self.active in gone:
            self.active = None
            self.source.close()
        self._choose()

    def begin(self, consumer: Consumer) -> None:
        self._notices.begin(consumer)

    def close(self) -> None:
        super().close()
        self._notices.forget(self.consumers)
        self._cancel_switch()

    def _choose(self) -> None:
        """Choose again, and switch if the choice is another consumer."""
        chosen = self._choice.chosen()
        if chosen is self._chosen:
            return
        self._chosen = chosen
        self.active = None
        self.source.close()
        if chosen is None:
            self._cancel_switch()
        elif self._switch is None:
            self._switch = asyncio.get_running_loop().call_later(
                self.context.settings.failover_delay_ms / 1000, self._activate
            )

    def _activate(self) -> None:
        self._switch = None
        self.active = self._chosen
        self.rewind()
        self._notices.tell_all(list(self.consumers))
        self.wake()

    def _is_active(self, consumer: Consumer) -> bool | None:
        if consumer is not self._chosen:
            return False
        return True if self._switch is None else None

    def _cancel_switch(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
