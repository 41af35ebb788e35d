"""Crashes and damage: what replay makes of a journal that lost or changed some bytes."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.errors import JournalError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NO_MARK,
    LastMark,
    NewRecord,
    file_ids,
    file_name,
)
from magnetar.bookie.journaling.journal_replay import JournalReplay
from magnetar.ledger.system import SystemDisk

OWNER = b"o" * 16
PAGE_BYTES = 64
"""Pages of this test are small, so that a group has many."""

groups = st.lists(st.lists(st.binary(max_size=120), min_size=1, max_size=4), min_size=1, max_size=6)


@contextmanager
def journal_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield directory


def open_files(directory: str, end: LastMark = NO_MARK, file_bytes_max: int = 400) -> JournalFiles:
    return JournalFiles(
        SystemDisk(),
        directory,
        owner=OWNER,
        last_mark=end,
        first_file_id=1,
        file_bytes_max=file_bytes_max,
        preallocate_bytes=512,
    )


def write(files: JournalFiles, written: list[list[bytes]]) -> list[LastMark]:
    """Commit the groups; returns the mark behind each."""
    return [files.commit([NewRecord(1, 7, body) for body in group]) for group in written]


def replay(directory: str, mark: LastMark = NO_MARK) -> tuple[list[bytes], LastMark]:
    journal = JournalReplay(SystemDisk(), directory, mark=mark, owner=OWNER)
    return [record.body for record in journal.records()], journal.end


def flat(written: list[list[bytes]]) -> list[bytes]:
    return [body for group in written for body in group]


@settings(deadline=None, max_examples=60)
@given(groups)
def test_what_was_committed_is_read_back_in_order(written: list[list[bytes]]) -> None:
    with journal_directory() as directory:
        files = open_files(directory)
        marks = write(files, written)
        files.close()
        assert replay(directory) == (flat(written), marks[-1])


@settings(deadline=None, max_examples=60)
@given(groups, st.data())
def test_replay_from_a_mark_gives_what_is_behind_it(
    written: list[list[bytes]], data: st.DataObject
) -> None:
    with journal_directory() as directory:
        files = open_files(directory)
        marks = write(files, written)
        files.close()
        at = data.draw(st.integers(0, len(marks) - 1))
        assert replay(directory, marks[at]) == (flat(written[at + 1 :]), marks[-1])


@settings(deadline=None, max_examples=100)
@given(groups, st.lists(st.binary(max_size=200), min_size=1, max_size=6), st.data())
def test_any_pages_of_an_unsynced_group_may_be_lost(
    written: list[list[bytes]], unsynced: list[bytes], data: st.DataObject
) -> None:
    """Check 1 of the storage sheet: every subset of unsynced pages; nothing synced is lost, the
    start is not refused, and the bookie can go on writing and be started again.
    """
    with journal_directory() as directory:
        files = open_files(directory, file_bytes_max=1 << 20)
        marks = write(files, written)
        end = marks[-1]
        path = Path(directory, file_name(end.file_id))
        write(files, [unsynced])
        files.close()
        content = bytearray(path.read_bytes())
        for start in range(end.offset, len(content), PAGE_BYTES):
            if data.draw(st.booleans()):
                stop = min(start + PAGE_BYTES, len(content))
                content[start:stop] = bytes(stop - start)
        path.write_bytes(content)
        found, found_end = replay(directory)
        count = len(flat(written))
        assert found[:count] == flat(written)
        assert found[count:] == unsynced[: len(found) - count]
        again = open_files(directory, found_end)
        more = write(again, [[b"later"]])
        again.close()
        assert replay(directory) == ([*found, b"later"], more[-1])


@settings(deadline=None, max_examples=60)
@given(groups, st.data())
def test_b20_a_changed_byte_before_the_last_group_refuses_the_start(
    written: list[list[bytes]], data: st.DataObject
) -> None:
    with journal_directory() as directory:
        files = open_files(directory)
        marks = write(files, [*written, [b"last"]])
        files.close()
        names = [file_name(file_id) for file_id in file_ids(os.listdir(directory))]
        name = data.draw(st.sampled_from(names))
        last = marks[-2] if marks[-2].file_id == marks[-1].file_id else None
        path = Path(directory, name)
        content = bytearray(path.read_bytes())
        if name == names[-1]:
            limit = FILE_HEADER_BYTES if last is None else last.offset
        else:
            ends = [mark.offset for mark in marks if file_name(mark.file_id) == name]
            limit = ends[-1]
        at = data.draw(st.integers(0, limit - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        try:
            replay(directory)
        except JournalError:
            return
        raise AssertionError(f"damage at {at} of {name} went unnoticed")
