"""The production ports: the system's clock, sockets, files and threads."""

import asyncio
import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from magnetar.ledger.ports import Buffer, File, Listener, Lock
from magnetar.ledger.turns import Opening, opening

T = TypeVar("T")

# writev takes at most this many buffers (IOV_MAX on Linux).
_BUFFERS_PER_WRITE_MAX = 1024
# Flag for reads that return only what is in the page cache; Linux only.
_READ_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
# Linux stops the monotonic clock while the machine is suspended; elsewhere it may run on.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of the operating system."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_s(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class _SocketListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port: int = server.sockets[0].getsockname()[1]

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        self._server.close()


def listener_of(server: asyncio.Server) -> Listener:
    """Wrap a server of the event loop as a listener."""
    return _SocketListener(server)


class SystemNetwork:
    """TCP sockets of the running event loop; the writes of one turn leave together."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, opened = await loop.create_connection(lambda: Opening(factory()), host, port)
        return opened.transport

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        loop = asyncio.get_running_loop()
        # A deep backlog: thousands of clients reconnect at once after a restart.
        return _SocketListener(await loop.create_server(opening(factory), host, port, backlog=4096))


class SystemFile:
    """A file that is only appended to, or only read."""

    def __init__(self, descriptor: int, *, anew: bool = False) -> None:
        self._descriptor = descriptor
        self._room = os.fstat(descriptor).st_size
        self._size = 0 if anew else self._room
        self._dropped = 0

    def append(self, buffers: Sequence[Buffer]) -> int:
        start = self._size
        for at in range(0, len(buffers), _BUFFERS_PER_WRITE_MAX):
            self._append_some(buffers[at : at + _BUFFERS_PER_WRITE_MAX])
        return start

    def _append_some(self, buffers: Sequence[Buffer]) -> None:
        wanted = sum(map(len, buffers))
        written = os.pwritev(self._descriptor, buffers, self._size)
        self._size += written
        while written < wanted:  # a short write is rare, so the simple way is enough
            rest = b"".join(buffers)[written:]
            count = os.pwrite(self._descriptor, rest, self._size)
            self._size += count
            written += count

    def write_at(self, data: Buffer, offset: int) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(self._descriptor, view, offset)
            offset += count
            view = view[count:]
        self._size = max(self._size, offset)

    def preallocate(self, size: int) -> None:
        # Written zeros would make the next small sync slightly faster, but each step of them costs
        # a sync of several milliseconds. An allocation costs almost nothing.
        if size > self._room:
            os.posix_fallocate(self._descriptor, self._room, size - self._room)
            self._room = size

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_once(self, size: int, offset: int) -> bytes:
        data = self.pread(size, offset)
        os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_DONTNEED)
        return data

    def pread_now(self, size: int, offset: int) -> bytes | None:
        if _READ_NOWAIT is None:
            return None
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, [data], offset, _READ_NOWAIT)
        except OSError:
            return None  # mostly EAGAIN; `pread` reports other errors
        return bytes(data) if count == size else None

    def datasync(self) -> None:
        os.fdatasync(self._descriptor)

    def drop_cache(self) -> None:
        length = self._size - self._dropped
        if length > 0:
            os.posix_fadvise(self._descriptor, self._dropped, length, os.POSIX_FADV_DONTNEED)
            self._dropped = self._size

    @property
    def size(self) -> int:
        return self._size

    def close(self) -> None:
        os.close(self._descriptor)


class _FileLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


_OWN_FILE = 0o600
_OWN_DIRECTORY = 0o700
"""Modes of created files and directories. Messages, grants and passwords of ledgers must not be
readable by other users of the machine."""


class SystemDisk:
    """The file system of the operating system."""

    def create(self, path: str) -> File:
        return SystemFile(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWN_FILE)
        )

    def open(self, path: str) -> File:
        return SystemFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def reuse(self, path: str) -> File:
        return SystemFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), anew=True)

    def update(self, path: str) -> File:
        return SystemFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWN_FILE))

    def read_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = f"{path}.new"
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _OWN_FILE
        )
        try:
            file = SystemFile(descriptor)
            file.append([data])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        # `os.path.exists` takes every error for absence: on a disk that fails, files with data
        # would count as never written.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_directory(self, path: str) -> None:
        missing: list[str] = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            os.makedirs(each, _OWN_DIRECTORY, exist_ok=True)
            self.sync_directory(os.path.dirname(each))

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def total_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_blocks * facts.f_frsize

    def lock(self, path: str) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWN_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        return _FileLock(descriptor)


def _settle(future: "asyncio.Future[T]", result: T | None, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # T may itself be None


class ThreadWorker:
    """A worker with a thread of its own; results return in batches, with one loop wake-up each."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[
            tuple[Callable[[], object], Callable[[object | None, BaseException | None], None]]
            | None
        ] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        # The queue holds calls of many result types; each travels with its own `done`.
        self._calls.put((call, done))  # type: ignore[arg-type]

    async def run(self, call: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit(call, partial(_settle, future))
        try:
            return await future
        finally:
            # Otherwise the future and its error would keep each other alive until a full
            # collection: the error refers to this frame, and the frame to the future.
            del future

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            if not self._do(*item):
                return
            del item  # An idle worker keeps nothing of its last call.

    def _do(
        self,
        call: Callable[[], object],
        done: Callable[[object | None, BaseException | None], None],
    ) -> bool:
        """Run a call and pass its outcome to the loop; return False if the loop is closed."""
        result: object | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # it is handed to the caller
            failure = error
        try:
            self._loop.call_soon_threadsafe(done, result, failure)
        except RuntimeError:
            return False  # the loop is closed: there is no caller left
        finally:
            del call, done, result, failure  # The error refers to this frame.
        return True

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()
