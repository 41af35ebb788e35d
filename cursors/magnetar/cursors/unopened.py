"""Cursors that are not opened: made for a log that nobody serves yet, or deleted with their log."""

from typing import Protocol

from magnetar.cursors.node import CursorNode, cursor_path, decode_node, encode_node
from magnetar.ledger.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST


class DeletesLedgers(Protocol):
    """What of the ledger client is needed."""

    async def delete(self, ledger_id: int) -> None: ...


async def copy_cursor(
    store: MetadataStore, from_log_path: str, to_log_path: str, name: str
) -> None:
    """Have a cursor of the same name and properties at the beginning of another log.

    One that is there already stays as it is; the one to copy may be gone.

    Raises:
        InvalidCursorNodeError, MetadataError
    """
    path = cursor_path(from_log_path, name)
    try:
        node = decode_node((await store.get(path)).value, path=path)
    except NoNodeError:
        return
    copy = CursorNode(
        epoch=1,
        mark_delete=(EARLIEST.ledger_id, EARLIEST.entry_id),
        properties=node.properties,
        last_active_ms=node.last_active_ms,
    )
    while True:
        try:
            await store.create(cursor_path(to_log_path, name), encode_node(copy))
        except NodeExistsError:
            return
        except UnknownOutcomeError:
            continue
        return


async def delete_unopened(
    client: DeletesLedgers, store: MetadataStore, log_path: str, name: str
) -> None:
    """Delete a cursor whose log is being deleted: its node first, then its ledger.

    Who still has it open is fenced by that. Safe to call again.

    Raises:
        InvalidCursorNodeError, LedgerError
    """
    path = cursor_path(log_path, name)
    while True:
        try:
            found = await store.get(path)
            node = decode_node(found.value, path=path)
            await store.delete(path, version=found.version)
        except NoNodeError:
            return
        except (BadVersionError, UnknownOutcomeError):
            continue  # Saved once more meanwhile, or nobody knows: look again.
        break
    if node.cursor_ledger_id >= 0:
        try:
            await client.delete(node.cursor_ledger_id)
        except NoSuchLedgerError:
            pass
