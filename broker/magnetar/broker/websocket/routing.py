"""Which partition a message goes to. Pure.

A key decides by its hash; a message without one goes to one partition for the life of the producer,
or to each in turn. Source: protocol sheet, section 14.
"""

from magnetar.broker.websocket.parameters import HashingScheme, RoutingMode
from magnetar.sdk.wire.key_hashes import java_string_hash, murmur3_hash


class Router:
    """Chooses for one producer."""

    def __init__(self, hashing: HashingScheme, routing: RoutingMode, *, first: int) -> None:
        """`first`, any number from 0 on, chooses the partition to begin with."""
        self._hash = _HASHES[hashing]
        self._turns = routing is RoutingMode.ROUND_ROBIN
        self._next = first

    def choose(self, key: str | None, partitions: int) -> int:
        """A partition from 0 on."""
        if key is not None:
            return self._hash(key) % partitions
        chosen = self._next % partitions
        if self._turns:
            self._next += 1
        return chosen


def _murmur(text: str) -> int:
    return murmur3_hash(text.encode())


_HASHES = {HashingScheme.JAVA_STRING: java_string_hash, HashingScheme.MURMUR3: _murmur}
