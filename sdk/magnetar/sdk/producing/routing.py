"""Route messages to partitions. Pure; no I/O.

A key always decides: its hash modulo the number of partitions, so all messages of a key keep their
order as long as no partitions are added. The hashes are those of the official clients; Java's and
Go's default is `JAVA_STRING`. (The C++ client, and Python's on it, use another one by default,
which is not the same on all platforms.)
"""

from collections.abc import Callable
from enum import Enum
from random import Random

from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.wire.key_hashes import java_string_hash, murmur3_hash

Router = Callable[[OutgoingMessage, int], int]
"""An application's own routing: takes the message and the number of partitions, returns an
index."""


class Hashing(Enum):
    """Hash functions that choose the partition of a key."""

    JAVA_STRING = "java_string"
    MURMUR3 = "murmur3"

    def of(self, key: str) -> int:
        """Return the hash of a key, from 0 to 2^31 - 1."""
        if self is Hashing.JAVA_STRING:
            return java_string_hash(key)
        return murmur3_hash(key.encode())


class RoutingMode(Enum):
    """Where messages without a key go."""

    ROUND_ROBIN = "round_robin"
    """One partition after the other. With batching the next one follows when a batch is full or its
    delay (at least a millisecond) is over, so that batches become full."""
    SINGLE_PARTITION = "single_partition"
    """All messages go to one partition, chosen at random when the producer is created."""


class PartitionRouter:
    """Chooses partitions for one producer."""

    def __init__(
        self,
        routing: "RoutingMode | Router",
        hashing: Hashing,
        *,
        batch: tuple[int, int, float] | None,
        random: Random,
    ) -> None:
        """Start at a random partition.

        `batch`: messages and bytes of a full batch, and its delay in seconds; None without
        batching.
        """
        self._routing, self._hashing, self._batch = routing, hashing, batch
        # A random start, so that the producers of a program do not all fill the same partition
        # first.
        self._current = random.getrandbits(16)
        self._single: int | None = None
        self._messages = self._bytes = 0
        self._since_s = 0.0

    def choose(self, message: OutgoingMessage, partitions: int, now_s: float) -> int:
        """Return the index of the partition for a message.

        Raises:
            ValueError: the application's router returned a partition that does not exist.
        """
        routing = self._routing
        if not isinstance(routing, RoutingMode):
            index = routing(message, partitions)
            if not 0 <= index < partitions:
                raise ValueError(
                    f"the router chose partition {index}; there are {partitions}, from 0"
                )
            return index
        if message.key is not None:
            key = message.metadata_key
            return self._hashing.of(key) % partitions
        if routing is RoutingMode.SINGLE_PARTITION:
            return self._single_of(partitions)
        return self._in_turn(len(message.payload), now_s) % partitions

    def next_run(self, partitions: int) -> int:
        """Return the next partition in turn for a whole batch of messages without keys."""
        if self._routing is RoutingMode.SINGLE_PARTITION:
            return self._single_of(partitions)
        if self._routing is RoutingMode.ROUND_ROBIN:
            self._switch(0.0)
        return self._current % partitions

    def _single_of(self, partitions: int) -> int:
        """Return the single partition. It stays when partitions are added: the order of messages
        depends on it. (The segments of a scalable topic may become fewer.)"""
        if self._single is None or self._single >= partitions:
            self._single = self._current % partitions
        return self._single

    @property
    def is_blind(self) -> bool:
        """Whether the routing of messages without a key does not depend on the message."""
        return isinstance(self._routing, RoutingMode)

    @property
    def run_messages_max(self) -> int:
        """Messages that go to one partition before the next one's turn."""
        return 1 if self._batch is None else self._batch[0]

    def _in_turn(self, size: int, now_s: float) -> int:
        if self._batch is None:
            self._current += 1
            return self._current
        messages_max, bytes_max, delay_s = self._batch
        is_over = now_s - self._since_s >= max(delay_s, 0.001)
        if self._messages >= messages_max or self._bytes + size > bytes_max or is_over:
            self._switch(now_s)
        self._messages += 1
        self._bytes += size
        return self._current

    def _switch(self, now_s: float) -> None:
        self._current += 1
        self._messages = self._bytes = 0
        self._since_s = now_s
