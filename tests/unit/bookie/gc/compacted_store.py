"""A storage with a compactor, for the tests of compaction."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.parts import FinishCompactions
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import NoSuchEntryInStorageError
from magnetar.bookie.gc.compactor import Compactor
from magnetar.bookie.gc.finish_compactions import finish_compactions
from magnetar.bookie.gc.log_copier import Copied
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.system import SystemClock, SystemDisk, ThreadWorker
from tests.ledger_storage import STATE, make_block, make_packet

SIZES = StorageOptions(
    write_buffer_bytes=1 << 20,
    read_cache_bytes=0,
    entry_log_bytes_max=20_000,
    run_bytes_max=2000,
    run_entries_max=8,
)
ENTRIES = 12
"""Of each ledger, in each flush."""


class Store:
    """A storage with a compactor, and what should be in it."""

    def __init__(
        self,
        directory: Path,
        engine: EngineKind,
        disk: SystemDisk | None = None,
        moves_max: int = 1000,
        copied_bytes_per_s: float = 0,
    ) -> None:
        self.directory = directory
        self.disk = disk or SystemDisk()
        self.expected: dict[tuple[int, int], bytes] = {}
        self.damages: list[Damage] = []
        self.moves_max, self.copied_bytes_per_s = moves_max, copied_bytes_per_s
        self.engine = engine
        self.storage = self.make_storage(directory)

    def make_storage(
        self, directory: Path, finish: FinishCompactions = finish_compactions
    ) -> EntryStorage:
        return EntryStorage(
            str(directory),
            disk=self.disk,
            clock=SystemClock(),
            make_worker=ThreadWorker,
            options=replace(SIZES, engine=self.engine),
            finish_compactions=finish,
        )

    async def open(self) -> "Store":
        await self.storage.open()
        self.worker = ThreadWorker("gc")
        self.compactor = Compactor(
            self.storage.maintenance,
            self.worker,
            disk=self.disk,
            clock=SystemClock(),
            copied_bytes_per_s=self.copied_bytes_per_s,
            moves_max=self.moves_max,
            on_damage=self.damages.append,
        )
        return self

    async def close(self) -> None:
        await self.storage.close()
        self.worker.close()

    async def __aenter__(self) -> "Store":
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def logs(self) -> Path:
        return self.directory / "entry-logs"

    def add(self, ledger_id: int, ids: Sequence[int], mark: bytes = b"a") -> None:
        if self.storage.state(ledger_id) is None:
            self.storage.put_state(ledger_id, STATE)
        payload = mark * 150
        self.storage.add(ledger_id, make_block(ledger_id, ids, payload), ids)
        for entry_id in ids:
            self.expected[ledger_id, entry_id] = make_packet(ledger_id, entry_id, payload)

    def delete(self, ledger_id: int) -> None:
        self.storage.delete_ledger(ledger_id)
        self.expected = {key: each for key, each in self.expected.items() if key[0] != ledger_id}

    async def fill(self) -> None:
        """Some logs: ledgers that grow, that were overwritten in part, that have gaps, that die."""
        for round_ in range(6):
            at = ENTRIES * round_
            for ledger_id in range(1, 7):
                self.add(ledger_id, range(at, at + ENTRIES))
            self.add(7, range(2 * at, 2 * at + 2 * ENTRIES, 2))
            if round_ == 4:
                self.add(1, range(3, 40), b"b")
                self.add(7, [8, 12, 40], b"c")
            await self.storage.flush()
        for ledger_id in (2, 3, 5):
            self.delete(ledger_id)
        await self.storage.flush()

    async def finished(self) -> list[int]:
        return await self.storage.maintenance.finished_logs()

    async def compact_all(self) -> list[Copied]:
        """All finished logs, three into one."""
        finished = await self.finished()
        return [
            await self.compactor.compact(finished[at : at + 3]) for at in range(0, len(finished), 3)
        ]

    async def check(self, storage: EntryStorage | None = None) -> None:
        await check(storage or self.storage, self.expected)

    def bytes_of_logs(self) -> int:
        return sum(path.stat().st_size for path in self.logs.iterdir())


async def check(storage: EntryStorage, expected: dict[tuple[int, int], bytes]) -> None:
    """Every entry that should be there is, as it was last stored; nothing else is."""
    for ledger_id in storage.ledger_ids():
        last = max((each for each in expected if each[0] == ledger_id), default=(0, -1))[1]
        for entry_id in range(last + 2):
            packet = expected.get((ledger_id, entry_id))
            if packet is None:
                with pytest.raises(NoSuchEntryInStorageError):
                    await storage.read(ledger_id, entry_id, entry_id, 1 << 20)
            else:
                assert await storage.read(ledger_id, entry_id, entry_id, 0) == [packet]
    assert {key[0] for key in expected} <= set(storage.ledger_ids())
