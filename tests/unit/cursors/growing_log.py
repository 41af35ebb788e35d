"""A log without storage, for tests of cursors: the ledger component's own arithmetic."""

from magnetar.ledger.errors import LogFencedError
from magnetar.ledger.managed_log.log_extent import LogShape
from magnetar.ledger.position import Position


class GrowingLog:
    """Ledgers with so many entries each; the last one grows."""

    path = "/managed-ledgers/public/default/persistent/topic"

    def __init__(self, *ledgers: tuple[int, int]) -> None:
        self.has_other_owner = False
        self._ledgers = list(ledgers)
        self._shape = LogShape(self._ledgers)

    async def check_owned(self) -> None:
        if self.has_other_owner:
            raise LogFencedError(f"{self.path}: another owner changed the ledger list")

    def append(self, entries: int = 1) -> None:
        ledger_id, count = self._ledgers[-1]
        self._ledgers[-1] = (ledger_id, count + entries)
        self._shape = LogShape(self._ledgers)

    def roll(self, ledger_id: int) -> None:
        self._ledgers.append((ledger_id, 0))
        self._shape = LogShape(self._ledgers)

    def trim(self, ledgers: int = 1) -> None:
        """Take the oldest ledgers away, never the last one."""
        self._ledgers = self._ledgers[min(ledgers, len(self._ledgers) - 1) :]
        self._shape = LogShape(self._ledgers)

    def positions(self) -> list[Position]:
        return [Position(ledger, entry) for ledger, n in self._ledgers for entry in range(n)]

    @property
    def ledgers(self) -> list[tuple[int, int]]:
        return list(self._ledgers)

    @property
    def last_confirmed(self) -> Position:
        return self._shape.last_confirmed

    def first_position(self) -> Position:
        return self._shape.first_at_or_after(Position(-1, -1))

    def next_position(self, position: Position) -> Position:
        return self._shape.next_position(position)

    def entries_between(self, after: Position, through: Position) -> int:
        return self._shape.entries_between(after, through)
