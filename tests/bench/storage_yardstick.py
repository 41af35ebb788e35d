"""What the disk and the page cache do with plain files: the yardsticks of the storage figures."""

import os
import time
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_SECTOR_BYTES = 512


def device_written_bytes(path: Path) -> int:
    """What the disk below a path has written since the machine was started, for whomever; 0 if it
    does not say."""
    device = path.stat().st_dev
    facts = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(facts.read_text().split()[6]) * _SECTOR_BYTES if facts.exists() else 0


def write_mb_per_s(directory: Path, size: int) -> float:
    """MB/s of one file written from its start to its end, every megabyte synced."""
    path = directory / "yardstick"
    data = os.urandom(_CHUNK_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        chunks = max(1, size // _CHUNK_BYTES)
        started_s = time.perf_counter()
        for _ in range(chunks):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
        return chunks * _CHUNK_BYTES / (time.perf_counter() - started_s) / 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def read_mb_per_s(files: list[Path]) -> float:
    """MB/s of the same files read twice from their start to their end: the second time counts,
    when the page cache has them."""
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
