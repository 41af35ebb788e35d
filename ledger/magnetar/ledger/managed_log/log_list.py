"""The ledger list of a log in the metadata store: read once, then changed by compare-and-set only.

The owner keeps the node's version and its value: a log that was deleted and made again may have
reached the same version. A change by any other client means that the log has another owner (rule
1.1). An update with an unknown outcome, or a cancelled one, is remembered. Before the next
decision, the node is read back and compared (rule 1.3). While the node is unchanged since the
update was computed, the update may still happen.

An update is a function from the present list to the new one. It runs inside the lock, and again
whenever an earlier update of this owner turns out to have happened. So its decisions are never
based on an outdated list.

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
"""Writes of one update that may end with an unknown outcome before the update fails."""

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
        """Updates based on `_version` that may have happened, or may still happen; each once."""
        self._lock = asyncio.Lock()

    @property
    def ledgers(self) -> tuple[LogLedger, ...]:
        return self._metadata.ledgers

    @property
    def node(self) -> tuple[LogMetadata, int]:
        """Value and version of the node as they were last read or written, together."""
        return self._metadata, self._version

    @property
    def terminated(self) -> Position | None:
        """Position where the log ends for good; None while it takes appends."""
        return self._metadata.terminated

    @property
    def removed_through(self) -> int:
        """The last ledger that a shrink removed; -1 if none did."""
        return self._metadata.removed_through

    @property
    def object_bases(self) -> tuple[ObjectBase, ...]:
        """Prefixes of the keys of the ledgers' objects, by the index that the objects name."""
        return self._metadata.object_bases

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._metadata.properties)

    @property
    def is_resolved(self) -> bool:
        """Whether no update of this owner is unresolved."""
        return not self._unresolved

    def is_surely_without(self, ledger_id: int) -> bool:
        """Return whether the list certainly does not name a ledger: only such a ledger may be
        deleted. An update whose outcome was unknown may have turned out to have listed it."""
        return self.is_resolved and all(each.ledger_id != ledger_id for each in self.ledgers)

    async def create(self, rng: random.Random) -> None:
        """Create the node, which must not exist.

        Raises:
            LogExistsError: the node exists already.
            MetadataError: the node was not created, or the outcome is unknown.
        """
        token = rng.randint(1, _TOKEN_MAX)
        metadata = LogMetadata(properties=self._metadata.properties, creation_token=token)
        value = metadata.to_json()
        # The token identifies this owner's node, even if the reply to the creation was lost.
        if not await self._cell().create(value):
            raise LogExistsError(
                f"{self._path}: there is a log already; open it, or choose another path"
            )
        self._adopt(metadata, 0, value)

    async def load(self, *, may_create: bool = True) -> None:
        """Read the node; create it, empty, if there is none and `may_create` is set.

        Raises:
            NoSuchLogError: the node does not exist.
            InvalidLedgerMetadataError: the node is not a ledger list.
            MetadataError
        """
        cell = self._cell()
        found = (
            (await cell.have(self._metadata.to_json()))[0]
            if may_create
            else await cell.read(is_sure=True)
        )
        if found is None or found.value is None:
            raise NoSuchLogError(f"{self._path}: there is no log; create it, or check the path")
        self._adopt_node(Versioned(found.value, found.version))

    def _cell(self) -> Cell[bytes]:
        return bytes_cell(self._store, self._path, tries_max=ATTEMPTS_MAX)

    async def update(self, change: Change) -> None:
        """Set the list to `change(list)`, by compare-and-set on the known version.

        `change` must be idempotent.

        Raises:
            LogFencedError: another client changed the list, so this owner has lost the log (rule
                1.1).
            InvalidLedgerMetadataError: the new list would be unreadable for every owner; it was not
                written.
            MetadataError: the update did not happen, or its outcome is unknown; call again.
        """
        async with self._lock:
            if self._unresolved:
                await self._resolve()
            for _ in range(ATTEMPTS_MAX):
                metadata = change(self._metadata)
                if metadata == self._metadata and not self._unresolved:
                    return  # an earlier update of this owner did it
                if await self._try_set(metadata):
                    return
            raise UnknownOutcomeError(
                f"{self._path}: the outcome of {ATTEMPTS_MAX} updates of the ledger list is unknown"
            )

    async def _try_set(self, metadata: LogMetadata) -> bool:
        """Write the list once. Return False if this did not happen, or another own update did."""
        if metadata.problem is not None:
            raise InvalidLedgerMetadataError(
                f"{self._path}: {metadata.problem}. The list was not written: this is a bug; the "
                f"log can be used as before"
            )
        value = metadata.to_json()
        is_first = value not in self._unresolved
        if is_first:
            # Record the value before the call: a cancelled write may have happened, too.
            self._unresolved.append(value)
        try:
            version = await self._store.set(self._path, value, version=self._version)
        except (MetadataUnavailableError, ValueTooLargeError):
            if is_first:
                self._unresolved.remove(value)  # nothing was changed
            raise
        except (UnknownOutcomeError, BadVersionError, NoNodeError):
            # The conflict may be with an earlier update of this owner that came late (D26).
            return await self._resolve() == value
        self._adopt(metadata, version, value)
        return True

    async def _resolve(self) -> bytes | None:
        """Find out whether an unresolved update happened; return its value if one did.

        None means that none has happened so far. Each still may, while the node has the version
        that they were based on.

        Raises:
            LogFencedError: another client changed the list; no unresolved update can happen any
                more.
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
        """Check in the store that no other owner has taken the log over by now.

        Raises:
            LogFencedError: another client changed the list.
            MetadataError: the store cannot tell now.
        """
        async with self._lock:
            if self._unresolved:
                await self._resolve()
            await self.check_unchanged()

    async def check_unchanged(self) -> None:
        """Check that the node is as this owner last read or wrote it.

        Raises:
            LogFencedError: another client changed the list since then.
        """
        try:
            node = await self._store.get(self._path)
        except NoNodeError as error:
            raise LogFencedError(f"{self._path}: the log was deleted; close this handle") from error
        if not self._is_as_known(node):
            raise self._why_changed(node.value)

    def _why_changed(self, value: bytes) -> LogFencedError:
        """Return the error for a list that another client changed."""
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
        """Remove the node, if it is unchanged. A missing node is fine: an earlier call whose reply
        was lost, or another client, removed it.

        Raises:
            NotEmptyError: cursors are left below it.
            MetadataError
        """
        try:
            await self._store.delete(self._path, version=self._version)
        except NoNodeError:
            pass
