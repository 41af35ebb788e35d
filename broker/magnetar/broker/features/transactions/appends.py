"""Records on their way into a log: a future for each, resolved in the order of the log."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.position import Position


class AppendsTo(Protocol):
    """What is needed of a log; `ManagedLog` and a topic's log are such."""

    def append(self, batch: AppendBatch, /) -> None: ...


class Record:
    """Consecutive entries that are appended together."""

    __slots__ = ("_on_stored", "done", "payloads")

    def __init__(
        self, payloads: Sequence[bytes], on_stored: Callable[[Position], None] | None = None
    ) -> None:
        """`on_stored` runs when they are durable, in log order, with the first one's position."""
        self.payloads: Sequence[bytes] = payloads
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_look)  # though nobody may wait for it
        self._on_stored = on_stored

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        position = Position(ledger_id, first_entry_id)
        if self._on_stored is not None:
            self._on_stored(position)
        if not self.done.done():
            self.done.set_result(position)

    def on_failed(self, error: LedgerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _look(done: "asyncio.Future[Position]") -> None:
    if not done.cancelled():
        done.exception()
