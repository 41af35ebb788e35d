"""The embedded metadata store: a SQLite file, for standalone and for several processes on one host.

The shell around `sqlite_tree.py`: all blocking calls go, in order, to one worker thread; watches
and session state live on the event loop. The handle's own changes reach the watches at once.
Changes by other processes are found by looking at the write-ahead log every
`embedded_poll_interval_ms`, and only while there are watches. Ephemeral nodes: see
`session_files.py`.

Not for a network file system: locks and the write-ahead log need a local one.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.call_times import CallTimes
from magnetar.ledger.metadata.session_files import OpenLock
from magnetar.ledger.metadata.session_keeper import SessionKeeper
from magnetar.ledger.metadata.sessions import SessionListeners
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.sqlite_tree import SqliteTree, Written
from magnetar.ledger.metadata.store import (
    SessionCallback,
    SessionState,
    Versioned,
    Watch,
    WatchCallback,
    check_new_path,
    check_path,
    check_value,
)
from magnetar.ledger.metadata.watches import NodeView, WatchTable
from magnetar.ledger.ports import Worker
from magnetar.ledger.system import ThreadWorker

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_ANSWERS = (NoNodeError, NodeExistsError, BadVersionError)
"""Errors that are ordinary answers to a request, and common."""
_ROUNDS_PER_SESSION_TIMEOUT = 3
"""Session rounds (heartbeats) per session timeout: a session expires only after all of them were
lost."""

_POLLS_PER_QUESTION = 10
"""Polls after which SQLite's change counter is read in any case. A poll looks at the log's time and
size, which is cheap, but misses a change within one tick of the file system's clock."""

_BUSY_SHARE = 0.8
"""Share of the operation timeout that SQLite waits for another writer. SQLite's answer, which is
certain, then comes before the operation times out with an unknown outcome."""


_WRITES_TOGETHER_MAX = 256
"""Most writes in one transaction: other processes wait for it some ten milliseconds at most."""


class _Write(NamedTuple):
    call: Callable[[], Written]
    future: "asyncio.Future[Written]"


class EmbeddedStore:
    """A `MetadataStore` in a SQLite file. Open it with `open`."""

    def __init__(
        self,
        path: str,
        tree: SqliteTree,
        keeper: SessionKeeper,
        worker: Worker,
        settings: MetadataSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tree = tree
        self._keeper = keeper
        self._worker = worker
        self._settings = settings
        self._is_closed = False
        self.call_times = CallTimes(self._loop.time)
        self._writes: deque[_Write] = deque()
        """Writes that have not begun. The worker thread removes them; `popleft` is thread-safe."""
        self._watches = WatchTable(self._loop.call_soon)
        self._listeners = SessionListeners(self._loop.call_soon)
        self._log_path = f"{os.path.abspath(path)}-wal"
        self._log_stamp: tuple[int, int] | None = None
        self._polls_to_question = 0
        self._change_counter = 0
        self._must_look = False
        """Whether the next poll looks at all watched nodes: a change of this handle's own, which
        SQLite's change counter does not show, may not have been looked at."""
        self._losses_told = 0
        """Lost sessions that the listeners know of."""
        self._poll_timer: asyncio.TimerHandle | None = None
        self._round_timer = self._loop.call_later(self._round_interval_s, self._start_round)

    @classmethod
    async def open(
        cls, path: str, *, settings: MetadataSettings | None = None, worker: Worker | None = None
    ) -> "EmbeddedStore":
        """Open the file; create it and its folder if missing, and remove nodes of dead processes.

        The store closes the worker.

        Raises:
            InvalidPathError: the file is something else, or of another version.
            MetadataDamagedError: the file lacks changes that were answered, or is broken.
            MetadataUnavailableError: the file or its folder cannot be opened or written.
        """
        settings = settings or MetadataSettings()
        worker = worker or ThreadWorker("metadata")
        now_s = asyncio.get_running_loop().time()
        try:
            tree, keeper = await worker.run(lambda: _open_blocking(path, settings, now_s))
        except BaseException:
            worker.close()
            raise
        if tree.damaged:
            _log.error(
                "metadata_damaged", path=path, nodes=len(tree.damaged), first=tree.damaged[:10]
            )
        return cls(path, tree, keeper, worker, settings)

    @property
    def session_state(self) -> SessionState:
        return self._listeners.state

    @property
    def session_timeout_ms(self) -> int:
        return self._settings.session_timeout_ms

    session_id = ""

    async def get(self, path: str) -> Versioned:
        check_path(path)
        return await self._read(lambda: self._tree.get(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        check_new_path(path, sequential=sequential)
        check_value(path, value)
        if not ephemeral:
            create = partial(self._tree.create, path, value, session=None, sequential=sequential)
        elif self._keeper.has_session:
            create = partial(self._keeper.create_in_session, path, value, sequential=sequential)
        else:
            # In a transaction of its own: the keeper must know at once whether its session exists.
            start = partial(self._keeper.create_node, path, value, sequential=sequential)
            return (await self._write_alone(start)).path
        return (await self._write(create)).path

    async def create_child(self, path: str, value: bytes = b"") -> str:
        check_path(path)
        check_value(path, value)
        return (await self._write(partial(self._tree.create_child, path, value))).path

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        check_path(path)
        check_value(path, value)
        return (await self._write(partial(self._tree.set, path, value, version=version))).version

    async def delete(self, path: str, *, version: int | None = None) -> None:
        check_path(path)
        if path == "/":
            raise InvalidPathError("the root cannot be deleted")
        await self._write(partial(self._tree.delete, path, version=version))

    async def exists(self, path: str) -> int | None:
        check_path(path)
        return await self._read(lambda: self._tree.version(path))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read(lambda: self._tree.children(path))

    records_deletions = True

    async def is_gone(self, path: str) -> bool:
        check_path(path)
        return await self._read(lambda: self._tree.is_gone(path))

    async def deleted_ms(self, path: str) -> int | None:
        check_path(path)
        return await self._read(lambda: self._tree.deleted_ms(path))

    async def catch_up(self) -> None:
        """Do nothing: all handles read one file, so none is ever behind."""

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        check_path(path)
        self._check_open()
        is_first_of_path = path not in self._watches
        watch = self._watches.add(path, callback)
        if is_first_of_path:
            self._look((path,))
        if self._poll_timer is None:
            self._poll_timer = self._loop.call_later(self._poll_interval_s, self._start_poll)
        return watch

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return self._listeners.add(callback)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._round_timer.cancel()
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._watches.clear()
        self._listeners.clear()
        try:
            await self._worker.run(self._close_blocking)
        except MetadataError as error:
            # The session's lock is free now: another process, or the next run, removes the
            # remaining nodes.
            _log.warning("metadata_session_not_ended", error=str(error))
        finally:
            self._worker.close()

    # Operations.

    async def _read(self, call: Callable[[], T]) -> T:
        self._check_open()
        with self.call_times.timed("read"):
            try:
                async with asyncio.timeout(self._settings.operation_timeout_s):
                    return await self._worker.run(call)
            except TimeoutError as exc:
                raise MetadataUnavailableError("the metadata file did not answer in time") from exc

    async def _write(self, call: Callable[[], Written]) -> Written:
        """Write together with all other waiting writes: one sync for all of them."""
        self._check_open()
        return await self._outcome(self._start_write(call))

    def _start_write(self, call: Callable[[], Written]) -> "asyncio.Future[Written]":
        write = _Write(call, self._loop.create_future())
        self._writes.append(write)
        self._worker.submit(self._write_waiting, self._on_written)
        return write.future

    async def _write_alone(self, call: Callable[[], Written]) -> Written:
        self._check_open()
        future: asyncio.Future[Written] = self._loop.create_future()
        self._worker.submit(call, partial(self._on_outcome, _Write(call, future)))
        try:
            return await self._outcome(future)
        finally:
            del future  # Its error refers to this frame.

    async def _outcome(self, future: "asyncio.Future[Written]") -> Written:
        try:
            with self.call_times.timed("write"):
                async with asyncio.timeout(self._settings.operation_timeout_s):
                    return await future
        except TimeoutError as exc:
            raise UnknownOutcomeError("the metadata file did not answer in time") from exc
        finally:
            del future  # Its error refers to this frame.

    def _write_waiting(self) -> list[tuple["_Write", Written | BaseException]]:
        """Perform waiting writes, on the worker. Each write submits one such call, and the first
        call takes the writes queued after its own too."""
        count = min(len(self._writes), _WRITES_TOGETHER_MAX)
        writes = [self._writes.popleft() for _ in range(count)]
        if not writes:
            return []
        try:
            if count == 1:
                return [(writes[0], writes[0].call())]
            outcomes = self._tree.write_together([write.call for write in writes])
        except BaseException as error:  # noqa: BLE001  # it is handed to the callers
            return [(write, error) for write in writes]
        return list(zip(writes, outcomes, strict=True))

    def _on_written(
        self,
        outcomes: list[tuple["_Write", Written | BaseException]] | None,
        error: BaseException | None,
    ) -> None:
        assert outcomes is not None, error
        for write, outcome in outcomes:
            if isinstance(outcome, BaseException):
                self._on_outcome(write, None, outcome)
            else:
                self._on_outcome(write, outcome, None)

    def _on_outcome(
        self, write: "_Write", result: Written | None, error: BaseException | None
    ) -> None:
        # The watches see the change even if the caller has been cancelled meanwhile.
        if result is not None:
            self._on_touched(result.touched)
        elif isinstance(error, UnknownOutcomeError):
            self._must_look = True
        self._look_at_session()
        _resolve(write.future, result, error)

    def _check_open(self) -> None:
        if self._is_closed:
            raise MetadataUnavailableError("the metadata store is closed")

    def _close_blocking(self) -> None:
        try:
            self._keeper.close()
        finally:
            self._tree.close()

    # Watches.

    def _on_touched(self, paths: Iterable[str]) -> None:
        watched = [path for path in dict.fromkeys(paths) if path in self._watches]
        if watched:
            self._look(watched)

    def _look(self, paths: Iterable[str]) -> None:
        """Look at the nodes, and notify their watchers of changes."""
        if self._is_closed:
            return

        def done(
            views: list[tuple[str, NodeView | None]] | None, error: BaseException | None
        ) -> None:
            if views is None:
                _log.warning("metadata_watch_look_failed", error=str(error))
                self._must_look = True
                for path in paths:
                    self._watches.on_look_failed(path)
                return
            for path, view in views:
                self._watches.on_view(path, view)

        self._worker.submit(lambda: self._tree.views(paths), done)

    def _start_poll(self) -> None:
        if not self._watches:
            self._poll_timer = None  # The next watch starts the timer again.
        elif self._must_look or self._may_have_changed():
            self._worker.submit(self._tree.change_counter, self._on_polled)
        else:
            self._poll_timer = self._loop.call_later(self._poll_interval_s, self._start_poll)

    def _may_have_changed(self) -> bool:
        """Return whether to ask SQLite: every commit of any process appends to the log."""
        try:
            status = os.stat(self._log_path)
            stamp = (status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            stamp = (0, 0)
        self._polls_to_question -= 1
        if stamp == self._log_stamp and self._polls_to_question > 0:
            return False
        self._log_stamp = stamp
        self._polls_to_question = _POLLS_PER_QUESTION
        return True

    def _on_polled(self, counter: int | None, error: BaseException | None) -> None:
        if self._is_closed:
            return
        if counter is not None and (counter != self._change_counter or self._must_look):
            self._change_counter = counter
            self._must_look = False
            self._look(tuple(self._watches.paths))
        self._poll_timer = self._loop.call_later(self._poll_interval_s, self._start_poll)

    @property
    def _poll_interval_s(self) -> float:
        return self._settings.embedded_poll_interval_ms / 1000

    # Sessions.

    @property
    def _round_interval_s(self) -> float:
        return _round_interval_s(self._settings)

    def _start_round(self) -> None:
        # The heartbeat starts from the loop: a process whose loop is stuck must not look alive.
        now_s = self._loop.time()
        self._worker.submit(lambda: self._keeper.on_time(now_s), self._on_round)

    def _on_round(self, touched: tuple[str, ...] | None, error: BaseException | None) -> None:
        if self._is_closed:
            return
        if touched is None:
            _log.warning("metadata_session_round_failed", error=str(error))
            self._must_look = True  # It may have ended sessions before.
        else:
            self._on_touched(touched)
        self._look_at_session()
        self._round_timer = self._loop.call_later(self._round_interval_s, self._start_round)

    def _look_at_session(self) -> None:
        """Notify the listeners if the handle's session was found ended, by whatever call."""
        losses = self._keeper.losses
        if losses == self._losses_told:
            return
        self._losses_told = losses
        _log.warning("metadata_session_expired")
        for state in (SessionState.EXPIRED, SessionState.CONNECTED):
            self.call_times.on_state(state)
        self._listeners.on_state(SessionState.EXPIRED)
        # The next ephemeral node starts a new session; until then there is nothing to connect to.
        self._listeners.on_state(SessionState.CONNECTED)


def _open_blocking(
    path: str, settings: MetadataSettings, now_s: float
) -> tuple[SqliteTree, SessionKeeper]:
    path = os.path.abspath(path)
    folder = f"{path}-sessions"
    try:
        with OpenLock(folder):
            tree = SqliteTree(path, busy_timeout_s=settings.operation_timeout_s * _BUSY_SHARE)
    except OSError as exc:
        raise MetadataUnavailableError(f"cannot open the metadata file {path}: {exc}") from exc
    keeper = SessionKeeper(
        tree,
        folder,
        timeout_ms=settings.session_timeout_ms,
        interval_s=_round_interval_s(settings),
    )
    try:
        keeper.on_time(now_s)
    except BaseException:
        tree.close()
        raise
    return tree, keeper


def _round_interval_s(settings: MetadataSettings) -> float:
    return settings.session_timeout_ms / 1000 / _ROUNDS_PER_SESSION_TIMEOUT


def _resolve(
    future: asyncio.Future[Written], result: Written | None, error: BaseException | None
) -> None:
    if future.done():
        return  # The caller has given up.
    if error is not None:
        if isinstance(error, _ANSWERS):
            error.__traceback__ = None  # It refers to all waiting calls, and tells nothing.
        future.set_exception(error)
    else:
        assert result is not None
        future.set_result(result)
