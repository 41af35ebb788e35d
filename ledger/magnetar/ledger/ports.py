"""The ports to the outside world: clock, network, disk and worker threads.

All code that is not a pure function of its inputs uses these ports. So the simulator can replace
them: virtual time, an in-memory network, a disk that loses unsynced data. Randomness is passed as a
`random.Random`. The production versions are in `system.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Time. Intervals use the monotonic clock; the wall clock only names things and stamps data."""

    def monotonic_s(self) -> float: ...

    def boot_s(self) -> float:
        """Return monotonic time that continues while the machine is suspended: for deadlines that
        other machines count by their own clocks."""
        ...

    def wall_ms(self) -> int: ...


class Listener(Protocol):
    """A listening socket."""

    @property
    def port(self) -> int: ...

    async def close(self) -> None:
        """Stop accepting; existing connections stay open."""
        ...


class Network(Protocol):
    """Stream connections, in asyncio's transport and protocol terms."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect and return the transport; the factory's protocol got `connection_made`.

        Raises:
            ConnectionError, TimeoutError: the peer did not answer.
        """
        ...

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen on an address; port 0 lets the system choose.

        Raises:
            OSError: the address is taken, or does not belong to this machine.
        """
        ...


class File(Protocol):
    """An open file. All calls block; call them on a worker, or at start-up."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at the end; return the offset of the first byte.

        Raises:
            OSError: nothing may be assumed about what reached the file.
        """
        ...

    def write_at(self, data: Buffer, offset: int) -> None:
        """Overwrite or extend the file in place. Only for files opened with `Disk.update`.

        A crash before `datasync` leaves any mixture of old and new bytes.

        Raises:
            OSError: nothing may be assumed about what reached the file.
        """
        ...

    def preallocate(self, size: int) -> None:
        """Reserve disk space up to `size` bytes; it reads as zeros until `append` overwrites it.

        A hint that makes `datasync` cheaper, since it then has no new blocks to record. `append`
        continues at its old offset. The property `size` does not count the reserved space, but does
        when the file is opened again.

        Raises:
            OSError: there is no space; appended data is untouched.
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset`; fewer only at the end of the file."""
        ...

    def read_once(self, size: int, offset: int) -> bytes:
        """Read like `pread`, and hint that the caller caches the data, so the system need not."""
        ...

    def pread_now(self, size: int, offset: int) -> bytes | None:
        """Read data that is in memory already, for use on the event loop. None if the read would
        wait for the disk, if the file has fewer bytes there, or if the system cannot tell."""
        ...

    def datasync(self) -> None:
        """Force data and size to stable storage.

        An error is final: the kernel may have dropped the pages, so a retry proves nothing.
        """
        ...

    def drop_cache(self) -> None:
        """Hint that synced data need not stay in memory, since it is not read again soon."""
        ...

    @property
    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock on a file; released by `release` or when the process dies."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files and directories. Paths are absolute strings. All calls block."""

    def create(self, path: str) -> File:
        """Create a new file for appending and reading; FileExistsError if it exists."""
        ...

    def open(self, path: str) -> File:
        """Open an existing file for reading."""
        ...

    def reuse(self, path: str) -> File:
        """Open an existing file to be rewritten from its start.

        The old content stays until it is overwritten, and counts as preallocated space.
        """
        ...

    def update(self, path: str) -> File:
        """Open a file to be read and written in place; create it if it does not exist."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Durably replace a small file: temporary file, sync, rename, sync of the directory."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def list(self, directory: str) -> list[str]:
        """List the names in a directory, sorted; FileNotFoundError if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory; OSError if that cannot be told."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, durably; fine if it exists."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the free space of the file system of a path."""
        ...

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system of a path."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock the file exclusively; create it if needed. BlockingIOError if it is held."""
        ...


class Worker(Protocol):
    """Runs blocking calls one after another, in the order of submission, off the event loop."""

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run `call` on the worker; then `done(result, error)` runs on the event loop."""
        ...

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` on the worker; return its result or raise its error."""
        ...

    def close(self) -> None:
        """Finish the submitted calls, then end the worker. Blocks until it is gone."""
        ...


class ObjectPlace(NamedTuple):
    """Location and identity of the object of a ledger."""

    store: str
    """Name of the object store in the settings of the process."""
    key: str
    ledger_id: int
    attempt: str
    """Hex of 16 bytes: identifies the attempt to copy the ledger."""


class ObjectLedger(Protocol):
    """A handle for reading a closed ledger from its object."""

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Read payloads from entry `first` on, in order: at least one, at most up to `last`, and
        about `bytes_max` bytes. Their checksums are verified.

        Raises:
            ObjectError: the store cannot return them, or returns wrong bytes.
        """
        ...

    def entries_after(self, publish_ms: int) -> range:
        """Return ids of entries that include the first one published at or after a time, in ms
        since 1970. All entries before the range are older. An empty range behind the last entry
        means that all are older. Uses the object's index; reads nothing."""
        ...

    async def close(self) -> None:
        """Return this handle's part of the shared limits. Reads in progress continue."""
        ...


class ObjectLedgers(Protocol):
    """Access to the ledgers in the object stores that this process knows."""

    async def open(self, place: ObjectPlace, *, password: bytes) -> ObjectLedger:
        """Open a ledger that lies in an object store.

        Args:
            password: of the ledger.

        Raises:
            ObjectError: the store or the object does not exist, or there is no answer just now.
        """
        ...
