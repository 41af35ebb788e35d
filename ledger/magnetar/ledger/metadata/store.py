"""The metadata store: a small tree of nodes with versions, watches and sessions.

Both stores (`embedded.py`, `zookeeper.py`) keep these promises, and one contract test suite checks
them:

- A path is absolute: "/", or "/" before each name; a name is not empty, ".", "..", and holds no
  control characters. A node has a value (bytes, possibly empty), a version and children.
- The version is 0 when the node is created and grows by one with every `set`. A node that was
  deleted and created again starts at 0: whoever must tell the two apart puts a token into the
  value.
- `set` and `delete` compare and act in one step. All changes of one store handle happen in the
  order of the calls, and a read by the same handle sees every change that the handle made before
  it.
- An *ephemeral* node has no children and goes when its session ends: when the store is closed, or
  when its owner was not heard of for the session timeout.
- A *sequential* node gets ten decimal digits behind its name, from a counter that its parent keeps
  and that never goes back while the parent lives. Gaps are normal; a name that somebody took
  without asking for a number is passed over.
- A write either happens or raises. `UnknownOutcomeError` says that nobody knows: read again and
  compare. `MetadataUnavailableError` says that nothing was changed. A cancelled write is unknown
  too.
- A write that waits for a connection is not done in a later session than the one that it was asked
  for in: a version that was read under a lease may mean another node by then.
- A watch is persistent and may be late or merge events, but after the last change of a node there
  is an event that was not there before it. Treat an event as "look again", never as the news
  itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from magnetar.ledger.errors import InvalidPathError, ValueTooLargeError

VALUE_BYTES_MAX = 1_000_000
"""Largest value of a node. ZooKeeper drops the connection of whoever sends more than 1 MiB."""

PATH_BYTES_MAX = 4_096
"""Longest path, in UTF-8 bytes."""

SEQUENCE_DIGITS = 10
"""Digits that a sequential node's name ends with."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node's value and the version to base the next `set` on."""

    value: bytes
    version: int
    is_ephemeral: bool = False
    """Whether it goes with somebody's session."""
    created_ms: int | None = field(default=None, compare=False)
    """When it was created, by the store's own clock, in ms since 1970; None: the store keeps no
    times."""


class SessionState(Enum):
    """How the store sees its session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No contact. The session may have expired already without this process knowing: whoever holds
    a lease counts the time since the last contact by its own clock."""
    EXPIRED = "expired"
    """The session and its ephemeral nodes are gone. CONNECTED follows when there is a new one."""


class WatchEvent(Enum):
    """What happened to a watched node; several events may arrive as one."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


WatchCallback = Callable[[WatchEvent], None]
SessionCallback = Callable[[SessionState], None]


class Watch(Protocol):
    """A watch on one path."""

    def close(self) -> None:
        """No more events from now on. Closing twice is fine."""
        ...


class MetadataStore(Protocol):
    """A handle on the metadata store. Belongs to the event loop that opened it.

    Every call may raise `MetadataUnavailableError` when the store does not answer within the
    operation timeout of the settings, and `InvalidPathError` for a path that breaks the rules.
    Every write may raise `UnknownOutcomeError`. After `close` every call raises
    `MetadataUnavailableError`.
    """

    @property
    def session_state(self) -> SessionState: ...

    @property
    def session_timeout_ms(self) -> int:
        """After this long without contact the ephemeral nodes may be gone."""
        ...

    async def get(self, path: str) -> Versioned:
        """
        Raises:
            NoNodeError
        """
        ...

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node, and its missing parents as persistent nodes without value.

        Returns the path of the new node: with its digits, if it is sequential.

        Raises:
            NodeExistsError: never if sequential.
            ValueTooLargeError
            InvalidPathError: also when the parent is ephemeral.
        """
        ...

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        """Replace the value if the node still has `version`; returns the new version.

        Raises:
            BadVersionError, NoNodeError, ValueTooLargeError
        """
        ...

    async def delete(self, path: str, *, version: int | None = None) -> None:
        """Delete a node without children; with a version only if the node still has it.

        Raises:
            NoNodeError, BadVersionError, NotEmptyError
        """
        ...

    async def exists(self, path: str) -> int | None:
        """The version of the node, or None if there is none."""
        ...

    async def children(self, path: str) -> list[str]:
        """Names of the children, sorted.

        Raises:
            NoNodeError
        """
        ...

    @property
    def records_deletions(self) -> bool:
        """Whether `is_gone` goes by a record of deletions, not by absence alone."""
        ...

    async def is_gone(self, path: str) -> bool:
        """Whether the node is not there because it was deleted.

        A store of several servers answers by its absence. A store of one file records deletions:
        there a node that is missing without a record was lost, and nothing may be done on the
        word of its absence.
        """
        ...

    async def catch_up(self) -> None:
        """What is read after this has every write that anybody had finished before it.

        A read alone may be answered by a server that is behind the others. Who draws a conclusion
        from the absence of something that another client wrote has to catch up first.
        """
        ...

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call back on the loop when the node or the list of its children changes.

        The node need not exist. Changes that happen after a later read by this handle are never
        missed: first watch, then read. After a lost contact there may be an event without a change.
        """
        ...

    def on_session_change(self, callback: SessionCallback) -> Watch:
        """Call back on the loop with every new session state, until the result is closed."""
        ...

    async def close(self) -> None:
        """End the session, delete its ephemeral nodes. Closing twice is fine."""
        ...


def check_path(path: str) -> None:
    """
    Raises:
        InvalidPathError: the path breaks the rules at the top of this file.
    """
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/"):
        raise InvalidPathError(f"a path starts with / and does not end with it: {path!r}")
    for name in path[1:].split("/"):
        if name in ("", ".", "..") or not name.isprintable():
            raise InvalidPathError(f"bad name {name!r} in the path {path!r}")
    if len(path.encode("utf-8", "replace")) > PATH_BYTES_MAX:
        raise InvalidPathError(f"a path has at most {PATH_BYTES_MAX} bytes: {path[:80]!r}...")


def check_new_path(path: str, *, sequential: bool) -> None:
    """Check the path of a node to be created. A sequential node's path may end with "/": its name
    is then the digits alone."""
    check_path(path[:-1] if sequential and path.endswith("/") and path != "/" else path)


def check_value(path: str, value: bytes) -> None:
    """
    Raises:
        ValueTooLargeError
    """
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(
            f"the value of {path} has {len(value)} bytes, allowed are {VALUE_BYTES_MAX}"
        )


def parent_path(path: str) -> str:
    """The path of the node above; "/" is above the top level."""
    return path[: path.rindex("/")] or "/"


def join_path(parent: str, name: str) -> str:
    """The path of a child."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
