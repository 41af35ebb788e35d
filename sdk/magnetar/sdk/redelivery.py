"""Times of redelivery requests: for negative acknowledgements, and for ack timeouts. Pure; no I/O.

Requests are for entries, but negative acknowledgements are for messages. An entry stays due as long
as one of its negatively acknowledged messages is not acknowledged after all. An entry is watched
for a timeout as long as a message taken from it is not acknowledged; each further message taken
from the entry restarts the time. Bit i is message i of a batch.
"""

import heapq
from dataclasses import dataclass

from magnetar.sdk.ack_grouping import ALL_MESSAGES


class Redelivery:
    """Entries to request again, each with its due time and its negatively acknowledged messages."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int]] = []
        self._waiting: dict[tuple[int, int], tuple[float, int]] = {}

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        bits: int = ALL_MESSAGES,
        *,
        now_s: float,
        delay_s: float,
    ) -> None:
        """Request an entry again after the delay; a second call does not postpone it."""
        due_s, known = self._waiting.get((ledger_id, entry_id), (now_s + delay_s, 0))
        if not known:
            heapq.heappush(self._due, (due_s, ledger_id, entry_id))
        self._waiting[ledger_id, entry_id] = (due_s, known | bits)

    def __contains__(self, entry: tuple[int, int]) -> bool:
        return entry in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def discard(self, ledger_id: int, entry_id: int, bits: int = ALL_MESSAGES) -> None:
        """Forget messages of an entry that were acknowledged after all, or come again anyway."""
        found = self._waiting.get((ledger_id, entry_id))
        if found is None:
            return
        due_s, refused = found
        if refused & ~bits:
            self._waiting[ledger_id, entry_id] = (due_s, refused & ~bits)
        else:
            del self._waiting[ledger_id, entry_id]

    def discard_before(self, entry: tuple[int, int]) -> None:
        """Forget everything before an entry: it was acknowledged after all."""
        for each in [each for each in self._waiting if each < entry]:
            del self._waiting[each]

    def take_due(self, *, now_s: float) -> list[tuple[int, int]]:
        """Return and forget the entries that are due, in the order of their ids."""
        due: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now_s:
            due_s, ledger_id, entry_id = heapq.heappop(self._due)
            found = self._waiting.get((ledger_id, entry_id))
            if found is not None and found[0] == due_s:
                del self._waiting[ledger_id, entry_id]
                due.append((ledger_id, entry_id))
        return sorted(due)

    def clear(self) -> None:
        """Forget everything, because it is redelivered anyway."""
        self._due.clear()
        self._waiting.clear()

    @property
    def next_s(self) -> float | None:
        """Time at which the next entry is due, in seconds; None if there is none."""
        return self._due[0][0] if self._due else None


@dataclass(frozen=True, slots=True)
class NackDelay:
    """Delay between a negative acknowledgement and the redelivery request."""

    min_s: float
    multiplier: float
    max_s: float

    def after(self, redelivery_count: int) -> float:
        """Return the delay in seconds. It grows with the number of redeliveries, up to `max_s`."""
        if self.multiplier == 1.0 or redelivery_count == 0:
            return self.min_s
        try:
            return min(self.max_s, self.min_s * self.multiplier**redelivery_count)
        except OverflowError:
            return self.max_s


class AckTimeouts:
    """Entries with messages that were taken and not acknowledged, oldest first."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._taken: dict[tuple[int, int], tuple[float, int]] = {}

    def add(self, entry: tuple[int, int], bits: int = ALL_MESSAGES, *, now_s: float) -> None:
        """Start or restart the timeout of an entry whose messages were taken."""
        _, known = self._taken.pop(entry, (now_s, 0))
        self._taken[entry] = (now_s, known | bits)

    def discard(self, entry: tuple[int, int], bits: int = ALL_MESSAGES) -> None:
        """Stop the timeout of messages that were acknowledged, or are requested again anyway."""
        found = self._taken.get(entry)
        if found is None:
            return
        taken_s, taken = found
        if taken & ~bits:
            self._taken[entry] = (taken_s, taken & ~bits)
        else:
            del self._taken[entry]

    def discard_before(self, entry: tuple[int, int]) -> None:
        """Stop the timeouts of everything before an entry: it was acknowledged."""
        for each in [each for each in self._taken if each < entry]:
            del self._taken[each]

    def take_due(self, *, now_s: float) -> list[tuple[int, int]]:
        """Return and forget the entries whose time is over, in the order of their ids."""
        due: list[tuple[int, int]] = []
        for entry, (taken_s, _) in self._taken.items():
            if now_s - taken_s < self.timeout_s:
                break
            due.append(entry)
        for entry in due:
            del self._taken[entry]
        return sorted(due)

    def clear(self) -> None:
        """Forget everything, because it is redelivered."""
        self._taken.clear()

    @property
    def next_s(self) -> float | None:
        """Time at which the next timeout is due, in seconds; None if there is none."""
        return next(iter(self._taken.values()))[0] + self.timeout_s if self._taken else None
