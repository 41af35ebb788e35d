"""Places of connections: how many there are in all and per address, and which connection is cut.

A new connection finds a place as long as some other connection is *silent*: it has not begun to
speak the protocol, or has not finished a request. At a limit, the oldest silent connection is cut
for the new one. Beyond the limits, some places are kept for loopback alone. Health checks and an
operator on the host thus get in while clients hold all others. Pure: callers pass the time.
"""

from collections import Counter
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final, Generic, TypeVar

SILENT_S: Final = 1.0
"""Seconds that a connection may be silent before it can be cut for another one."""

_LOOKS_MAX: Final = 64
"""Connections examined per search for a silent one; the next search begins with the others."""

C = TypeVar("C")


class ConnectionPlaces(Generic[C]):
    """The places of one kind of connections.

    Args:
        connections_max: connections in all.
        per_address_max: connections from one address; 0 = any number.
        kept_for_loopback: places beyond both limits, for connections from the host itself.
        is_silent: whether a connection only holds its place.
        cut: ends a connection at once; its place is free by then.
    """

    def __init__(
        self,
        *,
        connections_max: int,
        per_address_max: int,
        kept_for_loopback: int,
        is_silent: Callable[[C], bool],
        cut: Callable[[C], None],
    ) -> None:
        self._max = connections_max
        self._per_address_max = per_address_max
        self._kept_for_loopback = kept_for_loopback
        self._is_silent = is_silent
        self._cut = cut
        # In the order in which connections took their place or last spoke.
        self._places: dict[C, tuple[str, float]] = {}
        self._per_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, connection: object) -> bool:
        return connection in self._places

    @property
    def all(self) -> Collection[C]:
        """All connections that have a place."""
        return self._places.keys()

    @property
    def is_full(self) -> bool:
        """Whether a connection that is not from this host finds no free place."""
        return len(self._places) >= self._max

    def take(self, connection: C, host: str, now_s: float) -> bool:
        """Give a connection from `host` a place; return False if there is none."""
        if not self.make_room(host, now_s):
            return False
        self._places[connection] = host, now_s
        self._per_address[host] += 1
        return True

    def make_room(self, host: str, now_s: float) -> bool:
        """Cut a silent connection if `host` finds no place; return False if there is still none."""
        return self._has_room(host) or (self._cut_silent(host, now_s) and self._has_room(host))

    def spoke(self, connection: C, now_s: float) -> None:
        """Note that a connection did something: it now counts as the last to have spoken."""
        place = self._places.pop(connection, None)
        if place is not None:
            self._places[connection] = place[0], now_s

    def give_back(self, connection: C) -> bool:
        """Free the place of a closed connection; return False if it had none."""
        place = self._places.pop(connection, None)
        if place is None:
            return False
        host = place[0]
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]
        return True

    def _has_room(self, host: str) -> bool:
        kept = self._kept_for_loopback if _is_loopback(host) else 0
        limit = self._per_address_max
        return len(self._places) < self._max + kept and (
            not limit or self._per_address[host] < limit + kept
        )

    def _cut_silent(self, host: str, now_s: float) -> bool:
        """Cut the oldest silent connection; one of `host` if that address is at its limit."""
        is_over = 0 < self._per_address_max <= self._per_address[host]
        for connection in list(islice(self._places, _LOOKS_MAX)):
            its_host, since_s = self._places[connection]
            if now_s - since_s < SILENT_S:
                return False  # all later ones spoke more recently
            if (not is_over or its_host == host) and self._is_silent(connection):
                self.give_back(connection)
                self._cut(connection)
                return True
            # Examined again after all others.
            self.spoke(connection, since_s)
        return False


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "[::1]", "::ffff:127.0.0.1")
