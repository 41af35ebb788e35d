"""The session state of a store handle and its listeners."""

from collections.abc import Callable
from functools import partial

from magnetar.ledger.metadata.store import SessionCallback, SessionState


class SessionWatch:
    """A registered session callback; a `Watch` of the store's interface."""

    __slots__ = ("_all", "_callback", "_is_closed")

    def __init__(self, everybody: list["SessionWatch"], callback: SessionCallback) -> None:
        self._all = everybody
        self._callback = callback
        self._is_closed = False
        everybody.append(self)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._all.remove(self)

    def deliver(self, state: SessionState) -> None:
        if not self._is_closed:
            self._callback(state)


class SessionListeners:
    """The current session state. Every change goes to all listeners, in order, through `deliver`
    (call soon)."""

    def __init__(self, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._deliver = deliver
        self._watches: list[SessionWatch] = []
        self.state = SessionState.CONNECTED

    def add(self, callback: SessionCallback) -> SessionWatch:
        return SessionWatch(self._watches, callback)

    def on_state(self, state: SessionState) -> None:
        if state is self.state:
            return
        self.state = state
        for watch in self._watches:
            self._deliver(partial(watch.deliver, state))

    def clear(self) -> None:
        for watch in list(self._watches):
            watch.close()
