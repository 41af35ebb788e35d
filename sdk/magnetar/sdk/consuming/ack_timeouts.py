"""Messages that nobody acknowledged in time. Pure; no I/O.

Entries are asked for again, so entries are watched, as long as a message that was taken of one is
not acknowledged. The time of an entry starts anew with every message taken of it. Bit i stands for
message i of a batch.
"""

from magnetar.sdk.ack_grouping import ALL_MESSAGES


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
        """These messages of an entry were acknowledged, or are asked for again anyway."""
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
