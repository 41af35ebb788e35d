"""The ports to the outside world: clock, network, disk and worker threads.

Everything that is not a pure function of its inputs reaches the code through one of these, so that
the simulator can replace them: virtual time, an in-memory network, a disk that loses what was not
synced. Randomness is passed as a `random.Random`. The production versions are in `system.py`.
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
        """Monotonic time that runs on while the machine is suspended: for deadlines that others
        count by clocks of their own."""
        ...

    def wall_ms(self) -> int: ...


class Listener(Protocol):
    """A listening socket."""

    @property
    def port(self) -> int: ...

    async def close(self) -> None:
        """Stop accepting; connections that exist stay."""
        ...


class Network(Protocol):
    """Stream connections, in asyncio's transport and protocol terms."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect and return the transport; the factory's protocol got `connection_made`.

        Raises:
            ConnectionError, TimeoutError: nobody answered.
        """
        ...

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen; port 0 lets the system choose.

        Raises:
            OSError: the address is taken or not ours.
        """
        ...


class File(Protocol):
    """An open file. All calls block; they run on a worker, or at start-up."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all the buffers at the end; returns the offset of the first byte.

        Raises:
            OSError: nothing may be assumed about what reached the file.
        """
        ...

    def write_at(self, data: Buffer, offset: int) -> None:
        """Overwrite, or extend, in place. Only for files opened with `Disk.update`.

        A crash before `datasync` leaves any mixture of old and new bytes.

        Raises:
            OSError: nothing may be assumed about what reached the file.
        """
        ...

    def preallocate(self, size: int) -> None:
        """Make room on the disk up to `size` bytes; reads as zeros until `append` overwrites it.

        A hint that makes `datasync` cheaper, since it then has no new blocks to record. `append`
        goes on where it was; `size` does not count the room; that of the file opened again does.

        Raises:
            OSError: no room; what was appended is untouched.
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset`; shorter only at the end of the file."""
        ...

    def read_once(self, size: int, offset: int) -> bytes:
        """Read like `pread`, and hint that the caller keeps what it read: nobody else need."""
        ...

    def pread_now(self, size: int, offset: int) -> bytes | None:
        """Read what is in memory already, for use on the event loop. None if the disk would have to
        be waited for, if less is there, or if the system cannot tell."""
        ...

    def datasync(self) -> None:
        """Force data and size to stable storage.

        An error is final: the kernel may have dropped the pages, so a retry proves nothing.
        """
        ...

    def drop_cache(self) -> None:
        """Hint that what is synced need not stay in memory: it is not read again soon."""
        ...

    @property
    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock on a file; released by `release` or by the death of the process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files and directories. Paths are absolute strings. All calls block."""

    def create(self, path: str) -> File:
        """Create a new file for appending and reading; FileExistsError if there is one."""
        ...

    def open(self, path: str) -> File:
        """Open an existing file for reading."""
        ...

    def reuse(self, path: str) -> File:
        """Open an existing file to be written anew from its start.

        What it holds stays until it is overwritten, and counts as room that is preallocated.
        """
        ...

    def update(self, path: str) -> File:
        """Open a file to be read and written in place; it is made if there is none."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Durably replace a small file: temporary file, sync, rename, sync of the directory."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; FileNotFoundError if there is no such directory."""
        ...

    def exists(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, durably; fine if it is there already."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """Room that is left on the file system of a path."""
        ...

    def total_bytes(self, path: str) -> int:
        """Size of the file system of a path."""
        ...

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock on the file, created if needed; BlockingIOError if held."""
        ...


class Worker(Protocol):
    """Runs blocking calls one after another, in the order of submission, off the event loop."""

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run `call` on the worker; then `done(result, error)` runs on the event loop."""
        ...

    async def run(self, call: Callable[[], T]) -> T:
        """`submit` as an awaitable."""
        ...

    def close(self) -> None:
        """Finish what was submitted, then end. Blocks until the worker is gone."""
        ...


class ObjectPlace(NamedTuple):
    """Where the object of a ledger is, and which one it must be."""

    store: str
    """Name of the object store in the settings of the process."""
    key: str
    ledger_id: int
    attempt: str
    """Hex of 16 bytes: which try to copy the ledger it is."""


class ObjectLedger(Protocol):
    """A handle for reading a closed ledger from its object."""

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Payloads of entries `first`.. in order: at least one, at most up to `last`, about
        `bytes_max` bytes. Their checksums are right.

        Raises:
            ObjectError: the store cannot give them, or gives something else.
        """
        ...

    def entries_after(self, publish_ms: int) -> range:
        """The ids of entries among which the first one is that was published at or after a time (ms
        since 1970): all before them are older. Empty, and behind the last entry: all are older. By
        the object's index; nothing is read."""
        ...

    async def close(self) -> None:
        """Give back what it holds of the bounds that all share. Reads that are under way go on."""
        ...


class ObjectLedgers(Protocol):
    """Access to the ledgers in the object stores that this process knows."""

    async def open(self, place: ObjectPlace, *, password: bytes) -> ObjectLedger:
        """
        Args:
            password: of the ledger.

        Raises:
            ObjectError: there is no such store, or object, or no answer just now.
        """
        ...
