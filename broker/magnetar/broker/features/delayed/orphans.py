"""Whether a topic still names a ledger of its index: what the orphan sweep asks."""

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.features.delayed.bucket_list import buckets_in
from magnetar.ledger.errors import NoNodeError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred


def delayed_index_refers(store: MetadataStore) -> IsReferred:
    """Asks the log that the ledger was made for (component "delayed-index")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        path = metadata.custom_metadata.get("log")
        if path is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which log it is of")
        try:
            node = await store.get(path)
        except NoNodeError:
            return False  # The topic was deleted.
        try:
            buckets = buckets_in(LogMetadata.from_json(node.value, path=path).properties, of=path)
        except BrokerPersistenceError as error:
            raise OwnerUnclearError(str(error)) from error
        return any(each.ledger_id == metadata.ledger_id for each in buckets)

    return is_referred
