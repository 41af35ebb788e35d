"""Long polls that wait for a ledger's LAC to move: bounded in number and in time. Pure.

A waiting request is an object in a list, not a task. It leaves in one of three ways: the LAC
exceeds the one it knows (`take`), its time is up (`expire`), or its connection is closed
(`forget`).
"""

import heapq
from collections.abc import Sequence

from magnetar.bookie.requests.replies import Connection
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.wire import Frame
from magnetar.ledger.wire_bodies import LongPoll

_REBUILD_MIN = 64


class WaitingPoll:
    """One waiting long poll."""

    __slots__ = ("connection", "frame", "is_waiting", "poll")

    def __init__(self, connection: Connection, frame: Frame, poll: LongPoll) -> None:
        self.connection = connection
        self.frame = frame
        self.poll = poll
        self.is_waiting = True


class LongPolls:
    """All waiting long polls of a bookie, by ledger and by deadline."""

    def __init__(self, settings: BookieSettings) -> None:
        self._settings = settings
        # Dicts serve as ordered sets: the older request is answered first.
        self._by_ledger: dict[int, dict[WaitingPoll, None]] = {}
        self._by_connection: dict[Connection, dict[WaitingPoll, None]] = {}
        self._deadlines: list[tuple[float, int, WaitingPoll]] = []
        """A heap. Requests that left early stay in it until they reach the top, or are too many."""
        self._added = 0
        self.count = 0
        """Number of waiting requests."""

    def add(self, waiting: WaitingPoll, now_s: float) -> bool:
        """Let a request wait; return False if too many are waiting."""
        connection = waiting.connection
        settings = self._settings
        of_connection = len(self._by_connection.get(connection, ()))
        if (
            self.count >= settings.long_polls_max
            or of_connection >= settings.connection_long_polls_max
        ):
            return False
        self.count += 1
        self._by_ledger.setdefault(waiting.frame.ledger_id, {})[waiting] = None
        self._by_connection.setdefault(connection, {})[waiting] = None
        wait_ms = min(waiting.poll.wait_ms, settings.long_poll_ms_max)
        self._added += 1  # breaks ties: the older request comes first
        heapq.heappush(self._deadlines, (now_s + wait_ms / 1000, self._added, waiting))
        return True

    def take(self, ledger_id: int, last_add_confirmed: int) -> Sequence[WaitingPoll]:
        """Remove and return the requests for which this LAC is news."""
        waiting = self._by_ledger.get(ledger_id)
        if waiting is None:
            return ()
        taken = [each for each in waiting if each.poll.previous_lac < last_add_confirmed]
        for each in taken:
            self._remove(each)
        return taken

    def expire(self, now_s: float) -> list[WaitingPoll]:
        """Remove and return the requests whose time is up."""
        expired: list[WaitingPoll] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            waiting = heapq.heappop(deadlines)[2]
            if waiting.is_waiting:
                self._remove(waiting)
                expired.append(waiting)
        return expired

    def next_deadline_s(self) -> float | None:
        """Return when `expire` should be called next; None if no request waits."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].is_waiting:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def forget(self, connection: Connection) -> None:
        """Remove the requests of a closed connection."""
        for waiting in list(self._by_connection.get(connection, ())):
            self._remove(waiting)

    def _remove(self, waiting: WaitingPoll) -> None:
        waiting.is_waiting = False
        self.count -= 1
        connection, ledger_id = waiting.connection, waiting.frame.ledger_id
        of_connection, of_ledger = self._by_connection[connection], self._by_ledger[ledger_id]
        del of_connection[waiting], of_ledger[waiting]
        if not of_connection:
            del self._by_connection[connection]
        if not of_ledger:
            del self._by_ledger[ledger_id]
        # News come faster than deadlines: without this, the heap would fill with requests that
        # left.
        if len(self._deadlines) > max(_REBUILD_MIN, 2 * self.count):
            self._deadlines = [item for item in self._deadlines if item[2].is_waiting]
            heapq.heapify(self._deadlines)
