"""What is put into limbo after a loss, and what is fenced. A real metadata store, no bookie."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.integrity.horizon_file import read_horizon
from magnetar.bookie.integrity.loss_mark import is_check_needed, remove_marks
from magnetar.bookie.integrity.loss_pass import LossPass, LossReport
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.bookie.storage import LedgerState as StoredState
from magnetar.ledger.digest import master_key
from magnetar.ledger.errors import LedgerError, NoNodeError
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemDisk, ThreadWorker
from tests.bookie_parts import KEY, MemoryStorage

OURS, OTHERS = ("b1", "b2"), ("b2", "b3")


class Parts:
    """A cluster's ledgers, and a bookie b1 that lost everything."""

    def __init__(self, store: MetadataStore, tmp_path: Path) -> None:
        self.store = store
        self.manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
        self.storage = MemoryStorage()
        self.directories = BookieDirectories(
            str(tmp_path),
            (str(tmp_path / "journal"),),
            (str(tmp_path / "l1"), str(tmp_path / "l2")),
        )
        for each in self.directories:
            Path(each).mkdir(exist_ok=True)

    async def create(self, state: LedgerState, *ensembles: tuple[str, ...]) -> int:
        """A ledger with a fragment of ten entries per ensemble."""

        def make(ledger_id: int, creation_token: int) -> LedgerMetadata:
            is_closed = state is LedgerState.CLOSED
            return LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=2,
                write_quorum=2,
                ack_quorum=2,
                state=state,
                last_entry_id=10 * len(ensembles) if is_closed else -1,
                length=0,
                ensembles=tuple(Fragment(10 * at, each) for at, each in enumerate(ensembles)),
                created_ms=0,
                creation_token=creation_token,
            )

        return (await self.manager.create(make)).metadata.ledger_id

    async def run(self, lost: str = "data") -> LossReport:
        worker = ThreadWorker("test")
        try:
            return await LossPass(
                "b1",
                self.storage,
                self.manager,
                directories=self.directories,
                disk=SystemDisk(),
                clock=SystemClock(),
                worker=worker,
            ).run([lost])
        finally:
            worker.close()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield Parts(store, tmp_path)
    await store.close()


async def test_d14_what_names_the_bookie_is_in_limbo_and_fenced_unless_its_writer_is_elsewhere(
    parts: Parts,
) -> None:
    closed = await parts.create(LedgerState.CLOSED, OURS, OTHERS)
    ours = await parts.create(LedgerState.OPEN, OTHERS, OURS)
    moved_on = await parts.create(LedgerState.OPEN, OURS, OTHERS)
    recovering = await parts.create(LedgerState.IN_RECOVERY, OURS, OTHERS)
    foreign_open = await parts.create(LedgerState.OPEN, OTHERS)
    foreign_closed = await parts.create(LedgerState.CLOSED, OTHERS)

    report = await parts.run()
    assert report == LossReport(ledgers=6, limbo=4, fenced=3)
    # With the keys of the metadata, so that nobody else's is taken for them.
    lost = StoredState(master_key(b""), True, -1, limbo=True)
    assert parts.storage.states == {
        closed: lost,
        ours: lost,
        moved_on: replace(lost, fenced=False),
        recovering: lost,
    }
    assert parts.storage.flushes == 1
    horizon = read_horizon(SystemDisk(), parts.directories.ledgers)
    assert horizon == LossHorizon(foreign_closed, frozenset({moved_on, foreign_open}))


async def test_what_is_left_of_a_ledger_keeps_its_key_and_its_fence(parts: Parts) -> None:
    moved_on = await parts.create(LedgerState.OPEN, OURS, OTHERS)
    parts.storage.put_state(moved_on, StoredState(KEY, True, 5, b"lac packet"))
    await parts.run("l1")
    expected = StoredState(KEY, True, 5, b"lac packet", limbo=True)
    assert parts.storage.states[moved_on] == expected


async def test_done_again_it_changes_nothing(parts: Parts) -> None:
    for ensembles in ((OURS,), (OTHERS,), (OURS, OTHERS)):
        await parts.create(LedgerState.OPEN, *ensembles)
    await parts.run()
    before = dict(parts.storage.states)
    await parts.run()
    assert parts.storage.states == before


async def test_metadata_that_nobody_can_read_may_name_the_bookie(parts: Parts) -> None:
    ledger_id = await parts.create(LedgerState.OPEN, OTHERS)
    path = parts.manager._layout.path(ledger_id)  # where a hand would damage it
    await parts.store.set(path, b"no metadata", version=0)
    await parts.run()
    assert parts.storage.states == {ledger_id: StoredState(b"", True, -1, limbo=True)}


async def test_b10_a_listing_that_fails_is_no_empty_cluster(parts: Parts) -> None:
    class Broken(LedgerManager):
        async def read(self, ledger_id: int) -> object:  # type: ignore[override]
            raise LedgerError("the store is away")

    await parts.create(LedgerState.OPEN, OURS)
    good = parts.manager
    parts.manager = Broken(parts.store, random=random.Random(1), clock=SystemClock())
    with pytest.raises(LedgerError, match="away"):
        await parts.run()
    parts.manager = LedgerManager(
        parts.store, random=random.Random(1), clock=SystemClock(), root="/nowhere"
    )
    with pytest.raises(NoNodeError):
        await parts.run()
    # What was noted first says that there is something to do.
    assert is_check_needed(SystemDisk(), parts.directories.ledgers)
    parts.manager = good
    assert (await parts.run()).limbo == 1


async def test_the_mark_of_a_loss_is_in_every_directory_until_it_is_removed(parts: Parts) -> None:
    await parts.create(LedgerState.OPEN, OTHERS)
    disk, directories = SystemDisk(), parts.directories.ledgers
    assert not is_check_needed(disk, directories)
    await parts.run()
    for each in directories:
        assert is_check_needed(disk, [each])
    await asyncio.to_thread(remove_marks, disk, directories[:1])
    assert is_check_needed(disk, directories), "cut between the two"
    remove_marks(disk, directories)
    assert not is_check_needed(disk, directories)
    remove_marks(disk, directories)


async def test_a_lost_journal_takes_its_last_mark_along(parts: Parts) -> None:
    await parts.create(LedgerState.OPEN, OTHERS)
    marks = [Path(each) / "last-mark" for each in parts.directories.ledgers]
    for each in marks:
        each.write_bytes(b"mark")
    await parts.run(parts.directories.ledgers[0])
    assert all(each.exists() for each in marks)
    await parts.run(parts.directories.journals[0])
    assert not any(each.exists() for each in marks)
