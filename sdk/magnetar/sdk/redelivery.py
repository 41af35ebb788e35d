"""Negative acknowledgements: entries that are to be asked for again after a while. Pure; no I/O."""

import heapq
from dataclasses import dataclass


class Redelivery:
    """Entries with the time at which they are due."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int]] = []
        self._waiting: set[tuple[int, int]] = set()

    def add(self, ledger_id: int, entry_id: int, *, now_s: float, delay_s: float) -> None:
        """Ask for an entry again when the delay is over; a second request changes nothing."""
        if (ledger_id, entry_id) not in self._waiting:
            self._waiting.add((ledger_id, entry_id))
            heapq.heappush(self._due, (now_s + delay_s, ledger_id, entry_id))

    def __contains__(self, entry: tuple[int, int]) -> bool:
        return entry in self._waiting

    def discard(self, ledger_id: int, entry_id: int) -> None:
        """It was acknowledged after all."""
        self._waiting.discard((ledger_id, entry_id))

    def take_due(self, *, now_s: float) -> list[tuple[int, int]]:
        """The entries that are due, in the order of their ids."""
        due: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now_s:
            _, ledger_id, entry_id = heapq.heappop(self._due)
            if (ledger_id, entry_id) in self._waiting:
                self._waiting.remove((ledger_id, entry_id))
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
