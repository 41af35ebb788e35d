"""Pacing: how long work must wait to stay below a rate. Pure."""


class Pace:
    """At most `per_s` units a second (0: no limit), and exactly that rate in the long run.

    Short waits are saved up until they are worth it. A timer may be a millisecond late, and
    thousands of timers would cost more than the work that they spread.
    """

    def __init__(self, per_s: float, *, wait_s_min: float = 0.02) -> None:
        assert per_s >= 0
        self._per_s = per_s
        self._wait_s_min = wait_s_min
        self._paid_until_s = float("-inf")

    def take(self, units: float, now_s: float) -> float:
        """Account for work that was done, or is about to be; return how long to wait, in seconds.

        Idle time is not saved up: work that was idle goes no faster later.
        """
        if self._per_s == 0:
            return 0.0
        self._paid_until_s = max(self._paid_until_s, now_s) + units / self._per_s
        wait_s = self._paid_until_s - now_s
        return wait_s if wait_s >= self._wait_s_min else 0.0
