"""Objects as files of one directory: for tests, for a single machine, for a mounted file system.

An object is written to a temporary file, synced, and renamed, and the directory is synced: a
confirmed object survives a power failure (rule 10.1). A process that is killed leaves its temporary
files; a listing removes those that were not written to for a day, below its prefix and beside the
folders on the way there. File names have at most 255 bytes, which bounds each part of a key between
slashes here.

A directory that does not exist is a store without objects, since the first object makes it. So is
one whose file system is not mounted: a caller that knows of objects has to look for them.
"""

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectMissingError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.object_store import ObjectTail, StoredObject, is_key
from magnetar.ledger.system import SystemClock, SystemDisk

T = TypeVar("T")

_DISK = SystemDisk()
_CLOCK = SystemClock()

_ASIDE = ".writing-"
"""Prefix of the names of files that are being written; a listing skips them."""
_ASIDE_KEPT_MS = 24 * 3600 * 1000
"""Time since the last write, in ms, after which a file that is being written counts as left behind.
A write that is still going on then fails, and can be repeated."""

_WRITE_BYTES = 4 << 20
"""Bytes that a thread writes at a time: one copy has twice this in memory."""
_LISTED_AT_ONCE = 1_000
_ATTEMPTS = 10

_LOST_FOUND = "lost+found"
"""Directory at the root of every new ext4 file system, which only root may list. No object is in
it, unless a prefix says so."""

_REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)


class DirectoryStore:
    """An `ObjectStore` below a directory, which is created if necessary."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # No process id: in a container it is the same after each start.
        self._token = f"{random.SystemRandom().getrandbits(64):016x}"
        self._writes = 0

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        path = self._path(key)
        file = _AsideFile(self._aside(path))
        size = written = 0
        waiting: list[bytes] = []
        writing: asyncio.Future[None] | None = None
        try:
            await self._run(key, file.open)
            # Earlier pieces are written while the next ones are made.
            async for piece in pieces:
                waiting.append(piece)
                size += len(piece)
                if size - written < _WRITE_BYTES:
                    continue
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(self._run(key, partial(file.write, waiting)))
                waiting, written = [], size
            if writing is not None:
                await writing
            await self._run(key, partial(file.write, waiting))
            await self._run(key, file.sync)
            await self._run(key, partial(_rename, file.path, path))
        except BaseException:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            await asyncio.shield(self._run(key, file.give_up))
            raise
        finally:
            # After the write that a thread may still be in, even if the caller was cancelled.
            asyncio.get_running_loop().run_in_executor(None, file.close)
        return size

    async def create(self, key: str, body: bytes) -> bool:
        path = self._path(key)
        return await self._run(key, partial(_create, self._aside(path), path, body))

    async def get(self, key: str, start: int, end: int) -> bytes:
        data = await self._run(key, partial(_read, self._path(key), start, end))
        if len(data) != end - start:
            raise ObjectDamagedError(
                f"{key}: {len(data)} bytes from {start} on where {end - start} were wanted"
            )
        return data

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        return await self._run(key, partial(_tail, self._path(key), size_bytes))

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        found = await self._run(prefix, partial(_list, self._root, prefix))
        for at in range(0, len(found), _LISTED_AT_ONCE):
            yield found[at : at + _LISTED_AT_ONCE]

    async def folders(self, prefix: str) -> Sequence[str]:
        if prefix and not (prefix.endswith("/") and is_key(f"{prefix}x")):
            raise ObjectStoreRefusedError(f"{prefix!r} cannot be a folder of objects here")
        return await self._run(prefix, partial(_folders, self._root, prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._run(key, partial(_delete, self._path(key), self._root))

    async def close(self) -> None:
        pass

    def _aside(self, path: Path) -> Path:
        """Return the path of a new temporary file beside an object's."""
        self._writes += 1
        return path.with_name(f"{_ASIDE}{self._token}-{self._writes}")

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not is_key(key) or any(part.startswith(_ASIDE) for part in parts):
            raise ObjectStoreRefusedError(f"{key!r} cannot be the key of an object here")
        return self._root.joinpath(*parts)

    async def _run(self, key: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except FileNotFoundError as error:
            raise ObjectMissingError(f"there is no object {key} in {self._root}") from error
        except OSError as error:
            is_refused = error.errno in _REFUSED
            kind = ObjectStoreRefusedError if is_refused else ObjectStoreUnavailableError
            # The path may be that of a directory above or below the key.
            where = f"{error.filename}: " if isinstance(error.filename, str) else ""
            raise kind(f"{self._root}, object {key}: {where}{error.strerror or error}") from error


class _AsideFile:
    """A file that is written in threads. A call may continue after its caller was cancelled. The
    descriptor is closed only after the write, since another file may then get its number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_given_up = False

    def open(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._descriptor = _open_aside(self.path)
        if self._is_given_up:
            self.path.unlink(missing_ok=True)

    def write(self, pieces: Sequence[bytes]) -> None:
        with self._lock:
            if self._descriptor is not None:  # else the object was given up
                _write_all(self._descriptor, b"".join(pieces))

    def sync(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.fsync(self._descriptor)

    def give_up(self) -> None:
        """Remove the file, without waiting for a write; one that is being opened goes after
        that."""
        self._is_given_up = True
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)


def _open_aside(path: Path) -> int:
    for _ in range(_ATTEMPTS):
        _DISK.make_directory(str(path.parent))
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        except FileNotFoundError:
            continue  # another process deleted the directory with its last object
    raise OSError(errno.EBUSY, "its directory is deleted again and again")


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _rename(aside: Path, path: Path) -> None:
    aside.rename(path)
    _DISK.sync_directory(str(path.parent))


def _create(aside: Path, path: Path, body: bytes) -> bool:
    file = _open_aside(aside)
    try:
        _write_all(file, body)
        os.fsync(file)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
    finally:
        os.close(file)
        aside.unlink(missing_ok=True)
    _DISK.sync_directory(str(path.parent))
    return True


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except IsADirectoryError as error:
        # This key is the folder of other objects; there is no object with this key itself.
        raise FileNotFoundError(errno.ENOENT, "a directory, and no object") from error


def _read(path: Path, start: int, end: int) -> bytes:
    with _open(path) as file:
        return os.pread(file.fileno(), end - start, start)


def _tail(path: Path, size_bytes: int) -> ObjectTail:
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        wanted = min(size, size_bytes)
        return ObjectTail(os.pread(file.fileno(), wanted, size - wanted), size)


def _list(root: Path, prefix: str) -> Sequence[StoredObject]:
    return sorted(_found(root, prefix))


def _found(root: Path, prefix: str) -> Iterator[StoredObject]:
    for key, path in _files(root, prefix):
        is_aside = path.name.startswith(_ASIDE)
        if not is_aside and not key.startswith(prefix):
            continue
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # deleted meanwhile
        if is_aside:
            _remove_left_behind(path, root, stat)
            continue
        yield StoredObject(key, stat.st_size, stat.st_mtime_ns // 1_000_000)


def _files(root: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield the files whose keys begin with a prefix, and files beside the folders on the way
    there, with their keys. Links to directories are not followed.

    Not `os.walk`: it takes a directory that cannot be listed for an empty one, and an entry whose
    kind is unknown for a file. A caller that deletes what no listed object names would then delete
    too much. Directories that cannot have a key with the prefix are not opened: whether they can be
    listed does not matter.

    Raises:
        OSError: a directory that may have such keys cannot be listed.
    """
    left = [("", root)]
    while left:
        above, directory = left.pop()
        try:
            found = _entries(directory, above, prefix)
        except FileNotFoundError:
            continue  # deleted with its last object, or the first object is still to come
        for key, path, is_directory in found:
            if is_directory:
                left.append((f"{key}/", path))
            else:
                yield key, path


def _entries(directory: Path, above: str, prefix: str) -> Sequence[tuple[str, Path, bool]]:
    """Return key, path and whether it is a directory, of entries that a listing looks at.

    Args:
        above: beginning of the keys of the entries.
        prefix: of the listing.
    """
    found: list[tuple[str, Path, bool]] = []
    with os.scandir(directory) as entries:
        for each in entries:
            key = f"{above}{each.name}"
            if not (_is_on_way(key, prefix) or each.name.startswith(_ASIDE)):
                continue
            is_directory = each.is_dir()
            if not (is_directory and each.is_symlink()):
                found.append((key, directory / each.name, is_directory))
    return found


def _is_on_way(key: str, prefix: str) -> bool:
    """Return whether a file or directory of this key has or may have keys with a prefix."""
    if key == _LOST_FOUND and not prefix.startswith(f"{key}/"):
        return False
    return f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/")


def _folders(root: Path, prefix: str) -> Sequence[str]:
    try:
        with os.scandir(root.joinpath(*prefix.split("/"))) as entries:
            return sorted(
                each.name
                for each in entries
                if f"{prefix}{each.name}" != _LOST_FOUND and each.is_dir()
            )
    except FileNotFoundError:
        return ()  # No object has a key with that prefix.


def _delete(path: Path, root: Path) -> None:
    """Delete the file, and directories that are empty then."""
    if path.is_dir():
        return  # The folder of other objects, not an object itself.
    path.unlink(missing_ok=True)
    _remove_empty_folders(path, root)


def _remove_left_behind(aside: Path, root: Path, stat: os.stat_result) -> None:
    """Delete a temporary file whose writer is gone, and directories that are empty then."""
    if _CLOCK.wall_ms() - stat.st_mtime_ns // 1_000_000 < _ASIDE_KEPT_MS:
        return
    with suppress(OSError):  # perhaps a process that may only read
        aside.unlink()
        _remove_empty_folders(aside, root)


def _remove_empty_folders(path: Path, root: Path) -> None:
    for folder in path.parents:
        if folder == root:
            return
        try:
            folder.rmdir()
        except OSError:
            return
