"""The metadata store: a small tree of nodes with versions, watches and sessions.

Both stores (`embedded.py`, `zookeeper.py`) keep these promises, and one contract test suite checks
them:

- A path is absolute: "/", or "/" before each name; a name is not empty, ".", "..", and holds no
  control characters. A node has a value (bytes, possibly empty), a version and children.
- The version is 0 when the node is created and grows by one with every `set`. A node that was
  deleted and created again starts at 0: a caller that must tell the two apart puts a token into
  the value.
- `set` and `delete` compare and act in one step. All changes of one store handle happen in the
  order of the calls, and a read by the same handle sees every change that the handle made before
  it.
- An *ephemeral* node has no children. It is deleted when its session ends: when the store is
  closed, or when its owner was silent for the session timeout.
- A *sequential* node gets ten decimal digits appended to its name, from a counter that its parent
  keeps and that never goes back while the parent lives. Gaps are normal. The store skips a name
  that a client created without the counter.
- A write either happens or raises. `UnknownOutcomeError` says that the outcome is unknown: read
  again and compare. `MetadataUnavailableError` says that nothing was changed. The outcome of a
  cancelled write is unknown too.
- A write that waits for a connection is never sent in a later session than the one that it was
  requested in: a version that was read under a lease may mean another node by then.
- A watch is persistent. It may be late and may merge events, but the last change of a node is
  always followed by an event. Treat an event as "look again", never as the news itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from magnetar.ledger.errors import InvalidPathError, ValueTooLargeError

VALUE_BYTES_MAX = 1_000_000
"""Largest value of a node, in bytes. ZooKeeper drops the connection of a client that sends more
than 1 MiB.
"""

PATH_BYTES_MAX = 4_096
"""Longest path, in UTF-8 bytes."""

SEQUENCE_DIGITS = 10
"""Number of digits at the end of a sequential node's name."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node's value and the version to base the next `set` on."""

    value: bytes
    version: int
    is_ephemeral: bool = False
    """Whether the node is deleted when a session ends."""
    created_ms: int | None = field(default=None, compare=False)
    """Creation time by the store's clock, in ms since 1970; None if the store keeps no times."""


class SessionState(Enum):
    """State of a store's session, as the store sees it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No contact. The session may have expired already without this process knowing: the holder of
    a lease measures the time since the last contact by its own clock."""
    EXPIRED = "expired"
    """The session and its ephemeral nodes are gone. CONNECTED follows with a new session."""


class WatchEvent(Enum):
    """Kind of change of a watched node; several events may arrive as one."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


WatchCallback = Callable[[WatchEvent], None]
SessionCallback = Callable[[SessionState], None]


class Watch(Protocol):
    """A watch on one path."""

    def close(self) -> None:
        """Stop the delivery of events. Closing twice is fine."""
        ...


class MetadataStore(Protocol):
    """A handle on the metadata store. Belongs to the event loop that opened it.

    Every call may raise `MetadataUnavailableError` when the store does not answer within the
    operation timeout of the settings, and `InvalidPathError` for a path that breaks the rules.
    Every write may raise `UnknownOutcomeError`. A write without a connection waits up to one
    operation timeout for it, then up to another one for the answer: a write that is sent with
    little time left would only turn "unavailable" into "outcome unknown". After `close` every call
    raises `MetadataUnavailableError`.
    """

    @property
    def session_state(self) -> SessionState: ...

    @property
    def session_timeout_ms(self) -> int:
        """Time without contact, in ms, after which the ephemeral nodes may be gone."""
        ...

    async def get(self, path: str) -> Versioned:
        """Return the value and version of a node.

        Raises:
            NoNodeError
        """
        ...

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node, and its missing parents as persistent nodes without value.

        Returns the path of the new node, including the digits of a sequential one.

        Raises:
            NodeExistsError: never if sequential.
            ValueTooLargeError
            InvalidPathError: also when the parent is ephemeral.
        """
        ...

    async def create_child(self, path: str, value: bytes = b"") -> str:
        """Create a persistent node below one that exists; return its path.

        For a node that must not outlive its parent: `create` would bring back a parent that was
        deleted at this moment, without its value.

        Raises:
            NoNodeError: the parent does not exist.
            NodeExistsError, ValueTooLargeError
            InvalidPathError: also when the parent is ephemeral.
        """
        ...

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        """Replace the value if the node still has `version`; return the new version.

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
        """Return the version of the node, or None if there is no such node."""
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names of the children, sorted.

        Raises:
            NoNodeError
        """
        ...

    @property
    def records_deletions(self) -> bool:
        """Whether `is_gone` relies on a record of deletions rather than on absence alone."""
        ...

    async def is_gone(self, path: str) -> bool:
        """Return whether the node is absent because it was deleted.

        A store of several servers decides by absence. A store of one file records deletions: a node
        that is missing there without a record was lost, and nothing may be done because of its
        absence.
        """
        ...

    async def deleted_ms(self, path: str) -> int | None:
        """Return when a node at this path was last deleted, in ms since 1970, whether or not there
        is one now; None if no deletion is recorded, or the store records none."""
        ...

    async def catch_up(self) -> None:
        """Make later reads include every write that any client finished before this call.

        A server that is behind the others may answer a plain read. A caller that draws a conclusion
        from the absence of something that another client wrote must catch up first.
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
        """End the session and delete its ephemeral nodes. Closing twice is fine."""
        ...


def check_path(path: str) -> None:
    """Check a path against the rules of the store.

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
    """Check the path of a node to be created. The path of a sequential node may end with "/": its
    name then consists of the digits alone."""
    check_path(path[:-1] if sequential and path.endswith("/") and path != "/" else path)


def check_value(path: str, value: bytes) -> None:
    """Check the size of a value.

    Raises:
        ValueTooLargeError
    """
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(
            f"the value of {path} has {len(value)} bytes, allowed are {VALUE_BYTES_MAX}"
        )


def parent_path(path: str) -> str:
    """Return the path of the parent node; "/" is the parent of the top level."""
    return path[: path.rindex("/")] or "/"


def join_path(parent: str, name: str) -> str:
    """Return the path of a child."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
