"""A limit on a rate: tokens come back with time; overspending leaves a debt that is paid first.

Pure but for the clock that is passed in.
"""

from collections.abc import Callable


class TokenBucket:
    """At most `per_period` tokens in `period_s` seconds; unused tokens add up to that many at most.

    A caller may spend more tokens than are available, because an entry is sent whole. The debt is
    paid before new tokens are available.
    """

    __slots__ = ("_at_s", "_now_s", "_per_s", "_tokens", "capacity")

    def __init__(self, now_s: Callable[[], float], *, per_period: float, period_s: float) -> None:
        """Start with a full bucket. `now_s` returns monotonic seconds."""
        assert per_period > 0
        assert period_s > 0
        self._now_s = now_s
        self._per_s = per_period / period_s
        self.capacity = float(per_period)
        self._tokens = self.capacity
        self._at_s = now_s()

    def change(self, *, per_period: float, period_s: float) -> None:
        """Fill at another rate from now on; saved or owed tokens stay."""
        self._refill()
        self._per_s = per_period / period_s
        self.capacity = float(per_period)
        self._tokens = min(self._tokens, self.capacity)

    def available(self) -> int:
        """Return the whole tokens that may be spent now; 0 during a debt."""
        self._refill()
        return max(0, int(self._tokens))

    def spend(self, count: float) -> None:
        self._refill()
        self._tokens -= count

    def wait_s(self) -> float:
        """Return the seconds until a token is available; 0 if one is."""
        self._refill()
        missing = min(1.0, self.capacity) - self._tokens
        return max(0.0, missing / self._per_s)

    def _refill(self) -> None:
        now_s = self._now_s()
        self._tokens = min(self.capacity, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
