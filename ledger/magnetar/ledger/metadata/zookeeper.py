"""The ZooKeeper metadata store: kazoo behind the store's interface, on the event loop.

kazoo works on threads of its own. `rawlink` passes the results of its `*_async` calls to loop
futures, with few system calls (`kazoo_handler.py`); nothing here blocks. What this shell adds to
kazoo:

- Time limits: kazoo queues calls without limit while the server is away. Here a write waits for
  the connection first, up to one operation timeout; if none comes, nothing was sent and nothing was
  changed. Once the write is sent, anything but a clear answer within another operation timeout
  makes its outcome unknown. Reads are repeated until the operation timeout.
- Order: one connection serves all requests of a handle in the order of the calls. After an unknown
  outcome the next read asks the server to catch up with its leader first (`sync`), so that "read
  again and compare" cannot read a follower that has not seen the write yet.
- Persistent watches: ZooKeeper's are one-shot and end with the connection. Looking at a node arms
  its watch, and the looks are compared (`watches.py`).

kazoo reports no lost session while there is no contact: SUSPENDED may mean expired.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, overload

import structlog
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType
from kazoo.security import make_digest_acl

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    InvariantError,
    MetadataAccessError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnknownOutcomeError,
)
from magnetar.ledger.flight_recorder import METADATA, RECORDER
from magnetar.ledger.metadata.call_times import CallTimes
from magnetar.ledger.metadata.host_addresses import HostAddresses
from magnetar.ledger.metadata.kazoo_handler import BatchingHandler, CallsToLoop
from magnetar.ledger.metadata.server_patience import ServerPatience
from magnetar.ledger.metadata.sessions import SessionListeners
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import (
    SessionCallback,
    SessionState,
    Versioned,
    Watch,
    WatchCallback,
    check_new_path,
    check_path,
    check_value,
    parent_path,
)
from magnetar.ledger.metadata.watches import NodeView, WatchTable
from magnetar.ledger.system import ThreadWorker

_log = structlog.get_logger(__name__)
# kazoo logs every attempt to reconnect; this module logs the relevant part, as session states.
_kazoo_log = logging.getLogger("magnetar.ledger.metadata.kazoo")
_kazoo_log.setLevel(logging.ERROR)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ANY_VERSION = -1
_CREATE_ATTEMPTS_MAX = 20
"""Most attempts of a creation to make parents again that another client deletes meanwhile, or to
use up a number whose name is taken."""
_SESSION_ID_MASK = (1 << 64) - 1
"""Mask that makes the session id unsigned; kazoo shows a signed number."""
_CLOSE_TIMEOUT_S = 5.0
"""Longest time, in seconds, that `close` waits for the server; otherwise the session expires by
itself."""

_ERRORS: dict[type[Exception], tuple[type[MetadataError], str]] = {
    kazoo_errors.NoNodeError: (NoNodeError, "there is no such node"),
    kazoo_errors.NodeExistsError: (NodeExistsError, "the node exists already"),
    kazoo_errors.NotEmptyError: (NotEmptyError, "the node has children"),
    kazoo_errors.BadVersionError: (BadVersionError, "the node was changed meanwhile"),
    kazoo_errors.NoChildrenForEphemeralsError: (InvalidPathError, "the parent is ephemeral"),
    kazoo_errors.BadArgumentsError: (InvalidPathError, "no path of ZooKeeper"),
    kazoo_errors.NoAuthError: (
        MetadataAccessError,
        "it is another user's: check zookeeper_user (NoAuth)",
    ),
}
"""Clear answers of the server, and their meaning for a path. Any other error leaves the outcome of
a write unknown."""
_CLEAR_ANSWERS = tuple(_ERRORS)

_NO_ANSWER = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.ConnectionClosedError,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
)
"""Errors after which a read may be repeated."""


class _Stat(Protocol):
    """The part of ZooKeeper's node status that is used here."""

    czxid: int
    pzxid: int
    ctime: int
    version: int
    ephemeralOwner: int


class _Event(Protocol):
    type: str
    path: str | None


class _Result(Protocol[T_co]):
    """kazoo's asynchronous result: `exception` is None, or `value` is meaningless."""

    exception: BaseException | None

    @property
    def value(self) -> T_co: ...

    def rawlink(self, callback: "Callable[[_Result[T_co]], None]") -> None: ...


_KazooWatch = Callable[[_Event], None]


class _Client(Protocol):
    """The part of kazoo's client that is used here, with types."""

    @property
    def client_id(self) -> tuple[int, bytes] | None: ...
    def add_listener(self, listener: Callable[[str], None]) -> None: ...
    def start_async(self) -> object: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def sync_async(self, path: str) -> _Result[str]: ...
    def get_async(self, path: str) -> _Result[tuple[bytes | None, _Stat]]: ...
    def exists_async(
        self, path: str, watch: _KazooWatch | None = None
    ) -> _Result[_Stat | None]: ...
    @overload
    def get_children_async(self, path: str) -> _Result[list[str]]: ...
    @overload
    def get_children_async(
        self, path: str, watch: _KazooWatch, include_data: Literal[True]
    ) -> _Result[tuple[list[str], _Stat]]: ...
    def set_async(self, path: str, value: bytes, version: int) -> _Result[_Stat]: ...
    def delete_async(self, path: str, version: int) -> _Result[bool]: ...
    def create_async(
        self, path: str, value: bytes, *, ephemeral: bool, sequence: bool
    ) -> _Result[str]: ...


class _HasHosts(Protocol):
    hosts: list[tuple[str, int]]


class _Connection(Protocol):
    """The part of kazoo's connection that agrees with the server on a session timeout."""

    _connect: Callable[..., tuple[float, float]]
    """Connects and returns the read and the connect timeout derived from the session timeout, in
    ms."""
    _invoke: Callable[..., object]
    """Sends a request of the handshake, and waits for the answer. The first argument is the longest
    wait in seconds."""
    _expand_client_hosts: Callable[[], list[tuple[str, str, int]]]
    """Returns name, address and port of every server, in the order of the attempts."""
    client: "_HasHosts"


_READ_SHARE = 2 / 3
"""Share of the session timeout for which kazoo waits to read before it gives a connection up. kazoo
does not expose the timeout that a server has granted; it goes on showing the requested one."""


def _bound_handshakes(client: object, patience: ServerPatience) -> None:
    """Limit the time of each server's answer and of name resolution, and record the granted
    timeout."""
    connection: _Connection = client._connection  # type: ignore[attr-defined]
    connect, invoke = connection._connect, connection._invoke
    addresses = HostAddresses()

    # All three run on kazoo's thread.
    def expanded() -> list[tuple[str, str, int]]:
        patience.round_begins()
        found = addresses.of(connection.client.hosts, wait_s=patience.step_s)
        random.SystemRandom().shuffle(found)
        return found

    def bounded(timeout_s: float, *arguments: object, **options: object) -> object:
        try:
            return invoke(patience.step_s, *arguments, **options)
        except KazooTimeoutError:
            patience.step_took_too_long()
            raise

    def noting(*arguments: object, **options: object) -> tuple[float, float]:
        timeouts_ms = connect(*arguments, **options)
        patience.connected(round(timeouts_ms[0] / _READ_SHARE))
        return timeouts_ms

    connection._expand_client_hosts = expanded
    connection._connect, connection._invoke = noting, bounded


class ZooKeeperStore:
    """A `MetadataStore` in a ZooKeeper ensemble. Open it with `open`."""

    def __init__(
        self, client: _Client, prefix: str, settings: MetadataSettings, patience: ServerPatience
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._call_on_loop = CallsToLoop(self._loop)
        self._patience = patience
        self._client = client
        self._prefix = prefix
        self._settings = settings
        self._is_closed = False
        self._is_sync_needed = False
        self._pending: set[asyncio.Future[object]] = set()
        self._connected = asyncio.Event()
        self._session: object = None
        """kazoo's identity of the session that the loop knows; None if it is lost."""
        self.call_times = CallTimes(self._loop.time)
        self._watches = WatchTable(self._loop.call_soon)
        self._listeners = SessionListeners(self._loop.call_soon)
        self._listeners.state = SessionState.SUSPENDED
        client.add_listener(self._on_kazoo_state)

    @classmethod
    async def open(
        cls, hosts: str, chroot: str = "/", *, settings: MetadataSettings | None = None
    ) -> "ZooKeeperStore":
        """Connect to `host:port[,host:port...]`; everything lies below `chroot`.

        Raises:
            MetadataUnavailableError: no server answers within the connect timeout.
        """
        settings = settings or MetadataSettings()
        patience = ServerPatience(settings.session_timeout_ms)
        client: _Client = KazooClient(
            hosts=hosts,
            timeout=settings.session_timeout_ms / 1000,
            connection_retry={
                "max_tries": -1,
                "delay": settings.reconnect_delay_ms / 1000,
                "backoff": 1.5,
                "max_delay": settings.reconnect_delay_ms_max / 1000,
            },
            logger=_kazoo_log,
            handler=BatchingHandler(patience),
            **_secured(settings),
        )
        _bound_handshakes(client, patience)
        store = cls(client, "" if chroot == "/" else chroot, settings, patience)
        try:
            client.start_async()
            await store._wait_connected(settings.connect_timeout_s, hosts)
            if store._prefix:
                await store._make_root(settings.connect_timeout_s)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_state(self) -> SessionState:
        return self._listeners.state

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout, in ms, that the server granted within its own bounds; it may be less
        than requested."""
        return self._patience.session_timeout_ms

    @property
    def session_id(self) -> str:
        """The session id as ZooKeeper's servers log it; empty if there is no session."""
        found = self._client.client_id
        return "" if found is None else f"{found[0] & _SESSION_ID_MASK:#x}"

    async def get(self, path: str) -> Versioned:
        check_path(path)
        full = self._full(path)
        value, stat = await self._read(path, lambda: self._client.get_async(full))
        is_ephemeral = bool(stat.ephemeralOwner)
        return Versioned(value or b"", stat.version, is_ephemeral, created_ms=stat.ctime)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        check_new_path(path, sequential=sequential)
        check_value(path, value)
        full = self._full(path)

        def start() -> _Result[str]:
            return self._client.create_async(full, value, ephemeral=ephemeral, sequence=sequential)

        for _ in range(_CREATE_ATTEMPTS_MAX):
            try:
                return self._own(await self._write(path, start))
            except NoNodeError:
                await self._ensure(parent_path(full))
            except NodeExistsError:
                if not sequential:
                    raise
                await self._use_up_number(path, full)
        raise MetadataUnavailableError(
            f"cannot create {path}: its parents keep being deleted, or its numbers keep being taken"
        )

    async def create_child(self, path: str, value: bytes = b"") -> str:
        check_path(path)
        check_value(path, value)
        full = self._full(path)
        start = partial(self._client.create_async, full, value, ephemeral=False, sequence=False)
        return self._own(await self._write(path, start))

    async def _use_up_number(self, path: str, full: str) -> None:
        """Make the parent's counter skip a name that another client took. Otherwise ZooKeeper would
        try that name for ever: its counter moves only when a node is created."""
        made = await self._write(
            path,
            lambda: self._client.create_async(f"{full}x", b"", ephemeral=True, sequence=True),
        )
        with suppress(NoNodeError):  # another client removed it
            await self._write(path, lambda: self._client.delete_async(made, _ANY_VERSION))

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        check_path(path)
        check_value(path, value)
        if version < 0:  # ZooKeeper's -1 would overwrite whatever is there.
            raise InvariantError(f"{path} cannot be written: {version} is not a version")
        full = self._full(path)
        stat = await self._write(path, lambda: self._client.set_async(full, value, version))
        return stat.version

    async def delete(self, path: str, *, version: int | None = None) -> None:
        check_path(path)
        if path == "/":
            raise InvalidPathError("the root cannot be deleted")
        full, expected = self._full(path), _ANY_VERSION if version is None else version
        await self._write(path, lambda: self._client.delete_async(full, expected))

    async def exists(self, path: str) -> int | None:
        check_path(path)
        full = self._full(path)
        stat = await self._read(path, lambda: self._client.exists_async(full))
        return None if stat is None else stat.version

    async def children(self, path: str) -> list[str]:
        check_path(path)
        full = self._full(path)
        return sorted(await self._read(path, lambda: self._client.get_children_async(full)))

    records_deletions = False

    async def is_gone(self, path: str) -> bool:
        return await self.exists(path) is None

    async def deleted_ms(self, path: str) -> int | None:
        return None

    async def catch_up(self) -> None:
        await self._read("/", lambda: self._client.sync_async(self._prefix or "/"))

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        check_path(path)
        self._check_open()
        is_first_of_path = path not in self._watches
        watch = self._watches.add(path, callback)
        if is_first_of_path:
            # Sent before anything that the caller reads next, so no change is missed in between.
            self._look(path)
        return watch

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return self._listeners.add(callback)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.clear()
        self._listeners.clear()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(kazoo_errors.ConnectionClosedError("the store was closed"))
        # kazoo's stop waits for its threads.
        worker = ThreadWorker("zookeeper-close")
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await worker.run(self._stop_blocking)
        except TimeoutError:
            _log.warning("metadata_session_not_ended")
            return  # The worker's thread is left waiting for kazoo's; it blocks nothing.
        worker.close()

    # Operations.

    async def _read(self, path: str, start: Callable[[], _Result[T]]) -> T:
        with self.call_times.timed("read"):
            return await self._read_untimed(path, start)

    async def _read_untimed(self, path: str, start: Callable[[], _Result[T]]) -> T:
        """Send a read, again after a lost connection, until there is an answer."""
        self._check_open()
        started_s = self._loop.time()
        try:
            async with asyncio.timeout(self._settings.operation_timeout_s):
                while True:
                    try:
                        if self._is_sync_needed:
                            await self._send(self._client.sync_async(self._prefix or "/"))
                            self._is_sync_needed = False
                        return await self._send(start())
                    except _NO_ANSWER as exc:
                        self._check_open()
                        _log.debug("metadata_read_repeated", path=path, error=str(exc))
                        await asyncio.sleep(self._settings.reconnect_delay_ms / 1000)
                        await self._connected.wait()
        except TimeoutError as exc:
            raise MetadataUnavailableError(f"ZooKeeper did not answer in time: {path}") from exc
        except kazoo_errors.KazooException as exc:
            raise _translated(exc, path) from exc
        finally:
            RECORDER.note(METADATA, self._loop.time() - started_s, partial("read {}".format, path))

    async def _write(self, path: str, start: Callable[[], _Result[T]]) -> T:
        with self.call_times.timed("write"):
            return await self._write_untimed(path, start)

    async def _write_untimed(self, path: str, start: Callable[[], _Result[T]]) -> T:
        """Send a write once, while there is a connection, and never in a later session than this
        one."""
        self._check_open()
        session = self._session
        if not self._connected.is_set():
            await self._wait_connected(self._settings.operation_timeout_s, path)
            self._check_open()
        if session is not None and session != self._client.client_id:  # the loop hears of it late
            raise MetadataUnavailableError(
                f"the session in which the write to {path} was asked for is over, or without "
                "contact; nothing was changed"
            )
        started_s = self._loop.time()
        try:
            async with asyncio.timeout(self._settings.operation_timeout_s):
                return await self._send(start())
        except _CLEAR_ANSWERS as exc:
            raise _translated(exc, path) from exc
        except (TimeoutError, kazoo_errors.KazooException) as exc:
            self._is_sync_needed = True
            raise UnknownOutcomeError(f"write to {path}: {type(exc).__name__} {exc}") from exc
        except asyncio.CancelledError:
            self._is_sync_needed = True
            raise
        finally:
            RECORDER.note(METADATA, self._loop.time() - started_s, partial("write {}".format, path))

    def _send(self, result: _Result[T]) -> asyncio.Future[T]:
        """Return the result of a kazoo call as a future of the loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending.add(future)  # type: ignore[arg-type]  # Future is invariant; only failed here
        future.add_done_callback(self._pending.discard)

        def on_kazoo_thread(done: _Result[T]) -> None:
            self._call_on_loop(partial(_resolve, future, done))

        result.rawlink(on_kazoo_thread)
        return future

    async def _make_root(self, timeout_s: float) -> None:
        """Create the node below which everything lies. A busy first server drops connections;
        repeating the creation finds out whether the node exists.

        Raises:
            MetadataError: the error of the last attempt.
        """
        until_s = self._loop.time() + timeout_s
        while True:
            try:
                return await self._ensure(self._prefix)
            except (UnknownOutcomeError, MetadataUnavailableError) as error:
                if self._loop.time() >= until_s:
                    raise
                _log.info("metadata_root_tried_again", path=self._prefix, error=str(error))
                await asyncio.sleep(self._settings.reconnect_delay_ms / 1000)

    async def _ensure(self, full: str) -> None:
        """Create a node and its parents where they are missing; takes ZooKeeper's own paths."""
        missing = [full]
        while missing:
            create = partial(
                self._client.create_async, missing[-1], b"", ephemeral=False, sequence=False
            )
            try:
                await self._write(missing[-1], create)
            except NodeExistsError:
                pass  # It exists already, or another client was faster.
            except NoNodeError:
                missing.append(parent_path(missing[-1]))
                continue
            missing.pop()

    async def _wait_connected(self, timeout_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError as exc:
            raise MetadataUnavailableError(
                f"no connection to ZooKeeper within {timeout_s} s: {what}"
            ) from exc

    def _check_open(self) -> None:
        if self._is_closed:
            raise MetadataUnavailableError("the metadata store is closed")

    def _stop_blocking(self) -> None:
        self._client.stop()
        self._client.close()

    def _full(self, path: str) -> str:
        """Return ZooKeeper's own path for a path of the store."""
        return self._prefix + path if path != "/" or not self._prefix else self._prefix

    def _own(self, full: str) -> str:
        return full[len(self._prefix) :] or "/"

    # Watches.

    def _look(self, path: str) -> None:
        """Look at a node, arm ZooKeeper's watches, and notify the watchers of changes.

        The first look counts as well as the second: it was sent before the caller's next read.
        """
        full = self._full(path)

        def on_children(stat: tuple[list[str], _Stat]) -> None:
            self._watches.on_view(path, _view(stat[1]))

        def on_exists(stat: _Stat | None) -> None:
            self._watches.on_view(path, None if stat is None else _view(stat))
            if stat is not None and path in self._watches:
                children = self._client.get_children_async(
                    full, watch=self._on_kazoo_event, include_data=True
                )
                self._look_for(path, children, on_children)

        exists = self._client.exists_async(full, watch=self._on_kazoo_event)
        self._look_for(path, exists, on_exists)

    def _look_for(self, path: str, start: _Result[T], on_result: Callable[[T], None]) -> None:
        def on_done(future: asyncio.Future[T]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled():
                on_result(future.result())
            elif not self._is_closed:
                self._on_look_failed(path, error)

        self._send(start).add_done_callback(on_done)

    def _on_look_failed(self, path: str, error: BaseException | None) -> None:
        if not isinstance(error, kazoo_errors.NoNodeError):
            self._watches.on_look_failed(path)
        if self._connected.is_set():
            # Deleted between the two looks, or reconnected before the failure arrived here. Without
            # a connection there is nothing to do: all nodes are looked at when it is back.
            self._loop.call_later(self._settings.reconnect_delay_ms / 1000, self._on_trigger, path)

    def _on_kazoo_event(self, event: _Event) -> None:
        """Handle a fired ZooKeeper watch, on kazoo's thread."""
        if event.type != EventType.NONE and event.path is not None:
            self._call_on_loop(partial(self._on_trigger, self._own(event.path)))

    def _on_trigger(self, path: str) -> None:
        if not self._is_closed and path in self._watches:
            self._look(path)

    # Session.

    def _on_kazoo_state(self, state: str) -> None:
        """Pass a new state to the loop, from kazoo's thread."""
        self._call_on_loop(partial(self._on_state, state))

    def _on_state(self, state: str) -> None:
        if self._is_closed:
            return
        _log.info("metadata_session_state", state=state)
        if state == KazooState.CONNECTED:
            self.call_times.on_state(SessionState.CONNECTED)
            self._session = self._client.client_id
            self._connected.set()
            self._listeners.on_state(SessionState.CONNECTED)
            for path in list(self._watches.paths):
                self._look(path)
            return
        self._connected.clear()
        expired = state == KazooState.LOST
        if expired:
            self._session = None
        new = SessionState.EXPIRED if expired else SessionState.SUSPENDED
        self.call_times.on_state(new)
        self._listeners.on_state(new)


def _view(stat: _Stat) -> NodeView:
    return NodeView(incarnation=stat.czxid, version=stat.version, children=stat.pzxid)


def _translated(exc: Exception, path: str) -> MetadataError:
    for theirs, (ours, text) in _ERRORS.items():
        if isinstance(exc, theirs):
            return ours(f"{path}: {text}")
    return MetadataError(f"{path}: {type(exc).__name__} {exc}")


def _resolve(future: asyncio.Future[T], result: _Result[T]) -> None:
    if future.done():
        return  # The caller has given up, or the store was closed.
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


def _secured(settings: MetadataSettings) -> dict[str, Any]:
    """Return kazoo's options for TLS and for nodes restricted to one user."""
    options: dict[str, Any] = {}
    user = settings.zookeeper_user.get_secret_value()
    if user:
        options["auth_data"] = [("digest", user)]
        # Not the creator's identity: a certificate with the same name would get access, too.
        name, _, password = user.partition(":")
        options["default_acl"] = [make_digest_acl(name, password, all=True)]
    if settings.zookeeper_tls_ca_file:
        options |= {
            "use_ssl": True,
            "ca": settings.zookeeper_tls_ca_file,
            "certfile": settings.zookeeper_tls_certificate_file or None,
            "keyfile": settings.zookeeper_tls_key_file or None,
        }
    return options
