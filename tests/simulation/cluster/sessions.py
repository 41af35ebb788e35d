"""Sessions that end by themselves, as those of ZooKeeper do.

A server hears its clients' pings and operations. Who is not heard of for the session timeout, being
paused, dead or cut off, loses its session and its ephemeral nodes, and learns that only when it is
back: until then it is told nothing, or at most that the connection is gone.
"""

from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.metadata.store import SessionState
from tests.simulation.history import Fault, History
from tests.simulation.loop import ProcessState, SimLoop, SimProcess
from tests.simulation.store import MetadataServer, SimStore
from tests.simulation.store_rules import Operation

TICK_S = 0.05
_PINGS_PER_TIMEOUT = 3
"""A client pings so often that one lost ping is no disaster."""
_SUSPENDED_SHARE = 2 / 3
"""Of the session timeout: after that long a silence a client takes its connection for lost."""

_WRITES = ("create", "set", "delete")


class SessionServer(MetadataServer):
    """The metadata store, with sessions that expire."""

    def __init__(self, loop: SimLoop, history: History, *, seed: str) -> None:
        super().__init__(loop, history, seed=seed)
        self.records_nodes = True

    def start(self) -> None:
        """Begin to watch over the sessions."""
        self.loop.call_later(TICK_S, self._tick, context=self.context)

    def open(self, process: SimProcess) -> "SessionStore":
        handle = SessionStore(self, process)
        self.handles.append(handle)
        return handle

    def forget(self, process: SimProcess) -> None:
        """The process is dead; its sessions end like everybody's."""

    def resume(self, client: str | None = None) -> None:
        super().resume(client)
        for handle in self.handles:
            if isinstance(handle, SessionStore):
                handle.tick()

    def _tick(self) -> None:
        for handle in self.handles:
            if isinstance(handle, SessionStore):
                handle.tick()
        self.loop.call_later(TICK_S, self._tick, context=self.context)


class SessionStore(SimStore):
    """The handle of one process."""

    def __init__(self, server: MetadataServer, process: SimProcess) -> None:
        super().__init__(server, process)
        self._heard_s = server.loop.time()
        """When the server last heard of the client."""
        self.operations = 0
        """How many the store did for the process."""
        # Pings of different clients come at different moments.
        self._phase = self._random.random()

    def tick(self) -> None:
        server = self._server
        now_s, timeout_s = server.loop.time(), server.session_timeout_s
        is_alive = self._session in server.tree.sessions
        if self._is_closed:
            return
        if self._is_heard:
            if not is_alive:
                self.process.call_soon(self._on_expired)
                return
            ping_s = timeout_s / _PINGS_PER_TIMEOUT
            if now_s - self._heard_s >= ping_s * (0.5 + self._phase / 2):
                self._heard_s = now_s
            if self.session_state is SessionState.SUSPENDED:
                self._heard_s = now_s
                self.process.call_soon(self._on_connected)
            return
        silence_s = now_s - self._heard_s
        if is_alive and silence_s >= timeout_s:
            server.record(self.process.name, Fault("the session has expired"))
            self.end_session()
        is_running = self.process.state is ProcessState.RUNNING
        is_connected = self.session_state is SessionState.CONNECTED
        if is_running and is_connected and silence_s >= timeout_s * _SUSPENDED_SHARE:
            self.process.call_soon(self._on_suspended)

    @property
    def _is_heard(self) -> bool:
        return self.process.state is ProcessState.RUNNING and not self._server.is_stalled(
            self.process.name
        )

    def expire(self) -> None:
        """The store gives up the session; who is cut off or paused does not hear of it yet."""
        if self._is_closed or self._session not in self._server.tree.sessions:
            return
        self._server.record(self.process.name, Fault("the session has expired"))
        self.end_session()
        if self._is_heard:
            self.process.call_soon(self._on_expired)

    def _do(self, operation: Operation) -> None:
        self.operations += 1
        server = self._server
        if self._session in server.tree.sessions:
            self._heard_s = server.loop.time()
        elif not self._is_closed and operation.kind in _WRITES:
            # It was asked in a session that is over.
            self._queue.remove(operation)
            self._reply(operation, None, UnknownOutcomeError("the session has expired"))
            self.process.call_soon(self._on_expired)
            return
        super()._do(operation)

    def _on_expired(self) -> None:
        if self._is_closed or self._session in self._server.tree.sessions:
            return
        self._heard_s = self._server.loop.time()
        super()._on_expired()

    def _on_suspended(self) -> None:
        if not self._is_closed and self.session_state is SessionState.CONNECTED:
            self._listeners.on_state(SessionState.SUSPENDED)

    def _on_connected(self) -> None:
        if not self._is_closed and self.session_state is SessionState.SUSPENDED:
            self._listeners.on_state(SessionState.CONNECTED)
            for path in self._watches.paths:
                self._to_look[path] = None
            self.pump()
