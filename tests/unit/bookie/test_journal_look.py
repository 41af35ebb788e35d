"""Looking into journal files: every record is shown, every spoiled byte is told."""

from pathlib import Path

from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NO_MARK,
    NewRecord,
    RecordType,
    file_name,
)
from magnetar.bookie.tools.journal_look import (
    JournalGap,
    JournalRecord,
    journal_files,
    journal_records,
)
from magnetar.ledger.system import SystemDisk
from magnetar.ledger.wire import encode_block
from tests.bookie_parts import packets_of

KEY = NewRecord(RecordType.MASTER_KEY, 7, b"k" * 20)


def block(first: int, count: int) -> NewRecord:
    return NewRecord(RecordType.ENTRY_BLOCK, 7, encode_block(packets_of(7, first, count)).data)


def write(directory: Path, *groups: list[NewRecord], preallocate_bytes: int = 0) -> Path:
    files = JournalFiles(
        SystemDisk(),
        str(directory),
        owner=b"o" * 16,
        last_mark=NO_MARK,
        first_file_id=9,
        file_bytes_max=1 << 20,
        preallocate_bytes=preallocate_bytes,
    )
    for group in groups:
        files.commit(group)
    files.close()
    return directory / file_name(9)


def look(path: Path, stop: int | None = None) -> list[JournalRecord | JournalGap]:
    return list(journal_records(SystemDisk(), str(path), 9, stop=stop))


def test_every_record_is_shown_with_its_entries(tmp_path: Path) -> None:
    path = write(tmp_path, [KEY, block(0, 3)], [NewRecord(RecordType.FENCE, 7, b"")])
    (summary,) = journal_files(SystemDisk(), str(tmp_path))
    assert (summary.path, summary.file_id) == (str(path), 9)
    assert summary.header is not None
    key, entries, fence = look(path)
    assert isinstance(key, JournalRecord)
    assert isinstance(entries, JournalRecord)
    assert isinstance(fence, JournalRecord)
    assert (key.offset, key.type) == (FILE_HEADER_BYTES, "master_key")
    assert (entries.type, entries.first, entries.last, entries.entries) == ("entry_block", 0, 2, 3)
    assert entries.group_start == key.offset
    assert (fence.type, fence.ledger_id, fence.group_start) == ("fence", 7, fence.offset)


def test_room_that_was_taken_ahead_is_no_gap(tmp_path: Path) -> None:
    path = write(tmp_path, [KEY], preallocate_bytes=4096)
    assert path.stat().st_size == 4096
    (record,) = look(path)
    assert isinstance(record, JournalRecord)


def test_a_spoiled_record_before_a_later_group_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path, [KEY], [block(0, 2)], [block(2, 2)])
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 30] ^= 1
    path.write_bytes(data)
    gap, *rest = look(path)
    assert isinstance(gap, JournalGap)
    assert gap.offset == FILE_HEADER_BYTES
    assert gap.is_damage
    assert [each.first for each in rest if isinstance(each, JournalRecord)] == [0, 2]


def test_a_torn_last_group_is_no_damage(tmp_path: Path) -> None:
    """Unless the next file says that the bytes had been synced."""
    path = write(tmp_path, [KEY], [block(0, 2)])
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    _, torn = look(path)
    assert isinstance(torn, JournalGap)
    assert (torn.end, torn.is_damage) == (size - 5, False)
    _, missing = look(path, stop=size)
    assert isinstance(missing, JournalGap)
    assert missing.is_damage


def test_a_valid_record_of_the_same_group_proves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, [KEY], [block(0, 2), block(2, 2)])
    data = bytearray(path.read_bytes())
    first, second, _ = look(path)
    assert isinstance(first, JournalRecord)
    assert isinstance(second, JournalRecord)
    data[second.offset + 40] ^= 1
    path.write_bytes(data)
    _, gap, kept = look(path)
    assert isinstance(gap, JournalGap)
    assert not gap.is_damage
    assert isinstance(kept, JournalRecord)
    assert kept.first == 2
