"""Reads the content of a backup of one log, from the metadata store and from bookies.

Owners are not disturbed: no ledger is fenced, and no node is written. Cursors are read as their
owners last saved them, at most one persist interval ago.
"""

import asyncio
from collections.abc import Mapping, Sequence

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.backup.documents import LogBackup, Uncovered
from magnetar.broker.features.backup.scope import topic_of_log
from magnetar.broker.features.compaction.compacted_ledger import CURSOR as COMPACTION_CURSOR
from magnetar.broker.policies.model import TopicPolicyRecord, topic_policies_path
from magnetar.broker.policies.records import read_record
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.broker.schemas.record import SchemaRecord, schemas_path
from magnetar.cursors import list_cursors
from magnetar.cursors.closed_cursors import read_closed
from magnetar.cursors.node import CursorNode
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import BookieError, NoNodeError, NoSuchLedgerError
from magnetar.ledger.managed_log.log_deletion import is_marked
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.metadata.store import MetadataStore, Versioned
from magnetar.ledger.offloading.log_manifest import LogManifest, ManifestSchema
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_UNCONFIRMED_MAX = 100
"""Most entries of an open ledger that are looked for after the last one known to be confirmed. In
an idle topic, no entry contains the confirmation of the last one yet."""

_SCHEMA_CACHE_BYTES = 16 << 20
"""Bytes of cached schema definitions: all partitions of a topic have the same ones."""


class LogReading:
    """Reads the logs of one cluster."""

    def __init__(
        self, client: LedgerClient, store: MetadataStore, instance_id: str, clock: Clock
    ) -> None:
        self._client = client
        self._store = store
        self._instance_id = instance_id
        self._clock = clock
        self._schemas = SchemaLedgers(client, cache_bytes_max=_SCHEMA_CACHE_BYTES)

    async def node(self, path: str) -> tuple[LogMetadata, int] | None:
        """Return the value and the version of a log's node; None if the log does not exist.

        Raises:
            LedgerError: the node cannot be read.
        """
        found = await self._get(path)
        if found is None or not found.value:
            return None
        metadata = LogMetadata.from_json(found.value, path=path)
        return None if is_marked(metadata.properties) else (metadata, found.version)

    async def _get(self, path: str) -> Versioned | None:
        try:
            return await self._store.get(path)
        except NoNodeError:
            return None

    async def read(self, path: str) -> LogBackup | None:
        """Read everything about a log and its topic; return None if the log does not exist.

        Cursors are read before the list of ledgers, so that none is ahead of it.

        Raises:
            LedgerError, CursorError, BrokerMetadataError, BrokerPersistenceError: a part cannot be
                read now.
        """
        topic = topic_of_log(path)
        if topic is None:
            raise BrokerMetadataError(f"{path} is not the path of a topic's log")
        cursors, rolled_back = await self._cursors(path)
        await self._store.catch_up()
        found = await self.node(path)
        if found is None:
            return None
        metadata, version = found
        schemas, schemas_next = await self._schemas_of(topic)
        policies = await read_record(
            self._store, TopicPolicyRecord, topic_policies_path(topic), is_sure=True
        )
        manifest = LogManifest(
            self._instance_id, path, version, self._clock.wall_ms(), metadata, schemas
        )
        return LogBackup(
            manifest,
            cursors,
            None if policies is None else policies[0],
            schemas_next,
            await self._uncovered(metadata, cursors, rolled_back),
        )

    async def _cursors(self, path: str) -> tuple[Mapping[str, CursorNode], int]:
        """Return the cursors of a log by name, and how many of them have an older state."""
        found: dict[str, CursorNode] = {}
        rolled_back: set[str] = set()
        for name in await list_cursors(self._store, path):
            state = await read_closed(
                self._client,
                self._store,
                path,
                name,
                on_rolled_back=lambda name=name: rolled_back.add(name),  # type: ignore[misc]
            )
            if state is not None:
                found[name] = state
        return found, len(rolled_back)

    async def _schemas_of(self, topic: TopicName) -> tuple[tuple[ManifestSchema, ...], int]:
        path = schemas_path(topic)
        found = await read_record(self._store, SchemaRecord, path, is_sure=True)
        if found is None:
            return (), 0
        schemas: list[ManifestSchema] = []
        for entry in found[0].current:
            stored = (await self._schemas.read(path, entry)).stored
            schemas.append(
                ManifestSchema(
                    entry.version,
                    entry.timestamp_ms,
                    stored.schema.type.value,
                    stored.schema.data,
                    dict(stored.schema.properties),
                )
            )
        return tuple(schemas), found[0].next_version

    async def everything(self, path: str) -> Uncovered:
        """Return all entries of a log, as a backup counts a log that it leaves out.

        Raises:
            LedgerError: a part cannot be read now.
        """
        await self._store.catch_up()
        found = await self.node(path)
        return Uncovered() if found is None else await self._entries_in(found[0].ledgers)

    async def _uncovered(
        self, metadata: LogMetadata, cursors: Mapping[str, CursorNode], rolled_back: int
    ) -> Uncovered:
        entries = await self._entries_in(
            [each for each in metadata.ledgers if not each.is_in_object]
        )
        compaction = cursors.get(COMPACTION_CURSOR)
        is_compacted = compaction is not None and bool(compaction.properties)
        return entries.model_copy(
            update={"is_compacted": is_compacted, "cursors_rolled_back": rolled_back}
        )

    async def _entries_in(self, ledgers: Sequence[LogLedger]) -> Uncovered:
        sizes = [await self._size(each) for each in ledgers]
        held = [(each, size) for each, size in zip(ledgers, sizes, strict=True) if size[0]]
        return Uncovered(
            ledgers=len(held),
            entries=sum(entries for _, (entries, _) in held),
            bytes=sum(size for _, (_, size) in held),
            since_ms=await self._begun_ms(held[0][0]) if held else 0,
        )

    async def _size(self, ledger: LogLedger) -> tuple[int, int]:
        """Return entries and bytes of a ledger; for an open one, about what it has now."""
        if ledger.is_closed:
            return ledger.entries, ledger.bytes
        try:
            reader = await self._client.open(ledger.ledger_id)
            try:
                last = await reader.read_last_add_confirmed()
                for _ in range(_UNCONFIRMED_MAX):
                    try:
                        await reader.read_unconfirmed(last + 1)
                    except BookieError:
                        break
                    last += 1
                return last + 1, await reader.length_at(last) if last >= 0 else 0
            finally:
                await reader.close()
        except NoSuchLedgerError:
            return 0, 0  # it was empty, and its owner has dropped it

    async def _begun_ms(self, ledger: LogLedger) -> int:
        try:
            metadata = (await self._client.manager.read(ledger.ledger_id)).metadata
        except NoSuchLedgerError:
            return ledger.closed_ms
        return metadata.created_ms or ledger.closed_ms


async def names_below(store: MetadataStore, path: str) -> Sequence[str]:
    """Return the children of a node, sorted; empty if the node does not exist.

    Raises:
        MetadataError: the metadata store cannot be read.
    """
    await asyncio.sleep(0)
    try:
        return sorted(await store.children(path))
    except NoNodeError:
        return []
