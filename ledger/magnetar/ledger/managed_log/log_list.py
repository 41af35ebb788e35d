"""The ledger list of a log in the metadata store: read once, then changed by compare-and-set only.

The owner keeps the node's version, and its value: a log that was deleted and made again may have
come to the same version. A change by anybody else means that the log has another owner (rule 1.1).
An update whose outcome is unknown, or whose call was cancelled, is remembered: before anything else
is decided, the node is read back and compared (rule 1.3). As long as the node is what an update was
based on, the update may still happen.

An update is a function from the list as it is to the list as it should be. It runs inside the lock,
and again whenever an earlier update of ours turns out to have happened; so what it decides is never
based on a list that has moved on.

Source: managed ledger, section 1.
"""

import asyncio
import random
from collections.abc import Callable, Mapping

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidLedgerMetadataError,
    LogExistsError,
    LogFencedError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLogError,
    UnknownOutcomeError,
    ValueTooLargeError,
)
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import ObjectBase
from magnetar.ledger.metadata.cell import Cell, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore, Versioned
from magnetar.ledger.position import Position

ATTEMPTS_MAX = 5
"""Writes of one update that may end with an unknown outcome before the caller hears of it."""

_TOKEN_MAX = (1 << 63) - 1
_TAKEN_OVER = "close this handle, and open the log again only if it should still be yours"

Change = Callable[[LogMetadata], LogMetadata]


class LogList:
    """The node of one log, as its owner knows it."""

    def __init__(self, store: MetadataStore, path: str, *, properties: Mapping[str, str]) -> None:
        self._store = store
        self._path = path
        self._metadata = LogMetadata(properties=dict(properties))
        self._version = -1
        self._value = b""
        self._unresolved: list[bytes] = []
        """Updates based on `_version` that may have happened, or may yet; each once."""
        self._lock = asyncio.Lock()

    @property
    def ledgers(self) -> tuple[LogLedger, ...]:
        return self._metadata.ledgers

    @property
    def node(self) -> tuple[LogMetadata, int]:
        """The node's value and version as they were last read or written, together."""
        return self._metadata, self._version

    @property
    def terminated(self) -> Position | None:
        """Where the log ends for good; None while it takes appends."""
        return self._metadata.terminated

    @property
    def removed_through(self) -> int:
        """The last ledger that a shrink removed; -1 if none did."""
        return self._metadata.removed_through

    @property
    def object_bases(self) -> tuple[ObjectBase, ...]:
        """What keys of the ledgers' objects begin with, by the index that they name."""
        return self._metadata.object_bases

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._metadata.properties)

    @property
    def is_resolved(self) -> bool:
        """Whether the node is certainly as we know it, or somebody else's."""
        return not self._unresolved

    async def create(self, rng: random.Random) -> None:
        """Create the node, which must not exist.

        Raises:
            LogExistsError: there is one already.
            MetadataError: whether it was created is not known, or it was not.
        """
        token = rng.randint(1, _TOKEN_MAX)
        metadata = LogMetadata(properties=self._metadata.properties, creation_token=token)
        value = metadata.to_json()
        # The token tells ours from another's, also when the answer to the creation was lost.
        if not await self._cell().create(value):
            raise LogExistsError(
                f"{self._path}: there is a log already; open it, or choose another path"
            )
        self._adopt(metadata, 0, value)

    async def load(self, *, may_create: bool = True) -> None:
        """Read the node; create it, empty, if there is none and `may_create`.

        Raises:
            NoSuchLogError: there is none.
            InvalidLedgerMetadataError: what is there is no ledger list.
            MetadataError
        """
        cell = self._cell()
        found = (await cell.have(self._metadata.to_json()))[0] if may_create else await cell.read()
        if found is None or found.value is None:
            raise NoSuchLogError(f"{self._path}: there is no log; create it, or check the path")
        self._adopt_node(Versioned(found.value, found.version))

    def _cell(self) -> Cell[bytes]:
        return bytes_cell(self._store, self._path, tries_max=ATTEMPTS_MAX)

    async def update(self, change: Change) -> None:
        """Set the list to `change(list)`, by compare-and-set on the version we know.

        `change` must be made so that applying it twice is applying it once.

        Raises:
            LogFencedError: somebody else changed the list: we no longer own the log (rule 1.1).
            InvalidLedgerMetadataError: no owner could read that list again; it was not written.
            MetadataError: whether it happened is not known, or it did not; call again.
        """
        async with self._lock:
            if self._unresolved:
                await self._resolve()
            for _ in range(ATTEMPTS_MAX):
                metadata = change(self._metadata)
                if metadata == self._metadata and not self._unresolved:
                    return  # an earlier update of ours did it
                if await self._try_set(metadata):
                    return
            raise UnknownOutcomeError(
                f"{self._path}: the outcome of {ATTEMPTS_MAX} updates of the ledger list is unknown"
            )

    async def _try_set(self, metadata: LogMetadata) -> bool:
        """One write. False: it did not happen so far, or the list is now another one of ours."""
        if metadata.problem is not None:
            raise InvalidLedgerMetadataError(
                f"{self._path}: {metadata.problem}. The list was not written: this is a bug; the "
                f"log can be used as before"
            )
        value = metadata.to_json()
        is_first = value not in self._unresolved
        if is_first:
            # Noted before the call: one that is cancelled may have happened as well.
            self._unresolved.append(value)
        try:
            version = await self._store.set(self._path, value, version=self._version)
        except (MetadataUnavailableError, ValueTooLargeError):
            if is_first:
                self._unresolved.remove(value)  # nothing was changed
            raise
        except (UnknownOutcomeError, BadVersionError, NoNodeError):
            # A conflict may be with our own earlier update, when that came late (D26).
            return await self._resolve() == value
        self._adopt(metadata, version, value)
        return True

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
            raise LogFencedError(f"{self._path}: the log was deleted; close this handle") from error
        if self._is_as_known(node):
            return None
        if node.version == self._version or node.value not in self._unresolved:
            self._unresolved = []
            raise self._why_changed(node.value)
        self._adopt_node(node)
        return node.value

    def _is_as_known(self, node: Versioned) -> bool:
        return (node.version, node.value) == (self._version, self._value)

    def _adopt_node(self, node: Versioned) -> None:
        metadata = LogMetadata.from_json(node.value, path=self._path)
        self._adopt(metadata, node.version, node.value)

    def _adopt(self, metadata: LogMetadata, version: int, value: bytes) -> None:
        self._metadata, self._version, self._value = metadata, version, value
        self._unresolved = []

    async def check_owned(self) -> None:
        """Look whether the list is still as we know it: nobody took it over by now.

        Raises:
            LogFencedError: somebody changed it.
            MetadataError: that cannot be told now.
        """
        async with self._lock:
            if self._unresolved:
                await self._resolve()
            await self.check_unchanged()

    async def check_unchanged(self) -> None:
        """
        Raises:
            LogFencedError: somebody changed the list since we read it.
        """
        try:
            node = await self._store.get(self._path)
        except NoNodeError as error:
            raise LogFencedError(f"{self._path}: the log was deleted; close this handle") from error
        if not self._is_as_known(node):
            raise self._why_changed(node.value)

    def _why_changed(self, value: bytes) -> LogFencedError:
        """What to say of a list that is no longer ours."""
        try:
            LogMetadata.from_json(value, path=self._path)
        except InvalidLedgerMetadataError as error:
            return LogFencedError(
                f"{self._path}: the ledger list was overwritten with a value that this release "
                "cannot use; close this handle, and open the log again when that is settled: "
                f"{error}"
            )
        return LogFencedError(f"{self._path}: another owner changed the ledger list; {_TAKEN_OVER}")

    async def delete(self) -> None:
        """Remove the node, if it is still ours. One that is gone already was removed by an earlier
        call whose answer was lost, or by somebody who wanted the same.

        Raises:
            NotEmptyError: cursors are left below it.
            MetadataError
        """
        try:
            await self._store.delete(self._path, version=self._version)
        except NoNodeError:
            pass
