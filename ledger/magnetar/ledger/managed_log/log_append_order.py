"""The appends of a log that have no outcome yet, in the order in which they were made. Pure.

First come those that were given to a ledger, and behind them those that wait for the next one. An
append is reported when it is confirmed and everything before it was reported, over all ledgers
(rule 9.2): what the current ledger confirms is *held* while the one before it still has some that
are not. After a ledger was closed at a known end, what it holds is appended and the rest can be
written again; an append that it holds in part can be neither.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from magnetar.ledger.errors import LogError


class AppendBatch(Protocol):
    """What the log is given to append. Exactly one of the callbacks runs, once."""

    @property
    def payloads(self) -> Sequence[bytes]: ...

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        """All payloads are durable, as consecutive entries from `first_entry_id` on."""
        ...

    def on_failed(self, error: LogError) -> None:
        """They may or may not be in the log; the outcome is unknown unless it was refused."""
        ...


class PendingAppend:
    """A batch that was given to a ledger."""

    __slots__ = ("batch", "first_entry_id", "is_done", "ledger_id")

    def __init__(self, batch: AppendBatch, ledger_id: int) -> None:
        self.batch = batch
        self.ledger_id = ledger_id
        self.first_entry_id = -1
        self.is_done = False
        """The ledger confirmed it."""

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + len(self.batch.payloads) - 1


class AppendOrder:
    """The queue of appends without an outcome."""

    def __init__(self) -> None:
        self._sent: deque[PendingAppend] = deque()
        self.push = self._sent.append
        """A ledger took a batch. Bound here: it is called for every one."""
        self._waiting: deque[AppendBatch] = deque()
        self.waiting_bytes = 0
        """Of batches that no ledger has yet."""
        self.held_bytes = 0
        """Of batches that are confirmed, but behind some that are not."""

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    def wait(self, batch: AppendBatch, size_bytes: int) -> None:
        """No ledger takes batches now."""
        self._waiting.append(batch)
        self.waiting_bytes += size_bytes

    def take_next(self, pending: PendingAppend) -> bool:
        """Take a confirmed append if everything before it was reported; False: it is kept."""
        sent = self._sent
        if sent and sent[0] is pending:
            sent.popleft()
            return True
        pending.is_done = True
        return False

    def is_next_of(self, ledger_id: int) -> bool:
        """Whether the next outcome to be reported is of an append to that ledger."""
        return bool(self._sent) and self._sent[0].ledger_id == ledger_id

    @property
    def has_sent(self) -> bool:
        """Whether any append to a ledger has no outcome yet."""
        return bool(self._sent)

    def hold(self, pending: PendingAppend) -> None:
        """It is confirmed, and others before it are not."""
        self.held_bytes += sum(map(len, pending.batch.payloads))

    def take_done(self) -> PendingAppend | None:
        """The next append, if it is confirmed."""
        if self._sent and self._sent[0].is_done:
            return self._sent.popleft()
        return None

    def settle(self, ledger_id: int, last_entry_id: int) -> tuple[list[PendingAppend], bool]:
        """A ledger was closed at an entry: which of the next appends it holds, and whether it holds
        a part of the one behind them."""
        held: list[PendingAppend] = []
        while self.is_next_of(ledger_id):
            if self._sent[0].last_entry_id > last_entry_id:
                return held, self._sent[0].first_entry_id <= last_entry_id
            held.append(self._sent.popleft())
        return held, False

    def take_waiting(self) -> list[AppendBatch]:
        """What no ledger has yet, in order."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        return waiting

    def take_all(self) -> list[AppendBatch]:
        """Everything, in order."""
        batches = [pending.batch for pending in self._sent]
        batches += self._waiting
        self._sent.clear()
        self._waiting.clear()
        self.waiting_bytes = self.held_bytes = 0
        return batches
