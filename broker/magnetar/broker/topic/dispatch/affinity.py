"""Chunked messages on a Shared subscription: which consumer gets the remaining chunks of each.
Pure."""

from collections import OrderedDict
from collections.abc import Set

from magnetar.broker.base.chunks import ChunkOf
from magnetar.broker.topic.consumer import Consumer


class ChunkAffinity:
    """Remembers which consumer has the earlier chunks of a message, until the last one is sent.

    Bounded: if messages never end, the one whose last chunk is longest ago is forgotten first.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._consumers: OrderedDict[str, Consumer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._consumers)

    def consumer_of(self, chunk: ChunkOf) -> Consumer | None:
        """Return the consumer that must get the chunk; None: any consumer may."""
        return self._consumers.get(chunk.uuid)

    def sent(self, chunk: ChunkOf, consumer: Consumer) -> None:
        """Note that the consumer was sent the chunk."""
        if chunk.is_last:
            self._consumers.pop(chunk.uuid, None)
            return
        self._consumers[chunk.uuid] = consumer
        self._consumers.move_to_end(chunk.uuid)
        if len(self._consumers) > self._messages_max:
            self._consumers.popitem(last=False)

    def forget(self, consumers: Set[Consumer]) -> None:
        """Forget consumers that have left: their unfinished messages go to others, from the first
        chunk on."""
        for uuid in [uuid for uuid, each in self._consumers.items() if each in consumers]:
            del self._consumers[uuid]

    def clear(self) -> None:
        self._consumers.clear()
