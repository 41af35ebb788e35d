"""A registry of schemas without bookies and without a metadata store."""

from typing import cast

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BadVersionError,
    LedgerWriteError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore, Versioned
from magnetar.ledger.system import SystemClock


class MemoryNodes:
    """As much of a metadata store as records need: nodes with versions."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.lost: set[str] = set()
        """Paths of nodes that nobody deleted, and that are missing from a store of one file."""
        self.lost_replies = 0
        """So many writes are done, and nobody hears of it."""

    async def get(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NoNodeError(path)
        return Versioned(*self.nodes[path])

    async def create(self, path: str, value: bytes = b"") -> str:
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = value, 0
        self._answer(path)
        return path

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        self._check(path, version)
        self.nodes[path] = value, version + 1
        self._answer(path)
        return version + 1

    async def delete(self, path: str, *, version: int = -1) -> None:
        if version >= 0:
            self._check(path, version)
        self.nodes.pop(path, None)
        self._answer(path)

    async def children(self, path: str) -> list[str]:
        below = f"{path}/"
        found = [each.removeprefix(below) for each in self.nodes if each.startswith(below)]
        if not found:
            raise NoNodeError(path)
        return found

    records_deletions = False

    async def is_gone(self, path: str) -> bool:
        return path not in self.nodes and path not in self.lost

    async def deleted_ms(self, path: str) -> int | None:
        return None

    async def catch_up(self) -> None:
        """Do nothing: the store is never behind."""

    def _check(self, path: str, version: int) -> None:
        if path not in self.nodes:
            raise NoNodeError(path)
        if self.nodes[path][1] != version:
            raise BadVersionError(path)

    def _answer(self, path: str) -> None:
        if self.lost_replies:
            self.lost_replies -= 1
            raise UnknownOutcomeError(path)


class _Reader:
    def __init__(self, entries: list[bytes]) -> None:
        self._entries = entries

    async def read(self, first: int, last: int) -> list[bytes]:
        return self._entries[first : last + 1]


class _Writer(_Reader):
    def __init__(self, ledger_id: int, entries: list[bytes], *, fails: bool) -> None:
        super().__init__(entries)
        self.ledger_id = ledger_id
        self._fails = fails

    async def add(self, payload: bytes) -> int:
        if self._fails:
            raise LedgerWriteError("no bookie answers")
        self._entries.append(payload)
        return len(self._entries) - 1

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


class MemoryLedgers:
    """As much of a ledger client as definitions need."""

    def __init__(self) -> None:
        self.ledgers: dict[int, list[bytes]] = {}
        self.created = 0
        self.opened = 0
        self.fails = False
        """Whether ledgers that are made from now on take no entries."""

    async def create(self, **_: object) -> _Writer:
        self.created += 1
        self.ledgers[self.created] = []
        return _Writer(self.created, self.ledgers[self.created], fails=self.fails)

    async def open(self, ledger_id: int) -> _Reader:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(ledger_id)
        self.opened += 1
        return _Reader(self.ledgers[ledger_id])

    async def delete(self, ledger_id: int) -> None:
        if self.ledgers.pop(ledger_id, None) is None:
            raise NoSuchLedgerError(ledger_id)


def memory_schemas(
    settings: BrokerSettings,
    nodes: MemoryNodes | None = None,
    ledgers: MemoryLedgers | None = None,
    *,
    cache_bytes_max: int = 1 << 20,
) -> SchemaRegistry:
    """A registry; several may share nodes and ledgers, as brokers do."""
    return SchemaRegistry(
        cast(MetadataStore, nodes or MemoryNodes()),
        SchemaLedgers(
            cast(LedgerClient, ledgers or MemoryLedgers()), cache_bytes_max=cache_bytes_max
        ),
        settings,
        SystemClock(),
    )
