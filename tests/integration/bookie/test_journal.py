"""The journal with its thread, on real files and on a disk that fails."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.errors import JournalFailedError, JournalFullError
from magnetar.bookie.journaling.journal import Journal, JournalBatch
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import (
    NEWEST_NAME,
    NO_MARK,
    LastMark,
    NewRecord,
    file_ids,
    file_name,
)
from magnetar.bookie.journaling.journal_replay import JournalReplay
from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemClock, SystemDisk, SystemFile
from tests.bookie_parts import FailingDisk

pytestmark = pytest.mark.disk

OWNER = b"o" * 16


class Harness:
    """A journal whose batches are named by strings; each is one record with that body."""

    def __init__(self, directory: Path, disk: SystemDisk) -> None:
        self.directory = str(directory)
        self.disk = disk
        self.metrics = BookieMetrics()
        self.reports: list[tuple[list[str], JournalFullError | None]] = []
        self.failures: list[BaseException] = []
        self._changed = asyncio.Event()
        self.journal: Journal[str]

    def open(
        self,
        *,
        file_bytes_max: int = 1 << 20,
        wait_ms: float = 0,
        entries_max: int = 1000,
        bytes_max: int = 1 << 20,
    ) -> None:
        files = JournalFiles(
            self.disk,
            self.directory,
            owner=OWNER,
            last_mark=NO_MARK,
            first_file_id=1,
            file_bytes_max=file_bytes_max,
            preallocate_bytes=4096,
        )
        self.journal = Journal(
            files,
            mark=NO_MARK,
            clock=SystemClock(),
            metrics=self.metrics,
            group_wait_ms_max=wait_ms,
            group_bytes_max=bytes_max,
            group_entries_max=entries_max,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
        )

    def append(self, name: str, size: int = 0) -> None:
        batch = JournalBatch(name)
        batch.add(NewRecord(1, 7, name.encode().ljust(size, b".")), entries=1)
        self.journal.append(batch)

    def _on_committed(
        self, batches: Sequence[JournalBatch[str]], error: JournalFullError | None
    ) -> None:
        self.reports.append(([batch.context for batch in batches], error))
        self._changed.set()

    def _on_failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self._changed.set()

    async def wait_reports(self, count: int) -> None:
        while sum(len(names) for names, _ in self.reports) < count and not self.failures:
            self._changed.clear()
            await self._changed.wait()

    @property
    def committed(self) -> list[str]:
        return [name for names, error in self.reports if error is None for name in names]

    @property
    def refused(self) -> list[str]:
        return [name for names, error in self.reports if error is not None for name in names]

    def replay(self) -> list[str]:
        journal = JournalReplay(SystemDisk(), self.directory, mark=NO_MARK, owner=OWNER)
        return [record.body.decode().rstrip(".") for record in journal.records()]


@asynccontextmanager
async def opened(
    directory: Path, disk: SystemDisk | None = None, **options: int
) -> AsyncIterator[Harness]:
    harness = Harness(directory, disk or SystemDisk())
    harness.open(**options)
    try:
        yield harness
    finally:
        harness.journal.close()


async def test_batches_are_reported_in_order_and_are_on_disk(tmp_path: Path) -> None:
    names = [f"batch {i}" for i in range(200)]
    async with opened(tmp_path) as harness:
        for name in names:
            harness.append(name)
        await harness.wait_reports(len(names))
        assert harness.committed == names
        assert harness.replay() == names
        assert harness.journal.queued_bytes == 0


async def test_batches_that_wait_share_a_sync(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk, wait_ms=1000, entries_max=50) as harness:
        for i in range(50):
            harness.append(f"batch {i}")
        await harness.wait_reports(50)
        assert len(harness.reports) == 1
        assert disk.syncs == 2  # the file's header and the group


async def test_a_group_keeps_to_its_bounds(tmp_path: Path) -> None:
    async with opened(tmp_path, wait_ms=50, entries_max=2, bytes_max=1000) as harness:
        for i in range(7):
            harness.append(f"batch {i}", size=600 if i > 3 else 1)
        await harness.wait_reports(7)
        assert max(len(names) for names, _ in harness.reports) <= 2
        assert [names for names, _ in harness.reports if "batch 5" in names] == [["batch 5"]]


async def test_the_mark_is_behind_what_was_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        assert harness.journal.mark == NO_MARK
        harness.append("one")
        await harness.wait_reports(1)
        journal = JournalReplay(SystemDisk(), str(tmp_path), mark=NO_MARK, owner=OWNER)
        assert len(list(journal.records())) == 1
        assert harness.journal.mark == journal.end


async def test_no_file_is_made_before_the_first_batch(tmp_path: Path) -> None:
    async with opened(tmp_path):
        assert os.listdir(tmp_path) == []


async def test_files_roll_over(tmp_path: Path) -> None:
    names = [f"batch {i}" for i in range(20)]
    async with opened(tmp_path, file_bytes_max=1024) as harness:
        for i, name in enumerate(names):
            harness.append(name, size=300)
            await harness.wait_reports(i + 1)
        assert len(file_ids(os.listdir(tmp_path))) == 10
        assert harness.replay() == names


async def test_a_full_disk_refuses_and_recovers_in_a_new_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk) as harness:
        harness.append("stored", size=100)
        await harness.wait_reports(1)
        disk.bytes_left = 500
        harness.append("torn", size=1000)
        await harness.wait_reports(2)
        harness.append("refused", size=1000)
        await harness.wait_reports(3)
        assert harness.refused == ["torn", "refused"]
        assert harness.replay() == ["stored"]
        # A process that died now would start again; one that lives goes on when there is room.
        disk.bytes_left = 1 << 30
        harness.append("after")
        await harness.wait_reports(4)
        assert harness.committed == ["stored", "after"]
        assert harness.replay() == ["stored", "after"]
        assert len(file_ids(os.listdir(tmp_path))) == 2
        assert harness.metrics.journal_full_groups == 2


async def test_a_full_disk_leaves_no_trail_of_files(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.bytes_left = 100
    async with opened(tmp_path, disk) as harness:
        for i in range(20):
            harness.append(f"batch {i}", size=1000)
            await harness.wait_reports(i + 1)
        assert len(harness.refused) == 20
        assert set(os.listdir(tmp_path)) <= {file_name(1), NEWEST_NAME}
        assert harness.replay() == []


async def test_batches_that_did_not_know_of_the_full_disk_fail_too(tmp_path: Path) -> None:
    """A later batch may need what was in the failed group: a ledger's master key."""
    disk = FailingDisk()
    async with opened(tmp_path, disk) as harness:
        harness.append("stored")
        await harness.wait_reports(1)
        is_writing, may_fail = threading.Event(), threading.Event()

        def make_room() -> None:
            disk.bytes_left = 1 << 30

        def fail_later() -> None:
            is_writing.set()
            assert may_fail.wait(10)
            disk.before_append = make_room
            disk.bytes_left = 0

        disk.before_append = fail_later
        harness.append("key")
        await asyncio.to_thread(is_writing.wait, 10)
        # The loop has not heard of the failure, and for this batch there would be room again.
        harness.append("needs the key")
        may_fail.set()
        await harness.wait_reports(3)
        disk.bytes_left = 1 << 30
        harness.append("knows")
        await harness.wait_reports(4)
        assert harness.refused == ["key", "needs the key"]
        assert harness.committed == ["stored", "knows"]


@pytest.mark.parametrize("kind", ["sync", "write"])
async def test_b18_an_io_error_is_final(tmp_path: Path, kind: str) -> None:
    """Rule 3.6: a sync that works after one that failed proves nothing."""
    disk = FailingDisk()
    async with opened(tmp_path, disk) as harness:
        harness.append("stored")
        await harness.wait_reports(1)
        if kind == "sync":
            disk.sync_error = errno.EIO
        else:
            disk.write_error = errno.EIO
        harness.append("lost")
        await harness.wait_reports(2)
        assert [type(error) for error in harness.failures] == [JournalFailedError]
        # The disk is well again, but what it holds is not known: nothing is answered any more.
        disk.sync_error = disk.write_error = None
        syncs = disk.syncs
        harness.append("later")
        harness.journal.close()
        assert harness.committed == ["stored"]
        assert harness.refused == []
        assert disk.syncs == syncs


async def test_b18_a_sync_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    """The second one would succeed: the kernel has dropped the pages and taken them for clean."""
    disk = FailingDisk()
    disk.fails_one_sync = True
    async with opened(tmp_path, disk) as harness:
        harness.append("stored")
        await harness.wait_reports(1)
        disk.sync_error = errno.EIO
        harness.append("lost")
        await harness.wait_reports(2)
        assert [type(error) for error in harness.failures] == [JournalFailedError]
        harness.append("later")
        harness.journal.close()
        assert harness.committed == ["stored"]


async def test_b18_a_full_disk_at_sync_is_final_too(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk) as harness:
        harness.append("stored")
        await harness.wait_reports(1)
        disk.sync_error = errno.ENOSPC
        harness.append("lost")
        await harness.wait_reports(2)
        assert [type(error) for error in harness.failures] == [JournalFailedError]


async def test_replay_syncs_a_tail_that_only_the_page_cache_may_hold(tmp_path: Path) -> None:
    """Behind it goes the mark: a power failure must not leave the file shorter than that."""
    async with opened(tmp_path) as harness:
        harness.append("acknowledged or not")
        await harness.wait_reports(1)
    synced: list[str] = []

    class WatchedFile(SystemFile):
        def datasync(self) -> None:
            synced.append("tail")
            super().datasync()

    class WatchedDisk(SystemDisk):
        def open(self, path: str) -> File:
            return WatchedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def replay(mark: LastMark) -> LastMark:
        journal = JournalReplay(WatchedDisk(), str(tmp_path), mark=mark, owner=OWNER)
        for _ in journal.records():
            pass
        return journal.end

    end = replay(NO_MARK)
    assert synced == ["tail"]
    assert replay(end) == end
    assert synced == ["tail"], "nothing was read, nothing to sync"


async def test_it_measures_what_it_does(tmp_path: Path) -> None:
    async with opened(tmp_path, file_bytes_max=1024) as harness:
        for i in range(6):
            harness.append(f"batch {i}", size=300)
            await harness.wait_reports(i + 1)
        metrics = harness.metrics
        assert metrics.journal_groups == metrics.journal_records == 6
        assert metrics.journal_files_begun == metrics.journal_file_begin_s.count == 3
        assert metrics.journal_bytes == metrics.journal_group_bytes.total == 6 * 328
        assert metrics.journal_group_entries.total == 6
        assert metrics.journal_group_reasons == {"idle": 6}
        assert metrics.journal_queue_bytes == 0
        for each in (
            metrics.journal_queue_wait_s,
            metrics.journal_append_s,
            metrics.journal_sync_s,
            metrics.journal_commit_s,
            metrics.journal_add_s,
        ):
            assert each.count == 6
            assert each.total > 0
        parts_s = (
            metrics.journal_file_begin_s.total
            + metrics.journal_append_s.total
            + metrics.journal_sync_s.total
        )
        assert parts_s <= metrics.journal_commit_s.total <= metrics.journal_add_s.total


async def test_a_group_that_found_no_room_is_counted_apart(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.bytes_left = 100
    async with opened(tmp_path, disk) as harness:
        harness.append("refused", size=1000)
        await harness.wait_reports(1)
        assert harness.metrics.journal_full_groups == 1
        assert harness.metrics.journal_groups == harness.metrics.journal_bytes == 0
