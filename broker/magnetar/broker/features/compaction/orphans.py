"""Which compacted ledger a topic names: what the orphan sweep asks, and who deletes a topic."""

from collections.abc import Awaitable, Callable

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.features.compaction.record import CURSOR, NO_LEDGER, record_in
from magnetar.cursors import CursorError
from magnetar.cursors.node import cursor_path, decode_node
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoNodeError, NoSuchLedgerError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred


def compaction_refers(store: MetadataStore) -> IsReferred:
    """Asks the cursor of the topic that the ledger was made for (component "compaction")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        log = metadata.custom_metadata.get("log")
        if log is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which log it is of")
        return await named_ledger(store, log) == metadata.ledger_id

    return is_referred


async def named_ledger(store: MetadataStore, log: str) -> int:
    """The compacted ledger that a topic names, by the path of its log; NO_LEDGER: none.

    Raises:
        OwnerUnclearError: what is stored cannot be understood.
        MetadataError: the store cannot be reached.
    """
    path = cursor_path(log, CURSOR)
    try:
        node = decode_node((await store.get(path)).value, path=path)
        record = record_in(node.properties, of=log)
    except NoNodeError:
        return NO_LEDGER  # Never compacted, or the topic was deleted.
    except (CursorError, UnreadableRecordError) as error:
        raise OwnerUnclearError(f"the compaction of {log}: {error}") from error
    return NO_LEDGER if record is None else record.ledger_id


async def delete_compacted(
    client: LedgerClient,
    store: MetadataStore,
    log: str,
    delete_cursor: Callable[[], Awaitable[None]],
) -> None:
    """Delete the cursor of a topic's compaction, and then the ledger that it names.

    Raises:
        LedgerError, CursorError: call again, or leave the ledger to the orphan sweep.
    """
    ledger_id = await named_ledger(store, log)
    await delete_cursor()
    if ledger_id != NO_LEDGER:
        try:
            await client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
