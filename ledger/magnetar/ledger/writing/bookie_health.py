"""Which bookies have failed adds lately, so that new ensembles keep clear of them (quarantine).

A bookie that hangs stays registered until its session ends, and would be chosen again as its own
replacement's replacement. One that reached `errors_max` failures within `interval_s` is therefore
avoided for `quarantine_s`; it is used only when no other is left. One failure is one add request
that failed, and counts once per ensemble change it caused.

Source: ledger protocol, section 5 (quarantine after N errors per interval).
"""

from collections import deque
from collections.abc import Collection

from magnetar.ledger.ports import Clock


class BookieHealth:
    """The failures of all writers of one client, by bookie."""

    def __init__(
        self, clock: Clock, *, errors_max: int, interval_s: float, quarantine_s: float
    ) -> None:
        self._clock = clock
        self._errors_max = errors_max
        self._interval_s = interval_s
        self._quarantine_s = quarantine_s
        self._errors: dict[str, deque[float]] = {}
        self._until_s: dict[str, float] = {}

    def on_error(self, bookie_id: str) -> None:
        """An add that the bookie failed cost an ensemble change."""
        now_s = self._clock.monotonic_s()
        errors = self._errors.setdefault(bookie_id, deque(maxlen=self._errors_max))
        errors.append(now_s)
        if len(errors) == self._errors_max and now_s - errors[0] <= self._interval_s:
            self._until_s[bookie_id] = now_s + self._quarantine_s

    def quarantined(self) -> Collection[str]:
        """The bookies to avoid just now, sorted."""
        now_s = self._clock.monotonic_s()
        for bookie_id in [each for each, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[bookie_id]
        return sorted(self._until_s)
