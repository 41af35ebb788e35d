"""Checkpoints: the order of their steps, and which journal files they let go."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from magnetar.bookie.errors import StorageError, StorageIOError
from magnetar.bookie.journaling.checkpoint import Checkpointer
from magnetar.bookie.journaling.journal_format import (
    NO_MARK,
    LastMark,
    Marks,
    file_ids,
    file_name,
    spare_names,
)
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.system import SystemClock, SystemDisk, ThreadWorker
from tests.bookie_parts import MemoryStorage
from tests.ledger_storage import turn_loop


class SlowStorage(MemoryStorage):
    """A storage whose flushes end when they are told to; a flush covers what is there when it is
    called."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[asyncio.Future[None]] = []
        self.on_flush: Callable[[], None] = lambda: None
        self.is_gentle: list[bool] = []

    async def flush(self, *, is_gentle: bool = False) -> None:
        self.flushes += 1
        self.is_gentle.append(is_gentle)
        self.on_flush()
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.under_way.append(end)
        await end

    def end_flush(self, number: int = 0, error: StorageError | None = None) -> None:
        if error is None:
            self.under_way[number].set_result(None)
        else:
            self.under_way[number].set_exception(error)


@dataclass
class Parts:
    """Two journals with files 1 to 9 each, and a checkpointer that no timer runs."""

    directory: Path
    storage: SlowStorage
    checkpointer: Checkpointer
    marks: LastMarks
    journal_marks: list[LastMark]
    metrics: BookieMetrics
    steps: list[str] = field(default_factory=list)
    bugs: list[BaseException] = field(default_factory=list)

    def journal(self, number: int) -> Path:
        return self.directory / f"j{number}"

    def files(self, number: int) -> list[int]:
        return file_ids([each.name for each in self.journal(number).iterdir()])

    def on_disk(self) -> Marks:
        """As a start would find them."""
        return LastMarks(SystemDisk(), [str(self.directory)], journals=2).load()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async for made in _make(tmp_path):
        yield made


async def _make(
    tmp_path: Path,
    *,
    spares: int = 0,
    backups: int = 0,
    marks: LastMarks | None = None,
    unflushed_bytes: int = 0,
) -> AsyncIterator[Parts]:
    for number in range(2):
        (tmp_path / f"j{number}").mkdir()
        for file_id in range(1, 10):
            (tmp_path / f"j{number}" / file_name(file_id)).touch()
    storage = SlowStorage()
    marks = marks or LastMarks(SystemDisk(), [str(tmp_path)], journals=2)
    journal_marks = [NO_MARK, NO_MARK]
    steps: list[str] = []
    bugs: list[BaseException] = []
    worker = ThreadWorker("test")
    metrics = BookieMetrics()

    def capture() -> Marks:
        steps.append("capture")
        return tuple(journal_marks)

    async def put_states() -> None:
        steps.append("put states")

    checkpointer = Checkpointer(
        storage,
        marks,
        disk=SystemDisk(),
        journal_directories=[str(tmp_path / f"j{number}") for number in range(2)],
        worker=worker,
        clock=SystemClock(),
        metrics=metrics,
        interval_s=60,
        retry_s=0.001,
        journal_backups=backups,
        journal_spares=spares,
        unflushed_bytes=unflushed_bytes,
        journal_marks=capture,
        before_flush=put_states,
        after_flush=lambda: steps.append("room"),
        on_bug=bugs.append,
    )
    storage.on_flush = lambda: steps.append("flush")
    yield Parts(tmp_path, storage, checkpointer, marks, journal_marks, metrics, steps, bugs)
    await checkpointer.close()
    worker.close()


async def begin(parts: Parts, *marks: LastMark) -> "asyncio.Task[None]":
    """A checkpoint that has come as far as its flush."""
    parts.journal_marks[:] = marks
    task = asyncio.create_task(parts.checkpointer.checkpoint())
    await turn_loop()
    return task


async def test_at_a_stop_no_checkpoint_takes_its_time(parts: Parts) -> None:
    for is_closing in (False, True):
        if is_closing:
            await parts.checkpointer.close()
        task = asyncio.create_task(parts.checkpointer.checkpoint(is_gentle=True))
        await turn_loop()
        parts.storage.end_flush(int(is_closing))
        await task
    assert parts.storage.is_gentle == [True, False]


async def test_8_1_the_marks_are_those_of_before_the_flush(parts: Parts) -> None:
    checkpoint = await begin(parts, LastMark(3, 64), LastMark(5, 64))
    assert parts.steps == ["capture", "put states", "flush"]
    parts.journal_marks[:] = [LastMark(8, 64), LastMark(9, 64)]
    parts.storage.end_flush()
    await checkpoint
    assert parts.on_disk() == (LastMark(3, 64), LastMark(5, 64))
    assert parts.steps == ["capture", "put states", "flush", "room"]


async def test_nothing_is_persisted_or_deleted_before_the_flush_has_ended(parts: Parts) -> None:
    checkpoint = await begin(parts, LastMark(3, 64), LastMark(5, 64))
    assert parts.on_disk() == (NO_MARK, NO_MARK)
    assert parts.files(0) == list(range(1, 10))
    parts.storage.end_flush()
    await checkpoint


async def test_each_journal_forgets_the_files_before_its_own_mark(parts: Parts) -> None:
    checkpoint = await begin(parts, LastMark(3, 64), LastMark(5, 200))
    parts.storage.end_flush()
    await checkpoint
    assert parts.files(0) == list(range(3, 10))
    assert parts.files(1) == list(range(5, 10))


async def test_8_6_a_failed_flush_leaves_marks_and_files_alone(parts: Parts) -> None:
    checkpoint = await begin(parts, LastMark(3, 64), LastMark(5, 64))
    parts.storage.end_flush(error=StorageIOError("the disk is full"))
    with pytest.raises(StorageIOError):
        await checkpoint
    assert parts.on_disk() == (NO_MARK, NO_MARK)
    assert parts.files(0) == parts.files(1) == list(range(1, 10))


async def test_b06_a_slow_checkpoint_that_ends_after_a_later_one_is_a_no_op(parts: Parts) -> None:
    """Else the start looks for a journal file that the later one has deleted."""
    slow = await begin(parts, LastMark(5, 64), LastMark(5, 64))
    fast = await begin(parts, LastMark(7, 64), LastMark(7, 64))
    parts.storage.end_flush(1)
    await fast
    assert parts.files(0) == [7, 8, 9]
    parts.storage.end_flush(0)
    await slow
    assert parts.on_disk() == (LastMark(7, 64), LastMark(7, 64))
    assert parts.on_disk()[0].file_id in parts.files(0)


async def test_b07_the_work_of_incomparable_checkpoints_is_not_skipped(parts: Parts) -> None:
    """Neither vector covers the other: each is flushed, each moves the mark in which it leads."""
    first = await begin(parts, LastMark(1, 64), LastMark(2, 64))
    second = await begin(parts, LastMark(2, 64), LastMark(1, 64))
    assert parts.storage.flushes == 2
    parts.storage.end_flush(1)
    await second
    assert parts.on_disk() == (LastMark(2, 64), LastMark(1, 64)), "marked without its flush"
    parts.storage.end_flush(0)
    await first
    assert parts.on_disk() == (LastMark(2, 64), LastMark(2, 64))


async def test_b07_a_checkpoint_is_due_when_any_journal_has_news(parts: Parts) -> None:
    """One journal's news are enough, even when another is behind what is on disk, as no order of
    vectors would have it."""
    parts.marks.advance((LastMark(5, 64), LastMark(5, 64)))
    parts.journal_marks[:] = [LastMark(4, 64), LastMark(5, 65)]
    parts.checkpointer.start()
    parts.storage.on_wants_flush()
    await turn_loop(5)
    assert parts.storage.flushes == 1
    parts.storage.end_flush()


async def test_b04_a_mark_that_moved_is_reason_enough_for_a_flush(parts: Parts) -> None:
    """Only a fence was written: the write cache is empty, and there is a state to flush."""
    parts.journal_marks[:] = [LastMark(1, 92), NO_MARK]
    assert not parts.storage.wants_flush
    parts.checkpointer.start()
    parts.storage.on_wants_flush()
    await turn_loop(5)
    assert parts.storage.flushes == 1
    parts.storage.end_flush()


async def test_without_news_nothing_is_flushed(parts: Parts) -> None:
    parts.marks.advance((LastMark(5, 64), LastMark(5, 64)))
    parts.journal_marks[:] = [LastMark(5, 64), LastMark(5, 64)]
    parts.checkpointer.start()
    parts.storage.on_wants_flush()
    await turn_loop(5)
    assert parts.storage.flushes == 0


async def test_a_failed_checkpoint_is_tried_again(parts: Parts) -> None:
    parts.journal_marks[:] = [LastMark(3, 64), NO_MARK]
    parts.checkpointer.start()
    parts.storage.on_wants_flush()
    await turn_loop(5)
    tried_again = asyncio.Event()
    parts.storage.on_flush = tried_again.set
    parts.storage.end_flush(0, StorageIOError("the disk is full"))
    await tried_again.wait()
    await turn_loop()
    parts.storage.end_flush(1)
    await parts.checkpointer.close()
    assert parts.on_disk() == (LastMark(3, 64), NO_MARK)


async def test_checkpoints_that_fail_for_days_are_told_ever_more_rarely_and_so_is_the_end(
    parts: Parts,
) -> None:
    room = asyncio.Event()

    def fail_often() -> None:
        if parts.storage.flushes <= 9:
            raise StorageIOError("the disk is full")
        room.set()

    parts.storage.on_flush = fail_often
    parts.journal_marks[:] = [LastMark(3, 64), NO_MARK]
    with capture_logs() as lines:
        parts.checkpointer.start()
        parts.storage.on_wants_flush()
        async with asyncio.timeout(10):
            await room.wait()
        await turn_loop()
        parts.storage.end_flush()
        await parts.checkpointer.close()
    told = [(each["event"], each["failures"]) for each in lines]
    assert told == [
        *(("checkpoint_failed", failures) for failures in (1, 2, 4, 8)),
        ("checkpoints_go_on", 9),
    ]
    assert parts.metrics.checkpoint_failures == 9


async def test_8_6_a_failed_flush_is_tried_again_though_the_journal_has_no_news(
    parts: Parts,
) -> None:
    """The journal is full too: what waits in memory was never journalled. As long as a flush has
    failed the bookie is read-only, so nothing but another try can end that."""
    parts.marks.advance((LastMark(5, 64), LastMark(5, 64)))
    parts.journal_marks[:] = [LastMark(5, 64), LastMark(5, 64)]
    parts.storage.wants_flush = True
    parts.checkpointer.start()
    parts.storage.on_wants_flush()
    await turn_loop(5)
    parts.storage.wants_flush = False  # the new buffer is empty
    tried_again = asyncio.Event()
    parts.storage.on_flush = tried_again.set
    parts.storage.end_flush(0, StorageIOError("the disk is full"))
    async with asyncio.timeout(5):
        await tried_again.wait()
    await turn_loop()
    parts.storage.end_flush(1)


def replay_metrics(metrics: BookieMetrics) -> tuple[int, bool]:
    """Bytes to replay, and whether the marks have an age."""
    for refresh in metrics.before_export:
        refresh()
    return metrics.journal_replay_bytes, metrics.checkpoint_age_s > 0


async def test_what_the_start_replayed_and_could_not_flush_counts_until_it_is_flushed(
    tmp_path: Path,
) -> None:
    async for parts in _make(tmp_path, unflushed_bytes=700):
        assert replay_metrics(parts.metrics) == (700, True)
        checkpoint = await begin(parts, LastMark(3, 64), LastMark(5, 200))
        parts.storage.end_flush()
        await checkpoint
        assert replay_metrics(parts.metrics) == (0, False)


async def test_what_a_restart_would_replay_is_told(parts: Parts) -> None:
    metrics = parts.metrics

    def told() -> tuple[int, bool]:
        return replay_metrics(metrics)

    assert told() == (0, False)
    metrics.journal_bytes += 1000
    assert told() == (1000, True)
    checkpoint = await begin(parts, LastMark(3, 64), LastMark(5, 200))
    metrics.journal_bytes += 50
    parts.storage.end_flush()
    await checkpoint
    assert told() == (50, True)


async def test_files_stay_while_one_ledger_directory_has_an_old_mark(tmp_path: Path) -> None:
    """The directory is full, and the others may be lost before it is not: a start must find its
    journal."""

    class FullDisk(SystemDisk):
        def replace_file(self, path: str, data: bytes) -> None:
            if "/full/" in path:
                raise OSError(errno.ENOSPC, "no space left")
            super().replace_file(path, data)

    (tmp_path / "full").mkdir()
    directories = [str(tmp_path), str(tmp_path / "full")]
    LastMarks(SystemDisk(), directories, journals=2).advance((LastMark(2, 64), LastMark(2, 64)))
    marks = LastMarks(FullDisk(), directories, journals=2)
    marks.load()
    async for parts in _make(tmp_path, marks=marks):
        checkpoint = await begin(parts, LastMark(5, 64), LastMark(5, 64))
        parts.storage.end_flush()
        await checkpoint
        assert marks.marks == (LastMark(5, 64), LastMark(5, 64))
        assert parts.files(0) == list(range(2, 10))


async def test_files_become_spares_or_stay_as_backups(tmp_path: Path) -> None:
    async for parts in _make(tmp_path, spares=2, backups=3):
        checkpoint = await begin(parts, LastMark(8, 64), NO_MARK)
        parts.storage.end_flush()
        await checkpoint
        assert parts.files(0) == [5, 6, 7, 8, 9]
        assert len(spare_names([each.name for each in parts.journal(0).iterdir()])) == 2
        assert parts.files(1) == list(range(1, 10))
