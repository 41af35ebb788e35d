"""Saves of a cursor whose store and bookies fail at some steps: what was reported as saved is kept.

The cursor is a register here. A reset writes a position; it succeeds or fails, and after a crash
the next owner reads the register. It must find the last position that was reported as saved, or
one that was tried since. The cursor ledger is full after one record, so each write meets its
replacement. Every sequence of two steps and a reset is tried, with every trouble in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from magnetar.cursors.errors import CursorUnavailableError
from magnetar.ledger.errors import LedgerError, LedgerWriteError
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.position import Position
from tests.unit.cursors.doubles import UNKNOWN, Faults, MemoryStore
from tests.unit.cursors.world import NO_BOOKIES, UNAVAILABLE, World

WRITE_FAILED = LedgerWriteError("2 of 3 failed")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Failures of the metadata store and of ledgers during one step."""

    name: str
    store: tuple[tuple[str, LedgerError, bool], ...] = ()
    """Calls of the metadata store, each with its error, and whether it is done all the same."""
    ledgers: tuple[tuple[str, LedgerError, bool], ...] = ()
    times: int = 1
    late_by: int | None = None
    """Calls of the store after which its first write happens, whose outcome is unknown."""


UNREAD = ("get", UNAVAILABLE, False)
NO_TROUBLE = Trouble("no trouble")
STORED_UNKNOWINGLY = Trouble("stored unknowingly", (("set", UNKNOWN, True), UNREAD))
TROUBLES = [
    NO_TROUBLE,
    STORED_UNKNOWINGLY,
    Trouble("the store does not answer writes", (("set", UNAVAILABLE, False),)),
    Trouble("all requests are lost", (("set", UNKNOWN, False),), times=3),
    Trouble("stored later", (UNREAD,), late_by=1),
    Trouble("no ledger can be made", ledgers=(("create", UNAVAILABLE, False),)),
    Trouble("there are too few bookies", ledgers=(("create", NO_BOOKIES, False),)),
    Trouble("the record is stored, and its ledger fails", ledgers=(("add", WRITE_FAILED, True),)),
]
STEPS: list[tuple[str, Trouble]] = [
    *product(["reset", "close"], TROUBLES),
    *product(["properties"], [NO_TROUBLE, STORED_UNKNOWINGLY]),
]


class LateStore(MemoryStore):
    """A store in which a write may happen later than its caller waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.late_by: int | None = None
        """Number of calls after which the next write happens; None if it happens at once."""
        self._late: list[tuple[int, str, bytes, int]] = []

    async def get(self, path: str) -> Versioned:
        self._pass()
        return await super().get(path)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        self._pass()
        if self.late_by is not None:
            self._late.append((self.late_by, path, value, version))
            self.late_by = None
            raise UNKNOWN
        return await super().set(path, value, version=version)

    def _pass(self) -> None:
        waiting, self._late = self._late, []
        for calls, path, value, version in waiting:
            if calls > 0:
                self._late.append((calls - 1, path, value, version))
            elif self.nodes[path].version == version:
                self.nodes[path] = Versioned(value, version + 1)


class Register:
    """A cursor, and the positions that its next owner may find."""

    def __init__(self) -> None:
        self.store = LateStore()
        self.world = World(store=self.store)
        self._writes = 0
        self._written = Position(3, -1)
        self._allowed = {self._written}

    async def run(self, steps: Sequence[tuple[str, Trouble]]) -> None:
        """Make the steps, and crash."""
        cursor = await self.world.open(ledger_entries_max=1)
        for what, trouble in steps:
            self._arrange(trouble)
            try:
                if what == "reset":
                    await cursor.reset(self._next())
                elif what == "properties":
                    await cursor.set_properties({"writes": str(self._writes)})
                    continue  # the position was not saved
                else:
                    await cursor.close()
                    self._arrange(NO_TROUBLE)
                    cursor = await self.world.open(ledger_entries_max=1)
            except CursorUnavailableError:
                continue
            self._allowed = {self._written}
        self._arrange(NO_TROUBLE)
        found = (await self.world.open()).mark_delete
        cursor.abandon()
        assert found in self._allowed, [(what, trouble.name) for what, trouble in steps]

    def _next(self) -> Position:
        """Return the next position to write: forth and back, and each only once."""
        self._writes += 1
        entry = self._writes * 37 % 100
        self._written = Position(3, entry - 1)
        self._allowed.add(self._written)
        return Position(3, entry)

    def _arrange(self, trouble: Trouble) -> None:
        self.store.late_by = trouble.late_by
        self.store.faults, self.world.ledgers.faults = Faults(), Faults()
        for faults, calls in (
            (self.store.faults, trouble.store),
            (self.world.ledgers.faults, trouble.ledgers),
        ):
            for call, error, is_done in calls:
                faults.add(call, error, times=trouble.times, done=is_done)


async def test_the_next_owner_finds_what_was_reported_as_saved_or_what_was_tried_since() -> None:
    for steps in product(STEPS, STEPS, product(["reset"], TROUBLES)):
        await Register().run([("reset", NO_TROUBLE), *steps])
