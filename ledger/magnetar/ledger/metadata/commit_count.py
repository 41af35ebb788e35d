"""The number of answered transactions of a metadata file, in a small file beside it.

SQLite reads its write-ahead log up to the first frame that does not fit, and ignores the rest
silently. The file counts its transactions itself; `PATH-end` holds the count that was reached when
the last one was answered. A file with a smaller count has lost answered changes.

Layout of `PATH-end` (docs/formats/ledger-metadata.md), 20 bytes, big-endian: magic "MGME", version
1 (uint32), count (uint64), CRC32C of these 16 bytes (uint32). It is written after each commit and
not synced: after a power failure it may be behind, which proves nothing, and it is never ahead.
Several processes may write it; the last one wins, which may leave it behind by a few.
"""

import os
import struct

import google_crc32c

_FIELDS = struct.Struct(">4sIQ")
_MAGIC = b"MGME"
_VERSION = 1
_CHECKSUM = struct.Struct(">I")


class CommitCount:
    """The count file of one store handle. Every method blocks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> int | None:
        """Return the count, or None if the file is missing or unreadable as a count, which proves
        nothing.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            with open(self._path, "rb") as file:
                content = file.read(_FIELDS.size + _CHECKSUM.size + 1)
        except FileNotFoundError:
            return None
        fields, checksum = content[: _FIELDS.size], content[_FIELDS.size :]
        if checksum != _CHECKSUM.pack(google_crc32c.value(fields)):
            return None
        magic, version, count = _FIELDS.unpack(fields)
        return count if (magic, version) == (_MAGIC, _VERSION) else None

    def write(self, count: int) -> None:
        """Record the number of answered transactions. If the file cannot be written, there is only
        less protection: the transaction is durable."""
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            fields = _FIELDS.pack(_MAGIC, _VERSION, count)
            os.pwrite(self._descriptor, fields + _CHECKSUM.pack(google_crc32c.value(fields)), 0)
        except OSError:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
