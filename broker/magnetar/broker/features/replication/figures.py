"""Counters, rates and the delay of the copies of one topic to one cluster. Pure.

The delay is the age of the oldest message that the other cluster has not confirmed; losing this
cluster would lose the messages of that time. Computing it reads nothing. While copies are pending,
it follows from their publish times, otherwise from the moment at which this side fell behind.
Producers' clocks may be wrong by years. A publish time before that moment, or in the future, is
therefore corrected.

Source: geo-replication sheet, sections 16 and 19.
"""

from magnetar.broker.base.meter import Meter


class CopyFigures:
    """Counters of the copies of one topic to one cluster."""

    def __init__(self, now_ms: int) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.skipped = 0
        """Entries that are not copied there: copies, messages for other clusters, aborted ones."""
        self.expired_entries = 0
        """Entries that were dropped before they were copied: too old, or skipped by an operator."""
        self._meter = Meter(0, 0, 0, since_ms=now_ms)
        self._sampled_ms = now_ms
        self._behind_ms = 0
        """Time up to which the other cluster has everything, ms since 1970; 0 if it has everything
        now."""

    # Rates

    def sample(self, now_ms: int, interval_s: float) -> None:
        """Record the counters for the rates, if an interval has passed since the last time."""
        if now_ms - self._sampled_ms >= interval_s * 1000:
            self._sampled_ms = now_ms
            self._meter.sample(now_ms, *self._counters)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Return messages and bytes sent, and entries expired, per second of the last minute."""
        return self._meter.per_s(now_ms, *self._counters)

    @property
    def _counters(self) -> tuple[int, int, int]:
        return self.messages_out, self.bytes_out, self.expired_entries

    # Delay

    @property
    def is_behind(self) -> bool:
        """Whether the other cluster is known to lack something."""
        return self._behind_ms > 0

    def fell_behind(self, since_ms: int) -> None:
        """Note that the other cluster lacks something, but nothing older than `since_ms`.

        Later calls have no effect until it has everything.
        """
        if not self._behind_ms:
            self._behind_ms = max(1, since_ms)

    def came_on(self, published_ms: int) -> None:
        """Note the earliest possible publish time of the oldest missing message; 0 if unknown."""
        if self._behind_ms:
            self._behind_ms = max(self._behind_ms, published_ms)

    def caught_up(self) -> None:
        """Note that the other cluster has everything."""
        self._behind_ms = 0

    def delay_s(self, now_ms: int, oldest_published_ms: int = 0) -> int:
        """Return the age of the oldest missing message in whole seconds; 0 if none is missing.

        Args:
            oldest_published_ms: publish time of the oldest pending copy; 0 if none is pending.
        """
        if not self._behind_ms:
            return 0
        since_ms = max(self._behind_ms, oldest_published_ms)
        return max(0, now_ms - since_ms) // 1000
