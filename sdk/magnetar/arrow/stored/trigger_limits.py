"""How much a micro-batch of a streaming query reads, and how long it waits for data. Pure.

Limits are soft. Sizes of entries are means of their ledgers, and numbers of messages use the mean
of the topic, since an entry is a batch of its producer.

A minimum delays a micro-batch until there is so much data, or until the first of it has waited for
`delay_s`. The first micro-batch of a process is not delayed: otherwise a query that is restarted
often would read nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.sdk.ports import Clock


class Unread(NamedTuple):
    """The amount of data between two offsets of a topic."""

    entries: int
    messages: float
    """Approximate number: by the mean of the topic, or one for each entry if the mean is
    unknown."""
    bytes: int
    """Approximate size: by the means of ledgers."""


def in_sum(every: Mapping[str, Unread]) -> Unread:
    """Add up the amounts of all topics."""
    return Unread(
        sum(each.entries for each in every.values()),
        sum(each.messages for each in every.values()),
        sum(each.bytes for each in every.values()),
    )


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of a micro-batch, and the minimum for which it waits; None means no limit."""

    entries_max: int | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    entries_min: int | None = None
    messages_min: int | None = None
    bytes_min: int | None = None
    delay_s: float = 0.0
    """Longest wait of a micro-batch for a minimum, in seconds."""

    @property
    def has_maximum(self) -> bool:
        """Whether a maximum is set: a micro-batch may then leave data for the next one."""
        return (self.entries_max, self.messages_max, self.bytes_max) != (None, None, None)

    @property
    def has_minimum(self) -> bool:
        """Whether a minimum is set: a micro-batch may then have to wait."""
        return (self.entries_min, self.messages_min, self.bytes_min) != (None, None, None)

    @property
    def counts_messages(self) -> bool:
        """Whether the number of messages per entry must be known."""
        return self.messages_max is not None or self.messages_min is not None

    def is_enough(self, there: Unread) -> bool:
        """Return whether there is as much data as a micro-batch waits for."""
        return (
            there.entries >= (self.entries_min or 0)
            and there.messages >= (self.messages_min or 0)
            and there.bytes >= (self.bytes_min or 0)
        )


NO_LIMITS = TriggerLimits()


class BatchDelay:
    """Delays micro-batches with less data than the minimum."""

    def __init__(self, limits: TriggerLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._is_first = True
        self._waits_since_s: float | None = None

    def puts_off(self, there: Unread) -> bool:
        """Return whether the micro-batch with this data has to wait. Must be called at each
        look."""
        if not there.entries:
            self._waits_since_s = None
            return False
        now_s = self._clock.monotonic_s()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        has_waited = now_s - self._waits_since_s >= self._limits.delay_s
        if self._is_first or has_waited or self._limits.is_enough(there):
            self._is_first = False
            self._waits_since_s = None
            return False
        return True
