"""What the tests of cursors share: everything around one cursor, and what may happen to it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from magnetar.cursors.cursor import Cursor
from magnetar.cursors.node import cursor_path
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.errors import MetadataUnavailableError, NotEnoughBookiesError
from magnetar.ledger.position import EARLIEST, Position
from tests.unit.cursors.doubles import MemoryLedgers, MemoryStore, StoppedClock
from tests.unit.cursors.growing_log import GrowingLog

NAME = "my sub/1"
NEVER_MS = 600_000
UNAVAILABLE = MetadataUnavailableError("no contact")
NO_BOOKIES = NotEnoughBookiesError("0 of 3")


@dataclass
class World:
    """Everything around a cursor. `open` again without `close` is what a crash leaves."""

    log: GrowingLog = field(default_factory=lambda: GrowingLog((3, 100), (6, 100)))
    store: MemoryStore = field(default_factory=MemoryStore)
    ledgers: MemoryLedgers = field(default_factory=MemoryLedgers)
    clock: StoppedClock = field(default_factory=StoppedClock)

    async def open(
        self,
        initial: Position | None = EARLIEST,
        *,
        words: Sequence[int] = (),
        interval_ms: int = NEVER_MS,
        **changes: int,
    ) -> Cursor:
        settings = CursorSettings(ack_persist_interval_ms=interval_ms).model_copy(update=changes)
        return await Cursor.open(
            self.log,
            self.ledgers,
            self.store,
            NAME,
            initial=initial,
            initial_words=words,
            properties={"team": "a"},
            settings=settings,
            clock=self.clock,
        )

    @property
    def node(self) -> dict[str, object]:
        value = json.loads(self.store.nodes[cursor_path(self.log.path, NAME)].value)
        assert isinstance(value, dict)
        return value


def every_second(entries: int) -> list[Position]:
    return [Position(3, entry) for entry in range(1, 2 * entries, 2)]
