"""The metadata store's tree in memory: nodes, versions, sequences, sessions. No faults here."""

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from magnetar.ledger.metadata.store import SEQUENCE_DIGITS, Versioned, join_path, parent_path
from magnetar.ledger.metadata.watches import NodeView


class _Node:
    __slots__ = (
        "children",
        "children_version",
        "incarnation",
        "next_sequence",
        "session",
        "value",
        "version",
    )

    def __init__(self, incarnation: int, value: bytes, session: int | None) -> None:
        self.incarnation = incarnation
        self.value = value
        self.session = session
        self.version = 0
        self.children: dict[str, None] = {}
        self.children_version = 0
        self.next_sequence = 0


class Tree:
    """One tree, shared by all handles of a run. Each change is one step."""

    def __init__(self) -> None:
        self._nodes = {"/": _Node(0, b"", None)}
        self._incarnations = 0
        self.sessions: dict[int, None] = {}
        self._next_session = 1

    def get(self, path: str) -> Versioned:
        node = self._find(path)
        return Versioned(node.value, node.version, node.session is not None)

    def version(self, path: str) -> int | None:
        node = self._nodes.get(path)
        return None if node is None else node.version

    def children(self, path: str) -> list[str]:
        return sorted(self._find(path).children)

    def view(self, path: str) -> NodeView | None:
        node = self._nodes.get(path)
        if node is None:
            return None
        return NodeView(node.incarnation, node.version, node.children_version)

    def paths(self) -> list[str]:
        """All nodes, sorted."""
        return sorted(self._nodes)

    def create(
        self, path: str, value: bytes, *, session: int | None, sequential: bool
    ) -> tuple[str, list[str]]:
        """Returns the path of the new node and the paths that were touched."""
        if path == "/":
            raise NodeExistsError(path)
        if session is not None and session not in self.sessions:
            raise SessionExpiredError(f"session {session} has expired")
        touched: list[str] = []
        parent = self._ensure(parent_path(path), touched)
        if sequential:
            while (name := f"{path}{parent.next_sequence:0{SEQUENCE_DIGITS}d}") in self._nodes:
                parent.next_sequence += 1
            path = name
            parent.next_sequence += 1
        elif path in self._nodes:
            raise NodeExistsError(path)
        self._insert(path, value, session)
        return path, [*touched, parent_path(path), path]

    def create_child(self, path: str, value: bytes) -> tuple[str, list[str]]:
        """Create a node below one that exists; returns what `create` does."""
        self._find(parent_path(path))
        return self.create(path, value, session=None, sequential=False)

    def set(self, path: str, value: bytes, *, version: int) -> int:
        node = self._check_version(path, version)
        node.value = value
        node.version += 1
        return node.version

    def delete(self, path: str, *, version: int | None) -> list[str]:
        node = self._check_version(path, version)
        if node.children:
            raise NotEmptyError(path)
        self._remove(path)
        return [parent_path(path), path]

    def start_session(self) -> int:
        number, self._next_session = self._next_session, self._next_session + 1
        self.sessions[number] = None
        return number

    def end_session(self, session: int) -> list[str]:
        """Remove the session and its nodes; returns what was touched."""
        if session not in self.sessions:
            return []
        del self.sessions[session]
        touched: list[str] = []
        for path in [path for path, node in self._nodes.items() if node.session == session]:
            self._remove(path)
            touched += (parent_path(path), path)
        return touched

    def _find(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def _check_version(self, path: str, version: int | None) -> _Node:
        node = self._find(path)
        if version is not None and node.version != version:
            raise BadVersionError(f"{path} has version {node.version}, expected was {version}")
        return node

    def _ensure(self, path: str, touched: list[str]) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            self._ensure(parent_path(path), touched)
            node = self._insert(path, b"", None)
            touched += (parent_path(path), path)
        if node.session is not None:
            raise InvalidPathError(f"{path} is ephemeral and cannot have children")
        return node

    def _insert(self, path: str, value: bytes, session: int | None) -> _Node:
        self._incarnations += 1
        node = self._nodes[path] = _Node(self._incarnations, value, session)
        parent = self._nodes[parent_path(path)]
        parent.children[path.rpartition("/")[2]] = None
        parent.children_version += 1
        assert join_path(parent_path(path), path.rpartition("/")[2]) == path
        return node

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        parent = self._nodes[parent_path(path)]
        del parent.children[path.rpartition("/")[2]]
        parent.children_version += 1
