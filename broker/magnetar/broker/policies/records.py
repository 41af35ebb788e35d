"""Single records of the metadata store: read, changed by comparing versions, and followed.

A followed record is kept in memory. The watch is set before the read, so no change is missed. The
value stays in force until the next read has succeeded, even while the store is unavailable. If a
read is necessary and fails, that is an error.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.policies.model import Record, decode
from magnetar.ledger.errors import ContendedError, MetadataError, NoNodeError
from magnetar.ledger.metadata.cell import GONE, Cell, Deletion
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent

_log = structlog.get_logger()

_RETRY_S = 1.0
PATIENCE_S = 0.25
"""Longest wait for a read, in seconds, by callers for which the last value suffices."""
_CHANGES_TRIED = 40
"""Tries of one change. Of several concurrent changes one succeeds each time; brokers fan out to 16
requests."""

R = TypeVar("R", bound=Record)
T = TypeVar("T")

Check = Callable[[], Awaitable[None]]
"""Raises if a record must stay as it is. Awaited between its read and its write: what it allows is
done to the record that was there before, and to no later one."""


async def asked(answer: Awaitable[T], what: str) -> T:
    """Await an answer of the store, and translate its errors.

    Raises:
        NoNodeError: passed on.
        BrokerMetadataError: any other error; `what` says what was tried.
    """
    try:
        return await answer
    except NoNodeError:
        raise
    except MetadataError as error:
        raise BrokerMetadataError(f"cannot {what}: {error}") from error


async def read_record(
    store: MetadataStore, kind: type[R], path: str, *, is_sure: bool = False
) -> tuple[R, int] | None:
    """Return a record and its version; None if there is none.

    With `is_sure`, absence is read twice: the server that answered may have been behind.

    Raises:
        BrokerMetadataError
    """
    found = await asked(record_cell(store, kind, path).read(is_sure=is_sure), f"read {path}")
    if found is None or found.value is None:
        return None
    return found.value, found.version


def record_cell(
    store: MetadataStore, kind: type[R], path: str, *, tries_max: int = _CHANGES_TRIED
) -> Cell[R]:
    """Return the cell of a record.

    A node without a value, which exists for its children alone, holds no record but has a
    version.
    """
    return Cell(
        store,
        path,
        decode=lambda value: decode(kind, path, value) if value else None,
        encode=lambda record: record.encode(),
        tries_max=tries_max,
    )


async def change_record(
    store: MetadataStore,
    kind: type[R],
    path: str,
    change: Callable[[R | None], R | None],
    *,
    check: Check | None = None,
) -> R | None:
    """Replace a record by the result of `change`, and return it; None is no node.

    `change` is called again if another writer was faster, and raises to leave everything as it is.
    It is not called for its own result, after a write whose outcome was unknown at first.

    Raises:
        BrokerMetadataError: also when the record changed too often meanwhile.
        Every error of `change` and `check`.
    """

    async def changed(before: R | None) -> R | Deletion | None:
        after = change(before)
        if after == before:
            return None
        if check is not None:
            await check()
        return GONE if after is None else after

    try:
        return (await record_cell(store, kind, path).change_async(changed)).after
    except ContendedError as error:
        raise BrokerMetadataError(
            f"{path} was not changed: others changed it {_CHANGES_TRIED} times meanwhile; try again"
        ) from error
    except MetadataError as error:
        raise BrokerMetadataError(f"cannot change {path}: {error}") from error


class Followed(Generic[T]):
    """A value read by `read`, and read again whenever the node at `path` may have changed."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        read: Callable[[], Awaitable[T]],
        on_change: Callable[[T, T], None],
        at_once: asyncio.Semaphore,
    ) -> None:
        """`read` raises BrokerMetadataError. `on_change` gets the values before and after each
        change, but not the first value. `at_once` limits concurrent reads after events."""
        self._store = store
        self._path = path
        self._read = read
        self._on_change = on_change
        self._at_once = at_once
        self._watch: Watch | None = None
        self._reading: asyncio.Task[T] | None = None
        self._read_began_s = 0.0
        self._following: asyncio.Task[None] | None = None
        self._generation = 0
        self._is_closed = False
        self._values: list[T] = []
        self.is_fresh = False
        """Whether no change has been reported since the value was read."""

    @property
    def value(self) -> T | None:
        """The value as last read; None before the first read."""
        return self._values[0] if self._values else None

    async def get(self) -> T:
        """Return the value, without a read if it is fresh.

        Raises:
            BrokerMetadataError
        """
        while not self.is_fresh:
            found = await asyncio.shield(self._start_reading())
            if self._is_closed:
                return found
        return self._values[0]

    async def reread(self) -> T:
        """Return the value, with every write that ended before this call, reported or not.

        Raises:
            BrokerMetadataError
        """
        await asked(self._store.catch_up(), f"read {self._path}")
        self._on_event(WatchEvent.CHANGED)  # A read under way may have begun too early.
        return await self.get()

    def _start_reading(self) -> "asyncio.Task[T]":
        """Return the read that is under way, or begin one."""
        if self._reading is None or self._reading.done():
            loop = asyncio.get_running_loop()
            self._read_began_s = loop.time()
            self._reading = loop.create_task(self._load(), name=f"read-{self._path}")
            self._reading.add_done_callback(self._read_done)
        return self._reading

    async def latest(self) -> T:
        """Return the value; while the store does not answer, the value as last read.

        A broker that is cut off from the store must still be able to send its clients elsewhere. So
        a read that takes longer than `PATIENCE_S` delays only callers without a last value.

        Raises:
            BrokerMetadataError: there is none, or what is stored now cannot be read.
        """
        if not self._values:
            return await self.get()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while not self.is_fresh and not self._is_closed:
            reading = self._start_reading()
            left_s = min(until_s, self._read_began_s + PATIENCE_S) - loop.time()
            done, _ = await asyncio.wait([reading], timeout=max(0.0, left_s))
            if not done:
                break
            try:
                reading.result()
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                break
        return self._values[0]

    def expect(self, before: T) -> None:
        """Read the value that has replaced `before`, and report the change."""
        if not self._values:
            self._values = [before]
        self._watch_it()
        self._on_event(WatchEvent.CHANGED)

    async def _load(self) -> T:
        self._watch_it()
        generation = self._generation
        found = await self._read()
        if generation == self._generation:
            self._replace(found)
        return found

    def _watch_it(self) -> None:
        if self._watch is None and not self._is_closed:
            self._watch = self._store.watch(self._path, self._on_event)

    def _read_done(self, reading: "asyncio.Task[T]") -> None:
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled():
            reading.exception()  # Retrieved, even if there is no waiter left.

    def wrote(self, value: T) -> None:
        """Take the value that was just written, and read it again at once: another writer's value
        may have been reported sooner than the outcome of this write."""
        self._replace(value)
        self._on_event(WatchEvent.CHANGED)

    def _replace(self, value: T) -> None:
        before, self._values = self._values, [value]
        self.is_fresh = True
        if before and before[0] != value and not self._is_closed:
            self._on_change(before[0], value)

    def _on_event(self, event: WatchEvent) -> None:
        self._generation += 1
        self.is_fresh = False
        self._begin_to_follow()

    def _begin_to_follow(self) -> None:
        if self._following is None and not self._is_closed:
            self._following = asyncio.get_running_loop().create_task(
                self._follow(), name=f"follow-{self._path}"
            )
            self._following.add_done_callback(self._followed)

    def _followed(self, following: "asyncio.Task[None]") -> None:
        self._following = None
        if not following.cancelled() and following.exception() is None and not self.is_fresh:
            self._begin_to_follow()  # An event came after its last read, but before its task ended.

    async def _follow(self) -> None:
        while not self._is_closed and not self.is_fresh:
            try:
                async with self._at_once:
                    await self.get()
            except BrokerMetadataError as error:
                _log.warning("node_not_read", path=self._path, error=str(error))
                await asyncio.sleep(_RETRY_S)
            except Exception:  # noqa: BLE001 - a defect must not end the following of the node
                _log.exception("node_not_read", path=self._path)
                await asyncio.sleep(_RETRY_S)

    def close(self) -> None:
        """Stop following the node."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._following is not None:
            self._following.cancel()
