"""Messages that nobody acknowledged in time. Pure; no I/O.

Entries are asked for again, so entries are watched. The time of one starts anew with every message
taken of it.
"""


class AckTimeouts:
    """Entries taken and not acknowledged, oldest first."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._taken: dict[tuple[int, int], float] = {}

    def add(self, entry: tuple[int, int], *, now_s: float) -> None:
        """A message of the entry was taken."""
        self._taken.pop(entry, None)
        self._taken[entry] = now_s

    def discard(self, entry: tuple[int, int]) -> None:
        """All of it was acknowledged, or it is asked for again anyway."""
        self._taken.pop(entry, None)

    def discard_up_to(self, entry: tuple[int, int]) -> None:
        """Everything up to and including an entry was acknowledged."""
        for each in [each for each in self._taken if each <= entry]:
            del self._taken[each]

    def take_due(self, *, now_s: float) -> list[tuple[int, int]]:
        """The entries whose time is over, in the order of their ids."""
        due: list[tuple[int, int]] = []
        for entry, taken_s in self._taken.items():
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
        return next(iter(self._taken.values())) + self.timeout_s if self._taken else None
