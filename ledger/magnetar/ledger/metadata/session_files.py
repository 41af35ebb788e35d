"""Liveness of the embedded store's sessions: one locked file per session.

Beside the SQLite file `PATH` lies the folder `PATH-sessions`. A handle with ephemeral nodes has a
session, and the session has a file there, named by its number:

- The owner locks the file (flock). The lock ends with the process, however it ends, so a free lock
  proves a dead owner: its nodes are deleted at once, and a restart after kill -9 waits for nothing.
- The owner touches the file from its event loop. A file that is locked but not touched for the
  session timeout belongs to a process that is stopped or stuck: its session expires as well.

The observer measures the time without a touch by its own monotonic clock, from when it first saw
the present time stamp; wall clocks are never compared. An observer that was stopped itself starts
over. No heartbeat costs a disk sync. All calls block and come from one thread.
"""

import fcntl
import os

_OPEN_LOCK = "open"


class SessionFile:
    """The locked file of one of this process's own sessions."""

    def __init__(self, folder: str, session: int) -> None:
        """Create the file and lock it.

        Only to be called while no other process can look (the write lock of the tree is held).
        Otherwise an observer could find the file between its creation and the lock and take its
        owner for dead.
        """
        self._path = os.path.join(folder, str(session))
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.touch()

    def touch(self) -> None:
        """Show other processes that this one is alive."""
        os.utime(self._descriptor)

    def remove(self) -> None:
        """Remove the file of the session, which has ended."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass  # Removed by hand: the lock is what counts.
        os.close(self._descriptor)


class SessionObserver:
    """Watches the files of other sessions and finds the sessions that are over."""

    def __init__(self, folder: str, *, interval_s: float) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._last_round_s = float("-inf")
        self._seen: dict[int, tuple[int, float]] = {}

    def expired(self, timeouts_ms: dict[int, int], *, own: int | None, now_s: float) -> list[int]:
        """Run one round: return the sessions of dead owners, and those silent for their timeout.

        Args:
            timeouts_ms: all sessions by number.
            now_s: of a monotonic clock; rounds are expected every `interval_s`.
        """
        if now_s - self._last_round_s > 2 * self._interval_s:
            self._seen.clear()  # This process was stopped itself, and perhaps all others with it.
        self._last_round_s = now_s
        others = {number: each for number, each in timeouts_ms.items() if number != own}
        self._seen = {number: each for number, each in self._seen.items() if number in others}
        return [
            number
            for number, timeout_ms in others.items()
            if self.is_owner_dead(number) or self._is_silent(number, timeout_ms, now_s)
        ]

    def is_owner_dead(self, session: int) -> bool:
        """Return whether no process holds the lock of the session's file."""
        try:
            descriptor = os.open(os.path.join(self._folder, str(session)), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def is_untouched(self, session: int) -> bool:
        """Return whether the time stamp is still the one that the last round saw."""
        stamp = self._stamp(session)
        return stamp is None or (session in self._seen and self._seen[session][0] == stamp)

    def remove_file(self, session: int) -> None:
        """Remove the file of a session that is over."""
        try:
            os.unlink(os.path.join(self._folder, str(session)))
        except FileNotFoundError:
            pass  # Its owner or another observer was faster.

    def _is_silent(self, session: int, timeout_ms: int, now_s: float) -> bool:
        stamp = self._stamp(session)
        if stamp is None:
            return True
        if session not in self._seen or self._seen[session][0] != stamp:
            self._seen[session] = (stamp, now_s)
            return False
        return (now_s - self._seen[session][1]) * 1000 > timeout_ms

    def _stamp(self, session: int) -> int | None:
        try:
            return os.stat(os.path.join(self._folder, str(session))).st_mtime_ns
        except FileNotFoundError:
            return None


class OpenLock:
    """Lock held while a handle opens the store, so that two handles do not create the tables at
    once."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, 0o700, exist_ok=True)
        self._path = os.path.join(folder, _OPEN_LOCK)
        self._descriptor = -1

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *reason: object) -> None:
        os.close(self._descriptor)
