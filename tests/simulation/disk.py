"""A disk in memory that keeps after a crash only what was synced, and fails as it is told to.

What a program sees is the page cache; what survives is kept beside it (`inode.py`, `directory.py`).
Every write and sync is a step at which a crash can be ordered; on a `faithful` disk so is every
change of a name, and a file that is replaced passes through all its steps. There a crash leaves any
subset of what was not synced, names included; else it leaves nothing, or a first part.
"""

import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from magnetar.ledger.ports import Buffer, File, Lock
from tests.simulation.directory import Directory, TreeImage, image_of, tree_of
from tests.simulation.inode import Inode, Survival


class PowerLossError(BaseException):
    """The machine stopped in the middle of a call. Not an `Exception`: nobody handles it."""


class ShortWriteError(OSError):
    """To be raised by `SimDisk.on_call` for a write: only `written` bytes of it are done."""

    def __init__(self, error: int, written: int) -> None:
        super().__init__(error, os.strerror(error))
        self.written = written


class DiskImage(NamedTuple):
    """A disk at one moment, as programs see it and as it surely is."""

    tree: TreeImage
    bytes_left: int | None


class _SimFile:
    def __init__(self, disk: "SimDisk", inode: Inode, path: str, *, anew: bool = False) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._size = 0 if anew else len(inode.content)
        self._mounted = disk.crashes

    def append(self, buffers: Sequence[Buffer]) -> int:
        start = self._size
        self._write(b"".join(buffers), start)
        return start

    def write_at(self, data: Buffer, offset: int) -> None:
        self._write(bytes(data), offset)

    def _write(self, data: bytes, offset: int) -> None:
        self._check_mounted()
        disk = self._disk
        if disk.write_error is not None:
            raise OSError(disk.write_error, os.strerror(disk.write_error))
        try:
            disk.on_call("write", self._path)
        except ShortWriteError as error:
            self._write_part(data[: error.written], offset)
            raise
        fits = data
        if disk.bytes_left is not None:
            grows = max(0, offset + len(data) - len(self._inode.content))
            if grows > disk.bytes_left:
                fits = data[: max(0, len(data) - (grows - disk.bytes_left))]
                disk.bytes_left = 0
            else:
                disk.bytes_left -= grows
        if len(fits) < len(data):
            self._write_part(fits, offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write_part(data, offset)
        disk.step("write", self._path)

    def _write_part(self, data: bytes, offset: int) -> None:
        self._inode.write(data, offset)
        self._size = max(self._size, offset + len(data))

    def preallocate(self, size: int) -> None:
        self._check_mounted()
        grows = size - len(self._inode.content)
        if grows <= 0:
            return
        disk = self._disk
        disk.on_call("preallocate", self._path)
        if disk.bytes_left is not None:
            if grows > disk.bytes_left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            disk.bytes_left -= grows
        self._inode.preallocate(size)
        if disk.is_faithful:
            disk.step("preallocate", self._path)

    def pread(self, size: int, offset: int) -> bytes:
        self._check_mounted()
        if self._disk.read_error is not None:
            raise OSError(self._disk.read_error, os.strerror(self._disk.read_error))
        self._disk.on_call("read", self._path)
        return bytes(self._inode.content[offset : offset + size])

    def read_once(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def pread_now(self, size: int, offset: int) -> bytes | None:
        if self._disk.is_faithful and offset % 3 == 0:
            return None  # the page cache does not have it
        try:
            data = self.pread(size, offset)
        except OSError:
            return None
        return data if len(data) == size else None

    def datasync(self) -> None:
        self._check_mounted()
        disk = self._disk
        disk.syncs += 1
        try:
            disk.on_call("sync", self._path)
        except OSError:
            self._inode.lose_pages()
            raise
        if disk.sync_error is not None:
            self._inode.lose_pages()
            raise OSError(disk.sync_error, os.strerror(disk.sync_error))
        if not disk.is_lying:
            self._inode.sync()
        disk.step("sync", self._path)

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

    def __init__(self, *, seed: str, faithful: bool = False) -> None:
        self._random = Random(seed)
        self._root = Directory()
        self.is_faithful = faithful
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
        """Called behind each step: kind, number. May raise `PowerLossError`."""
        self.on_call: Callable[[str, str], None] = _allow
        """Called ahead of each call: kind and path. May raise an `OSError`: the call fails."""
        self.last_path = ""
        """Where the last step was."""

    def step(self, kind: str, path: str) -> None:
        self.steps += 1
        self.last_path = path
        self.on_step(kind, self.steps)

    def crash(self, survival: Survival | None = None) -> None:
        """Power off and on: lose what was not synced, or what of it `survival` says."""
        self.crashes += 1
        self.locked.clear()
        if survival is None:
            survival = Survival.FIRST_PART if self.keeps_some else Survival.NOTHING
        self._root.lose_power(survival, self._random, set())

    def image(self) -> DiskImage:
        """The disk as it is. Cheap: files that did not change are shared between images."""
        return DiskImage(image_of(self._root), self.bytes_left)

    @classmethod
    def of(cls, image: DiskImage, *, seed: str, survival: Survival) -> "SimDisk":
        """A faithful disk of its own that lost its power when the image was taken."""
        disk = cls(seed=seed, faithful=True)
        disk._root = tree_of(image.tree)
        disk.bytes_left = image.bytes_left
        disk.crash(survival)
        return disk

    def files(self) -> list[str]:
        """The paths of all files."""
        found: list[str] = []

        def visit(directory: Directory, prefix: str) -> None:
            for name, node in directory.entries.items():
                path = f"{prefix}/{name}"
                if isinstance(node, Directory):
                    visit(node, path)
                else:
                    found.append(path)

        visit(self._root, "")
        return sorted(found)

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Change a stored byte behind everybody's back."""
        self._find(path).flip(offset, mask)

    # Disk

    def create(self, path: str) -> File:
        directory, name = self._place(path)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.on_call("create", path)
        if self.bytes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode = Inode()
        directory.link(name, inode)
        self._step_of_names("create", path)
        return _SimFile(self, inode, path)

    def open(self, path: str) -> File:
        inode = self._find(path)
        self.on_call("open", path)
        return _SimFile(self, inode, path)

    def reuse(self, path: str) -> File:
        return _SimFile(self, self._find(path), path, anew=True)

    def update(self, path: str) -> File:
        directory, name = self._place(path)
        if name not in directory.entries:
            return self.create(path)
        return self.open(path)

    def read_file(self, path: str) -> bytes:
        inode = self._find(path)
        if self.read_error is not None and self.is_faithful:
            raise OSError(self.read_error, os.strerror(self.read_error), path)
        self.on_call("read", path)
        return bytes(inode.content)

    def replace_file(self, path: str, data: bytes) -> None:
        directory, name = self._place(path)
        if self.write_error is not None:
            raise OSError(self.write_error, os.strerror(self.write_error), path)
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)
        if self.bytes_left is not None and self.bytes_left < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.is_faithful:
            self._replace_in_steps(path, data)
            return
        self.step("write", path)
        inode = Inode()
        inode.write(data, 0)
        inode.sync()
        directory.entries[name] = inode
        directory.durable[name] = inode
        self.step("sync", path)

    def _replace_in_steps(self, path: str, data: bytes) -> None:
        """Replace a file by the steps that `SystemDisk` takes."""
        temporary = f"{path}.new"
        directory, name = self._place(temporary)
        if name in directory.entries:
            directory.unlink(name)  # truncated: for a power loss the same as made anew
        file = self.create(temporary)
        file.append([data])
        file.datasync()
        self.rename(temporary, path)
        self.sync_directory(posixpath.dirname(path))

    def rename(self, source: str, target: str) -> None:
        directory, name = self._place(source)
        into, new_name = self._place(target)
        assert into is directory, f"{source} to {target}: renames stay within a directory"
        if name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self.on_call("rename", source)
        directory.rename(name, new_name)
        self._step_of_names("rename", target)

    def remove(self, path: str) -> None:
        inode = self._find(path)
        self.on_call("remove", path)
        directory, name = self._place(path)
        directory.unlink(name)
        if self.bytes_left is not None:
            self.bytes_left += len(inode.content)
        self._step_of_names("remove", path)

    def list(self, directory: str) -> list[str]:
        found = self._directory(directory)
        self.on_call("list", directory)
        return sorted(found.entries)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._place(path)
        except FileNotFoundError:
            return False
        return not name or name in directory.entries

    def make_directory(self, path: str) -> None:
        directory = self._root
        for name in path.split("/")[1:]:
            node = directory.entries.get(name)
            if node is None:
                self.on_call("create", path)
                node = directory.entries[name] = directory.durable[name] = Directory()
            assert isinstance(node, Directory), path
            directory = node

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)
        self.on_call("sync", path)
        if self.is_lying:
            return
        directory.sync()
        self.step("sync", path)

    def free_bytes(self, path: str) -> int:
        return 1 << 40 if self.bytes_left is None else self.bytes_left

    def total_bytes(self, path: str) -> int:
        return 1 << 41

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.locked.add(path)
        return _SimLock(self, path)

    def _step_of_names(self, kind: str, path: str) -> None:
        if self.is_faithful:
            self.step(kind, path)

    def _find(self, path: str) -> Inode:
        directory, name = self._place(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        assert isinstance(node, Inode), f"{path} is a directory"
        return node

    def _directory(self, path: str) -> Directory:
        directory, name = self._place(path)
        if not name:
            return directory
        node = directory.entries.get(name)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        """The directory of a path, and the name in it."""
        directory = self._root
        *parents, name = path.split("/")[1:]
        for parent in parents:
            node = directory.entries.get(parent)
            if not isinstance(node, Directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            directory = node
        return directory, name


def _nothing(kind: str, number: int) -> None:
    return None


def _allow(kind: str, path: str) -> None:
    return None
