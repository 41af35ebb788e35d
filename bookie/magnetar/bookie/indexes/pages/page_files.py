"""The files of a page index: one per ledger, in two levels of directories; some are kept open.

A writer opens a file for itself and closes it again; the handles kept here only read. The owner
guards them with its lock.
"""

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.open_files import OpenFiles
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.indexes.pages.page_format import (
    HEADER_BYTES,
    LedgerHeader,
    Page,
    decode_header,
    decode_page,
    page_offset,
)
from magnetar.ledger.ports import Disk, File

_SUFFIX = ".idx"


def directory_of(ledger_id: int) -> str:
    """Return the two directory levels of a ledger, from the bits above the lowest byte of its id.

    Neighbours share a directory, which is then synced once for all of them.
    """
    assert ledger_id >= 0
    return f"{ledger_id >> 16 & 0xFF:02x}/{ledger_id >> 8 & 0xFF:02x}"


def file_name(ledger_id: int) -> str:
    return f"{ledger_id:016x}{_SUFFIX}"


def ledger_of(name: str) -> int | None:
    """Return the ledger of a file name; None if it is not the name of a page file."""
    stem = name.removesuffix(_SUFFIX)
    if stem == name or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


class PageFiles:
    """Reads page files, and keeps the last used ones open."""

    def __init__(self, directory: str, *, open_files_max: int, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._files = OpenFiles(open_files_max)

    @property
    def open_files(self) -> int:
        return len(self._files)

    def path(self, ledger_id: int) -> str:
        return f"{self._directory}/{directory_of(ledger_id)}/{file_name(ledger_id)}"

    def list_ledgers(self) -> set[int]:
        """Return the ledgers that have a file; empty if there is no index.

        Raises:
            OSError: a directory could not be listed.
        """
        found: set[int] = set()
        for upper in self._directories(self._directory):
            for lower in self._directories(f"{self._directory}/{upper}"):
                for name in self._disk.list(f"{self._directory}/{upper}/{lower}"):
                    ledger_id = ledger_of(name)
                    if ledger_id is not None and directory_of(ledger_id) == f"{upper}/{lower}":
                        found.add(ledger_id)
        return found

    def read_header(self, ledger_id: int) -> LedgerHeader:
        """Read the header from disk.

        Raises:
            StorageCorruptError: damaged, or the file is missing.
            StorageIOError: unreadable.
        """
        data = self._pread(ledger_id, HEADER_BYTES, 0)
        try:
            return decode_header(data, ledger_id)
        except StorageCorruptError as error:
            raise self._damaged(ledger_id, 0, 0, ENTRY_ID_MAX, str(error)) from None

    def read_page(self, header: LedgerHeader, number: int, first: int, last: int) -> Page:
        """Read a page from disk; errors name the entries `first` to `last`, for which it is read.

        Raises:
            StorageCorruptError: damaged, or the file is missing.
            StorageIOError: unreadable.
        """
        ledger_id = header.ledger_id
        offset = page_offset(number, header.page_bytes)
        data = self._pread(ledger_id, header.page_bytes, offset)
        try:
            return decode_page(data, ledger_id, number, page_bytes=header.page_bytes)
        except StorageCorruptError as error:
            raise self._damaged(ledger_id, offset, first, last, str(error)) from None

    def forget(self, ledger_id: int) -> None:
        """Close the file of the ledger, if it is open."""
        self._files.forget(ledger_id)

    def close(self) -> None:
        self._files.close()

    def _directories(self, directory: str) -> list[str]:
        if not self._disk.exists(directory):
            return []
        return [name for name in self._disk.list(directory) if len(name) == 2]

    def _pread(self, ledger_id: int, size: int, offset: int) -> bytes:
        try:
            return self._file(ledger_id).pread(size, offset)
        except FileNotFoundError:
            reason = "the page index has lost the file of the ledger"
            raise self._damaged(ledger_id, 0, 0, ENTRY_ID_MAX, reason) from None
        except OSError as exc:
            self.forget(ledger_id)
            raise StorageIOError(f"{self.path(ledger_id)}: cannot read: {exc}") from exc

    def _file(self, ledger_id: int) -> File:
        file = self._files.get(ledger_id)
        if file is None:
            file = self._disk.open(self.path(ledger_id))
            self._files.put(ledger_id, file)
        return file

    def _damaged(
        self, ledger_id: int, offset: int, first: int, last: int, reason: str
    ) -> StorageCorruptError:
        damage = Damage(self.path(ledger_id), offset, ledger_id, first, last, reason)
        return StorageCorruptError(str(damage), damage)
