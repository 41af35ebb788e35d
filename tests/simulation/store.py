"""The metadata store of a run: one tree in memory, a handle per process, and the faults of both.

The operations of a handle travel in order, as the store's interface promises: one that is held or
stalled stops those behind it, and a read sees every change that the handle made before it, also
one whose caller has given up. What the caller of a write hears may be lost ("unknown"), whether or
not it was done; a write whose session has ended meanwhile is not done. Watches look at the tree
late, and may merge events.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import cast

from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    InvalidPathError,
    MetadataError,
    MetadataUnavailableError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.sessions import SessionListeners
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
from magnetar.ledger.metadata.watches import WatchTable
from tests.simulation.cluster.events import NodeWrote
from tests.simulation.history import Answered, Event, Fault, History, Proposed, Wrote
from tests.simulation.loop import SimLoop, SimProcess
from tests.simulation.store_rules import Accident, Operation, OperationMatch, StoreHold
from tests.simulation.tree import Tree

_WRITES = ("create", "set", "delete")


class MetadataServer:
    """The tree, its handles and its faults."""

    def __init__(self, loop: SimLoop, history: History, *, seed: str) -> None:
        self.loop = loop
        self.history = history
        self.tree = Tree()
        self.handles: list[SimStore] = []
        self.holds: list[StoreHold] = []
        self.accidents: list[Accident] = []
        self.stalled: dict[str | None, None] = {}
        """Clients whose operations stand still; None is everybody."""
        self.seed = seed
        self.latency_s = 0.0005
        self.jitter_s = 0.0
        self.watch_latency_s = 0.001
        self.watch_jitter_s = 0.0
        self.session_timeout_s = 2.0
        self.operation_timeout_s = 5.0
        self.context = Context()
        """The store's own: it works on while its clients are paused or dead."""
        self._numbers = 0
        self.ledger_ids: dict[str, int] = {}
        """Ledger ids by the path of their metadata."""
        self.records_nodes = False
        """Whether the history has the writes of other nodes, too."""

    def open(self, process: SimProcess) -> "SimStore":
        handle = SimStore(self, process)
        self.handles.append(handle)
        return handle

    def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """The ledger's metadata as it is now."""
        for path, known in self.ledger_ids.items():
            if known == ledger_id and self.tree.version(path) is not None:
                return LedgerMetadata.from_json(self.tree.get(path).value)
        return None

    # For a test

    def hold(
        self,
        *,
        client: str | None = None,
        kind: str | None = None,
        ledger_id: int | None = None,
        path: str | None = None,
        reply: bool = False,
    ) -> StoreHold:
        """Hold matching operations before they are done, or, for `reply`, when they are."""
        hold = StoreHold(self.holds, OperationMatch(client, kind, ledger_id, path), reply=reply)
        self.holds.append(hold)
        return hold

    def hold_cas(self, *, client: str | None = None, ledger_id: int | None = None) -> StoreHold:
        """Hold writes of metadata before they are done."""
        return self.hold(client=client, kind="set", ledger_id=ledger_id)

    def lose_reply(
        self,
        *,
        client: str | None = None,
        kind: str = "set",
        ledger_id: int | None = None,
        path: str | None = None,
        count: int = 1,
        skip: int = 0,
    ) -> None:
        """The next matching operations are done; the caller hears "unknown"."""
        match = OperationMatch(client, kind, ledger_id, path)
        self.accidents.append(Accident(match, "reply lost", count, skip))

    def lose_request(
        self,
        *,
        client: str | None = None,
        kind: str = "set",
        ledger_id: int | None = None,
        path: str | None = None,
        count: int = 1,
        skip: int = 0,
    ) -> None:
        """The next matching operations are not done; the caller hears "unknown"."""
        match = OperationMatch(client, kind, ledger_id, path)
        self.accidents.append(Accident(match, "request lost", count, skip))

    def refuse(
        self,
        *,
        client: str | None = None,
        kind: str | None = None,
        path: str | None = None,
        count: int = 1,
        skip: int = 0,
    ) -> None:
        """The next matching operations are not done; the caller hears "unavailable"."""
        match = OperationMatch(client, kind, None, path)
        self.accidents.append(Accident(match, "unavailable", count, skip))

    def stall(self, client: str | None = None) -> None:
        """Nothing that the client (or anybody) asks gets through, nor any watch event."""
        self.stalled[client] = None

    def resume(self, client: str | None = None) -> None:
        self.stalled.pop(client, None)
        for handle in self.handles:
            handle.pump()

    def heal_all(self) -> None:
        """Undo every stall, hold and accident."""
        self.stalled.clear()
        self.accidents.clear()
        for hold in list(self.holds):
            hold.release()
        for handle in self.handles:
            handle.pump()

    def expire_session(self, client: str) -> None:
        """The sessions of a process end, as after too long a silence."""
        for handle in self.handles:
            if handle.process.name == client:
                handle.expire()

    # For the handles

    def is_stalled(self, client: str) -> bool:
        return bool(self.stalled) and (None in self.stalled or client in self.stalled)

    def record(self, actor: str, event: Event) -> None:
        self.history.add(self.loop.time(), actor, event)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def touch(self, paths: list[str]) -> None:
        for handle in self.handles:
            handle.on_touched(paths)

    def forget(self, process: SimProcess) -> None:
        """The process is dead: its sessions end after their time."""
        for handle in [each for each in self.handles if each.process is process]:
            self.loop.call_later(self.session_timeout_s, handle.expire, context=self.context)


class SimStore:
    """`MetadataStore`: the handle of one process."""

    def __init__(self, server: MetadataServer, process: SimProcess) -> None:
        self._server = server
        self.process = process
        self._random = Random(f"{server.seed}/{process.name}")
        self._session = server.tree.start_session()
        self._queue: deque[Operation] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0
        self._watches = WatchTable(process.call_soon)
        self._listeners = SessionListeners(process.call_soon)
        self._to_look: dict[str, None] = {}
        self._look_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def session_state(self) -> SessionState:
        return self._listeners.state

    @property
    def session_timeout_ms(self) -> int:
        return int(self._server.session_timeout_s * 1000)

    @property
    def waiting(self) -> list[tuple[str, str]]:
        """Kind and path of what was asked and is not done, in order."""
        return [(each.kind, each.path) for each in self._queue]

    async def get(self, path: str) -> Versioned:
        check_path(path)
        return cast(Versioned, await self._call("get", path, lambda: self._server.tree.get(path)))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        check_new_path(path, sequential=sequential)
        check_value(path, value)

        def apply() -> str:
            session = self._session if ephemeral else None
            created, touched = self._server.tree.create(
                path, value, session=session, sequential=sequential
            )
            self._record_write(created, 0, value)
            self._server.touch(touched)
            return created

        return cast(str, await self._call("create", path, apply))

    async def create_child(self, path: str, value: bytes = b"") -> str:
        check_path(path)
        check_value(path, value)

        def apply() -> str:
            created, touched = self._server.tree.create_child(path, value)
            self._record_write(created, 0, value)
            self._server.touch(touched)
            return created

        return cast(str, await self._call("create", path, apply))

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        check_path(path)
        check_value(path, value)

        def apply() -> int:
            written = self._server.tree.set(path, value, version=version)
            self._record_write(path, written, value)
            self._server.touch([path])
            return written

        proposal = (version, _ledger_in(value))
        return cast(int, await self._call("set", path, apply, proposal))

    async def delete(self, path: str, *, version: int | None = None) -> None:
        check_path(path)
        if path == "/":
            raise InvalidPathError("the root cannot be deleted")

        def apply() -> None:
            touched = self._server.tree.delete(path, version=version)
            self._record_write(path, -1, None)
            self._server.touch(touched)

        await self._call("delete", path, apply, (-1 if version is None else version, None))

    async def exists(self, path: str) -> int | None:
        check_path(path)
        found = await self._call("exists", path, lambda: self._server.tree.version(path))
        return cast(int | None, found)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        found = await self._call("children", path, lambda: self._server.tree.children(path))
        return cast(list[str], found)

    records_deletions = False

    async def is_gone(self, path: str) -> bool:
        return await self.exists(path) is None

    async def deleted_ms(self, path: str) -> int | None:
        return None

    async def catch_up(self) -> None:
        await self._call("catch_up", "/", lambda: None)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        check_path(path)
        self._check_open()
        is_first = path not in self._watches
        watch = self._watches.add(path, callback)
        if is_first:
            self._watches.on_view(path, self._server.tree.view(path))
        return watch

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return self._listeners.add(callback)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._watches.clear()
            self._listeners.clear()
            self.end_session()

    # Operations

    async def _call(
        self,
        kind: str,
        path: str,
        apply: Callable[[], object],
        proposal: tuple[int, LedgerMetadata | None] | None = None,
    ) -> object:
        self._check_open()
        server = self._server
        ledger_id = server.ledger_ids.get(path)
        operation = Operation(kind, path, ledger_id, apply)
        operation.future = server.loop.create_future()
        number = 0
        if proposal is not None and ledger_id is not None:
            number = server.next_number()
            server.record(self.process.name, Proposed(number, ledger_id, *proposal))
        operation.arrives_s = server.loop.time() + self._latency_s()
        operation.session = self._session
        self._queue.append(operation)
        self.pump()
        try:
            async with asyncio.timeout(server.operation_timeout_s):
                result = await operation.future
        except TimeoutError as exc:
            self._hear(number, operation, "no answer in time")
            if kind in _WRITES:
                raise UnknownOutcomeError(f"{kind} {path}: no answer in time") from exc
            raise MetadataUnavailableError(f"{kind} {path}: no answer in time") from exc
        except MetadataError as error:
            self._hear(number, operation, type(error).__name__)
            raise
        except asyncio.CancelledError:
            self._hear(number, operation, "the caller was cancelled")
            raise
        self._hear(number, operation, "done")
        return result

    def _hear(self, number: int, operation: Operation, outcome: str) -> None:
        if number and operation.ledger_id is not None:
            event = Answered(number, operation.ledger_id, outcome)
            self._server.record(self.process.name, event)

    def _latency_s(self) -> float:
        server = self._server
        return server.latency_s + self._random.random() * server.jitter_s

    def pump(self) -> None:
        """Arrange for the next operation to be done, if it can be."""
        if self._to_look and self._look_timer is None:
            self._schedule_look()
        if self._timer is not None or not self._queue:
            return
        if self._queue[0].held_by is not None or self._server.is_stalled(self.process.name):
            return
        loop = self._server.loop
        self._last_s = max(self._last_s, loop.time(), self._queue[0].arrives_s)
        self._timer = loop.call_at(self._last_s, self._do_next, context=self._server.context)

    def _do_next(self) -> None:
        self._timer = None
        server = self._server
        if not self._queue or server.is_stalled(self.process.name):
            return
        operation = self._queue[0]
        for hold in server.holds:
            if not hold.reply and hold.match.fits(self.process.name, operation):
                operation.held_by = hold
                hold.operations.append((self, operation))
                server.record(self.process.name, Fault(f"{operation.kind} is held by the store"))
                return
        self._do(operation)
        self.pump()

    def go_on(self, operation: Operation) -> None:
        """The hold on the operation, or on its reply, is over."""
        if operation.reply is not None:
            self._reply(operation, *operation.reply)
        else:
            self._do(operation)
        self.pump()

    def lose(self, operation: Operation) -> None:
        """The operation never reached the store."""
        self._queue.remove(operation)
        self._reply(operation, None, UnknownOutcomeError("the connection was lost"))
        self.pump()

    def _do(self, operation: Operation) -> None:
        self._queue.remove(operation)
        server = self._server
        accident = self._next_accident(operation)
        result: object = None
        error: BaseException | None = None
        if accident == "request lost":
            error = UnknownOutcomeError("the connection was lost")
        elif accident == "unavailable":
            error = MetadataUnavailableError("the store does not answer")
        elif operation.kind in _WRITES and operation.session not in server.tree.sessions:
            error = UnknownOutcomeError("the session ended")
            self.process.call_soon(self._on_expired)
        else:
            try:
                result = operation.apply()
            except MetadataError as failure:
                error = failure
            if isinstance(error, SessionExpiredError):
                self.process.call_soon(self._on_expired)
        if accident == "reply lost":
            error = UnknownOutcomeError("the connection was lost")
        for hold in server.holds:
            if hold.reply and hold.match.fits(self.process.name, operation):
                operation.reply = (result, error)
                operation.held_by = hold
                hold.operations.append((self, operation))
                server.record(self.process.name, Fault(f"reply to {operation.kind} is held"))
                return
        self._reply(operation, result, error)

    def _next_accident(self, operation: Operation) -> str:
        for accident in self._server.accidents:
            if accident.count and accident.match.fits(self.process.name, operation):
                if accident.skip:
                    accident.skip -= 1
                    continue
                accident.count -= 1
                what = f"{operation.kind} {operation.path}: {accident.what}"
                self._server.record(self.process.name, Fault(what))
                return accident.what
        return ""

    def _reply(self, operation: Operation, result: object, error: BaseException | None) -> None:
        at_s = self._server.loop.time() + self._latency_s()
        self.process.call_at(at_s, _resolve, operation.future, result, error)

    def _record_write(self, path: str, version: int, value: bytes | None) -> None:
        server = self._server
        metadata = None if value is None else _ledger_in(value)
        if metadata is not None:
            server.ledger_ids[path] = metadata.ledger_id
        ledger_id = server.ledger_ids.get(path)
        if ledger_id is not None:
            server.record(self.process.name, Wrote(ledger_id, version, metadata))
        elif server.records_nodes:
            server.record(self.process.name, NodeWrote(path, version, value))

    def end_session(self) -> None:
        """The session and its ephemeral nodes are gone; the process does not hear of it here."""
        touched = self._server.tree.end_session(self._session)
        if self._server.records_nodes:
            # Each node is named behind its parent.
            for path in touched[1::2]:
                self._server.record(self.process.name, NodeWrote(path, -1, None))
        self._server.touch(touched)

    def _check_open(self) -> None:
        if self._is_closed:
            raise MetadataUnavailableError("the metadata store is closed")

    # Watches and the session

    def on_touched(self, paths: list[str]) -> None:
        if self._is_closed:
            return
        for path in paths:
            if path in self._watches:
                self._to_look[path] = None
        if self._to_look and self._look_timer is None:
            self._schedule_look()

    def _schedule_look(self) -> None:
        server = self._server
        if server.is_stalled(self.process.name):
            return
        delay_s = server.watch_latency_s + self._random.random() * server.watch_jitter_s
        self._look_timer = self.process.call_at(server.loop.time() + delay_s, self._look)

    def _look(self) -> None:
        self._look_timer = None
        if self._server.is_stalled(self.process.name):
            return
        paths, self._to_look = self._to_look, {}
        for path in paths:
            self._watches.on_view(path, self._server.tree.view(path))

    def expire(self) -> None:
        """The store gives up the session."""
        self.end_session()
        if not self._is_closed:
            self._server.record(self.process.name, Fault("the session has expired"))
            self.process.call_soon(self._on_expired)

    def _on_expired(self) -> None:
        if self._is_closed or self._session in self._server.tree.sessions:
            return
        self._session = self._server.tree.start_session()
        self._listeners.on_state(SessionState.EXPIRED)
        self._listeners.on_state(SessionState.CONNECTED)


def _resolve(future: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _ledger_in(value: bytes) -> LedgerMetadata | None:
    if not value.startswith(b'{"ledger_id"'):
        return None
    try:
        return LedgerMetadata.from_json(value)
    except InvalidLedgerMetadataError:
        return None
