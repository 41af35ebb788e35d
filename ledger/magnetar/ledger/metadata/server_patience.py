"""How long one server of an ensemble may take before the client tries another.

kazoo waits longer than a session lasts. It allows a whole session timeout for a connection, and
that or a part of it for the answer to a handshake. While it sends requests, it does not notice that
none is answered. One server that hangs, or whose host drops packets, would then cost the session
although others answer, and with it everything that a broker owns.
"""

from typing import Final

_SILENCE_SHARE: Final = 1 / 3
"""Share of the session timeout without any answer after which the client closes the connection. The
rest is enough to connect anew before a broker gives its topics up, at two thirds."""
_SILENCE_SHARE_MAX: Final = 2 / 3
"""Upper bound of that share for a short session: kazoo's own limit for an idle connection."""
_STEP_SHARE: Final = 1 / 6
_SLOW_S: Final = 1.0
"""Least time, in seconds, that a slow server gets; otherwise short sessions would never connect."""


class ServerPatience:
    """Time limits of one client. Belongs to kazoo's thread; any thread may read
    `session_timeout_ms`."""

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        """The timeout granted by a server; until then, the requested one."""
        self.is_connected = False
        """Whether the handshake is done: from then on silence counts. Before, each step has its own
        limit."""
        self._factor = 1
        self._was_too_long = False

    @property
    def silence_s(self) -> float:
        """Longest time, in seconds, that a server may leave all requests without an answer."""
        session_s = self.session_timeout_ms / 1000
        return max(session_s * _SILENCE_SHARE, min(_SLOW_S, session_s * _SILENCE_SHARE_MAX))

    @property
    def step_s(self) -> float:
        """Longest time, in seconds, for a connection, and again for the answer to the handshake.

        The limit doubles after each round in which a step took too long. A new session is a write:
        if all servers are slow, a client that gives up each time would never connect.
        """
        session_s = self.session_timeout_ms / 1000
        least_s = max(_SLOW_S, session_s * _STEP_SHARE)
        return min(least_s * self._factor, max(least_s, session_s))

    def step_took_too_long(self) -> None:
        self._was_too_long = True

    def round_begins(self) -> None:
        """Note that a new round of tries begins, over all servers one after the other."""
        if self._was_too_long:
            self._factor = min(2 * self._factor, round(1 / _STEP_SHARE))
        self._was_too_long = False

    def connected(self, session_timeout_ms: int) -> None:
        """Note that a server answered the handshake and granted this session timeout."""
        self.is_connected = True
        self._factor = 1
        self._was_too_long = False
        self.session_timeout_ms = session_timeout_ms
