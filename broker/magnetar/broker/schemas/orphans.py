"""Whether a topic still names the ledger of a definition: what the orphan sweep asks."""

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.policies.model import decode
from magnetar.broker.schemas.record import SchemaRecord
from magnetar.ledger.errors import NoNodeError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred


def schema_refers(store: MetadataStore) -> IsReferred:
    """Asks the record that the ledger was made for (component "schema")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        path = metadata.custom_metadata.get("schema")
        if path is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which schema it is")
        try:
            node = await store.get(path)
        except NoNodeError:
            return False  # All of it was deleted.
        if not node.value:
            return False
        try:
            record = decode(SchemaRecord, path, node.value)
        except UnreadableRecordError as error:
            raise OwnerUnclearError(str(error)) from error
        return any(each.ledger_id == metadata.ledger_id for each in record.versions)

    return is_referred
