"""Writes the manifests of one log, on behalf of its owner.

A manifest is due when the facts that readers of the objects need differ from the last manifest: at
once if a ledger came into an object, else not before an interval is over. An owner does not know
what the previous owner wrote, so it writes one manifest of its own. The content is the node as the
owner's last change left it, with its version of that time. So a manifest never names an incomplete
object, and one of an owner that lost the log is older than those of the next owner.

Source: tiered storage, section 21.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import structlog

from magnetar.ledger.errors import ObjectStoreRefusedError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.managed_log.log_objects import ObjectBase
from magnetar.ledger.offloading.log_manifest import (
    MANIFEST_BYTES_MAX,
    NO_TRANSACTIONS,
    LogManifest,
    ManifestSchema,
    ManifestTransactions,
    manifest_directory,
    manifest_key,
    manifest_store,
    manifest_through,
)
from magnetar.ledger.offloading.object_store import ObjectStores
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

log = structlog.get_logger()

FindSchemas = Callable[[], Awaitable[Sequence[ManifestSchema]]]
"""Function that reads the versions of the schema that messages of the log may name."""


class Node(Protocol):
    """The node of a log, as its owner knows it."""

    @property
    def node(self) -> tuple[LogMetadata, int]: ...


class ManifestedLog(Protocol):
    """The owner's handle of the log, as far as manifests need it."""

    path: str

    @property
    def objects(self) -> Node: ...


class _Said(NamedTuple):
    """The facts of a manifest whose change makes another one due."""

    objects: frozenset[tuple[int, str, ObjectBase]]
    """Ledger, attempt, and place of each ledger that is in an object."""
    removed_through: int
    terminated: Position | None
    transactions: ManifestTransactions


class ManifestWriter:
    """The manifests of one log that this process owns."""

    def __init__(
        self,
        owned: ManifestedLog,
        stores: ObjectStores,
        prefix: str,
        *,
        interval_s: float,
        clock: Clock,
    ) -> None:
        """Make the writer of an owned log; writes nothing.

        Args:
            prefix: of all keys of Magnetar in a store.
            interval_s: least time between two manifests, unless a ledger came into an object.
        """
        self._owned = owned
        self._stores = stores
        self._prefix = prefix
        self._interval_s = interval_s
        self._clock = clock
        self._written: tuple[LogMetadata, ManifestTransactions] | None = None
        """A node that the last manifest covers in full, and the transactions of that manifest.
        Usually the very value that the log has: nodes are replaced, and never changed."""
        self._written_at_s = 0.0

    def is_due(self, transactions: ManifestTransactions = NO_TRANSACTIONS) -> bool:
        """Return whether a manifest must be written now, given what readers must know of
        transactions."""
        node, _ = self._owned.objects.node
        if self._written is None:
            return manifest_through(node) >= 0
        if node is self._written[0] and transactions == self._written[1]:
            return False
        said, to_say = _said_in(*self._written), _said_in(node, transactions)
        if said == to_say:
            self._written = node, transactions
            return False
        has_more = not to_say.objects <= said.objects
        return has_more or self._clock.monotonic_s() - self._written_at_s >= self._interval_s

    async def write(
        self,
        instance_id: str,
        find_schemas: FindSchemas,
        transactions: ManifestTransactions = NO_TRANSACTIONS,
    ) -> str:
        """Write a manifest of the log in its present state; return its key.

        Args:
            transactions: as they are at the moment of the call.

        Raises:
            ObjectStoreRefusedError: it would be too large, or the store does not take it.
            ObjectStoreUnavailableError: try again.
            Every error of `find_schemas`.
        """
        node, version = self._owned.objects.node
        # Schemas are read after the node: a schema is registered before messages with it are
        # written.
        schemas = tuple(await find_schemas())
        path, written_ms = self._owned.path, self._clock.wall_ms()
        manifest = LogManifest(instance_id, path, version, written_ms, node, schemas, transactions)
        key = manifest_key(
            manifest_directory(self._prefix, instance_id, path),
            through=manifest_through(node),
            version=version,
            written_ms=written_ms,
        )
        body = manifest.to_json()
        if len(body) > MANIFEST_BYTES_MAX:
            raise ObjectStoreRefusedError(
                f"{path}: the manifest has {len(body)} bytes, at most {MANIFEST_BYTES_MAX} can be "
                "read back; delete versions of the topic's schema that no message names"
            )
        # If an object of this key exists, an earlier try of the same moment wrote it without an
        # answer.
        await self._stores.store(manifest_store(node)).create(key, body)
        self._written = node, transactions
        self._written_at_s = self._clock.monotonic_s()
        log.debug("manifest_written", path=path, key=key)
        return key


def _said_in(node: LogMetadata, transactions: ManifestTransactions) -> _Said:
    return _Said(
        frozenset(
            (ledger.ledger_id, ledger.object.attempt, node.object_bases[ledger.object.base])
            for ledger in node.ledgers
            if ledger.object is not None and ledger.is_in_object
        ),
        node.removed_through,
        node.terminated,
        transactions,
    )
