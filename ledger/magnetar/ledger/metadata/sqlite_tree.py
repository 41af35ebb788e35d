"""The tree of nodes in a SQLite file: all the SQL, blocking, one connection.

Layout of the tables: docs/formats/ledger-metadata.md. Durability: a write-ahead log with
`synchronous=FULL`, so there is one sync per transaction. A transaction holds one write, or all
writes that waited for the transaction before it. A killed process loses nothing that was answered.
Several processes may use one file. This module knows sessions as numbers that ephemeral nodes
carry; `session_files.py` decides which sessions are alive.

SQLite does not notice a changed byte in a page, and mistakes a write-ahead log that is damaged, cut
or gone for one that ended earlier. So:

- Each node has a checksum over path, value, version and session; a read that finds another one
  raises. A file of moderate size is checked whole when it is opened.
- Transactions are counted, in the file and, after each commit, in the small file `PATH-end`
  (`commit_count.py`). A file that has fewer than were answered is refused.
- Deletions of persistent nodes are recorded, so that a node that was lost is not mistaken for one
  that was deleted (`is_gone`).

Errors of SQLite become the component's errors here: a failure before the commit changed nothing, a
failure in the commit has an unknown outcome.
"""

import os
import re
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import google_crc32c

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataDamagedError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.commit_count import CommitCount
from magnetar.ledger.metadata.store import SEQUENCE_DIGITS, Versioned, parent_path
from magnetar.ledger.metadata.watches import NodeView

APPLICATION_ID = 0x4D474D44
"""Stored on disk ("MGMD"), never renumber."""

SCHEMA_VERSION = 2
"""Stored on disk, never renumber: grows with every change of the tables."""

CHECKED_BYTES_MAX = 64 << 20
"""Largest file, in bytes, that is checked whole when it is opened. Nodes of a larger file are
checked when they are read."""

_PAGE_CACHE_KB = 1_024
"""Size of SQLite's page cache in KiB, half of the default. The system caches the pages as well; a
miss costs a copy."""

DELETION_KEPT_S = 90 * 24 * 3600
"""How long a deletion is recorded. Bookies collect garbage every few minutes; a bookie that was
away for longer keeps its garbage until an operator accepts that it is garbage."""
_DELETIONS_PER_PRUNING = 10_000

# No number is used twice (AUTOINCREMENT). A node's number tells its incarnations apart. A session's
# number never comes back to own the nodes of a dead session.
_SCHEMA = (
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        timeout_ms INTEGER NOT NULL)""",
    """CREATE TABLE nodes (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        path TEXT NOT NULL UNIQUE,
        parent INTEGER NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL DEFAULT 0,
        children_version INTEGER NOT NULL DEFAULT 0,
        next_sequence INTEGER NOT NULL DEFAULT 0,
        session INTEGER,
        checksum INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX nodes_by_parent ON nodes (parent, path)",
    "CREATE INDEX nodes_by_session ON nodes (session) WHERE session IS NOT NULL",
)
_GUARDS = (
    "CREATE TABLE state (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO state (name, number) VALUES ('commits', 0)",
    """CREATE TABLE deletions (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        path TEXT NOT NULL UNIQUE,
        at_s INTEGER NOT NULL)""",
)
"""Tables that exist since version 2."""
_SET_VERSION = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_LEDGER = re.compile(r"(?P<root>.*)/(?P<ledger>[0-9]{2}/[0-9]{4}/L[0-9]{4}|L[0-9]{10})")
"""Path of a ledger with a short id, in the hierarchical and in the flat layout."""
_NOW_S = "CAST(strftime('%s', 'now') AS INTEGER)"
_CHECKED = struct.Struct(">qq")


class Written(NamedTuple):
    """Result of a write: its node, and the paths whose node or children changed."""

    path: str
    version: int
    touched: tuple[str, ...]


class SqliteTree:
    """The nodes of one file. Every method blocks; all calls come from one thread."""

    def __init__(self, path: str, *, busy_timeout_s: float) -> None:
        """Open the file; create it if it is missing, and upgrade an older version.

        Raises:
            InvalidPathError: the file is something else, or of a newer version.
            MetadataDamagedError: it lacks changes that were answered, or its tables are broken.
            MetadataUnavailableError: it cannot be opened.
        """
        self._path = path
        self._is_committing = False
        self._count = CommitCount(f"{path}-end")
        self.damaged: list[str] = []
        """Paths whose nodes had a wrong checksum when the file was opened."""
        if not os.path.exists(path):
            self._check_not_lost()
        with self._translated():
            # SQLite gives the files beside this one the same mode: other users may read none of
            # them.
            self._make_private(path)
            self._connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    @staticmethod
    def _make_private(path: str) -> None:
        with suppress(OSError):  # SQLite says why it cannot be opened
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def close(self) -> None:
        self._connection.close()
        self._count.close()

    # Reads.

    def get(self, path: str) -> Versioned:
        with self._translated():
            row = self._connection.execute(
                "SELECT value, version, session, checksum FROM nodes WHERE path = ?", (path,)
            ).fetchone()
        if row is None:
            raise NoNodeError(f"{path}: there is no such node")
        value, version, session, checksum = row
        if checksum != _checksum(path, value, version, session):
            raise MetadataDamagedError(
                f"the node {path} in {self._path} is damaged: its checksum does not match. Nothing "
                f"was changed: bring the file back from a backup"
            )
        return Versioned(value=value, version=version, is_ephemeral=session is not None)

    def is_gone(self, path: str) -> bool:
        """Return whether the node is absent because it was deleted, according to the record of
        deletions."""
        with self._translated():
            if self._is_taken(path):
                return False
            if self._number("SELECT 1 FROM deletions WHERE path = ?", path) is not None:
                return True
            return self._is_unrecorded_ledger(path)

    def deleted_ms(self, path: str) -> int | None:
        """Return the end of the second of the last recorded deletion of a node at this path, in ms
        since 1970; None if there is no record."""
        with self._translated():
            at_s = self._number("SELECT at_s FROM deletions WHERE path = ?", path)
        return None if at_s is None else (at_s + 1) * 1000

    def _is_unrecorded_ledger(self, path: str) -> bool:
        """Return whether a missing node is that of a ledger which may have been deleted before
        deletions were recorded: its id is below the counter of that time."""
        found = _LEDGER.fullmatch(path)
        if found is None or not self._is_taken(f"{found['root']}/idgen"):
            return False
        unrecorded = self._number("SELECT number FROM state WHERE name = ?", "unrecorded_ids")
        ledger_id = int("".join(filter(str.isdecimal, found["ledger"])))
        return unrecorded is not None and ledger_id < unrecorded

    def version(self, path: str) -> int | None:
        with self._translated():
            return self._number("SELECT version FROM nodes WHERE path = ?", path)

    def children(self, path: str) -> list[str]:
        with self._translated(), self._read_transaction():
            number = self._number("SELECT number FROM nodes WHERE path = ?", path)
            if number is None:
                raise NoNodeError(f"{path}: there is no such node")
            # The order of the index is that of the UTF-8 bytes, which is that of Python strings.
            found = self._connection.execute(
                "SELECT path FROM nodes WHERE parent = ? ORDER BY path", (number,)
            ).fetchall()
        start = len(path) + (path != "/")
        return [child[start:] for (child,) in found]

    def views(self, paths: Iterable[str]) -> list[tuple[str, NodeView | None]]:
        """Return the present view of each node, for the watches."""
        with self._translated(), self._read_transaction():
            return [(path, self._view(path)) for path in paths]

    def change_counter(self) -> int:
        """Return SQLite's change counter. It changes when another connection commits."""
        with self._translated():
            counter: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return counter

    # Writes.

    def create(self, path: str, value: bytes, *, session: int | None, sequential: bool) -> Written:
        """Create a node and its missing parents; a session makes it ephemeral.

        Raises:
            NodeExistsError
            InvalidPathError: the parent is ephemeral.
            SessionExpiredError
        """
        if path == "/":
            raise NodeExistsError(f"{path}: the node exists already")
        with self._write_transaction():
            if session is not None:
                self._check_session(session)
            parent, touched = self._ensure(parent_path(path))
            if sequential:
                path = self._next_name(path, parent)
            elif self._is_taken(path):
                raise NodeExistsError(f"{path}: the node exists already")
            self._insert(path, parent, value, session)
        return Written(path, 0, (*touched, parent_path(path), path))

    def create_child(self, path: str, value: bytes) -> Written:
        """Create a persistent node below one that exists.

        Raises:
            NodeExistsError
            NoNodeError: the parent does not exist.
            InvalidPathError: the parent is ephemeral.
        """
        if path == "/":
            raise NodeExistsError(f"{path}: the node exists already")
        with self._write_transaction():
            if self._owner(parent_path(path)) is None:
                raise NoNodeError(f"{parent_path(path)}: there is no such node")
            parent, _ = self._ensure(parent_path(path))
            if self._is_taken(path):
                raise NodeExistsError(f"{path}: the node exists already")
            self._insert(path, parent, value, None)
        return Written(path, 0, (parent_path(path), path))

    def set(self, path: str, value: bytes, *, version: int) -> Written:
        with self._write_transaction():
            self._check_version(path, version)
            session = self._number("SELECT session FROM nodes WHERE path = ?", path)
            self._connection.execute(
                "UPDATE nodes SET value = ?, version = version + 1, checksum = ? WHERE path = ?",
                (value, _checksum(path, value, version + 1, session), path),
            )
        return Written(path, version + 1, (path,))

    def delete(self, path: str, *, version: int | None) -> Written:
        with self._write_transaction():
            number = self._check_version(path, version)
            if self._number("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", number) is not None:
                raise NotEmptyError(f"{path}: the node has children")
            if self._number("SELECT session FROM nodes WHERE path = ?", path) is None:
                self._record_deletion(path)
            self._remove(path)
        return Written(path, 0, (parent_path(path), path))

    def write_together(
        self, calls: Sequence[Callable[[], Written]]
    ) -> list[Written | MetadataError]:
        """Perform several writes in order, durable with one sync; each has its own outcome.

        Raises:
            MetadataUnavailableError: none of them was written.
            UnknownOutcomeError: either all that could succeed were written, or none.
        """
        outcomes: list[Written | MetadataError] = []
        with self._write_transaction():
            for call in calls:
                try:
                    outcomes.append(call())
                except MetadataError as error:
                    if not self._connection.in_transaction:
                        raise  # SQLite rolled all of it back, including what had succeeded
                    outcomes.append(error)
        return outcomes

    # Sessions.

    def sessions(self) -> dict[int, int]:
        """Return the session numbers and their timeouts in ms."""
        with self._translated():
            return dict(self._connection.execute("SELECT number, timeout_ms FROM sessions"))

    def has_session(self, session: int) -> bool:
        with self._translated():
            return self._number("SELECT 1 FROM sessions WHERE number = ?", session) is not None

    def create_session(self, timeout_ms: int, lock: Callable[[int], None]) -> int:
        """Create a session; `lock` marks its number as living before other processes can see it."""
        with self._write_transaction():
            cursor = self._connection.execute(
                "INSERT INTO sessions (timeout_ms) VALUES (?)", (timeout_ms,)
            )
            assert cursor.lastrowid is not None
            lock(cursor.lastrowid)
        return cursor.lastrowid

    def end_session(self, session: int, is_over: Callable[[], bool]) -> tuple[str, ...]:
        """Delete a session and its nodes, if `is_over` still holds while no other process can
        write.

        Returns the paths that were touched.
        """
        touched: list[str] = []
        with self._write_transaction():
            if not is_over():
                return ()
            paths = self._connection.execute(
                "SELECT path FROM nodes WHERE session = ?", (session,)
            ).fetchall()
            for (path,) in paths:
                self._remove(path)
                touched += (parent_path(path), path)
            self._connection.execute("DELETE FROM sessions WHERE number = ?", (session,))
        return tuple(touched)

    # Helpers.

    def _prepare(self) -> None:
        # A reader never waits for a writer, nor a writer for readers.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(f"PRAGMA cache_size = -{_PAGE_CACHE_KB}")
        application = self._connection.execute("PRAGMA application_id").fetchone()[0]
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if (application, version) == (APPLICATION_ID, SCHEMA_VERSION):
            self._check_complete()
            self._check_all()
            return
        if (application, version) == (APPLICATION_ID, 1):
            self._upgrade()
            return
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == APPLICATION_ID:
            raise InvalidPathError(
                f"{self._path} has version {version} of the metadata tables; this release reads "
                f"version {SCHEMA_VERSION}"
            )
        if tables or application:
            raise InvalidPathError(
                f"{self._path} is a SQLite file, but not a metadata store of Magnetar"
            )
        self._check_not_lost()
        with self._write_transaction():
            for statement in (*_SCHEMA, *_GUARDS):
                self._connection.execute(statement)
            self._connection.execute(
                "INSERT INTO nodes (path, parent, value, checksum) VALUES ('/', 0, x'', ?)",
                (_checksum("/", b"", 0, None),),
            )
            for statement in _SET_VERSION:
                self._connection.execute(statement)
        directory = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _check_not_lost(self) -> None:
        """Check that a file without tables never had any.

        Raises:
            MetadataDamagedError: it had some.
        """
        if answered := self._count.read():
            raise MetadataDamagedError(
                f"{self._path} is missing or empty, and had {answered} transactions: all ledgers "
                f"and topics are recorded in it. Put it back from a copy, with its -wal file if "
                f"there is one. To begin anew, remove {self._path}-end; what the bookies store is "
                f"lost then"
            )

    def _check_complete(self) -> None:
        """Check that the file holds every answered transaction.

        Raises:
            MetadataDamagedError: the file has fewer transactions than were answered.
        """
        answered = self._count.read()
        found = self._number("SELECT number FROM state WHERE name = ?", "commits")
        if found is None:
            raise MetadataDamagedError(f"{self._path} has no count of its transactions")
        if answered is not None and found < answered:
            raise MetadataDamagedError(
                f"{self._path} lacks the last {answered - found} of {answered} answered "
                f"transactions: {self._path}-wal was damaged, cut or removed, or an older copy of "
                f"the file was put back. Ledgers that they made would be unknown. Put the right "
                f"files back. To go on without these changes, remove {self._path}-end"
            )

    def _check_all(self) -> None:
        """Check structure and nodes of a file of moderate size.

        Raises:
            MetadataDamagedError: the tables are inconsistent.
        """
        if os.path.getsize(self._path) > CHECKED_BYTES_MAX:
            return
        found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise MetadataDamagedError(
                f"{self._path} is damaged: {found}. Bring it back from a backup"
            )
        rows = self._connection.execute("SELECT path, value, version, session, checksum FROM nodes")
        self.damaged = [
            path for path, *node, checksum in rows if checksum != _checksum(path, *node)
        ]

    def _upgrade(self) -> None:
        """Upgrade from version 1, which had no guards."""
        with self._write_transaction():
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version == SCHEMA_VERSION:
                return  # another process was faster
            self._connection.execute(
                "ALTER TABLE nodes ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0"
            )
            for statement in _GUARDS:
                self._connection.execute(statement)
            rows = self._connection.execute("SELECT path, value, version, session FROM nodes")
            self._connection.executemany(
                "UPDATE nodes SET checksum = ? WHERE path = ?",
                [(_checksum(*row), row[0]) for row in rows.fetchall()],
            )
            self._connection.execute(
                "INSERT INTO state (name, number) SELECT 'unrecorded_ids', max(next_sequence) "
                "FROM nodes WHERE path LIKE '%/idgen' HAVING count(*)"
            )
            for statement in _SET_VERSION:
                self._connection.execute(statement)

    def _record_deletion(self, path: str) -> None:
        cursor = self._connection.execute(
            f"INSERT OR REPLACE INTO deletions (path, at_s) VALUES (?, {_NOW_S})", (path,)
        )
        if cursor.lastrowid is not None and cursor.lastrowid % _DELETIONS_PER_PRUNING == 0:
            self._connection.execute(
                f"DELETE FROM deletions WHERE at_s < {_NOW_S} - ?", (DELETION_KEPT_S,)
            )

    def _number(self, query: str, parameter: str | int) -> int | None:
        """Return the number in the first column of the first row; None if there is no row."""
        row = self._connection.execute(query, (parameter,)).fetchone()
        if row is None:
            return None
        number: int = row[0]
        return number

    def _view(self, path: str) -> NodeView | None:
        row = self._connection.execute(
            "SELECT number, version, children_version FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else NodeView(*row)

    def _check_session(self, session: int) -> None:
        if self._number("SELECT 1 FROM sessions WHERE number = ?", session) is None:
            raise SessionExpiredError(f"session {session} of {self._path} has expired")

    def _check_version(self, path: str, version: int | None) -> int:
        """Return the number of the node.

        Raises:
            NoNodeError, BadVersionError
        """
        row = self._connection.execute(
            "SELECT number, version FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        if row is None:
            raise NoNodeError(f"{path}: there is no such node")
        number: int = row[0]
        if version is not None and row[1] != version:
            raise BadVersionError(f"{path} has version {row[1]}, expected was {version}")
        return number

    def _ensure(self, path: str) -> tuple[int, tuple[str, ...]]:
        """Return the number of a node that is to get children, creating it if missing, and the
        paths touched.

        Raises:
            InvalidPathError: the node is ephemeral.
        """
        missing: list[str] = []
        while (row := self._owner(path)) is None:
            missing.append(path)
            path = parent_path(path)
        number, session = row
        if session is not None:
            raise InvalidPathError(f"{path} is ephemeral and cannot have children")
        for each in reversed(missing):
            number = self._insert(each, number, b"", None)
        touched = (parent_path(missing[-1]), *missing) if missing else ()
        return number, touched

    def _owner(self, path: str) -> tuple[int, int | None] | None:
        """Return number and session of a node; None if it does not exist."""
        row = self._connection.execute(
            "SELECT number, session FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def _insert(self, path: str, parent: int, value: bytes, session: int | None) -> int:
        cursor = self._connection.execute(
            "INSERT INTO nodes (path, parent, value, session, checksum) VALUES (?, ?, ?, ?, ?)",
            (path, parent, value, session, _checksum(path, value, 0, session)),
        )
        self._connection.execute(
            "UPDATE nodes SET children_version = children_version + 1 WHERE number = ?", (parent,)
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _remove(self, path: str) -> None:
        self._connection.execute("DELETE FROM nodes WHERE path = ?", (path,))
        self._connection.execute(
            "UPDATE nodes SET children_version = children_version + 1 WHERE path = ?",
            (parent_path(path),),
        )

    def _is_taken(self, path: str) -> bool:
        return self._number("SELECT 1 FROM nodes WHERE path = ?", path) is not None

    def _next_name(self, path: str, parent: int) -> str:
        """Return the path with the next free number; skip names that were created without the
        counter."""
        while self._is_taken(name := f"{path}{self._take_sequence(parent):0{SEQUENCE_DIGITS}d}"):
            pass
        return name

    def _take_sequence(self, parent: int) -> int:
        sequence = self._number("SELECT next_sequence FROM nodes WHERE number = ?", parent)
        assert sequence is not None
        self._connection.execute(
            "UPDATE nodes SET next_sequence = next_sequence + 1 WHERE number = ?", (parent,)
        )
        return sequence

    @contextmanager
    def _read_transaction(self) -> Iterator[None]:
        """Run several queries on one state of the file."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        """Run a transaction, all or nothing; it is durable when the outermost one ends without an
        error."""
        with self._translated():
            if self._connection.in_transaction:
                with self._savepoint():
                    yield
                return
            # Take the write lock at once: a transaction that reads first, while another process
            # writes, could only fail.
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._connection.total_changes
            count: int | None = None
            try:
                yield
                if self._connection.total_changes != before:
                    count = self._count_transaction()
                self._is_committing = True
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            if count is not None:
                self._count.write(count)

    def _count_transaction(self) -> int:
        count: int = self._connection.execute(
            "UPDATE state SET number = number + 1 WHERE name = 'commits' RETURNING number"
        ).fetchone()[0]
        return count

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Run a part of a transaction, which is undone if it fails."""
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO part")
                self._connection.execute("RELEASE part")
            raise
        self._connection.execute("RELEASE part")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        self._is_committing = False
        try:
            yield
        except sqlite3.OperationalError as exc:
            # The low byte is the primary code. A busy commit, and one whose pages found no room,
            # certainly did nothing: the connection rolls back, and no commit record is in the log.
            did_nothing = exc.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)
            if self._is_committing and not did_nothing:
                raise UnknownOutcomeError(f"commit to {self._path}: {exc}") from exc
            raise MetadataUnavailableError(f"{self._path}: {exc}") from exc
        except sqlite3.DatabaseError as exc:
            if exc.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise InvalidPathError(
                    f"{self._path} is not a SQLite file: bring it back from a backup, or give "
                    "another"
                ) from exc
            raise MetadataDamagedError(
                f"{self._path} is damaged: {exc}. Bring it back from a backup"
            ) from exc


def _checksum(path: str, value: bytes, version: int, session: int | None) -> int:
    """Return the CRC32C over the path in UTF-8, a zero byte, version and session (-1 for none) as
    int64 big-endian, and the value."""
    head = path.encode() + b"\0" + _CHECKED.pack(version, -1 if session is None else session)
    checksum: int = google_crc32c.extend(google_crc32c.value(head), value)
    return checksum
