"""Restores the versions of a topic's schema under the numbers that its messages use."""

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.features.backup.documents import LogBackup
from magnetar.broker.policies.model import Policies
from magnetar.broker.policies.records import change_record, read_record
from magnetar.broker.schemas.definitions import parse
from magnetar.broker.schemas.errors import InvalidSchemaError
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.broker.schemas.model import SchemaData, SchemaType
from magnetar.broker.schemas.record import IndexEntry, SchemaEntry, SchemaRecord, schemas_path
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.log_manifest import ManifestSchema
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName


async def restore_schemas(
    store: MetadataStore,
    ledgers: SchemaLedgers,
    topic: TopicName,
    backup: LogBackup,
    policies: Policies,
    *,
    clock: Clock,
) -> None:
    """Write the definitions to ledgers, then the record that numbers them, if there is none.

    Partitions have the schemas of their topic: the first one restores them for all.

    Args:
        policies: contain the quorums of the ledgers.

    Raises:
        UnreadableRecordError: this release does not understand a definition.
        BrokerMetadataError, BrokerPersistenceError: repeat the restore.
    """
    path = schemas_path(topic)
    if not backup.schemas_next or await read_record(store, SchemaRecord, path, is_sure=True):
        return
    entries = [await _write(ledgers, path, each, policies) for each in backup.manifest.schemas]
    last = entries[-1].version if entries else -1
    if last + 1 < backup.schemas_next:
        # All versions were deleted: no new one may get a number that messages use already.
        entries.append(IndexEntry(version=backup.schemas_next - 1, timestamp_ms=clock.wall_ms()))
    made = SchemaRecord(versions=tuple(entries))

    def put(before: SchemaRecord | None) -> SchemaRecord:
        return made if before is None else before

    stored = await change_record(store, SchemaRecord, path, put)
    if stored != made:
        for each in entries:
            if not each.is_deletion:
                await ledgers.delete(each.ledger_id)


async def _write(
    ledgers: SchemaLedgers, path: str, schema: ManifestSchema, policies: Policies
) -> IndexEntry:
    try:
        data = SchemaData(SchemaType(schema.type), schema.data, dict(schema.properties))
        fingerprint = parse(data).fingerprint
    except (ValueError, InvalidSchemaError) as error:
        raise UnreadableRecordError(
            f"version {schema.version} of {path} is no schema of this release: {error}"
        ) from error
    ledger_id = await ledgers.write(
        path,
        SchemaEntry(
            version=schema.version,
            timestamp_ms=schema.timestamp_ms,
            type=data.type,
            data=data.data,
            properties=dict(data.properties),
        ),
        policies,
    )
    return IndexEntry(
        version=schema.version,
        timestamp_ms=schema.timestamp_ms,
        ledger_id=ledger_id,
        fingerprint=fingerprint,
    )
