"""A metadata store on one dictionary, for tests of its content, not of stores."""

from magnetar.ledger.errors import BadVersionError, NodeExistsError, NoNodeError
from magnetar.ledger.metadata.store import (
    SEQUENCE_DIGITS,
    SessionCallback,
    SessionState,
    Versioned,
    Watch,
    WatchCallback,
)


class _NoWatch:
    def close(self) -> None: ...


class DictionaryStore:
    """The part of a metadata store that registrations and listings need; it keeps no versions."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.lost: set[str] = set()
        """Paths of nodes that nobody deleted, and that are missing from a store of one file."""
        self.deleted: dict[str, int] = {}
        """Recorded deletions, ms since 1970, if `records_deletions` is set."""
        self._numbers: dict[str, int] = {}
        """Next number of sequential nodes, by the path that they begin with."""
        self.session_state = SessionState.CONNECTED
        self.session_timeout_ms = 1000

    async def get(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NoNodeError(path)
        return Versioned(self.nodes[path], 0)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        if sequential:
            number = self._numbers.get(path, 0)
            self._numbers[path] = number + 1
            path += f"{number:0{SEQUENCE_DIGITS}d}"
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = value
        return path

    async def create_child(self, path: str, value: bytes = b"") -> str:
        """Create a node. Parents are not checked: this store keeps none that have no value."""
        return await self.create(path, value)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        raise AssertionError("registrations are replaced, not set")

    async def delete(self, path: str, *, version: int | None = None) -> None:
        if self.nodes.pop(path, None) is None:
            raise NoNodeError(path)

    async def exists(self, path: str) -> int | None:
        return 0 if path in self.nodes else None

    async def children(self, path: str) -> list[str]:
        below = {
            name[len(path) + 1 :].partition("/")[0]
            for name in self.nodes
            if name.startswith(f"{path}/")
        }
        if not below:
            raise NoNodeError(path)
        return sorted(below)

    records_deletions = False

    async def is_gone(self, path: str) -> bool:
        return await self.exists(path) is None and path not in self.lost

    async def deleted_ms(self, path: str) -> int | None:
        return self.deleted.get(path)

    async def catch_up(self) -> None:
        """Do nothing: this store is never behind."""

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        return _NoWatch()

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return _NoWatch()

    async def close(self) -> None: ...


class VersionedDictionaryStore(DictionaryStore):
    """A dictionary whose nodes can be replaced by comparing versions."""

    def __init__(self) -> None:
        super().__init__()
        self._versions: dict[str, int] = {}

    async def get(self, path: str) -> Versioned:
        return Versioned((await super().get(path)).value, self._versions.get(path, 0))

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if (await self.get(path)).version != version:
            raise BadVersionError(path)
        self.nodes[path] = value
        self._versions[path] = version + 1
        return version + 1

    async def delete(self, path: str, *, version: int | None = None) -> None:
        if version not in (None, (await self.get(path)).version):
            raise BadVersionError(path)
        await super().delete(path)
        self._versions.pop(path, None)
