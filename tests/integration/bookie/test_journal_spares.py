"""Journal files that are written anew: what they held before never counts (defect B19)."""

import errno
import os
from pathlib import Path

import pytest

from magnetar.bookie.errors import JournalCorruptError, JournalFullError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NEWEST_NAME,
    NO_MARK,
    FileHeader,
    LastMark,
    NewRecord,
    encode_file_header,
    file_ids,
    file_name,
    spare_name,
    spare_names,
)
from magnetar.bookie.journaling.journal_replay import JournalReplay
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemDisk, SystemFile

OWNER = b"o" * 16


def files_of(
    directory: Path, last_mark: LastMark = NO_MARK, disk: SystemDisk | None = None
) -> JournalFiles:
    return JournalFiles(
        disk or SystemDisk(),
        str(directory),
        owner=OWNER,
        last_mark=last_mark,
        first_file_id=1,
        file_bytes_max=4096,
        preallocate_bytes=1024,
    )


def record(text: bytes) -> NewRecord:
    return NewRecord(1, 7, text)


def replay(directory: Path) -> list[bytes]:
    journal = JournalReplay(SystemDisk(), str(directory), mark=NO_MARK, owner=OWNER)
    return [each.body for each in journal.records()]


@pytest.fixture
def spare(tmp_path: Path) -> Path:
    """A directory with one spare file full of old records."""
    files = files_of(tmp_path)
    for number in range(30):
        files.commit([record(b"old %02d" % number * 10)])
    files.close()
    (file_id,) = file_ids(os.listdir(tmp_path))
    (tmp_path / file_name(file_id)).rename(tmp_path / spare_name(file_id))
    return tmp_path


def test_b19_a_spare_is_written_anew_and_only_the_new_records_count(spare: Path) -> None:
    files = files_of(spare, LastMark(5, FILE_HEADER_BYTES))
    for number in range(4):
        files.commit([record(b"new %02d" % number * 10)])
    files.close()
    assert spare_names(os.listdir(spare)) == []
    assert file_ids(os.listdir(spare)) == [6]
    assert replay(spare) == [b"new %02d" % number * 10 for number in range(4)]


def test_b19_old_records_behind_the_end_neither_count_nor_look_like_damage(spare: Path) -> None:
    """Records of the same size as before: the old ones start exactly where the new ones end."""
    files = files_of(spare, LastMark(5, FILE_HEADER_BYTES))
    files.commit([record(b"new 00" * 10)])
    files.close()
    data = (spare / file_name(6)).read_bytes()
    assert b"old 01" in data
    assert replay(spare) == [b"new 00" * 10]


def test_b19_a_group_torn_over_old_records_is_a_torn_tail(spare: Path) -> None:
    files = files_of(spare, LastMark(5, FILE_HEADER_BYTES))
    files.commit([record(b"kept")])
    path = spare / file_name(6)
    before = path.read_bytes()
    mark = files.commit([record(b"torn" * 100), record(b"gone" * 100)])
    files.close()
    after = path.read_bytes()
    middle = (FILE_HEADER_BYTES + mark.offset) // 2
    path.write_bytes(after[:middle] + before[middle:])
    assert replay(spare) == [b"kept"]


def test_damage_before_a_later_group_is_still_refused(spare: Path) -> None:
    files = files_of(spare, LastMark(5, FILE_HEADER_BYTES))
    marks = [files.commit([record(b"%d" % number * 50)]) for number in range(3)]
    files.close()
    path = spare / file_name(6)
    data = bytearray(path.read_bytes())
    data[marks[0].offset + 40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(JournalCorruptError, match="is damaged"):
        replay(spare)


def test_a_crash_before_the_rename_leaves_a_spare_that_is_never_read(spare: Path) -> None:
    files = files_of(spare, LastMark(5, FILE_HEADER_BYTES))
    files.close()
    # As if the next file had got its header, but not yet its name.
    old = (spare / spare_name(1)).read_bytes()
    header = encode_file_header(FileHeader(6, 5, FILE_HEADER_BYTES, OWNER))
    (spare / spare_name(1)).write_bytes(header + old[FILE_HEADER_BYTES:])
    (spare / NEWEST_NAME).unlink()  # it names file 1: without a mark, a start would need that
    assert replay(spare) == []
    again = files_of(spare, LastMark(5, FILE_HEADER_BYTES))
    again.commit([record(b"again")])
    again.close()
    assert replay(spare) == [b"again"]


class FullDisk(SystemDisk):
    """Has no room for another file."""

    def create(self, path: str) -> File:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def free_bytes(self, path: str) -> int:
        return 0


def test_adds_go_on_in_a_spare_on_a_disk_that_is_still_full(spare: Path) -> None:
    """What a checkpoint has set free is all in spares, on a disk that is the journal's own."""
    (name,) = spare_names(os.listdir(spare))
    hidden = (spare / name).rename(spare / "hidden")
    files = files_of(spare, LastMark(5, FILE_HEADER_BYTES), FullDisk())
    for _ in range(2):
        with pytest.raises(JournalFullError):
            files.commit([record(b"refused")])
    hidden.rename(spare / name)
    files.commit([record(b"new")])
    files.close()
    assert replay(spare) == [b"new"]


class CountedFile(SystemFile):
    """Counts what is read."""

    bytes_read = 0

    def pread(self, size: int, offset: int) -> bytes:
        data = super().pread(size, offset)
        CountedFile.bytes_read += len(data)
        return data


class CountedDisk(SystemDisk):
    """Opens such files."""

    def open(self, path: str) -> File:
        return CountedFile(os.open(path, os.O_RDONLY))


def test_b20_old_payloads_full_of_record_heads_do_not_hold_up_a_start(tmp_path: Path) -> None:
    """Clients choose them. Each would be a record of megabytes, to be checked for its CRC."""
    magic, size = b"MJRC", 2 << 20
    head = magic + bytes(4) + size.to_bytes(4) + bytes(16)
    body = head * 3000
    files = files_of(tmp_path)
    files._file_bytes_max = 8 << 20
    files.commit([record(body)] * 60)
    files.close()
    (tmp_path / file_name(1)).rename(tmp_path / spare_name(1))
    files = files_of(tmp_path, LastMark(1, FILE_HEADER_BYTES))
    files.commit([record(b"new")])
    files.close()
    CountedFile.bytes_read = 0
    journal = JournalReplay(CountedDisk(), str(tmp_path), mark=NO_MARK, owner=OWNER)
    assert [each.body for each in journal.records()] == [b"new"]
    assert CountedFile.bytes_read < 4 * os.path.getsize(tmp_path / file_name(2))
