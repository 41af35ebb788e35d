"""Ledger managers for the tests beside it, and a store that loses replies."""

import random
from collections.abc import Callable

from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.layouts.ledger_layout import LayoutName
from magnetar.ledger.layouts.ledger_layout_hierarchical import ledger_path
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata import MetadataStore, Versioned, Watch
from magnetar.ledger.metadata.store import SessionCallback, SessionState, WatchCallback
from magnetar.ledger.system import SystemClock

ROOT = "/ledgers"
LAYOUTS: list[LayoutName] = ["hierarchical", "longhierarchical", "flat"]
FIRST_ID: dict[LayoutName, int] = {"hierarchical": 0, "longhierarchical": 1 << 32, "flat": 0}


def path_of(layout: LayoutName, ledger_id: int) -> str:
    return f"{ROOT}/L{ledger_id:010d}" if layout == "flat" else ledger_path(ROOT, ledger_id)


def make(ledger_id: int, creation_token: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, ("b1", "b2", "b3")),),
        password=b"\x00secret",
        created_ms=1_700_000_000_000,
        creation_token=creation_token,
    )


def manager_on(
    store: MetadataStore, layout: LayoutName = "hierarchical", *, seed: int = 1
) -> LedgerManager:
    return LedgerManager(
        store, random=random.Random(seed), clock=SystemClock(), root=ROOT, layout=layout
    )


async def listed(manager: LedgerManager) -> list[int]:
    return [ledger_id async for ledger_id in manager.ledger_ids()]


class LosingStore:
    """A store handle that loses the replies to chosen creations, before or after they happen."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lose: Callable[[str], str | None] = lambda path: None
        self.before_create: Callable[[str], object] = lambda path: None

    @property
    def session_state(self) -> SessionState:
        return self._store.session_state

    @property
    def session_timeout_ms(self) -> int:
        return self._store.session_timeout_ms

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        fault = self.lose(path)
        if fault == "before":
            raise UnknownOutcomeError(path)
        created = await self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)
        if fault == "after":
            raise UnknownOutcomeError(path)
        return created

    async def create_child(self, path: str, value: bytes = b"") -> str:
        return await self._store.create_child(path, value)

    async def get(self, path: str) -> Versioned:
        return await self._store.get(path)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        return await self._store.set(path, value, version=version)

    async def delete(self, path: str, *, version: int | None = None) -> None:
        await self._store.delete(path, version=version)

    async def exists(self, path: str) -> int | None:
        return await self._store.exists(path)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    @property
    def records_deletions(self) -> bool:
        return self._store.records_deletions

    async def is_gone(self, path: str) -> bool:
        return await self._store.is_gone(path)

    async def deleted_ms(self, path: str) -> int | None:
        return await self._store.deleted_ms(path)

    async def catch_up(self) -> None:
        await self._store.catch_up()

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        return self._store.watch(path, callback)

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return self._store.on_session_change(callback)

    async def close(self) -> None:
        await self._store.close()


def losing_once(fault: str, part: str) -> Callable[[str], str | None]:
    """Lose the reply to the first creation of a path with the part in it."""
    left = [fault]
    return lambda path: left.pop() if left and part in path else None
