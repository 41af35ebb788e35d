"""How long one server of an ensemble may take before another is tried.

kazoo waits longer than a session can: a whole session timeout for a connection, that or a part of
it for the answer to a handshake, and for as long as requests are sent it does not notice that none
is answered. One server that hangs, or whose host drops what is sent to it, then costs the session
though others answer, and with it all that a broker owns.
"""

from typing import Final

_SILENCE_SHARE: Final = 1 / 3
"""Of the session timeout: no answer to anything for so long, and the connection is given up. What
is left is enough to connect anew before a broker gives its topics up, at two thirds."""
_SILENCE_SHARE_MAX: Final = 2 / 3
"""Of a short session: kazoo's own limit for a connection over which nothing is asked."""
_STEP_SHARE: Final = 1 / 6
_SLOW_S: Final = 1.0
"""A server that is only slow has so long in any case, or short sessions would never connect."""


class ServerPatience:
    """Belongs to one client, and to kazoo's thread; `session_timeout_ms` may be read by any."""

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        """What was asked for, until a server has granted one."""
        self.is_connected = False
        """The handshake is done: from now on silence counts. Until then each step has its limit."""
        self._factor = 1
        self._was_too_long = False

    @property
    def silence_s(self) -> float:
        """How long a server may leave all requests without an answer."""
        session_s = self.session_timeout_ms / 1000
        return max(session_s * _SILENCE_SHARE, min(_SLOW_S, session_s * _SILENCE_SHARE_MAX))

    @property
    def step_s(self) -> float:
        """How long a server may take for a connection, and again for its answer to the handshake.

        Twice as long after each round in which one took too long: a new session is a write, and if
        all servers are slow, whoever gives up each time never connects.
        """
        session_s = self.session_timeout_ms / 1000
        least_s = max(_SLOW_S, session_s * _STEP_SHARE)
        return min(least_s * self._factor, max(least_s, session_s))

    def step_took_too_long(self) -> None:
        self._was_too_long = True

    def round_begins(self) -> None:
        """All servers are tried, one after the other."""
        if self._was_too_long:
            self._factor = min(2 * self._factor, round(1 / _STEP_SHARE))
        self._was_too_long = False

    def connected(self, session_timeout_ms: int) -> None:
        """A server has answered the handshake, and granted this timeout."""
        self.is_connected = True
        self._factor = 1
        self._was_too_long = False
        self.session_timeout_ms = session_timeout_ms
