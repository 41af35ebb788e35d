"""A file some sectors of which the disk cannot read any more: they are taken for zeros.

For scans of entry logs. Whatever a scan believes has a checksum, so that zeros are damage like any
other: what touches them is passed over, and what lies behind them is found. Not for packets, nor
for anything that is to be served.
"""

import errno

from magnetar.ledger.ports import File

_SECTOR_BYTES = 4096


class BrokenSectorsFile:
    """A `ScannedFile`, and a note of what could not be read of it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._broken: set[int] = set()

    @property
    def size(self) -> int:
        return self._file.size

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes of the file, with zeros for what cannot be read.

        Raises:
            OSError: for another reason than a disk that cannot read its sectors.
        """
        try:
            return self._file.pread(size, offset)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
        end, at, parts = min(offset + size, self._file.size), offset, list[bytes]()
        while at < end:
            sector = at // _SECTOR_BYTES
            stop = min(end, (sector + 1) * _SECTOR_BYTES)
            parts.append(self._read_within(sector, at, stop))
            at = stop
        return b"".join(parts)

    def broken(self) -> list[tuple[int, int]]:
        """Begin and end of each place that could not be read, ascending."""
        places: list[tuple[int, int]] = []
        for sector in sorted(self._broken):
            begin = sector * _SECTOR_BYTES
            end = min(begin + _SECTOR_BYTES, self._file.size)
            if places and places[-1][1] == begin:
                begin = places.pop()[0]
            places.append((begin, end))
        return places

    def _read_within(self, sector: int, at: int, stop: int) -> bytes:
        if sector not in self._broken:
            try:
                return self._file.pread(stop - at, at)
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
            self._broken.add(sector)
        return bytes(stop - at)
