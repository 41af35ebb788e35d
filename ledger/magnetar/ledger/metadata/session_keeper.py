"""The sessions that one embedded store handle looks after: its own, and the dead ones of others.

Joins the rows of the tree (`sqlite_tree.py`) with the locked files (`session_files.py`). A handle
has no session until its first ephemeral node, so a tool that only reads costs nothing. All calls
block and come from one thread.
"""

from functools import partial

from magnetar.ledger.errors import MetadataUnavailableError, SessionExpiredError
from magnetar.ledger.metadata.session_files import SessionFile, SessionObserver
from magnetar.ledger.metadata.sqlite_tree import SqliteTree, Written


class SessionKeeper:
    """Keeps the handle's session alive and ends the sessions of dead owners."""

    def __init__(
        self, tree: SqliteTree, folder: str, *, timeout_ms: int, interval_s: float
    ) -> None:
        self._tree = tree
        self._folder = folder
        self._timeout_ms = timeout_ms
        self._observer = SessionObserver(folder, interval_s=interval_s)
        self._session: int | None = None
        self._file: SessionFile | None = None
        self.losses = 0
        """Number of own sessions that were found ended by others; readable from any thread. A call
        that finds one may still fail for another reason, and then returns nothing of it."""

    @property
    def has_session(self) -> bool:
        """Whether the handle has a session. Callable from any thread."""
        return self._session is not None

    def create_node(self, path: str, value: bytes, *, sequential: bool) -> Written:
        """Create an ephemeral node of this handle's session; start a session if there is none.

        Raises:
            SessionExpiredError: the session is gone; the next call starts a new one.
            MetadataUnavailableError: the session's file cannot be created.
            Every error of `SqliteTree.create`.
        """
        if self._session is None:
            self._start()
        return self.create_in_session(path, value, sequential=sequential)

    def create_in_session(self, path: str, value: bytes, *, sequential: bool) -> Written:
        """Create an ephemeral node of the existing session. Never start one: inside a transaction
        of several writes, its creation would not be certain.

        Raises:
            SessionExpiredError: there is no session, or no longer.
            Every error of `SqliteTree.create`.
        """
        if self._session is None:
            raise SessionExpiredError("the session ended a moment ago")
        try:
            return self._tree.create(path, value, session=self._session, sequential=sequential)
        except SessionExpiredError:
            self._on_lost()
            raise

    def on_time(self, now_s: float) -> tuple[str, ...]:
        """Run one round: call this at the interval, and once when the store is opened.

        Returns the paths of nodes that were deleted with the sessions of others, and their parents.
        """
        if self._session is not None and not self._tree.has_session(self._session):
            self._on_lost()
        if self._file is not None:
            self._file.touch()
        touched: list[str] = []
        sessions = self._tree.sessions()
        for number in self._observer.expired(sessions, own=self._session, now_s=now_s):
            touched += self._tree.end_session(number, partial(self._is_over, number))
            if not self._tree.has_session(number):
                self._observer.remove_file(number)
        return tuple(touched)

    def close(self) -> None:
        """End the handle's session and delete its nodes."""
        try:
            if self._session is not None:
                self._tree.end_session(self._session, lambda: True)
        finally:
            self._forget()

    def _is_over(self, session: int) -> bool:
        return self._observer.is_owner_dead(session) or self._observer.is_untouched(session)

    def _start(self) -> None:
        def lock(session: int) -> None:
            try:
                self._file = SessionFile(self._folder, session)
            except OSError as exc:
                raise MetadataUnavailableError(f"no file for a session: {exc}") from exc

        try:
            self._session = self._tree.create_session(self._timeout_ms, lock)
        except BaseException:
            self._forget()
            raise

    def _on_lost(self) -> None:
        self.losses += 1
        self._forget()

    def _forget(self) -> None:
        self._session = None
        if self._file is not None:
            self._file.remove()
            self._file = None
