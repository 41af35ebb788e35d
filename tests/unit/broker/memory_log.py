"""A log, a tenure and a clock in memory: all that a topic by itself stands on.

`MemoryLog` stands for a managed log and confirms what was appended when the test says so.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from magnetar.ledger.errors import LogError, LogTerminatedError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.managed_log.log_extent import LogShape, stored_since_ms
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import LedgerObject
from magnetar.ledger.managed_log.log_retention import Retention, trim_point
from magnetar.ledger.position import Position


class MemoryLog:
    """A log in memory. Appends wait until `confirm`, unless `is_immediate`."""

    path = "/managed-ledgers/public/default/persistent/topic"

    def __init__(self, first_ledger_id: int = 7) -> None:
        self.is_immediate = True
        self.now_ms = 1_000_000
        self.entries: dict[int, list[bytes]] = {first_ledger_id: []}
        self.closed_ms: dict[int, int] = {}
        self.copied: dict[int, LedgerObject] = {}
        """When ledgers were closed, if not in 1970."""
        self.created_ms: dict[int, int] = {}
        """When ledgers were created, if that is known."""
        self.wall_ms = 1 << 62
        """Now, by the clock of the log's owner: no time above lies in the future."""
        self.waiting: deque[AppendBatch] = deque()
        self.reads: list[Position] = []
        self.indexes_read: list[int] = []
        self.index_of: Callable[[int, int], range | None] = lambda *_: None
        """What the index of a ledger's object says of a time."""
        self.read_error: LogError | None = None
        self.read_gate: asyncio.Event | None = None
        self.properties: dict[str, str] = {}
        self.properties_gate: asyncio.Event | None = None
        self.properties_error: Exception | None = None
        self.terminated: Position | None = None
        self._shape = LogShape([(first_ledger_id, 0)])

    # What a topic needs

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        if self.properties_gate is not None:
            await self.properties_gate.wait()
        if self.properties_error is not None:
            raise self.properties_error
        for name, value in changes.items():
            self.properties.pop(name, None)
            if value is not None:
                self.properties[name] = value

    def append(self, batch: AppendBatch) -> None:
        if self.terminated is not None:
            error = LogTerminatedError("the log was terminated")
            asyncio.get_running_loop().call_soon(batch.on_failed, error)
            return
        self.waiting.append(batch)
        if self.is_immediate:
            asyncio.get_running_loop().call_soon(self.confirm)

    def prepare(self) -> None:
        """Do nothing: the ledger is there from the start."""

    @property
    def last_confirmed(self) -> Position:
        return self._shape.last_confirmed

    @property
    def ledgers(self) -> Sequence[LogLedger]:
        last = next(reversed(self.entries))
        return [
            LogLedger(
                ledger_id,
                entries=len(entries),
                bytes=sum(map(len, entries)),
                closed_ms=0 if ledger_id == last else self.closed_ms.get(ledger_id, 1),
                object=self.copied.get(ledger_id),
            )
            for ledger_id, entries in self.entries.items()
        ]

    def first_position(self) -> Position:
        return self._shape.first_at_or_after(Position(-1, -1))

    def previous_position(self, position: Position) -> Position:
        return Position(position.ledger_id, position.entry_id - 1)

    def next_position(self, position: Position) -> Position:
        return self._shape.next_position(position)

    def entries_between(self, lower: Position, upper: Position) -> int:
        return self._shape.entries_between(lower, upper)

    def stored_since_ms(self, position: Position) -> int:
        known_ms = [self.created_ms.get(position.ledger_id, 0)]
        return stored_since_ms(self.ledgers, position, known_ms, now_ms=self.wall_ms)

    async def entries_after(self, ledger_id: int, publish_ms: int) -> range | None:
        self.indexes_read.append(ledger_id)
        return self.index_of(ledger_id, publish_ms)

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        self.reads.append(start)
        if self.read_gate is not None:
            await self.read_gate.wait()
        if self.read_error is not None:
            raise self.read_error
        first = self._shape.first_at_or_after(start)
        if first > self.last_confirmed:
            return first, []
        found: list[bytes] = []
        for at in range(first.entry_id, len(self.entries[first.ledger_id])):
            if found and (bytes_max <= 0 or len(found) >= entries_max):
                break
            payload = self.entries[first.ledger_id][at]
            found.append(payload)
            bytes_max -= len(payload)
        return first, found

    async def rotate(self) -> None:
        self.roll(next(reversed(self.entries)) + 1)

    def trim_point(
        self, consumed: Position | None, retention: Retention, *, truncates: bool = False
    ) -> Position | None:
        return trim_point(
            self.ledgers, consumed, retention, now_ms=self.now_ms, truncates=truncates
        )

    async def unlist(self, before: Position) -> int:
        gone = [each for each in self.entries if each < before.ledger_id]
        for _ in gone:
            self.trim()
        return len(gone)

    async def delete_unlisted(self) -> None:
        return None

    leftover_ledgers = 0

    async def terminate(self) -> Position:
        self.terminated = self.last_confirmed
        return self.terminated

    # What a test does

    def confirm(self, count: int | None = None) -> None:
        """Make the oldest waiting batches durable."""
        for _ in range(len(self.waiting) if count is None else count):
            batch = self.waiting.popleft()
            ledger_id = next(reversed(self.entries))
            entries = self.entries[ledger_id]
            first = len(entries)
            entries.extend(batch.payloads)
            self._shape.grow(len(entries))
            batch.on_appended(ledger_id, first)

    def fail(self, error: LogError) -> None:
        """Fail everything that waits."""
        while self.waiting:
            self.waiting.popleft().on_failed(error)

    def store(self, *payloads: bytes) -> None:
        """Entries that were there before."""
        self.entries[next(reversed(self.entries))].extend(payloads)
        self._rebuild()

    def roll(self, ledger_id: int) -> None:
        """Go on in a new ledger."""
        self.entries[ledger_id] = []
        self._rebuild()

    def trim(self) -> None:
        """Take the oldest ledger away."""
        del self.entries[next(iter(self.entries))]
        self._rebuild()

    def _rebuild(self) -> None:
        self._shape = LogShape([(each, len(entries)) for each, entries in self.entries.items()])


class HeldTenure:
    """A tenure that ends when the test says so."""

    def __init__(self) -> None:
        self.is_held = True

    def holds(self) -> bool:
        return self.is_held


class ManualClock:
    """Time that tests move. The wall clock may jump."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000_000
        self.steady_s = 0.0

    def monotonic_s(self) -> float:
        return self.steady_s

    def boot_s(self) -> float:
        return self.steady_s

    def wall_ms(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.steady_s += milliseconds / 1000
