"""The log of a topic that keeps nothing: always empty, and gone with the broker."""

from collections.abc import Callable, Mapping, Sequence

from magnetar.broker.base.errors import NotAllowedError
from magnetar.ledger.errors import LogClosedError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.managed_log.log_extent import LogShape
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_retention import Retention
from magnetar.ledger.position import Position


class VolatileLog:
    """What a topic asks of its log, answered for a log without entries."""

    terminated: Position | None = None
    leftover_ledgers = 0

    def __init__(self, path: str) -> None:
        self.path = path
        self.properties: dict[str, str] = {}
        self._shape = LogShape([(0, 0)])
        self._on_fenced: list[Callable[[], None]] = []

    def append(self, batch: AppendBatch) -> None:
        batch.on_failed(LogClosedError(f"{self.path} keeps nothing"))

    async def rotate(self) -> None:
        """There is nothing to rotate."""

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """In memory only."""
        for name, value in changes.items():
            self.properties.pop(name, None)
            if value is not None:
                self.properties[name] = value

    async def terminate(self) -> Position:
        raise NotAllowedError(f"{self.path} is not persistent: it cannot be terminated")

    @property
    def ledgers(self) -> Sequence[LogLedger]:
        return ()

    @property
    def last_confirmed(self) -> Position:
        return self._shape.last_confirmed

    def prepare(self) -> None:
        """There are no ledgers."""

    def first_position(self) -> Position:
        return self._shape.first_at_or_after(Position(-1, -1))

    def next_position(self, position: Position) -> Position:
        return self._shape.next_position(position)

    def previous_position(self, position: Position) -> Position:
        return self._shape.previous_position(position)

    def entries_between(self, lower: Position, upper: Position) -> int:
        return 0

    def stored_since_ms(self, _position: Position) -> int:
        return 0

    async def entries_after(self, _ledger_id: int, _publish_ms: int) -> range | None:
        return None

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        return self.first_position(), []

    def trim_point(
        self, consumed: Position | None, retention: Retention, *, truncates: bool = False
    ) -> Position | None:
        return None

    async def unlist(self, before: Position) -> int:
        return 0

    async def delete_unlisted(self) -> None:
        """There are no ledgers."""

    def on_fenced(self, callback: Callable[[], None]) -> None:
        self._on_fenced.append(callback)

    def abandon(self, reason: str) -> None:
        callbacks, self._on_fenced = self._on_fenced, []
        for callback in callbacks:
            callback()

    async def close(self) -> None:
        """Nothing is left to do."""
