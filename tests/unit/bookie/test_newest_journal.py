"""The record of a journal's newest file: a file that is gone is noticed, whenever it was made.

A journal is written on a simulated disk, and cut at each write, sync and change of a name. From
every cut a start must succeed with everything that was acknowledged; and if the newest file is
removed or shortened before the start, it must be refused, or nothing acknowledged was in it.
"""

import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from magnetar.bookie.errors import (
    JournalCorruptError,
    JournalError,
    JournalFailedError,
    JournalFileMissingError,
    JournalFullError,
)
from magnetar.bookie.journaling.journal_files import JournalFiles, NewestRecord
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NEWEST_NAME,
    NEWEST_SLOT_BYTES,
    NO_MARK,
    LastMark,
    NewestFile,
    NewRecord,
    RecordType,
    decode_newest,
    encode_newest,
    file_ids,
    file_name,
    newest_slot,
    spare_name,
)
from magnetar.bookie.journaling.journal_replay import JournalReplay
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.journaling.replay import replay_journals
from tests.bookie_parts import KEY, MemoryStorage
from tests.simulation.disk import DiskImage, SimDisk
from tests.simulation.inode import Survival

OWNER = b"o" * 16
PLACE = "/j"
RECORD = f"{PLACE}/{NEWEST_NAME}"
GROUPS = 12
"""Written in each play; some in one file with others, some alone."""


def opened(
    disk: SimDisk,
    end: LastMark = NO_MARK,
    *,
    preallocate_bytes: int = 256,
    first_file_id: int = 1,
) -> JournalFiles:
    return JournalFiles(
        disk,
        PLACE,
        owner=OWNER,
        last_mark=end,
        first_file_id=first_file_id,
        file_bytes_max=512,
        preallocate_bytes=preallocate_bytes,
    )


def group(number: int) -> list[NewRecord]:
    return [NewRecord(1, 7, b"%02d" % number * 40), NewRecord(1, 7, b"and more of %02d" % number)]


def replayed(disk: SimDisk, mark: LastMark = NO_MARK) -> tuple[list[bytes], LastMark]:
    journal = JournalReplay(disk, PLACE, mark=mark, owner=OWNER)
    bodies = [record.body for record in journal.records()]
    journal.name_newest()
    return bodies, journal.end


def replayed_or_refused(disk: SimDisk, kind: type[JournalError]) -> tuple[list[bytes], str]:
    """What was replayed, or what a start that was refused says."""
    try:
        return replayed(disk)[0], ""
    except kind as error:
        return [], str(error)


def bodies(groups: int) -> list[bytes]:
    return [record.body for number in range(groups) for record in group(number)]


def new_disk() -> SimDisk:
    disk = SimDisk(seed="0", faithful=True)
    disk.make_directory(PLACE)
    return disk


def newest_on(disk: SimDisk) -> str:
    """The path of the newest journal file; empty if there is none."""
    ids = file_ids(disk.list(PLACE))
    return f"{PLACE}/{file_name(ids[-1])}" if ids else ""


def rewrite(disk: SimDisk, path: str, content: bytes) -> None:
    disk.remove(path)
    if content:
        disk.replace_file(path, content)
    else:
        disk.create(path)


class Cut(NamedTuple):
    """A moment of a play, and how many groups were acknowledged by then."""

    image: DiskImage
    acknowledged: int
    what: str


def play(*, with_spare: bool = False, preallocate_bytes: int = 256) -> list[Cut]:
    """Write a journal that goes over several files; every moment of it."""
    disk = new_disk()
    if with_spare:
        files = opened(disk)
        files.commit([NewRecord(1, 7, b"old" * 50)])
        files.close()
        disk.rename(f"{PLACE}/{file_name(1)}", f"{PLACE}/{spare_name(1)}")
        disk.remove(RECORD)
        disk.sync_directory(PLACE)
    cuts: list[Cut] = []
    acknowledged = 0

    def on_step(kind: str, number: int) -> None:
        cuts.append(Cut(disk.image(), acknowledged, f"{number}: {kind} {disk.last_path}"))

    disk.on_step = on_step
    files = opened(disk, preallocate_bytes=preallocate_bytes, first_file_id=2 if with_spare else 1)
    for number in range(GROUPS):
        files.commit(group(number))
        acknowledged += 1
    files.close()
    assert len(file_ids(disk.list(PLACE))) >= 4
    return cuts


PLAYS: dict[str, Callable[[], list[Cut]]] = {
    "new files": play,
    "spare": lambda: play(with_spare=True),
    "nothing allocated": lambda: play(preallocate_bytes=0),
}


@pytest.fixture(scope="module", params=PLAYS)
def cuts(request: pytest.FixtureRequest) -> list[Cut]:
    return PLAYS[request.param]()


@pytest.mark.parametrize("survival", Survival, ids=lambda each: each.name)
def test_no_crash_keeps_a_journal_from_starting_or_loses_what_was_acknowledged(
    cuts: list[Cut], survival: Survival
) -> None:
    for cut in cuts:
        for seed in ("0", "1", "2"):
            disk = SimDisk.of(cut.image, seed=seed, survival=survival)
            found, end = replayed(disk)
            wanted = bodies(cut.acknowledged)
            assert found[: len(wanted)] == wanted, cut.what
            files = opened(disk, end)
            files.commit(group(GROUPS))
            files.close()
            assert replayed(disk)[0] == [*found, *[each.body for each in group(GROUPS)]], cut.what


@pytest.mark.parametrize("survival", [Survival.KILLED, Survival.NOTHING], ids=str)
def test_a_newest_file_that_is_gone_is_noticed_if_anything_acknowledged_was_in_it(
    cuts: list[Cut], survival: Survival
) -> None:
    refused = 0
    for cut in cuts:
        disk = SimDisk.of(cut.image, seed="0", survival=survival)
        newest = newest_on(disk)
        if not newest:
            continue
        disk.remove(newest)
        found, refusal = replayed_or_refused(disk, JournalFileMissingError)
        if refusal:
            refused += 1
            assert all(each in refusal for each in (newest, RECORD, "put it back"))
        else:
            wanted = bodies(cut.acknowledged)
            assert found[: len(wanted)] == wanted, cut.what
    assert refused > GROUPS


@pytest.mark.parametrize("survival", [Survival.KILLED, Survival.NOTHING], ids=str)
def test_a_newest_file_that_was_cut_is_noticed(survival: Survival) -> None:
    """To any length below the room that it had when it was named."""
    for cut in play():
        if not cut.acknowledged:
            continue
        for part in (0, 10, FILE_HEADER_BYTES, FILE_HEADER_BYTES + 30, 200):
            disk = SimDisk.of(cut.image, seed="0", survival=survival)
            newest = newest_on(disk)
            rewrite(disk, newest, disk.read_file(newest)[:part])
            found, refusal = replayed_or_refused(disk, JournalError)
            if refusal:
                assert newest in refusal
            else:
                wanted = bodies(cut.acknowledged)
                assert found[: len(wanted)] == wanted, f"{cut.what} cut to {part}"


def test_a_refused_start_changes_nothing_and_goes_when_the_file_is_back() -> None:
    disk = new_disk()
    files = opened(disk)
    for number in range(GROUPS):
        files.commit(group(number))
    files.close()
    newest = newest_on(disk)
    content = disk.read_file(newest)
    disk.remove(newest)
    before = disk.files()
    for _ in range(2):
        with pytest.raises(JournalFileMissingError):
            replayed(disk)
    assert disk.files() == before
    disk.replace_file(newest, content)
    assert replayed(disk)[0] == bodies(GROUPS)


def test_without_the_record_what_is_left_is_replayed() -> None:
    """The way out that the refusal names."""
    disk = new_disk()
    files = opened(disk)
    for number in range(GROUPS):
        files.commit(group(number))
    files.close()
    disk.remove(newest_on(disk))
    disk.remove(RECORD)
    found, end = replayed(disk)
    assert found == bodies(len(found) // 2)
    assert NewestRecord(disk, PLACE).read() == NewestFile(end.file_id, end.offset)


def test_a_directory_of_an_older_release_starts_and_gets_a_record() -> None:
    disk = new_disk()
    files = opened(disk)
    for number in range(GROUPS):
        files.commit(group(number))
    files.close()
    disk.remove(RECORD)
    assert replayed(disk)[0] == bodies(GROUPS)
    disk.remove(newest_on(disk))
    with pytest.raises(JournalFileMissingError):
        replayed(disk)


def test_an_empty_directory_of_an_older_release_gets_none() -> None:
    disk = new_disk()
    assert replayed(disk) == ([], NO_MARK)
    assert disk.list(PLACE) == []


def test_a_file_that_the_mark_has_passed_may_be_gone() -> None:
    """A release without the record ran in between, and deleted the file that it names."""
    disk = new_disk()
    files = opened(disk)
    marks = [files.commit(group(number)) for number in range(GROUPS)]
    files.close()
    first = f"{PLACE}/{file_name(marks[0].file_id)}"
    record = NewestRecord(disk, PLACE)
    disk.remove(RECORD)
    record.name(NewestFile(marks[0].file_id, 256))
    disk.remove(first)
    found, end = replayed(disk, LastMark(marks[0].file_id + 1, FILE_HEADER_BYTES))
    assert found
    named = record.read()
    assert named is not None
    assert named.file_id == end.file_id, "and the newest is named again"


def test_a_file_that_was_named_is_not_taken_for_one_that_was_being_made() -> None:
    disk = new_disk()
    files = opened(disk)
    files.commit(group(0))
    files.close()
    newest = newest_on(disk)
    rewrite(disk, newest, bytes(len(disk.read_file(newest))))
    with pytest.raises(JournalCorruptError, match="the header is damaged"):
        replayed(disk)
    assert newest_on(disk) == newest


# The record's own bytes


def test_the_record_as_it_lies_on_disk() -> None:
    data = encode_newest(NewestFile(3, 4711))
    assert len(data) == NEWEST_SLOT_BYTES
    assert data[:28].hex(" ", -4) == (
        "4d474e54 4e45574a 00000000 00000003 00000000 00001267 " + data[24:28].hex()
    )
    assert not data[28:].strip(b"\0")
    assert decode_newest(data) == NewestFile(3, 4711)


def test_of_two_names_the_newer_one_counts() -> None:
    older, newer = (encode_newest(NewestFile(each, 64)) for each in (8, 9))
    for data, slot in ((older + newer, 1), (newer + older, 0)):
        assert decode_newest(data) == NewestFile(9, 64)
        assert newest_slot(data) == slot
    for at in range(28):
        torn = bytearray(older + newer)
        torn[NEWEST_SLOT_BYTES + at] ^= 1
        assert decode_newest(bytes(torn)) == NewestFile(8, 64)


def test_a_record_of_which_nothing_is_valid_refuses_the_start() -> None:
    disk = new_disk()
    files = opened(disk)
    files.commit(group(0))
    files.close()
    for content in (b"", b"x", bytes(2 * NEWEST_SLOT_BYTES), b"MGNTNEWJ" * 1024):
        rewrite(disk, RECORD, content)
        with pytest.raises(JournalCorruptError, match=r"newest-journal is damaged.*remove") as said:
            replayed(disk)
        assert RECORD in str(said.value)


def test_a_name_is_written_into_the_other_slot() -> None:
    disk = new_disk()
    record = NewestRecord(disk, PLACE)
    for file_id in range(1, 6):
        record.name(NewestFile(file_id, 100))
        assert record.read() == NewestFile(file_id, 100)
        data = disk.read_file(RECORD)
        slots = [decode_newest(data[:NEWEST_SLOT_BYTES]), decode_newest(data[NEWEST_SLOT_BYTES:])]
        wanted = {NewestFile(each, 100) for each in (file_id - 1, file_id) if each}
        assert set(slots) == wanted, "the name before is still there"


# Disks that fail


def failing(kind: str, path: str, error: int) -> Callable[[str, str], None]:
    def on_call(called: str, of: str) -> None:
        if called == kind and path in of:
            raise OSError(error, os.strerror(error), of)

    return on_call


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_without_room_for_the_record_nothing_is_acknowledged_and_the_file_waits(kind: str) -> None:
    disk = new_disk()
    files = opened(disk)
    disk.on_call = failing(kind, NEWEST_NAME, errno.ENOSPC)
    for _ in range(5):
        with pytest.raises(JournalFullError):
            files.commit(group(0))
    assert file_ids(disk.list(PLACE)) == [1], "no trail of files"
    disk.on_call = lambda kind, path: None
    files.commit(group(0))
    files.close()
    assert file_ids(disk.list(PLACE)) == [1]
    assert NewestRecord(disk, PLACE).read() == NewestFile(1, 256)
    assert replayed(disk)[0] == bodies(1)


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_any_other_error_of_the_record_is_final(kind: str) -> None:
    disk = new_disk()
    files = opened(disk)
    disk.on_call = failing(kind, NEWEST_NAME, errno.EIO)
    with pytest.raises(JournalFailedError):
        files.commit(group(0))
    disk.on_call = lambda kind, path: None
    assert replayed(disk)[0] == []


def test_a_record_that_is_there_needs_no_room() -> None:
    """A full disk that has a spare left: the journal goes on in it."""
    disk = new_disk()
    files = opened(disk)
    end = files.commit(group(0))
    files.close()
    disk.rename(f"{PLACE}/{file_name(1)}", f"{PLACE}/{spare_name(1)}")
    disk.bytes_left = 0
    files = opened(disk, end)
    files.commit(group(1))
    files.close()
    assert NewestRecord(disk, PLACE).read() == NewestFile(2, 256)


async def test_a_start_without_room_for_the_record_goes_on_without() -> None:
    disk = new_disk()
    files = opened(disk)
    files.commit([NewRecord(RecordType.MASTER_KEY, 7, KEY)])
    files.close()
    disk.remove(RECORD)
    disk.on_call = failing("create", NEWEST_NAME, errno.ENOSPC)
    await start(disk)
    assert RECORD not in disk.files()
    disk.on_call = lambda kind, path: None
    await start(disk)
    assert RECORD in disk.files()


async def start(disk: SimDisk) -> None:
    await replay_journals(MemoryStorage(), LastMarks(disk, [PLACE]), disk, [PLACE], owners=[OWNER])


def paths(cuts: Sequence[Cut]) -> list[str]:
    return [cut.what.partition(": ")[2] for cut in cuts]


def test_a_file_is_named_when_it_is_durable_and_before_its_first_group() -> None:
    steps = paths(play())
    name = f"{PLACE}/{file_name(2)}"
    first = steps.index(f"create {name}")
    assert steps[first : first + 8] == [
        f"create {name}",
        f"write {name}",
        f"preallocate {name}",
        f"sync {name}",
        f"sync {PLACE}",
        f"write {RECORD}",
        f"sync {RECORD}",
        f"write {name}",
    ]
    assert (
        steps.count(f"sync {RECORD}") == len([s for s in steps if s.startswith("create /j/0")]) - 1
    )
