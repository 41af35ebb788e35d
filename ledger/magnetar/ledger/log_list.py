"""The ledger list of a log in the metadata store: read once, then changed by compare-and-set only.

The owner keeps the node's version. A change by anybody else means that the log has another owner
(rule 1.1). An update whose outcome is unknown, or whose call was cancelled, is remembered: before
anything else is decided, the node is read back and compared (rule 1.3). As long as the node has the
version that an update was based on, the update may still happen.

Source: managed ledger, section 1.
"""

import asyncio
from collections.abc import Mapping, Sequence

from magnetar.ledger.errors import (
    BadVersionError,
    LogFencedError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.metadata.store import MetadataStore


class LogList:
    """The node of one log, as its owner knows it."""

    def __init__(self, store: MetadataStore, path: str, *, properties: Mapping[str, str]) -> None:
        self._store = store
        self._path = path
        self._metadata = LogMetadata(properties=dict(properties))
        self._version = -1
        self._unresolved: list[bytes] = []
        """Updates based on `_version` that may have happened, or may yet."""
        self._lock = asyncio.Lock()

    @property
    def ledgers(self) -> tuple[LogLedger, ...]:
        return self._metadata.ledgers

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._metadata.properties)

    @property
    def is_resolved(self) -> bool:
        """Whether the node is certainly as we know it, or somebody else's."""
        return not self._unresolved

    async def load(self) -> None:
        """Read the node; create it, empty, if there is none.

        Raises:
            InvalidLedgerMetadataError: what is there is no ledger list.
            MetadataError
        """
        while True:
            try:
                node = await self._store.get(self._path)
            except NoNodeError:
                try:
                    await self._store.create(self._path, self._metadata.to_json())
                except (NodeExistsError, UnknownOutcomeError):
                    pass  # somebody's is there, perhaps our own: read it
            else:
                self._adopt(LogMetadata.from_json(node.value, path=self._path), node.version)
                return

    async def update(self, ledgers: Sequence[LogLedger]) -> None:
        """Set the ledgers, by compare-and-set on the version we know.

        Raises:
            LogFencedError: somebody else changed the list: we no longer own the log (rule 1.1).
            MetadataError: whether it happened is not known, or it did not; call again.
        """
        async with self._lock:
            metadata = self._metadata.with_ledgers(ledgers)
            value = metadata.to_json()
            if self._unresolved and await self._resolve() == value:
                return
            while True:
                # Noted before the call: one that is cancelled may have happened as well.
                self._unresolved.append(value)
                try:
                    version = await self._store.set(self._path, value, version=self._version)
                except MetadataUnavailableError:
                    self._unresolved.pop()  # nothing was changed
                    raise
                except (UnknownOutcomeError, BadVersionError, NoNodeError):
                    # A conflict may be with our own earlier update, when that came late (D26).
                    if await self._resolve() == value:
                        return
                else:
                    self._adopt(metadata, version)
                    return

    async def _resolve(self) -> bytes | None:
        """Find out whether an unresolved update happened; returns it if one did.

        None means that none has happened so far. Each still may, as long as the node has the
        version they were based on.

        Raises:
            LogFencedError: the list is somebody else's; none of ours can happen any more.
        """
        try:
            node = await self._store.get(self._path)
        except NoNodeError as error:
            self._unresolved = []
            raise LogFencedError(f"{self._path}: the log was deleted") from error
        if node.version == self._version:
            return None
        if node.value not in self._unresolved:
            self._unresolved = []
            raise LogFencedError(f"{self._path}: another owner changed the ledger list")
        self._adopt(LogMetadata.from_json(node.value, path=self._path), node.version)
        return node.value

    def _adopt(self, metadata: LogMetadata, version: int) -> None:
        self._metadata, self._version = metadata, version
        self._unresolved = []

    async def check_unchanged(self) -> None:
        """
        Raises:
            LogFencedError: somebody changed the list since we read it.
        """
        try:
            node = await self._store.get(self._path)
        except NoNodeError as error:
            raise LogFencedError(f"{self._path}: the log was deleted") from error
        if node.version != self._version:
            raise LogFencedError(f"{self._path}: another owner changed the ledger list")

    async def delete(self) -> None:
        """Remove the node, if it is still ours.

        Raises:
            NotEmptyError: cursors are left below it.
            MetadataError
        """
        await self._store.delete(self._path, version=self._version)
