"""Verifying what a disk with bad sectors does not give back."""

import errno
import os
from pathlib import Path

from magnetar.bookie.disks.directories import BookieDirectories
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
