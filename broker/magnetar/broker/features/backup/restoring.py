"""Restores the logs of a backup, and the records above them, into a cluster that lacks them.

Everything is checked before anything is written: files, objects, and whether a topic exists
already. The steps then have a fixed order. The ledger id counter passes all ids of the restored
messages. The records above topics are written. For each topic its schemas, policies and cursors are
written, and last the log's node, which makes the topic. Each record is put only if it is absent, so
an interrupted restore can be repeated.

Nothing is written to the object stores: the restored logs name the objects where they are.

Source: tiered storage, section 21.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError, ConflictError, NotThereError
from magnetar.broker.cluster.partitions.record import PARTITIONED_TOPICS_ROOT
from magnetar.broker.features.backup.backups import Backups
from magnetar.broker.features.backup.checking import ObjectCheck, in_words
from magnetar.broker.features.backup.documents import ClusterBackup, LeftOut, LogFile, Uncovered
from magnetar.broker.features.backup.on_each import on_each
from magnetar.broker.features.backup.past_transactions import aborted_in, with_past, write_down
from magnetar.broker.features.backup.planning import RestoredLog, plan
from magnetar.broker.features.backup.schema_versions import restore_schemas
from magnetar.broker.features.backup.scope import Scope, topic_of_log
from magnetar.broker.policies.model import (
    NamespaceRecord,
    Policies,
    Record,
    TenantRecord,
    namespace_path,
    tenant_path,
    topic_policies_path,
)
from magnetar.broker.policies.records import change_record
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.cursors import CursorSettings
from magnetar.cursors.closed_cursors import make_closed
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoNodeError, ObjectDamagedError, ObjectMissingError
from magnetar.ledger.managed_log.log_ledgers import RESTORED_PROPERTY
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.cell import Cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.store_set import StoredLedgers, StoreSet
from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import LogConfig
from magnetar.sdk.wire import TopicName

R = TypeVar("R", bound=Record)

_LOGS_AT_ONCE = 8
_TOKEN_MAX = (1 << 63) - 1


@dataclass(slots=True)
class RestorePlan:
    """The work of a restore, counted during the check and during the writing."""

    cluster: ClusterBackup
    logs: list[LogFile] = field(default_factory=list)
    """Files of the logs to restore."""
    done_before: int = 0
    """Logs that an earlier restore from this backup has made."""
    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    cursors: int = 0
    id_max: int = -1
    """Highest ledger id of a restored or lost message."""
    lost: Uncovered = field(default_factory=Uncovered)
    """Entries that only bookies had when the backup was made, and those of `left_out`."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Scalable topics in the scope of the restore, which the backup does not contain."""
    behind_gap: Uncovered = field(default_factory=Uncovered)
    kept: list[str] = field(default_factory=list)
    """Paths of records that existed already with other values, and were left unchanged."""


class Restore:
    """One restore from one backup."""

    def __init__(
        self,
        backups: Backups,
        name: str,
        scope: Scope,
        stores: StoreSet,
        store: MetadataStore,
        client: LedgerClient,
        objects: StoredLedgers,
        *,
        quorums: LogConfig,
        keeps_gaps: bool,
        clock: Clock,
        random: random.Random,
    ) -> None:
        """Create a restore; call `look`, then `write`.

        Args:
            quorums: quorums of the ledgers for schemas, and for cursors that are too large for
                their nodes.
            keeps_gaps: also restore the ledgers after one that is in no object.
        """
        self._backups = backups
        self._name = name
        self._scope = scope
        self._stores = stores
        self._store = store
        self._client = client
        self._objects = objects
        self._quorums = quorums
        self._keeps_gaps = keeps_gaps
        self._clock = clock
        self._random = random
        self._schemas = SchemaLedgers(client, cache_bytes_max=1)

    # Checking

    async def look(self) -> RestorePlan:
        """Check everything, and write nothing.

        Raises:
            NotThereError: the backup does not exist, or does not have the topic.
            ConflictError: topics of the backup exist here, and were not restored from it.
            ObjectDamagedError: files or objects are damaged or missing; the error names all
                objects.
            ObjectError: a store cannot be reached, or is not among the settings.
            LedgerError, InvalidNameError: metadata cannot be read, or the name is not valid.
        """
        cluster = await self._backups.cluster(self._name)
        found = RestorePlan(cluster)
        check = ObjectCheck(self._stores)
        conflicts: list[str] = []

        async def one(file: LogFile) -> None:
            restored = await self._planned(file)
            await check.check(restored)
            there = await self._there(restored)
            if there is not None:
                if there.properties.get(RESTORED_PROPERTY) == _origin_of(restored):
                    found.done_before += 1
                else:
                    conflicts.append(str(topic_of_log(file.log)))
                return
            found.logs.append(file)
            _count(found, restored)

        wanted = self._wanted(cluster)
        for each in cluster.left_out:
            if self._scope.has_topic(naming.base_topic_of(each.topic)):
                found.left_out.append(each)
                found.lost = found.lost.plus(each.uncovered)
        if self._scope.topic and not wanted:
            why = ": it was a scalable topic, and no backup contains those" * bool(found.left_out)
            raise NotThereError(f"backup {self._name} has no topic {self._scope.topic}{why}")
        await on_each(wanted, one, at_once=_LOGS_AT_ONCE)
        if check.problems:
            raise ObjectDamagedError(
                f"backup {self._name} cannot be restored, and nothing was changed: "
                f"{in_words(sorted(check.problems))}"
            )
        if conflicts:
            raise ConflictError(
                f"nothing was restored: {len(conflicts)} topics of backup {self._name} exist here, "
                f"and are not from it: {in_words(sorted(conflicts))}. Delete them first, or "
                "restore others (--tenant, --namespace, --topic)"
            )
        found.logs.sort(key=lambda each: each.log)
        return found

    def _wanted(self, cluster: ClusterBackup) -> list[LogFile]:
        return [
            each
            for each in cluster.logs
            if (topic := topic_of_log(each.log)) is not None and self._scope.has_topic(topic)
        ]

    async def _planned(self, file: LogFile) -> RestoredLog:
        backup = await self._backups.log(file)
        token = self._random.randint(1, _TOKEN_MAX)
        return plan(backup, self._name, token=token, keeps_gaps=self._keeps_gaps)

    async def _there(self, restored: RestoredLog) -> LogMetadata | None:
        try:
            node = await self._store.get(restored.path)
        except NoNodeError:
            return None
        # A node without a value is the parent of cursors of an interrupted restore.
        return LogMetadata.from_json(node.value, path=restored.path) if node.value else None

    # Writing

    async def write(
        self, found: RestorePlan, *, ids_max: int, on_behind: Callable[[int], None]
    ) -> None:
        """Write what `look` has found.

        Args:
            ids_max: most ledger ids that may be used up to pass those of the backup.
            on_behind: called with the number of ids to use up, before that.

        Raises:
            BrokerMetadataError: more ids would have to be used up; nothing was written.
            ConflictError: another process created a topic, or deleted the backup, meanwhile.
            LedgerError, CursorError, BrokerPersistenceError: repeat the restore.
        """
        await self._pass_ids(found.id_max, ids_max, on_behind)
        await self._above_topics(found)
        await on_each(found.logs, lambda file: self._log(file, found), at_once=_LOGS_AT_ONCE)

    async def _pass_ids(self, id_max: int, ids_max: int, on_behind: Callable[[int], None]) -> None:
        if id_max < 0:
            return
        manager = self._client.manager
        needed = await manager.ids_to_pass(id_max)
        if needed > ids_max:
            raise BrokerMetadataError(
                f"ledgers of the backup have ids up to {id_max}, and {needed} ids must be used up "
                f"to pass them, but at most {ids_max} may be: raise --ledger-ids-max. It takes a "
                "millisecond or less for each"
            )
        await manager.pass_ids([id_max], ids_max=ids_max, on_behind=on_behind)

    async def _above_topics(self, found: RestorePlan) -> None:
        cluster = found.cluster
        for tenant, record in sorted(cluster.tenants.items()):
            if self._scope.has_tenant(tenant):
                await self._put(found, tenant_path(tenant), record, _is_plain_tenant)
        for namespace, space in sorted(cluster.namespaces.items()):
            if self._scope.has_namespace(namespace):
                await self._put(found, namespace_path(namespace), space, _is_plain_namespace)
        for path, partitions in sorted(cluster.partitioned.items()):
            tenant, name, _, node = path.split("/")
            if self._scope.has_topic(naming.topic_of(naming.topic_at(f"{tenant}/{name}", node))):
                record_path = f"{PARTITIONED_TOPICS_ROOT}/{path}"
                await self._put(found, record_path, partitions, lambda _: False)

    async def _put(
        self,
        found: RestorePlan,
        path: str,
        record: R,
        is_plain: Callable[[R], bool],
    ) -> None:
        """Put a record that is absent, or that is still as brokers create it."""
        is_kept = False

        def put(before: R | None) -> R:
            nonlocal is_kept
            is_kept = before is not None and before != record and not is_plain(before)
            return before if is_kept and before is not None else record

        await change_record(self._store, type(record), path, put)
        if is_kept:
            found.kept.append(path)

    async def _log(self, file: LogFile, found: RestorePlan) -> None:
        restored = await self._planned(file)
        topic = topic_of_log(file.log)
        assert topic is not None
        policies = self._policies()
        await restore_schemas(
            self._store, self._schemas, topic, restored.backup, policies, clock=self._clock
        )
        if restored.backup.topic_policies is not None:
            await self._put(
                found,
                topic_policies_path(topic),
                restored.backup.topic_policies,
                lambda _: False,
            )
        node = restored.node
        if restored.has_transactions:
            node = await self._transactions(restored, topic)
        for name, state in sorted(restored.cursors.items()):
            await make_closed(
                self._client,
                self._store,
                restored.path,
                name,
                state,
                settings=self._cursor_settings(),
                clock=self._clock,
            )
        await self._create(restored.path, node)
        await self._check_pinned(file, topic)

    async def _check_pinned(self, file: LogFile, topic: TopicName) -> None:
        """Check, now that a log's node names the objects, that the backup has named them until now.

        The sweep reads the files of backups, and after them the nodes. If the file is still there,
        each pass has found it, or will find the node.

        Raises:
            ConflictError: the backup was deleted: the sweep may have deleted the objects, too.
        """
        try:
            await self._backups.log(file)
        except (ObjectMissingError, ObjectDamagedError) as error:
            raise ConflictError(
                f"{topic} was restored, but backup {self._name} was deleted meanwhile, and with it "
                "perhaps messages of the topic. Read the topic; if messages are missing, delete "
                f"it and restore it from another backup: {error}"
            ) from error

    async def _transactions(self, restored: RestoredLog, topic: TopicName) -> LogMetadata:
        state = await aborted_in(restored, self._objects)
        await write_down(
            self._client,
            self._store,
            topic,
            state,
            restored.node.last_listed,
            self._quorums,
            clock=self._clock,
            random=self._random,
        )
        return with_past(restored.node)

    async def _create(self, path: str, node: LogMetadata) -> None:
        """Create the log's node, which may exist without a value as the parent of cursors."""

        def create(before: LogMetadata | None) -> LogMetadata:
            if before is not None:
                raise ConflictError(
                    f"{path} was created while the restore ran, and is not restored. To have the "
                    "topic of the backup, delete this one and repeat the restore"
                )
            return node

        cell = Cell(
            self._store,
            path,
            decode=lambda value: LogMetadata.from_json(value, path=path) if value else None,
            encode=LogMetadata.to_json,
        )
        await cell.change(create)

    def _policies(self) -> Policies:
        """Return policies with the quorums of schema ledgers."""
        quorums = self._quorums
        return Policies.model_validate(
            {
                "persistence": {
                    "ensemble": quorums.ensemble_size,
                    "write_quorum": quorums.write_quorum,
                    "ack_quorum": quorums.ack_quorum,
                    "mark_delete_rate_max": 0,
                }
            }
        )

    def _cursor_settings(self) -> CursorSettings:
        quorums = self._quorums
        return CursorSettings(
            ensemble_size=quorums.ensemble_size,
            write_quorum=quorums.write_quorum,
            ack_quorum=quorums.ack_quorum,
        )


def _origin_of(restored: RestoredLog) -> str:
    return restored.node.properties[RESTORED_PROPERTY]


def _count(found: RestorePlan, restored: RestoredLog) -> None:
    found.ledgers += len(restored.node.ledgers)
    found.entries += sum(each.entries for each in restored.node.ledgers)
    found.bytes += sum(each.bytes for each in restored.node.ledgers)
    found.cursors += len(restored.cursors)
    found.id_max = max([found.id_max, *restored.ids_used])
    found.lost = found.lost.plus(restored.backup.uncovered)
    found.behind_gap = found.behind_gap.plus(restored.behind_gap)


def _is_plain_tenant(record: TenantRecord) -> bool:
    """Whether a tenant is as brokers create it at their start."""
    return record.model_copy(update={"allowed_clusters": ()}) == TenantRecord()


def _is_plain_namespace(record: NamespaceRecord) -> bool:
    """Whether a namespace is as brokers create it at their start."""
    return record.model_copy(update={"replication_clusters": ()}) == NamespaceRecord()
