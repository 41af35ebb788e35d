"""Exclusive: one consumer, all entries in order. The subscription refuses a second one."""

from magnetar.broker.consumer import EXCLUSIVE, Consumer
from magnetar.broker.dispatch.base import SingleActiveDispatcher


class ExclusiveDispatcher(SingleActiveDispatcher):
    """Sends to the one consumer there is."""

    sub_type = EXCLUSIVE

    def add(self, consumer: Consumer) -> None:
        assert not self.consumers, "the subscription lets in one consumer only"
        self.consumers.append(consumer)
        self.active = consumer
        # A former consumer's unacknowledged entries come again.
        self.rewind()

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.active = None
            self.source.close()
