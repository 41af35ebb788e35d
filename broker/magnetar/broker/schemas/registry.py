"""The schemas of topics: list them, check new ones, add and delete them.

A definition is first written to a ledger of its own; then the topic's record names it. That write
compares versions. So if two brokers register a schema at once, one of them reads again and finds
the schema that the other one stored. The record is read again after the ledger is written: a topic
that was deleted and created anew in that time has a record of the same version, with ledgers of its
own. Records are never cached, because any broker may change them.

Topics without schemas cost nothing here until the first request.
"""

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.model import Policies, SchemaCompatibility
from magnetar.broker.policies.records import Check, asked, read_record, record_cell
from magnetar.broker.schemas import compatibility
from magnetar.broker.schemas.definitions import Definition, parse
from magnetar.broker.schemas.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.broker.schemas.model import SchemaData, StoredSchema
from magnetar.broker.schemas.record import (
    NO_LEDGER,
    IndexEntry,
    SchemaEntry,
    SchemaRecord,
    schema_id,
    schemas_path,
    schemas_root,
)
from magnetar.ledger.errors import ContendedError, MetadataError, NoNodeError
from magnetar.ledger.metadata.cell import GONE, AsyncChange, Changed, Deletion, Stored
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_CHANGES_TRIED = 10


class _LedgerWrittenError(Exception):
    """A ledger was written since the record was read."""


class SchemaRegistry:
    """Registers and finds schemas. Any broker may use it for any topic; partitions share their
    topic's."""

    def __init__(
        self, store: MetadataStore, ledgers: SchemaLedgers, settings: BrokerSettings, clock: Clock
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._settings = settings
        self._clock = clock
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by path: of concurrent registrations of one schema on this broker, one writes a
        ledger."""

    # Questions

    async def latest(self, topic: TopicName) -> StoredSchema:
        """Return the newest schema in force.

        Raises:
            SchemaNotFoundError: the topic has no schema, or its schemas were deleted.
            BrokerMetadataError, BrokerPersistenceError
        """
        record, _ = await self._read(topic)
        if not record.current:
            raise SchemaNotFoundError(f"Schema not found: {schema_id(topic)} has none")
        return await self._stored(topic, record.current[-1])

    async def get(self, topic: TopicName, version: int) -> StoredSchema:
        """Return a version that was not deleted. Messages may name a deleted one; as in Pulsar, it
        is gone.

        Raises:
            SchemaNotFoundError: there is no such version, or it was deleted.
            BrokerMetadataError, BrokerPersistenceError
        """
        entry = (await self._read(topic))[0].numbered(version)
        if entry is None:
            # A client has seen the version in a message: the answering server may be behind.
            await asked(self._store.catch_up(), f"read schemas of {topic}")
            entry = (await self._read(topic))[0].numbered(version)
        if entry is None:
            raise SchemaNotFoundError(f"Schema not found: version {version} of {schema_id(topic)}")
        return await self._stored(topic, entry)

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """Return the versions that were not deleted, oldest first.

        Raises:
            SchemaNotFoundError: there never was any.
            BrokerMetadataError, BrokerPersistenceError
        """
        record, _ = await self._read(topic)
        if not record.versions:
            raise SchemaNotFoundError(f"Schema not found: {schema_id(topic)} has none")
        return [await self._stored(topic, each) for each in record.current]

    async def index(self, topic: TopicName) -> Sequence[IndexEntry]:
        """Return the entries of all versions, with their ledgers.

        Raises:
            SchemaNotFoundError, BrokerMetadataError
        """
        record, _ = await self._read(topic)
        if not record.versions:
            raise SchemaNotFoundError(f"Schema not found: {schema_id(topic)} has none")
        return record.versions

    async def has(self, topic: TopicName) -> bool:
        """Whether a schema is in force for the topic.

        Raises:
            BrokerMetadataError
        """
        return bool((await self._read(topic))[0].current)

    async def find(self, topic: TopicName, schema: SchemaData) -> int:
        """Return the version of a schema.

        Raises:
            SchemaNotFoundError: the topic has no such schema.
            InvalidSchemaError, BrokerMetadataError
        """
        found = (await self._read(topic))[0].find(self._parsed(schema).fingerprint)
        if found is None:
            raise SchemaNotFoundError(f"Schema not found: it is not a schema of {schema_id(topic)}")
        return found.version

    async def check(
        self, topic: TopicName, schema: SchemaData, strategy: SchemaCompatibility
    ) -> None:
        """Refuse a schema that `put` would refuse as incompatible.

        Raises:
            IncompatibleSchemaError, InvalidSchemaError, BrokerMetadataError,
            BrokerPersistenceError
        """
        definition = self._parsed(schema)
        record, _ = await self._read_for(topic, definition)
        await self._check(topic, record, definition, strategy)

    async def check_consumer(
        self, topic: TopicName, schema: SchemaData, strategy: SchemaCompatibility
    ) -> bool:
        """Refuse the schema of a consumer that cannot read the topic's. Return False if the topic
        has none.

        Raises:
            IncompatibleSchemaError, InvalidSchemaError, BrokerMetadataError,
            BrokerPersistenceError
        """
        definition = self._parsed(schema)
        record, _ = await self._read_for(topic, definition)
        if not record.current:
            return False
        rule = compatibility.for_consumers(strategy)
        await self._check(topic, record, definition, rule)
        return True

    # Changes

    async def put(
        self,
        topic: TopicName,
        schema: SchemaData,
        policies: Policies,
        *,
        may_add: bool = True,
    ) -> int:
        """Return the version of a schema; register the schema if the topic lacks it.

        Raises:
            IncompatibleSchemaError: the schema is not compatible, or `may_add` forbids new ones.
            InvalidSchemaError: the definition is not valid for its type.
            NotAllowedError: the topic has as many versions as it may have.
            BrokerMetadataError, BrokerPersistenceError
        """
        definition = self._parsed(schema)
        path = schemas_path(topic)
        async with self._lock(path):
            written, version = NO_LEDGER, -1
            now_ms = self._clock.wall_ms()  # for record and ledger: a restore shows the latter
            is_named = is_in_doubt = False

            def on_doubt() -> None:
                nonlocal is_in_doubt
                is_in_doubt = True

            async def with_it(before: SchemaRecord | None) -> SchemaRecord | None:
                nonlocal written, version, is_named
                is_named = is_in_doubt
                record = before or SchemaRecord()
                found = record.find(definition.fingerprint)
                if found is not None:
                    is_named = found.ledger_id == written
                    version = found.version
                    return None
                await self._check_addition(topic, record, definition, policies, may_add=may_add)
                version = record.next_version
                if written == NO_LEDGER:
                    content = _content(schema, version, now_ms)
                    written = await self._ledgers.write(path, content, policies)
                    raise _LedgerWrittenError
                entry = IndexEntry(
                    version=version,
                    timestamp_ms=now_ms,
                    ledger_id=written,
                    fingerprint=definition.fingerprint,
                )
                is_named = True  # Until it is certain that the write failed.
                return record.with_version(entry)

            try:
                known = await self._read_for(topic, definition)
                try:
                    await self._change(path, with_it, known=known, on_doubt=on_doubt)
                except _LedgerWrittenError:
                    await self._change(path, with_it, on_doubt=on_doubt)
                return version
            except ContendedError as error:
                is_named = False
                raise _contended(path) from error
            finally:
                if written != NO_LEDGER and not is_named:
                    await self._ledgers.delete(written)

    async def delete(self, topic: TopicName) -> int:
        """Retire all schemas of a topic; return the version number of the deletion.

        Raises:
            SchemaNotFoundError: no schema is in force.
            BrokerMetadataError
        """
        path = schemas_path(topic)
        entry: IndexEntry | None = None
        doubtful: IndexEntry | None = None

        def on_doubt() -> None:
            nonlocal doubtful
            doubtful = entry

        async def without(before: SchemaRecord | None) -> SchemaRecord | None:
            nonlocal entry
            record = before or SchemaRecord()
            if doubtful is not None and doubtful in record.versions:
                entry = doubtful  # The first write was in doubt; it did land.
                return None
            if not record.current:
                raise SchemaNotFoundError(f"Schema not found: {schema_id(topic)} has none")
            entry = IndexEntry(version=record.next_version, timestamp_ms=self._clock.wall_ms())
            return record.with_version(entry)

        async with self._lock(path):
            try:
                await self._change(path, without, on_doubt=on_doubt)
            except ContendedError as error:
                raise _contended(path) from error
        assert entry is not None, "it was written, or the change raised"
        return entry.version

    async def remove(self, topic: TopicName) -> int | None:
        """Remove all schemas of a topic with their record. Return the last version; None if there
        was none.

        Raises:
            BrokerMetadataError
        """
        return await self._remove(schemas_path(topic))

    async def topic_removed(self, topic: TopicName, check: Check | None = None) -> None:
        """Remove the schemas of a deleted topic. A non-persistent topic keeps them: a persistent
        topic of the same name may exist.

        `check`: raises to leave them, since they are a later topic's.

        Raises:
            BrokerMetadataError
            Every error of `check`.
        """
        if topic.is_persistent:
            await self._remove(schemas_path(topic), check)

    async def remove_namespace(self, namespace: str) -> None:
        """Remove all schemas of a namespace, given as tenant/namespace, that is being deleted
        itself.

        Raises:
            BrokerMetadataError
        """
        root = schemas_root(namespace)
        try:
            for node in await asked(self._store.children(root), f"list {root}"):
                await self._remove(f"{root}/{node}")
            await asked(self._store.delete(root), f"delete {root}")
        except NoNodeError:
            pass

    async def _remove(self, path: str, check: Check | None = None) -> int | None:
        async def gone(record: SchemaRecord | None) -> Deletion | None:
            if record is None:
                return None
            if check is not None:
                await check()
            return GONE

        async with self._lock(path):
            try:
                changed = await self._change(path, gone)
            except ContendedError as error:
                raise BrokerMetadataError(
                    f"{path} was not deleted: others kept changing it; try again"
                ) from error
            if changed.before is None or not changed.is_written:
                return None
            return await self._removed(changed.before)

    async def _removed(self, record: SchemaRecord) -> int:
        """Delete the ledgers of a removed record; return its last version."""
        for each in record.versions:
            if not each.is_deletion:
                await self._ledgers.delete(each.ledger_id)
        return record.next_version - 1

    # Parts

    def _parsed(self, schema: SchemaData) -> Definition:
        size, limit = schema.size_bytes, self._settings.schema_bytes_max
        if size > limit:
            raise InvalidSchemaError(f"the schema has {size} bytes; the limit is {limit}")
        return parse(schema)

    async def _check_addition(
        self,
        topic: TopicName,
        record: SchemaRecord,
        definition: Definition,
        policies: Policies,
        *,
        may_add: bool,
    ) -> None:
        if not may_add:
            raise IncompatibleSchemaError(
                "Schema not found and schema auto updating is disabled: ask an operator to "
                f"register the schema of {schema_id(topic)}"
            )
        await self._check(topic, record, definition, policies.schema_compatibility)
        limit = self._settings.schema_versions_max
        if len(record.versions) >= limit:
            raise NotAllowedError(
                f"{schema_id(topic)} has {len(record.versions)} versions of its schema, deleted "
                f"ones included; the limit is {limit}. To begin again, delete the schema with "
                "force=true: this removes all versions, and messages that name them lose theirs"
            )

    async def _check(
        self,
        topic: TopicName,
        record: SchemaRecord,
        definition: Definition,
        strategy: SchemaCompatibility,
    ) -> None:
        """Compare with one schema after the other, and yield between them: many large schemas must
        not hold up the event loop."""
        if record.find(definition.fingerprint) is not None:
            return
        every = record.current if compatibility.asks_for_all(strategy) else record.current[-1:]
        for entry in every:
            known = await self._ledgers.read(schemas_path(topic), entry)
            compatibility.check([known.definition], definition, strategy)
            await asyncio.sleep(0)

    async def _stored(self, topic: TopicName, entry: IndexEntry) -> StoredSchema:
        return (await self._ledgers.read(schemas_path(topic), entry)).stored

    async def _read(self, topic: TopicName) -> tuple[SchemaRecord, int]:
        """Return the record and its version; an empty record and -1 if there is none."""
        return await self._read_at(schemas_path(topic))

    async def _read_at(self, path: str) -> tuple[SchemaRecord, int]:
        found = await read_record(self._store, SchemaRecord, path, is_sure=True)
        return found if found is not None else (SchemaRecord(), -1)

    async def _read_for(self, topic: TopicName, definition: Definition) -> tuple[SchemaRecord, int]:
        """Read the record for a decision about a definition. One read is enough to find a
        definition that exists. To say that it does not exist, the store must have caught up."""
        found = await self._read(topic)
        if found[0].find(definition.fingerprint) is None and found[1] >= 0:
            await asked(self._store.catch_up(), f"read schemas of {topic}")
            found = await self._read(topic)
        return found

    async def _change(
        self,
        path: str,
        change: AsyncChange[SchemaRecord],
        *,
        known: tuple[SchemaRecord, int] | None = None,
        on_doubt: Callable[[], None] = lambda: None,
    ) -> Changed[SchemaRecord]:
        """Change the record with compare-and-set.

        Raises:
            ContendedError: other brokers changed the record at each attempt.
            BrokerMetadataError, and the errors of `change`.
        """
        cell = record_cell(self._store, SchemaRecord, path, tries_max=_CHANGES_TRIED)
        begin = Stored(*known) if known is not None and known[1] >= 0 else None
        try:
            return await cell.change_async(change, known=begin, on_doubt=on_doubt)
        except ContendedError:
            raise
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot change {path}: {error}") from error

    def _lock(self, path: str) -> asyncio.Lock:
        lock = self._changing.get(path)
        if lock is None:
            lock = self._changing[path] = asyncio.Lock()
        return lock


def _content(schema: SchemaData, version: int, now_ms: int) -> SchemaEntry:
    return SchemaEntry(
        version=version,
        timestamp_ms=now_ms,
        type=schema.type,
        data=schema.data,
        properties=dict(schema.properties),
    )


def _contended(path: str) -> BrokerMetadataError:
    return BrokerMetadataError(f"{path} was not changed: others kept changing it; try again")
