"""Metadata store, ledgers and clock in memory, each call of which can be made to fail."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.ledger.errors import (
    BadVersionError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import (
    SessionCallback,
    SessionState,
    Versioned,
    Watch,
    WatchCallback,
)


class StoppedClock:
    """Time moves only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


@dataclass
class Fault:
    """Makes the next calls fail: before they do anything, or after they have done it."""

    error: LedgerError
    times: int = 1
    is_done_first: bool = False


class Faults:
    """Faults by the name of the call."""

    def __init__(self) -> None:
        self._faults: dict[str, Fault] = {}

    def add(self, call: str, error: LedgerError, *, times: int = 1, done: bool = False) -> None:
        self._faults[call] = Fault(error, times, done)

    def run(self, call: str, action: Callable[[], int | None]) -> int | None:
        fault = self._faults.get(call)
        if fault is None or fault.times == 0:
            return action()
        fault.times -= 1
        if fault.is_done_first:
            action()
        raise fault.error


class MemoryStore:
    """A metadata store without parents, ephemerals or watches."""

    def __init__(self) -> None:
        self.nodes: dict[str, Versioned] = {}
        self.lost: set[str] = set()
        """Paths of nodes that nobody deleted, and that are missing from a store of one file."""
        self.deleted: dict[str, int] = {}
        """Recorded deletions, ms since 1970, if `records_deletions` is set."""
        self.faults = Faults()
        self.writes = 0
        self.before_set: Callable[[], None] = lambda: None

    @property
    def session_state(self) -> SessionState:
        return SessionState.CONNECTED

    @property
    def session_timeout_ms(self) -> int:
        return 10_000

    async def get(self, path: str) -> Versioned:
        self.faults.run("get", lambda: None)
        if path not in self.nodes:
            raise NoNodeError(path)
        return self.nodes[path]

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        assert not ephemeral
        assert not sequential

        def action() -> None:
            if path in self.nodes:
                raise NodeExistsError(path)
            self.nodes[path] = Versioned(value, 0)
            self.writes += 1

        self.faults.run("create", action)
        return path

    async def create_child(self, path: str, value: bytes = b"") -> str:
        """Create a node. The log above is not in this store, and always there."""
        return await self.create(path, value)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        def action() -> int:
            if path not in self.nodes:
                raise NoNodeError(path)
            if self.nodes[path].version != version:
                raise BadVersionError(path)
            self.nodes[path] = Versioned(value, version + 1)
            self.writes += 1
            return version + 1

        self.before_set()
        result = self.faults.run("set", action)
        assert result is not None
        return result

    async def delete(self, path: str, *, version: int | None = None) -> None:
        def action() -> None:
            if path not in self.nodes:
                raise NoNodeError(path)
            if version not in (None, self.nodes[path].version):
                raise BadVersionError(path)
            del self.nodes[path]
            self.writes += 1

        self.faults.run("delete", action)

    async def exists(self, path: str) -> int | None:
        return self.nodes[path].version if path in self.nodes else None

    async def children(self, path: str) -> list[str]:
        names = [node[len(path) + 1 :] for node in self.nodes if node.startswith(f"{path}/")]
        if not names and path not in self.nodes:
            raise NoNodeError(path)
        return sorted(names)

    records_deletions = False

    async def is_gone(self, path: str) -> bool:
        return await self.exists(path) is None and path not in self.lost

    async def deleted_ms(self, path: str) -> int | None:
        return self.deleted.get(path)

    async def catch_up(self) -> None:
        """Never behind."""

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        raise NotImplementedError

    def on_session_change(self, callback: SessionCallback) -> Watch:
        raise NotImplementedError

    async def close(self) -> None:
        pass


@dataclass
class MemoryLedger:
    """A ledger; `is_open` until closed or fenced."""

    ledger_id: int
    custom_metadata: dict[str, str]
    entries: list[bytes] = field(default_factory=list)
    is_open: bool = True
    is_fenced: bool = False


class MemoryWriter:
    """The writer of a `MemoryLedger`."""

    def __init__(self, ledger: MemoryLedger, ledgers: "MemoryLedgers") -> None:
        self._ledger = ledger
        self._ledgers = ledgers
        self.is_abandoned = False

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    async def add(self, payload: bytes) -> int:
        def action() -> None:
            if self._ledger.is_fenced:
                raise LedgerFencedError(f"ledger {self.ledger_id}")
            if self.is_abandoned or not self._ledger.is_open:
                raise LedgerClosedError(f"ledger {self.ledger_id}")
            self._ledger.entries.append(payload)

        self._ledgers.add_waits.set()
        await self._ledgers.gate.wait()
        self._ledgers.adds_started += 1
        self._ledgers.faults.run("add", action)
        self._ledgers.adds.release()
        return len(self._ledger.entries) - 1

    async def close(self) -> None:
        self._ledgers.faults.run("close", lambda: None)
        self._ledger.is_open = False

    def abandon(self) -> None:
        self.is_abandoned = True


class MemoryReader:
    """A reader of a closed `MemoryLedger`."""

    def __init__(self, ledger: MemoryLedger, ledgers: "MemoryLedgers") -> None:
        self._ledger = ledger
        self._ledgers = ledgers

    @property
    def last_add_confirmed(self) -> int:
        return len(self._ledger.entries) - 1

    async def read(self, first: int, last: int) -> list[bytes]:
        self._ledgers.faults.run("read", lambda: None)
        return self._ledger.entries[first : last + 1]


class MemoryLedgers:
    """A ledger client. `adds` counts up with each record.

    After `hold_adds` they wait for `gate`; `add_waits` is set when one has come that far.
    """

    def __init__(self) -> None:
        self.ledgers: dict[int, MemoryLedger] = {}
        self.writers: list[MemoryWriter] = []
        self.faults = Faults()
        self.adds = asyncio.Semaphore(0)
        self.adds_started = 0
        self.add_waits = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self._next_id = 100

    def hold_adds(self) -> None:
        self.add_waits.clear()
        self.gate.clear()

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        password: bytes | None = None,
        custom_metadata: dict[str, str] | None = None,
    ) -> MemoryWriter:
        assert ensemble_size >= write_quorum >= ack_quorum
        self._next_id += 1
        ledger = MemoryLedger(self._next_id, custom_metadata or {})

        def action() -> None:
            self.ledgers[ledger.ledger_id] = ledger

        self.faults.run("create", action)
        self.writers.append(MemoryWriter(ledger, self))
        return self.writers[-1]

    async def open_and_recover(self, ledger_id: int) -> MemoryReader:
        self.faults.run("open", lambda: None)
        ledger = self._get(ledger_id)
        if ledger.is_open:
            ledger.is_fenced = True
        ledger.is_open = False
        return MemoryReader(ledger, self)

    async def delete(self, ledger_id: int) -> None:
        self.faults.run("delete", lambda: None)
        self._get(ledger_id)
        del self.ledgers[ledger_id]

    def _get(self, ledger_id: int) -> MemoryLedger:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id}")
        return self.ledgers[ledger_id]


UNKNOWN = UnknownOutcomeError("the connection broke")
