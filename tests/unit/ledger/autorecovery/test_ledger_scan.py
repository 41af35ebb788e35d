"""What concurrent scans of all ledgers say of ledgers whose metadata cannot be read."""

import asyncio
import random
from pathlib import Path

from magnetar.ledger.autorecovery.ledger_scan import PacedReads, scan_ledgers
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from tests.unreadable_ledgers import open_ledger_of, spoil_ledger


class HeldManager(LedgerManager):
    """Holds reads of metadata until `go_on` is set."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store, random=random.Random(1), clock=SystemClock())
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reading = asyncio.Event()

    async def read(self, ledger_id: int) -> VersionedLedger:
        self.reading.set()
        await self.go_on.wait()
        return await super().read(ledger_id)


async def test_a_scan_counts_an_unreadable_ledger_that_another_one_reads_again(
    tmp_path: Path,
) -> None:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    manager = HeldManager(store)
    reads = PacedReads(manager, SystemClock(), per_s_max=1e6, at_once_max=10)
    bad = await open_ledger_of(manager, "b1")
    await open_ledger_of(manager, "b1")
    path = await spoil_ledger(store, bad)
    again: asyncio.Task[list[VersionedLedger]] | None = None
    async for _ in scan_ledgers(reads):
        manager.go_on.clear()
        manager.reading.clear()
        again = asyncio.create_task(reads.read_all([bad]))
        await manager.reading.wait()
    assert again is not None
    assert set(reads.unreadable) == {bad}
    manager.go_on.set()
    assert await again == []
    assert set(reads.unreadable) == {bad}
    await store.delete(path)
    assert await reads.read_all([bad]) == []
    assert not reads.unreadable, "a deleted ledger lacks nothing"
    await store.close()
