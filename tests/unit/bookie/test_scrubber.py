"""What the scrubber does when it cannot do its work."""

import asyncio
import errno
import os
from pathlib import Path
from typing import cast

import pytest

from magnetar.bookie.entry_logs.log_names import log_ids
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.integrity.local_check import LocalCheck
from magnetar.bookie.integrity.scrub_position import (
    POSITION_NAME,
    ScrubPosition,
    decode_position,
)
from magnetar.bookie.integrity.scrubber import Scrubber
from magnetar.bookie.metrics import IntegrityMetrics
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemClock, SystemDisk, ThreadWorker
from tests.ledger_storage import SMALL, STATE, add, open_storage
from tests.waiting import until

SETTINGS = BookieSettings(
    data_directory=Path("data"), scrub_period_days=0, scrub_bytes_per_s_max=1 << 30
)


async def test_logs_that_cannot_be_listed_now_do_not_end_the_scrubbing(tmp_path: Path) -> None:
    """A process that is out of file descriptors for a moment must not stop for its scrubber."""

    passes = 0
    is_done = asyncio.Event()

    async def finished_logs() -> list[int]:
        nonlocal passes
        passes += 1
        if passes > 1:
            is_done.set()
        raise StorageIOError("entry-logs cannot be listed: Too many open files")

    disk, metrics = SystemDisk(), IntegrityMetrics()
    worker = ThreadWorker("scrub")
    async with open_storage(tmp_path, SMALL) as storage:
        storage.put_state(1, STATE)
        add(storage, 1, range(5), b"x")
        await storage.flush()
        maintenance = storage.maintenance
        check = LocalCheck(maintenance.index, maintenance.directory, disk)
        scrubber = Scrubber(
            str(tmp_path),
            check,
            known_ledgers=storage.known_ledgers,
            finished_logs=finished_logs,
            on_damage=lambda damage: None,
            disk=disk,
            clock=SystemClock(),
            worker=worker,
            metrics=metrics,
            settings=SETTINGS,
        )
        task = asyncio.create_task(scrubber.run())
        async with asyncio.timeout(10):
            await asyncio.wait(
                (task, asyncio.create_task(is_done.wait())), return_when=asyncio.FIRST_COMPLETED
            )
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        worker.close()
    assert metrics.scrub_passes == 1
    assert metrics.scrub_records > 0
    assert metrics.scrub_errors >= 1


class MovedClock(SystemClock):
    """The wall clock goes on from where the test sets it."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def test_a_wall_clock_that_was_years_ahead_stops_no_later_pass(tmp_path: Path) -> None:
    disk, metrics, clock = SystemDisk(), IntegrityMetrics(), MovedClock()
    worker = ThreadWorker("scrub")

    async def no_logs() -> list[int]:
        return []

    async with open_storage(tmp_path, SMALL) as storage:
        maintenance = storage.maintenance
        scrubber = Scrubber(
            str(tmp_path),
            LocalCheck(maintenance.index, maintenance.directory, disk),
            known_ledgers=storage.known_ledgers,
            finished_logs=no_logs,
            on_damage=lambda damage: None,
            disk=disk,
            clock=clock,
            worker=worker,
            metrics=metrics,
            settings=SETTINGS,
        )
        clock.ahead_ms = 20 * 365 * 24 * 3_600_000
        task = asyncio.create_task(scrubber.run())
        await until(lambda: metrics.scrub_passes == 1, "a pass")
        clock.ahead_ms = 0
        await until(lambda: metrics.scrub_passes == 2, "another one")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        worker.close()


async def test_a_stop_before_the_position_is_loaded_keeps_the_saved_one(tmp_path: Path) -> None:
    disk, worker = SystemDisk(), ThreadWorker("scrub")
    saved = ScrubPosition(pass_started_ms=1_000, ledger_id=7, bytes_done=99)
    (tmp_path / POSITION_NAME).write_bytes(saved.encode())

    async def no_logs() -> list[int]:
        return []

    async with open_storage(tmp_path, SMALL) as storage:
        maintenance = storage.maintenance
        scrubber = Scrubber(
            str(tmp_path),
            LocalCheck(maintenance.index, maintenance.directory, disk),
            known_ledgers=storage.known_ledgers,
            finished_logs=no_logs,
            on_damage=lambda damage: None,
            disk=disk,
            clock=SystemClock(),
            worker=worker,
            metrics=IntegrityMetrics(),
            settings=SETTINGS,
        )
        task = asyncio.create_task(scrubber.run())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scrubber.save()
        worker.close()
    assert decode_position((tmp_path / POSITION_NAME).read_bytes()) == saved


class OutOfFiles(SystemDisk):
    """Opens, or reads, fail as in a process without file descriptors or memory."""

    open_error = read_error = 0

    def open(self, path: str) -> File:
        if self.open_error:
            raise OSError(self.open_error, os.strerror(self.open_error), path)
        file = super().open(path)
        return cast(File, UnreadableFile(file, self.read_error)) if self.read_error else file


class UnreadableFile:
    def __init__(self, file: File, error: int) -> None:
        self._file, self._error = file, error

    @property
    def size(self) -> int:
        return self._file.size

    def pread(self, size: int, offset: int) -> bytes:
        raise OSError(self._error, os.strerror(self._error))

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", ["open", "read"])
async def test_a_log_that_cannot_be_read_for_now_is_not_reported_as_damaged(
    tmp_path: Path, call: str, number: int
) -> None:
    disk, metrics, worker = OutOfFiles(), IntegrityMetrics(), ThreadWorker("scrub")
    async with open_storage(tmp_path, SMALL) as storage:
        storage.put_state(1, STATE)
        add(storage, 1, range(5), b"x")
        await storage.flush()
        directory = storage.maintenance.directory
        (log,) = log_ids(os.listdir(directory))

        async def logs() -> list[int]:
            return [log]

        check = LocalCheck(storage.maintenance.index, directory, disk)
        scrubber = Scrubber(
            str(tmp_path),
            check,
            known_ledgers=list,
            finished_logs=logs,
            on_damage=lambda damage: None,
            disk=SystemDisk(),
            clock=SystemClock(),
            worker=worker,
            metrics=metrics,
            settings=SETTINGS,
        )
        setattr(disk, f"{call}_error", number)
        with pytest.raises(StorageIOError):
            check.check_log(log)
        setattr(disk, f"{call}_error", errno.EIO)
        assert check.check_log(log) is not None
        setattr(disk, f"{call}_error", number)
        task = asyncio.create_task(scrubber.run())
        await until(lambda: metrics.scrub_passes == 1, "a pass")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        worker.close()
    assert (metrics.scrub_errors, metrics.scrub_damages) == (1, 0)


async def test_a_log_that_is_removed_after_it_was_read_gives_its_room_back(tmp_path: Path) -> None:
    """A file that is still open keeps its room on the disk: up to a GiB, until the next pass."""
    async with open_storage(tmp_path, SMALL) as storage:
        for ledger_id in range(3):
            add(storage, ledger_id, range(20), b"p" * 100)
        await storage.flush()
        maintenance = storage.maintenance
        check = LocalCheck(maintenance.index, maintenance.directory, SystemDisk())
        size = 1 << 20
        step = check.check_ledgers([0, 1, 2], 0, 0, records_max=100, bytes_max=size)
        assert not step.damages
        assert check.check(1, 0, 19, records_max=100, bytes_max=size).records
        for ledger_id in range(3):
            storage.delete_ledger(ledger_id)
        await storage.flush()
        for log_id in await maintenance.finished_logs():
            await maintenance.remove_log(log_id)
        assert removed_and_open(tmp_path) == []


def removed_and_open(directory: Path) -> list[str]:
    """The removed files of a directory that this process still has open."""
    paths: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # that of the listing
    return [path for path in paths if path.startswith(str(directory)) and "(deleted)" in path]
