"""Whether a cursor still names a ledger: what the orphan sweep of the ledger component asks."""

from magnetar.cursors.errors import CursorError
from magnetar.cursors.node import cursor_path, decode_node
from magnetar.ledger.errors import NoNodeError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred


def cursor_refers(store: MetadataStore) -> IsReferred:
    """Asks the cursor that the ledger was made for (component "cursor")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        log, cursor = (metadata.custom_metadata.get(name) for name in ("log", "cursor"))
        if log is None or cursor is None:
            raise OwnerUnclearError(
                f"ledger {metadata.ledger_id} does not say which cursor of which log it is of"
            )
        try:
            path = cursor_path(log, cursor)
            node = decode_node((await store.get(path)).value, path=path)
        except NoNodeError:
            return False  # The cursor was deleted.
        except CursorError as error:
            raise OwnerUnclearError(f"cursor {cursor} of {log}: {error}") from error
        return node.cursor_ledger_id == metadata.ledger_id

    return is_referred
