"""When entries are asked for again: negative acknowledgements, and timeouts. Pure; no I/O.

Entries are asked for, messages are refused: an entry waits as long as one of its refused messages
is not acknowledged after all. Likewise entries are watched for a timeout, as long as a message that
was taken of one is not acknowledged; the time starts anew with every message taken of the entry.
Bit i stands for message i of a batch.
"""

import heapq
from dataclasses import dataclass

from magnetar.sdk.ack_grouping import ALL_MESSAGES


class Redelivery:
    """Entries with the time at which they are due, and which of their messages were refused."""

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
        """Ask for an entry again when the delay is over; a second request does not put it off."""
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
        """Everything before an entry was acknowledged after all."""
        for each in [each for each in self._waiting if each < entry]:
            del self._waiting[each]

    def take_due(self, *, now_s: float) -> list[tuple[int, int]]:
        """The entries that are due, in the order of their ids."""
        due: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now_s:
            due_s, ledger_id, entry_id = heapq.heappop(self._due)
            found = self._waiting.get((ledger_id, entry_id))
            if found is not None and found[0] == due_s:
                del self._waiting[ledger_id, entry_id]
                due.append((ledger_id, entry_id))
        return sorted(due)

    def clear(self) -> None:
        """Everything comes again anyway."""
        self._due.clear()
        self._waiting.clear()

    @property
    def next_s(self) -> float | None:
        """When the next one is due; None if there is none."""
        return self._due[0][0] if self._due else None


@dataclass(frozen=True, slots=True)
class NackDelay:
    """How long to wait before a message is asked for again."""

    min_s: float
    multiplier: float
    max_s: float

    def after(self, redelivery_count: int) -> float:
        """Seconds; grows with how often it has come again already, up to the largest."""
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
        """Messages of the entry were taken."""
        _, known = self._taken.pop(entry, (now_s, 0))
        self._taken[entry] = (now_s, known | bits)

    def discard(self, entry: tuple[int, int], bits: int = ALL_MESSAGES) -> None:
        """Stop the timeout of messages that were acknowledged, or are asked for again anyway."""
        found = self._taken.get(entry)
        if found is None:
            return
        taken_s, taken = found
        if taken & ~bits:
            self._taken[entry] = (taken_s, taken & ~bits)
        else:
            del self._taken[entry]

    def discard_before(self, entry: tuple[int, int]) -> None:
        """Everything before an entry was acknowledged."""
        for each in [each for each in self._taken if each < entry]:
            del self._taken[each]

    def take_due(self, *, now_s: float) -> list[tuple[int, int]]:
        """The entries whose time is over, in the order of their ids."""
        due: list[tuple[int, int]] = []
        for entry, (taken_s, _) in self._taken.items():
            if now_s - taken_s < self.timeout_s:
                break
            due.append(entry)
        for entry in due:
            del self._taken[entry]
        return sorted(due)

    def clear(self) -> None:
        """Everything comes again."""
        self._taken.clear()

    @property
    def next_s(self) -> float | None:
        """When the next one is due; None if there is none."""
        return next(iter(self._taken.values()))[0] + self.timeout_s if self._taken else None
