"""How long a query waits for servers that restart: one rule for driver and executors.

Brokers restart, and topics move, in seconds. If a query fails over that, an operator has to start
it again. If it waits for ever, it hides that a server is gone for good.
"""

from collections.abc import Callable

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.ports import Clock

PATIENCE_S = 60.0
"""How long to wait for servers since their last answer, in seconds."""

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.1, 2.0


class Patience:
    """Pauses between attempts, which double, up to a time limit. For one thread."""

    def __init__(
        self, clock: Clock, pause: Callable[[float], None], patience_s: float = PATIENCE_S
    ) -> None:
        self._clock = clock
        self._pause = pause
        self.begin(patience_s)

    def begin(self, patience_s: float) -> None:
        """Restart the time limit: an attempt succeeded, or is the first one."""
        self._give_up_at_s = self._clock.monotonic_s() + patience_s
        self._backoff = Backoff(min_s=_PAUSE_S_MIN, max_s=_PAUSE_S_MAX)

    @property
    def has_waited(self) -> bool:
        """Whether there was a pause since the last `begin`."""
        return self._backoff.has_paused

    def wait(self) -> bool:
        """Pause before the next attempt; return False at once if the time is up."""
        if self._clock.monotonic_s() >= self._give_up_at_s:
            return False
        self._pause(self._backoff.next_s())
        return True
