"""Speed of disk and page cache with plain files: the yardsticks of the storage figures."""

import os
import time
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_SECTOR_BYTES = 512
_DROP_CHUNKS = 16


def device_written_bytes(path: Path) -> int:
    """Return the bytes that the disk of a path has written since the machine started, for all
    programs; 0 if the disk does not report it."""
    device = path.stat().st_dev
    facts = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(facts.read_text().split()[6]) * _SECTOR_BYTES if facts.exists() else 0


def write_mb_per_s(directory: Path, size: int) -> float:
    """Return the MB/s of one file written from its start to its end, with every megabyte synced."""
    chunks = max(1, size // _CHUNK_BYTES)
    return chunks * _CHUNK_BYTES / write_synced(directory / "yardstick", size) / 1e6


def write_synced(
    path: Path, size: int, on_synced: Callable[[], None] | None = None, *, drops: bool = False
) -> float:
    """Write a file with every megabyte synced, and remove it; return the seconds.

    With `drops` its pages leave the page cache as it grows, like those of an entry log. That is
    faster, and not the yardstick of the figures.
    """
    data = os.urandom(_CHUNK_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        started_s = time.perf_counter()
        for number in range(1, max(1, size // _CHUNK_BYTES) + 1):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            if on_synced is not None:
                on_synced()
            if drops and number % _DROP_CHUNKS == 0:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return time.perf_counter() - started_s
    finally:
        os.close(descriptor)
        path.unlink()


def read_mb_per_s(files: list[Path]) -> float:
    """Return the MB/s of the second of two reads of the same files, when the page cache has
    them."""
    _read(files)
    return _read(files)


def _read(files: list[Path]) -> float:
    total = 0
    started_s = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while data := file.read(_CHUNK_BYTES):
                total += len(data)
    return total / (time.perf_counter() - started_s) / 1e6
