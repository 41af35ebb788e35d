"""Negative acknowledgements: entries that are to be asked for again after a while. Pure; no I/O."""

import heapq


class Redelivery:
    """Entries with the time at which they are due."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: list[tuple[float, int, int]] = []
        self._waiting: set[tuple[int, int]] = set()

    def add(self, ledger_id: int, entry_id: int, *, now_s: float) -> None:
        """Ask for an entry again when the delay is over; a second request changes nothing."""
        if (ledger_id, entry_id) not in self._waiting:
            self._waiting.add((ledger_id, entry_id))
            heapq.heappush(self._due, (now_s + self._delay_s, ledger_id, entry_id))

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
