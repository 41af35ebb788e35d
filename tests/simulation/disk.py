"""A disk in memory that keeps after a crash only what was synced, and fails as it is told to.

What a program sees is the page cache; what survives is kept beside it. A crash loses what was not
synced: all of it, or all but a first part, whose last write may be torn in the middle. Names count
when their directory was synced. Every write and sync is a step at which a crash can be ordered.
"""

import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from random import Random

from magnetar.ledger.ports import Buffer, File, Lock


class PowerLossError(BaseException):
    """The machine stopped in the middle of a call. Not an `Exception`: nobody handles it."""


class _Inode:
    """One file's content, as programs see it and as it is on the platters."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.content, data, offset)
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.unsynced:
            _put(self.durable, data, offset)
        if len(self.durable) < len(self.content):
            self.durable.extend(bytes(len(self.content) - len(self.durable)))
        self.unsynced.clear()


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class _SimFile:
    def __init__(self, disk: "SimDisk", inode: _Inode, *, anew: bool = False) -> None:
        self._disk = disk
        self._inode = inode
        self._size = 0 if anew else len(inode.content)
        self._mounted = disk.crashes

    def append(self, buffers: Sequence[Buffer]) -> int:
        start = self._size
        data = b"".join(buffers)
        self._check_mounted()
        disk = self._disk
        if disk.write_error is not None:
            raise OSError(disk.write_error, os.strerror(disk.write_error))
        fits = data
        if disk.bytes_left is not None:
            grows = max(0, start + len(data) - len(self._inode.content))
            if grows > disk.bytes_left:
                fits = data[: max(0, len(data) - (grows - disk.bytes_left))]
                disk.bytes_left = 0
            else:
                disk.bytes_left -= grows
        self._inode.write(fits, start)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)
        disk.step("write")
        return start

    def write_at(self, data: Buffer, offset: int) -> None:
        self._check_mounted()
        disk = self._disk
        if disk.write_error is not None:
            raise OSError(disk.write_error, os.strerror(disk.write_error))
        grows = max(0, offset + len(data) - len(self._inode.content))
        if disk.bytes_left is not None:
            if grows > disk.bytes_left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            disk.bytes_left -= grows
        self._inode.write(bytes(data), offset)
        self._size = max(self._size, offset + len(data))
        disk.step("write")

    def preallocate(self, size: int) -> None:
        self._check_mounted()
        grows = size - len(self._inode.content)
        if grows <= 0:
            return
        disk = self._disk
        if disk.bytes_left is not None:
            if grows > disk.bytes_left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            disk.bytes_left -= grows
        self._inode.content.extend(bytes(grows))

    def pread(self, size: int, offset: int) -> bytes:
        self._check_mounted()
        if self._disk.read_error is not None:
            raise OSError(self._disk.read_error, os.strerror(self._disk.read_error))
        return bytes(self._inode.content[offset : offset + size])

    def read_once(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def datasync(self) -> None:
        self._check_mounted()
        disk = self._disk
        disk.syncs += 1
        if disk.sync_error is not None:
            # The kernel drops the pages it could not write: programs still see them, no disk does.
            self._inode.unsynced.clear()
            raise OSError(disk.sync_error, os.strerror(disk.sync_error))
        if not disk.is_lying:
            self._inode.sync()
        disk.step("sync")

    def drop_cache(self) -> None:
        """A hint."""

    @property
    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Nothing is kept open."""

    def _check_mounted(self) -> None:
        if self._mounted != self._disk.crashes:
            raise PowerLossError("a file of the time before the crash")


class _SimLock:
    def __init__(self, disk: "SimDisk", path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


class SimDisk:
    """`Disk` in memory; see the module. The attributes are the faults."""

    def __init__(self, *, seed: str) -> None:
        self._random = Random(seed)
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._directories: set[str] = {"/"}
        self.locked: set[str] = set()
        self.crashes = 0
        self.syncs = 0
        self.steps = 0
        self.bytes_left: int | None = None
        """Room; None is no limit."""
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.read_error: int | None = None
        self.is_lying = False
        """Syncs answer, and do nothing."""
        self.keeps_some = False
        """A crash keeps a first part of what was not synced, the last write of it torn."""
        self.on_step: Callable[[str, int], None] = _nothing
        """Called behind each write and sync: kind, number. May raise `PowerLossError`."""

    def step(self, kind: str) -> None:
        self.steps += 1
        self.on_step(kind, self.steps)

    def crash(self) -> None:
        """Power off and on: lose what was not synced."""
        self.crashes += 1
        self.locked.clear()
        self._names = dict(self._durable_names)
        seen: list[_Inode] = []
        for path in sorted(self._names):
            inode = self._names[path]
            if any(inode is each for each in seen):
                continue
            seen.append(inode)
            self._crash_file(inode)

    def _crash_file(self, inode: _Inode) -> None:
        if self.keeps_some and inode.unsynced:
            kept = inode.unsynced[: self._random.randint(0, len(inode.unsynced))]
            if kept:
                offset, data = kept[-1]
                kept[-1] = (offset, data[: self._random.randint(0, len(data))])
            for offset, data in kept:
                _put(inode.durable, data, offset)
        inode.unsynced.clear()
        inode.content = bytearray(inode.durable)

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Change a stored byte behind everybody's back."""
        inode = self._names[path]
        inode.content[offset] ^= mask
        inode.durable[offset] ^= mask

    # Disk

    def create(self, path: str) -> File:
        self._check_directory(path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if self.bytes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode = self._names[path] = _Inode()
        return _SimFile(self, inode)

    def open(self, path: str) -> File:
        return _SimFile(self, self._find(path))

    def reuse(self, path: str) -> File:
        return _SimFile(self, self._find(path), anew=True)

    def update(self, path: str) -> File:
        if path not in self._names:
            return self.create(path)
        return _SimFile(self, self._find(path))

    def read_file(self, path: str) -> bytes:
        return bytes(self._find(path).content)

    def replace_file(self, path: str, data: bytes) -> None:
        self._check_directory(path)
        if self.write_error is not None:
            raise OSError(self.write_error, os.strerror(self.write_error), path)
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)
        if self.bytes_left is not None and self.bytes_left < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.step("write")
        inode = _Inode()
        inode.write(data, 0)
        inode.sync()
        self._names[path] = inode
        self._durable_names[path] = inode
        self.step("sync")

    def rename(self, source: str, target: str) -> None:
        self._check_directory(target)
        self._names[target] = self._find(source)
        del self._names[source]

    def remove(self, path: str) -> None:
        inode = self._find(path)
        del self._names[path]
        if self.bytes_left is not None:
            self.bytes_left += len(inode.content)

    def list(self, directory: str) -> list[str]:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        names = {posixpath.basename(path) for path in self._names if _parent(path) == directory}
        names |= {
            posixpath.basename(path)
            for path in self._directories
            if _parent(path) == directory and path != "/"
        }
        return sorted(names)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def make_directory(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = _parent(path)

    def sync_directory(self, path: str) -> None:
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)
        if self.is_lying:
            return
        for name in [name for name in self._durable_names if _parent(name) == path]:
            if self._names.get(name) is not self._durable_names[name]:
                del self._durable_names[name]
        for name, inode in self._names.items():
            if _parent(name) == path:
                self._durable_names[name] = inode
        self.step("sync")

    def free_bytes(self, path: str) -> int:
        return 1 << 40 if self.bytes_left is None else self.bytes_left

    def total_bytes(self, path: str) -> int:
        return 1 << 41

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.locked.add(path)
        return _SimLock(self, path)

    def _find(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _check_directory(self, path: str) -> None:
        if _parent(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _parent(path: str) -> str:
    return posixpath.dirname(path) or "/"


def _nothing(kind: str, number: int) -> None:
    return None
