"""Makes a backup: the file of each log, checked against the log's node, then the cluster file.

The file of a log is written first, and its node is read after that. The file is thus a pin before
the backup relies on it (`backup_pins.py` of the ledger component). If the node names other objects
by then, the file is written again.

The file of each log shows one moment, but the cluster as a whole does not: topics change while the
backup is made.

Scalable topics are left out: neither their records nor the logs of their segments are saved. The
cluster file names them, and counts their entries as uncovered.

Source: tiered storage, section 21.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import google_crc32c

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError, ConflictError
from magnetar.broker.cluster.partitions.record import (
    PARTITIONED_TOPICS_ROOT,
    PartitionedTopicRecord,
    partitioned_topics_root,
)
from magnetar.broker.features.backup.backups import Backups
from magnetar.broker.features.backup.documents import (
    ClusterBackup,
    LeftOut,
    LogFile,
    Uncovered,
    sum_of,
)
from magnetar.broker.features.backup.on_each import on_each
from magnetar.broker.features.backup.reading import LogReading, names_below
from magnetar.broker.features.backup.scope import Scope, is_backed_up, topic_of_log
from magnetar.broker.policies.model import (
    TENANTS_ROOT,
    NamespaceRecord,
    TenantRecord,
    namespace_path,
    tenant_path,
)
from magnetar.broker.policies.records import read_record
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import BackupFolder
from magnetar.ledger.offloading.backup_pins import keys_in, note_store, renew_note
from magnetar.ledger.offloading.object_store import ObjectStore, create_or_match
from magnetar.ledger.ports import Clock

_LOGS_AT_ONCE = 8
_TOKEN_BITS = 128
_TRIES = 5
"""Attempts per log: its objects may be replaced or trimmed while the file is written."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A log of a backup, as the command prints it."""

    file: LogFile
    uncovered: Uncovered
    ledgers: int
    """Ledgers that are in objects."""


class BackupMaker:
    """Makes backups of one cluster in one object store."""

    def __init__(
        self,
        objects: ObjectStore,
        backups: Backups,
        store: MetadataStore,
        reading: LogReading,
        *,
        store_name: str,
        instance_id: str,
        clock: Clock,
        random: random.Random,
    ) -> None:
        """Create the maker. `store_name`: the object store in the brokers' settings."""
        self._objects = objects
        self._store_name = store_name
        self._random = random
        self._backups = backups
        self._store = store
        self._reading = reading
        self._instance_id = instance_id
        self._clock = clock

    async def logs(self, scope: Scope) -> Sequence[str]:
        """Return the paths of the logs in a scope, sorted.

        Raises:
            MetadataError: the metadata store cannot be read.
        """
        found: list[str] = []
        for namespace in await self._namespaces(scope):
            root = naming.topics_path(namespace)
            for node in await names_below(self._store, root):
                topic = topic_of_log(f"{root}/{node}")
                if topic is not None and scope.has_topic(topic) and is_backed_up(topic):
                    found.append(f"{root}/{node}")
        return found

    async def _namespaces(self, scope: Scope) -> Sequence[str]:
        return [
            f"{tenant}/{namespace}"
            for tenant in await names_below(self._store, TENANTS_ROOT)
            if scope.has_tenant(tenant)
            for namespace in await names_below(self._store, f"{TENANTS_ROOT}/{tenant}")
            if scope.has_namespace(f"{tenant}/{namespace}")
        ]

    async def _left_out(self, scope: Scope) -> Sequence[LeftOut]:
        """Return the scalable topics in a scope, by name, with all entries of their segments."""
        found: dict[str, list[Uncovered]] = {}
        for namespace in await self._namespaces(scope):
            for node in await names_below(self._store, naming.scalable_topics_path(namespace)):
                name = naming.scalable_topic_at(namespace, node)
                if scope.has_topic(naming.base_topic_of(name)):
                    found[name] = []
            root = naming.segments_path(namespace)
            for node in await names_below(self._store, root):
                topic = naming.segment_at(namespace, node).partitioned
                if scope.has_topic(topic):
                    entries = await self._reading.everything(f"{root}/{node}")
                    found.setdefault(naming.resolved_name(topic), []).append(entries)
        return [
            LeftOut(topic=name, uncovered=sum_of(parts)) for name, parts in sorted(found.items())
        ]

    async def make(
        self,
        name: str,
        scope: Scope,
        *,
        on_log: Callable[[Covered], None],
        on_left_out: Callable[[LeftOut], None] = lambda _: None,
    ) -> ClusterBackup:
        """Make a backup; it is complete when this returns.

        Args:
            on_log: called for each log whose file is written and checked.
            on_left_out: called for each scalable topic in the scope, which is not saved.

        Raises:
            ConflictError: a backup of that name exists, finished or not; another process makes one
                of that name; or another process has deleted the last backup in the store meanwhile.
            InvalidNameError: the name is not valid for a backup.
            LedgerError, CursorError, BrokerMetadataError, BrokerPersistenceError: an unfinished
                backup is left, which `BackupDeletion` removes.
        """
        folder = self._backups.folder(name)
        if await self._backups.keys(name):
            raise ConflictError(
                f"there is a backup {name}, or an unfinished one: choose another name, or delete it"
            )
        begun_ms = self._clock.wall_ms()
        noted = await note_store(self._store, self._store_name, self._token())
        tenants, namespaces, partitioned = await self._above_topics(scope)
        covered: list[Covered] = []

        async def one(path: str) -> None:
            found = await self._write_log(folder, path)
            if found is not None:
                covered.append(found)
                on_log(found)

        await on_each(await self.logs(scope), one, at_once=_LOGS_AT_ONCE)
        left_out = await self._left_out(scope)
        for each in left_out:
            on_left_out(each)
        cluster = ClusterBackup(
            name=name,
            instance_id=self._instance_id,
            begun_ms=begun_ms,
            finished_ms=self._clock.wall_ms(),
            scope=str(scope),
            tenants=tenants,
            namespaces=namespaces,
            partitioned=partitioned,
            logs=tuple(sorted((each.file for each in covered), key=lambda each: each.log)),
            left_out=tuple(left_out),
            uncovered=sum_of(
                [*(each.uncovered for each in covered), *(each.uncovered for each in left_out)]
            ),
        )
        if not await renew_note(self._store, self._store_name, noted, self._token()):
            raise ConflictError(
                f"backup {name} is not finished: another process deleted the last one in the store "
                f"{self._store_name} meanwhile; try again"
            )
        if not await create_or_match(self._objects, folder.cluster_key, cluster.to_bytes()):
            raise ConflictError(f"another process has finished a backup {name} meanwhile")
        return cluster

    def _token(self) -> bytes:
        return f"{self._random.getrandbits(_TOKEN_BITS):x}".encode()

    async def _above_topics(
        self, scope: Scope
    ) -> tuple[
        dict[str, TenantRecord], dict[str, NamespaceRecord], dict[str, PartitionedTopicRecord]
    ]:
        tenants: dict[str, TenantRecord] = {}
        namespaces: dict[str, NamespaceRecord] = {}
        partitioned: dict[str, PartitionedTopicRecord] = {}
        for namespace in await self._namespaces(scope):
            record = await read_record(self._store, NamespaceRecord, namespace_path(namespace))
            if record is None or record[0].is_deleted:
                continue
            tenant = namespace.partition("/")[0]
            if tenant not in tenants:
                found = await read_record(self._store, TenantRecord, tenant_path(tenant))
                tenants[tenant] = TenantRecord() if found is None else found[0]
            namespaces[namespace] = record[0]
            for domain in ("persistent", "non-persistent"):
                partitioned |= await self._partitioned(scope, namespace, domain)
        for tenant in await names_below(self._store, TENANTS_ROOT):
            if scope.has_tenant(tenant) and tenant not in tenants and not scope.namespace:
                found = await read_record(self._store, TenantRecord, tenant_path(tenant))
                if found is not None:
                    tenants[tenant] = found[0]
        return tenants, namespaces, partitioned

    async def _partitioned(
        self, scope: Scope, namespace: str, domain: str
    ) -> dict[str, PartitionedTopicRecord]:
        found: dict[str, PartitionedTopicRecord] = {}
        root = partitioned_topics_root(namespace, domain)
        for node in await names_below(self._store, root):
            path = f"{root}/{node}"
            record = await read_record(self._store, PartitionedTopicRecord, path)
            name = naming.topic_at(namespace, node)
            topic = naming.topic_of(name)
            if record is None or record[0].is_deleted or not is_backed_up(topic):
                continue
            if scope.has_topic(topic):
                found[path.removeprefix(f"{PARTITIONED_TOPICS_ROOT}/")] = record[0]
        return found

    async def _write_log(self, folder: BackupFolder, path: str) -> Covered | None:
        """Write the file of a log whose node still names all its objects afterwards.

        Return None if the log is deleted.

        Raises:
            BrokerMetadataError: the node named other objects after each attempt.
            ConflictError: another process writes this backup.
        """
        key = folder.log_key(path)
        for _ in range(_TRIES):
            found = await self._reading.read(path)
            if found is None:
                return None
            value = found.to_bytes()
            if not await create_or_match(self._objects, key, value):
                raise ConflictError(f"{key} is there already: another process writes this backup")
            await self._store.catch_up()
            again = await self._reading.node(path)
            if again is not None and keys_in(found.manifest.node) <= keys_in(again[0]):
                file = LogFile(
                    log=path, key=key, bytes=len(value), crc32c=google_crc32c.value(value)
                )
                ledgers = sum(1 for each in found.manifest.node.ledgers if each.is_in_object)
                return Covered(file, found.uncovered, ledgers)
            await self._objects.delete([key])
        raise BrokerMetadataError(
            f"{path} moved on {_TRIES} times while its file of the backup was written; try again"
        )
