"""How long a query waits for servers that are being restarted: one rule for driver and executors.

Brokers are restarted, and topics move, in seconds. A query that fails over that has to be started
again by somebody; one that waits for ever hides that a server is gone for good.
"""

from collections.abc import Callable

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.ports import Clock

PATIENCE_S = 60.0
"""How long servers are waited for, since they answered last."""

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.1, 2.0


class Patience:
    """Pauses between attempts, which double, and the end of them. For one thread."""

    def __init__(
        self, clock: Clock, pause: Callable[[float], None], patience_s: float = PATIENCE_S
    ) -> None:
        self._clock = clock
        self._pause = pause
        self.begin(patience_s)

    def begin(self, patience_s: float) -> None:
        """Count anew: an attempt came through, or is the first one."""
        self._give_up_at_s = self._clock.monotonic_s() + patience_s
        self._backoff = Backoff(min_s=_PAUSE_S_MIN, max_s=_PAUSE_S_MAX)

    @property
    def has_waited(self) -> bool:
        """Whether there was a pause since the count began."""
        return self._backoff.has_paused

    def wait(self) -> bool:
        """Pause before the next attempt; False at once if there is to be none."""
        if self._clock.monotonic_s() >= self._give_up_at_s:
            return False
        self._pause(self._backoff.next_s())
        return True
