"""What one Shared or Key_Shared subscription has to do with the index of its topic.

What is withheld is so for all subscriptions alike. A dispatcher passes it over, without reading it
if the index knows it, and gets it by `deliver` when it is due. What is due for a subscription and
does not fit into its queue waits here, a bit each.
"""

import asyncio
from typing import Protocol

from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.broker.topic.dispatch.base import Dispatcher
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.position import Position


class TopicDelays(Protocol):
    """What is delayed on the topic; `DelayedDelivery` is such."""

    @property
    def withheld(self) -> PositionSet:
        """Entries that are not due, as far as they are known."""
        ...

    @property
    def due_entries_max(self) -> int:
        """Entries that are due and wait in one dispatcher."""
        ...

    def withholds(self, position: Position, due_ms: int, /) -> bool:
        """Whether an entry with that time is held back; it is remembered then."""
        ...


class SubscriptionDelays:
    """The `Delays` of a dispatcher."""

    def __init__(self, topic: TopicDelays, subscription: Subscription) -> None:
        self._topic = topic
        self._subscription = subscription
        self._due = PositionSet()
        """Due, not acknowledged when that was found, and not given to the dispatcher yet."""
        self._is_feed_scheduled = False

    # For the dispatcher

    def withholds(self, run: Run, index: int) -> bool:
        """Whether the entry, which its metadata delays, is not due."""
        position = Position(run.ledger_id, run.first_entry_id + index)
        return self._topic.withholds(position, run.delayed[index])

    def passed_over(self, position: Position) -> Position | None:
        """The last of the consecutive entries from here on that are withheld; None: it is not."""
        return self._topic.withheld.stretch_from(position)

    def rewound(self) -> None:
        """The dispatcher begins again, and finds what is due on its way."""
        self._due.clear()

    # For the topic

    @property
    def is_closed(self) -> bool:
        return self._subscription.is_closed

    @property
    def _dispatcher(self) -> Dispatcher | None:
        """The dispatcher, if it withholds anything, and has somebody to send to."""
        dispatcher = self._subscription.dispatcher
        if dispatcher is None or not dispatcher.heeds_delays or not dispatcher.consumers:
            return None
        return dispatcher

    @property
    def withheld(self) -> int:
        """Entries of its backlog that are withheld, as far as the index knows them."""
        subscription = self._subscription
        dispatcher = subscription.dispatcher
        if subscription.context is None or dispatcher is None or not dispatcher.heeds_delays:
            return 0
        cursor = subscription.cursor
        # Those that were acknowledged all the same are dropped when they are due.
        return min(self._topic.withheld.count_after(cursor.mark_delete), cursor.backlog_entries)

    @property
    def size_bytes(self) -> int:
        """Memory of what is due and waits for room."""
        return self._due.size_bytes

    def release(self, positions: list[Position]) -> None:
        """These are due. What the dispatcher has not come to yet, it finds by itself."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        after, is_acked, add = (
            dispatcher.read_after,
            dispatcher.context.cursor.is_acked,
            self._due.add,
        )
        for position in positions:
            if position <= after and not is_acked(position):
                add(position)
        self.feed()
        dispatcher.wake()

    def progressed(self) -> None:
        """The dispatcher has sent something: there may be room."""
        if self._due and not self._is_feed_scheduled:
            self._is_feed_scheduled = True
            asyncio.get_running_loop().call_soon(self._feed_scheduled)

    def _feed_scheduled(self) -> None:
        self._is_feed_scheduled = False
        self.feed()

    def feed(self) -> None:
        """Give the dispatcher some of what is due, in order of positions."""
        dispatcher = self._dispatcher
        if not self._due or dispatcher is None:
            return
        queue_max = self._topic.due_entries_max
        # Many at once, or none: each call goes through the whole queue of a Key_Shared dispatcher.
        room = queue_max - dispatcher.waiting_entries
        if room * 2 >= queue_max:
            is_acked = dispatcher.context.cursor.is_acked
            dispatcher.deliver([each for each in self._due.take(room) if not is_acked(each)])
