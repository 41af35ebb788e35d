"""Verifying what a disk with bad sectors does not give back."""

import errno
import os
from pathlib import Path

from magnetar.bookie.cookie import Cookie, DirectoryCookie
from magnetar.bookie.disks.directories import COOKIE_NAME, BookieDirectories
from magnetar.bookie.indexes.open_index import open_index_to_read
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import NO_MARK, NewRecord, RecordType
from magnetar.bookie.tools.verify import Problem, Verification
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemDisk, SystemFile
from tests.ledger_storage import SMALL, add, entry_logs, open_storage


class BadSectors(SystemDisk):
    """A disk that cannot read some files from some offset on."""

    def __init__(self) -> None:
        self.bad: dict[str, int] = {}

    def open(self, path: str) -> File:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return _BadFile(descriptor, self.bad.get(path, 1 << 60))

    def read_file(self, path: str) -> bytes:
        if path in self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().read_file(path)


class _BadFile(SystemFile):
    def __init__(self, descriptor: int, bad_from: int) -> None:
        super().__init__(descriptor)
        self._bad_from = bad_from

    def pread(self, size: int, offset: int) -> bytes:
        if offset + size > self._bad_from and offset < self.size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(size, offset)


def test_a_cookie_that_differs_is_told_with_the_directory_it_was_compared_with(
    tmp_path: Path,
) -> None:
    """Here the data directory has none."""
    data, journal, ledgers = (tmp_path / name for name in ("data", "journal", "ledgers"))
    for directory in (data, journal, ledgers):
        directory.mkdir()
    cookie = Cookie(bookie_id="b1", instance_id="0" * 32, incarnation="1" * 32)
    other = cookie.model_copy(update={"incarnation": "2" * 32})
    for directory, role, its in ((journal, "journal-0", cookie), (ledgers, "ledgers-0", other)):
        written = DirectoryCookie(directory=role, cookie=its)
        (directory / COOKIE_NAME).write_bytes(written.to_bytes())
    directories = BookieDirectories(str(data), (str(journal),), (str(ledgers),))
    verification = Verification(
        SystemDisk(),
        directories,
        lambda directory: open_index_to_read(directory, disk=SystemDisk()),
    )
    told = {problem.path: problem.text for problem in verification.run()}
    assert told[str(data / COOKIE_NAME)] == "there is no cookie"
    assert told[str(ledgers / COOKIE_NAME)] == f"the cookie differs from that of {journal}"


async def test_what_cannot_be_read_is_told_and_everything_else_is_checked(tmp_path: Path) -> None:
    journal, ledgers = tmp_path / "journal", tmp_path / "ledgers"
    journal.mkdir()
    async with open_storage(ledgers, SMALL) as storage:
        for ledger_id in range(4):
            add(storage, ledger_id, range(20), b"p" * 100)
        await storage.flush()
    files = JournalFiles(
        SystemDisk(),
        str(journal),
        owner=bytes(16),
        last_mark=NO_MARK,
        first_file_id=1,
        file_bytes_max=100,
        preallocate_bytes=0,
    )
    for _ in range(3):
        files.commit([NewRecord(RecordType.MASTER_KEY, 1, b"k" * 80)])
    files.close()
    disk = BadSectors()
    logs = [str(path) for path in entry_logs(ledgers)]
    sizes = [path.stat().st_size for path in entry_logs(ledgers)]
    assert len(logs) >= 3
    journals = sorted(str(path) for path in journal.glob("*.journal"))
    disk.bad = {
        logs[0]: 0,
        logs[1]: sizes[1] - 1,
        str(ledgers / "last-mark"): 0,
        journals[0]: 64,
    }
    (ledgers / "last-mark").write_bytes(b"mark")
    directories = BookieDirectories(str(tmp_path), (str(journal),), (str(ledgers),))
    verification = Verification(
        disk, directories, lambda directory: open_index_to_read(directory, disk=SystemDisk())
    )
    problems: list[Problem] = list(verification.run())
    unread = {problem.path for problem in problems if "Input/output error" in problem.text}
    assert unread == set(disk.bad)
    assert verification.counts.journal_records == 2
    assert verification.counts.entry_logs == len(logs)
    assert verification.counts.ledgers == 4


async def test_a_mark_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    journal, ledgers = tmp_path / "journal", tmp_path / "ledgers"
    journal.mkdir()
    async with open_storage(ledgers, SMALL) as storage:
        add(storage, 1, range(20), b"p" * 100)
        await storage.flush()
    mark = ledgers / "last-mark"
    mark.unlink(missing_ok=True)
    mark.symlink_to(mark)
    verification = Verification(
        SystemDisk(),
        BookieDirectories(str(tmp_path), (str(journal),), (str(ledgers),)),
        lambda directory: open_index_to_read(directory, disk=SystemDisk()),
    )
    told = [problem.text for problem in verification.run() if problem.path == str(mark)]
    assert len(told) == 1
    assert "symbolic links" in told[0]
    assert verification.counts.ledgers == 1
