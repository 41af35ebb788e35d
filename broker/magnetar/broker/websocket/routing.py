"""Which partition a message goes to. Pure.

A key decides by its hash; a message without one goes to one partition for the life of the producer,
or to each in turn. Source: protocol sheet, section 14.
"""

from magnetar.broker.hashing import murmur31
from magnetar.broker.websocket.parameters import HashingScheme, RoutingMode


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


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java without its sign bit: over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for at in range(0, len(units), 2):
        result = (31 * result + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return result & 0x7FFFFFFF


def _murmur(text: str) -> int:
    return murmur31(text.encode())


_HASHES = {HashingScheme.JAVA_STRING: java_string_hash, HashingScheme.MURMUR3: _murmur}
