"""Counters, rates and the delay of the copies of one topic to one cluster. Pure.

The delay is the age of the oldest message that the other side has not receipted, which is what
would be lost with this cluster. Nothing is read for it. While copies are under way it is known from
their publish times; else from the moment at which this side fell behind. Producers' clocks may be
wrong by years, so a publish time is never believed to be before that moment, and never in the
future.

Source: geo-replication sheet, sections 16 and 19.
"""

from magnetar.broker.base.meter import Meter


class CopyFigures:
    """Counters of the copies of one topic to one cluster."""

    def __init__(self, now_ms: int) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.skipped = 0
        """Entries that do not go there: copies, messages for other clusters, aborted ones."""
        self.expired_entries = 0
        """Entries that were dropped before they were there: too old, or skipped by an operator."""
        self._meter = Meter(0, 0, 0, since_ms=now_ms)
        self._sampled_ms = now_ms
        self._behind_ms = 0
        """Before this, ms since 1970, everything was there; 0: everything is there now."""

    # Rates

    def sample(self, now_ms: int, interval_s: float) -> None:
        """Note the counters for the rates, if an interval has passed since the last time."""
        if now_ms - self._sampled_ms >= interval_s * 1000:
            self._sampled_ms = now_ms
            self._meter.sample(now_ms, *self._counters)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Messages and bytes sent, and entries expired, per second of about the last minute."""
        return self._meter.per_s(now_ms, *self._counters)

    @property
    def _counters(self) -> tuple[int, int, int]:
        return self.messages_out, self.bytes_out, self.expired_entries

    # Delay

    @property
    def is_behind(self) -> bool:
        """Whether something is not there, as far as is known."""
        return self._behind_ms > 0

    def fell_behind(self, since_ms: int) -> None:
        """Something is not there; nothing older than `since_ms` is missing. Later calls are of no
        effect until everything is there."""
        if not self._behind_ms:
            self._behind_ms = max(1, since_ms)

    def came_on(self, published_ms: int) -> None:
        """The oldest message that is missing was published then, or later; 0: nobody knows."""
        if self._behind_ms:
            self._behind_ms = max(self._behind_ms, published_ms)

    def caught_up(self) -> None:
        """Everything is there."""
        self._behind_ms = 0

    def delay_s(self, now_ms: int, oldest_published_ms: int = 0) -> int:
        """The age of the oldest message that is missing, whole seconds; 0: none is.

        Args:
            oldest_published_ms: publish time of the oldest copy under way; 0: none is.
        """
        if not self._behind_ms:
            return 0
        since_ms = max(self._behind_ms, oldest_published_ms)
        return max(0, now_ms - since_ms) // 1000
