"""Exclusive dispatch: one consumer, all entries in order. The subscription refuses a second one.

A consumer that names hash ranges sees only entries whose keys are in them. The others stay
unacknowledged, as in Pulsar: such consumers are readers, or acknowledge cumulatively.
"""

from collections.abc import Collection

from magnetar.broker.topic.consumer import EXCLUSIVE, Consumer
from magnetar.broker.topic.dispatch.base import SingleActiveDispatcher
from magnetar.broker.topic.sticky_key import sticky_range_hash


class ExclusiveDispatcher(SingleActiveDispatcher):
    """Sends to the only consumer."""

    sub_type = EXCLUSIVE

    def add(self, consumer: Consumer) -> None:
        assert not self.consumers, "the subscription lets in one consumer only"
        self.consumers.append(consumer)
        self.active = consumer
        ranges = consumer.hash_ranges
        if ranges:
            self._wanted = lambda key_hash: any(
                each.start <= sticky_range_hash(key_hash) <= each.end for each in ranges
            )
        else:
            self._wanted = None
        # Entries that a former consumer did not acknowledge are sent again.
        self.rewind()

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        if self._without(consumers):
            self.active = None
            self.source.close()
