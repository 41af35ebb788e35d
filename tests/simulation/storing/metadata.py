"""The metadata store of one simulated bookie: it never fails, and outlives every process."""

from magnetar.ledger.errors import BadVersionError, NoNodeError
from magnetar.ledger.metadata.store import Versioned
from tests.dictionary_store import DictionaryStore


class Metadata(DictionaryStore):
    """A dictionary with versions; what sessions made can be taken away."""

    def __init__(self) -> None:
        super().__init__()
        self._versions: dict[str, int] = {}
        self._ephemeral: set[str] = set()

    def copy(self) -> "Metadata":
        """As a new process finds it: the session of the one before is over."""
        copy = Metadata()
        copy.nodes = {
            path: value for path, value in self.nodes.items() if path not in self._ephemeral
        }
        copy._versions = dict(self._versions)
        copy._numbers = dict(self._numbers)
        return copy

    async def get(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NoNodeError(path)
        return Versioned(self.nodes[path], self._versions.get(path, 0))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        path = await super().create(path, value, sequential=sequential)
        self._versions[path] = 0
        if ephemeral:
            self._ephemeral.add(path)
        return path

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if (await self.get(path)).version != version:
            raise BadVersionError(path)
        self.nodes[path] = value
        self._versions[path] = version + 1
        return version + 1
