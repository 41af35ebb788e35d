"""What a replay owes to others: turns of the event loop, and a clear word when nothing fits."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.errors import JournalCorruptError, StorageFullError, StorageIOError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NO_MARK,
    LastMark,
    NewRecord,
    RecordType,
    file_name,
)
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.journaling.replay import Replayed, replay_journals
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.system import SystemDisk
from magnetar.ledger.wire import EntryBlock, encode_block
from tests.bookie_parts import KEY, MemoryStorage, packets_of

OWNER = b"o" * 16
LEDGER = 7
PAYLOAD = bytes(200_000)


def write_journal(directory: Path, adds: int) -> LastMark:
    """A key and so many entries."""
    records = [NewRecord(RecordType.MASTER_KEY, LEDGER, KEY)]
    for first in range(adds):
        block = encode_block(packets_of(LEDGER, first, 1, PAYLOAD))
        records.append(NewRecord(RecordType.ENTRY_BLOCK, LEDGER, block.data))
    return write_records(directory, records)


def write_records(directory: Path, records: list[NewRecord]) -> LastMark:
    files = JournalFiles(
        SystemDisk(),
        str(directory),
        owner=OWNER,
        last_mark=NO_MARK,
        first_file_id=1,
        file_bytes_max=1 << 30,
        preallocate_bytes=0,
    )
    mark = files.commit(records)
    files.close()
    return mark


async def replay(directory: Path, storage: MemoryStorage) -> Replayed:
    marks = LastMarks(SystemDisk(), [str(directory)])
    return await replay_journals(storage, marks, SystemDisk(), [str(directory)], owners=[OWNER])


def mark_in(directory: Path) -> LastMark:
    return LastMarks(SystemDisk(), [str(directory)]).load()[0]


async def test_others_have_their_turns_during_a_long_replay(tmp_path: Path) -> None:
    """The session of the metadata store is kept alive on the same loop."""
    write_journal(tmp_path, 100)  # 20 MB
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await replay(tmp_path, MemoryStorage())
    others.cancel()
    assert turns >= 10


class FullStorage(MemoryStorage):
    """Takes so many adds, and has no room to flush them."""

    def __init__(self, adds_max: int, refusal: OSError) -> None:
        super().__init__()
        self.adds_left = adds_max
        self.refusal = refusal

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        if not self.adds_left:
            raise StorageFullError("the write cache is full")
        self.adds_left -= 1
        super().add(ledger_id, block, entry_ids)

    async def flush(self, *, is_gentle: bool = False) -> None:
        raise StorageIOError(f"cannot be written: {self.refusal}") from self.refusal


NO_ROOM = [OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT)]


@pytest.mark.parametrize("refusal", NO_ROOM, ids=str)
async def test_3_5_without_room_for_a_flush_the_mark_stays(
    tmp_path: Path, refusal: OSError
) -> None:
    end = write_journal(tmp_path, 3)
    replayed = await replay(tmp_path, FullStorage(3, refusal))
    assert replayed.ends == (end,)
    assert not replayed.is_flushed
    assert replayed.unflushed_bytes == end.offset - FILE_HEADER_BYTES
    assert mark_in(tmp_path) == NO_MARK


async def test_what_fits_neither_on_disk_nor_in_memory_stops_the_start(tmp_path: Path) -> None:
    write_journal(tmp_path, 3)
    with pytest.raises(StorageFullError, match=r"make room .* or start with a larger"):
        await replay(tmp_path, FullStorage(2, NO_ROOM[0]))
    assert mark_in(tmp_path) == NO_MARK


async def test_b18_any_other_error_of_a_flush_stops_the_start(tmp_path: Path) -> None:
    write_journal(tmp_path, 3)
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    for adds_max in (2, 3):
        with pytest.raises(StorageIOError):
            await replay(tmp_path, FullStorage(adds_max, broken))
    assert mark_in(tmp_path) == NO_MARK


async def test_3_5_a_journal_that_ends_before_the_mark_stops_the_start(tmp_path: Path) -> None:
    """What is missing had been synced, and more may have been behind it."""
    end = write_journal(tmp_path, 1)
    marks = LastMarks(SystemDisk(), [str(tmp_path)])
    marks.load()
    marks.advance((end,))
    os.truncate(tmp_path / file_name(end.file_id), end.offset - 1)
    with pytest.raises(JournalCorruptError, match="before the mark"):
        await replay(tmp_path, MemoryStorage())


async def test_3_5_the_highest_explicit_lac_counts_not_the_last(tmp_path: Path) -> None:
    packets = [packet_codec(LEDGER).seal_lac(lac) for lac in (3, 5, 4)]
    key = NewRecord(RecordType.MASTER_KEY, LEDGER, KEY)
    write_records(
        tmp_path, [key, *(NewRecord(RecordType.EXPLICIT_LAC, LEDGER, each) for each in packets)]
    )
    storage = MemoryStorage()
    await replay(tmp_path, storage)
    state = storage.state(LEDGER)
    assert state is not None
    assert state.explicit_lac == packets[1]
    assert state.last_add_confirmed == 5


async def test_2_4_a_replay_brings_back_the_last_add_confirmed_of_the_entries(
    tmp_path: Path,
) -> None:
    write_journal(tmp_path, 3)
    storage = MemoryStorage()
    await replay(tmp_path, storage)
    state = storage.state(LEDGER)
    assert state is not None
    assert state.last_add_confirmed == 1
