"""The last marks: a vector, a copy in every ledger directory, never backwards."""

import errno
import os
from pathlib import Path

import pytest

from magnetar.bookie.errors import JournalCorruptError
from magnetar.bookie.journaling.journal_format import (
    NO_MARK,
    LastMark,
    covers,
    decode_mark,
    mark_name,
)
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.ledger.system import SystemDisk

A, B, C = LastMark(1, 100), LastMark(2, 64), LastMark(2, 300)


class TearingDisk(SystemDisk):
    """Refuses to write in some directories; may die in the middle of a write."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        self.dies_after: int | None = None

    def replace_file(self, path: str, data: bytes) -> None:
        error = self.refused.get(os.path.dirname(path))
        if error is not None:
            raise OSError(error, os.strerror(error))
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                # What a power failure leaves of a file that is replaced: a torn new one beside it.
                Path(f"{path}.new").write_bytes(data[:11])
                raise OSError(errno.EIO, "power failure")
        super().replace_file(path, data)


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    made = [tmp_path / name for name in ("d0", "d1", "d2")]
    for each in made:
        each.mkdir()
    return [str(each) for each in made]


def marks_of(
    directories: list[str], disk: SystemDisk | None = None, journals: int = 2
) -> LastMarks:
    return LastMarks(disk or SystemDisk(), directories, journals=journals)


def test_every_ledger_directory_has_a_copy_of_every_mark(directories: list[str]) -> None:
    marks_of(directories).advance((A, C))
    for directory in directories:
        for journal, mark in ((0, A), (1, C)):
            assert decode_mark(Path(directory, mark_name(journal)).read_bytes()) == mark
    assert sorted(os.listdir(directories[0])) == ["last-mark", "last-mark.1"]
    assert marks_of(directories).load() == (A, C)


def test_a_mark_that_was_never_written_is_none(directories: list[str]) -> None:
    marks = marks_of(directories)
    assert marks.load() == (NO_MARK, NO_MARK)
    assert not marks.advance((NO_MARK, NO_MARK))
    assert os.listdir(directories[0]) == []


def test_the_largest_copy_wins_and_the_others_are_brought_up_to_it(directories: list[str]) -> None:
    marks_of(directories[:1]).advance((C, A))
    marks_of(directories[1:]).advance((B, B))
    marks = marks_of(directories)
    assert marks.load() == (C, B)
    assert marks.safe_marks == (B, A)
    assert marks.advance((C, B))
    assert marks.safe_marks == (C, B)
    assert not marks.advance((C, B))
    for directory in directories:
        assert marks_of([directory]).load() == (C, B)


def test_b06_an_older_checkpoint_that_ends_later_moves_nothing(directories: list[str]) -> None:
    """Rule 8.5."""
    marks = marks_of(directories)
    assert marks.advance((C, C))
    assert not marks.advance((A, B))
    assert marks.marks == (C, C)
    assert marks_of(directories).load() == (C, C)


def test_b07_two_checkpoints_that_are_each_ahead_in_one_journal_both_count(
    directories: list[str],
) -> None:
    """Rule 8.3: as vectors neither is first, so none of them may be taken for done."""
    assert not covers((A, C), (B, B))
    assert not covers((B, B), (A, C))
    marks = marks_of(directories)
    assert marks.advance((A, C))
    assert marks.advance((B, B))
    assert marks.marks == (B, C)
    assert marks_of(directories).load() == (B, C)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("dies_after", range(12))
def test_b17_a_power_failure_while_marks_are_written_leaves_old_or_new_ones(
    directories: list[str], copies: int, dies_after: int
) -> None:
    """Rule 3.4: no copy is ever torn, and none is ahead of what was asked for."""
    disk = TearingDisk()
    marks = marks_of(directories[:copies], disk)
    marks.advance((A, A))
    disk.dies_after = dies_after
    steps = ((B, A), (B, B), (C, C))
    done = (A, A)
    asked = (A, A)
    for step in steps:
        asked = step
        try:
            marks.advance(step)
        except OSError:
            break
        done = step
    found = marks_of(directories[:copies]).load()
    assert covers(found, done)
    assert covers(asked, found)
    # The very same files go on.
    again = marks_of(directories[:copies])
    again.load()
    again.advance((C, C))
    assert marks_of(directories[:copies]).load() == (C, C)


def test_a_damaged_copy_is_no_copy_when_there_is_another(directories: list[str]) -> None:
    marks_of(directories).advance((C, A))
    Path(directories[0], "last-mark").write_bytes(b"damaged")
    marks = marks_of(directories)
    assert marks.load() == (C, A)
    assert marks.safe_marks == (NO_MARK, A)
    marks.advance((C, A))
    assert marks_of(directories[:1]).load() == (C, A)


def test_a_lost_copy_is_replaced(directories: list[str]) -> None:
    """As when a ledger directory is new."""
    marks_of(directories).advance((C, A))
    os.unlink(os.path.join(directories[2], "last-mark.1"))
    marks = marks_of(directories)
    assert marks.load() == (C, A)
    marks.advance((C, A))
    assert marks_of(directories[2:]).load() == (C, A)


def test_if_all_copies_are_damaged_the_start_is_refused(directories: list[str]) -> None:
    marks_of(directories).advance((C, A))
    for directory in directories:
        Path(directory, "last-mark.1").write_bytes(b"damaged")
    with pytest.raises(JournalCorruptError, match=r"no other copy: .*last-mark\.1"):
        marks_of(directories).load()


def test_a_full_ledger_directory_keeps_its_old_copy(directories: list[str]) -> None:
    """The journals keep what the old copy needs: any one directory is enough for a start."""
    disk = TearingDisk()
    marks = marks_of(directories, disk)
    marks.advance((A, A))
    disk.refused[directories[1]] = errno.ENOSPC
    assert marks.advance((C, A))
    assert marks.marks == (C, A)
    assert marks.safe_marks == (A, A)
    del disk.refused[directories[1]]
    assert marks.advance((C, A))
    assert marks.safe_marks == (C, A)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_mark_that_can_be_written_nowhere_is_an_error(directories: list[str], error: int) -> None:
    disk = TearingDisk()
    marks = marks_of(directories, disk)
    marks.advance((A, A))
    disk.refused = dict.fromkeys(directories, error)
    with pytest.raises(OSError, match=os.strerror(error)):
        marks.advance((C, A))
    assert marks.marks == (A, A)


def test_an_io_error_under_one_copy_is_an_error(directories: list[str]) -> None:
    disk = TearingDisk()
    disk.refused[directories[2]] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        marks_of(directories, disk).advance((C, A))
