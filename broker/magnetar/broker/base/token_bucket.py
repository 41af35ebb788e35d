"""A bound on a rate: tokens come back with time, and what is over takes more of them first.

Pure but for the clock that is handed in.
"""

from collections.abc import Callable


class TokenBucket:
    """At most `per_period` tokens in `period_s` seconds, and never more than that saved up.

    What is spent may be more than is there: an entry goes out whole, and the debt is paid first.
    """

    __slots__ = ("_at_s", "_now_s", "_per_s", "_tokens", "capacity")

    def __init__(self, now_s: Callable[[], float], *, per_period: float, period_s: float) -> None:
        """`now_s`: monotonic seconds. Starts full."""
        assert per_period > 0
        assert period_s > 0
        self._now_s = now_s
        self._per_s = per_period / period_s
        self.capacity = float(per_period)
        self._tokens = self.capacity
        self._at_s = now_s()

    def change(self, *, per_period: float, period_s: float) -> None:
        """Fill at another rate from now on; what is there, or owed, stays."""
        self._refill()
        self._per_s = per_period / period_s
        self.capacity = float(per_period)
        self._tokens = min(self._tokens, self.capacity)

    def available(self) -> int:
        """Whole tokens that may be spent now; 0 also while there is a debt."""
        self._refill()
        return max(0, int(self._tokens))

    def spend(self, count: float) -> None:
        self._refill()
        self._tokens -= count

    def wait_s(self) -> float:
        """Seconds until a token is there; 0 if one is."""
        self._refill()
        missing = min(1.0, self.capacity) - self._tokens
        return max(0.0, missing / self._per_s)

    def _refill(self) -> None:
        now_s = self._now_s()
        self._tokens = min(self.capacity, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
