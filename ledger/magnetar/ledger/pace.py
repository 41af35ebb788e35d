"""Pacing: how long to wait so that work goes no faster than it may. Pure."""


class Pace:
    """At most `per_s` units a second (0: no bound), in the long run exactly that.

    Waits are not asked for before they are worth it: a timer is late by as much as a millisecond,
    and thousands of them would cost more than the work that they spread.
    """

    def __init__(self, per_s: float, *, wait_s_min: float = 0.02) -> None:
        assert per_s >= 0
        self._per_s = per_s
        self._wait_s_min = wait_s_min
        self._paid_until_s = float("-inf")

    def take(self, units: float, now_s: float) -> float:
        """Account for work that was done, or is about to be; returns how long to wait, in seconds.

        Time in which nothing was done is not saved up: work that was idle goes no faster later.
        """
        if self._per_s == 0:
            return 0.0
        self._paid_until_s = max(self._paid_until_s, now_s) + units / self._per_s
        wait_s = self._paid_until_s - now_s
        return wait_s if wait_s >= self._wait_s_min else 0.0
