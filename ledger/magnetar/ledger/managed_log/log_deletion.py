"""Deletes a log that no owner has open, in steps that can be repeated after a crash.

First the node is marked. That fences any owner that still has the log open: its next change of the
list fails. Then the nodes below it are deleted (cursors, by the component that knows them), then
the node, and after it the ledgers. A crash in between leaves orphans, never a list of ledgers that
are gone. A marked log is never opened again; a process that finds one continues its deletion.

A node without a value is deleted like a log without ledgers. It is the parent of cursors that were
made when there was no log, by a restore that was broken off or by an earlier release.
"""

from collections.abc import Awaitable, Callable, Mapping

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BadVersionError,
    LedgerError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar.ledger.managed_log.log_ledgers import delete_ledger_of
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.cell import GONE, Cell, Deletion
from magnetar.ledger.metadata.store import MetadataStore

log = structlog.get_logger()

DELETED = "magnetar.deleted"
"""Property of a log that is being deleted."""


def is_marked(properties: Mapping[str, str]) -> bool:
    """Return whether a log with these properties is being deleted."""
    return DELETED in properties


async def mark_deleted(
    store: MetadataStore, path: str, check: Callable[[], Awaitable[None]] | None = None
) -> bool:
    """Mark the log, which fences its owner. Return False if there is no log.

    `check`: awaited between the read of the node and the write; it raises to leave the log as it
    is. What it allows is done to the log that was there before the check, and to no later one.

    Raises:
        InvalidLedgerMetadataError: the node is not a ledger list; it is left unchanged.
        MetadataError: the log may be marked or not; call again.
        Every error of `check`.
    """

    async def mark(metadata: LogMetadata | None) -> LogMetadata | None:
        if metadata is None or is_marked(metadata.properties):
            return None
        if check is not None:
            await check()
        return metadata.with_properties({DELETED: "true"})

    return (await _cell(store, path).change_async(mark)).after is not None


async def mark_unopened(store: MetadataStore, path: str) -> bool:
    """Mark a log that no broker has ever opened, and that has no ledgers. No broker can open it
    from here on. Return False if the log is none, is marked, or was opened; then it stays as it is.

    If the log is deleted between the read and the write, and another one made at its path, that one
    is marked if it was never opened either. A caller whose log may be wanted again makes it again.

    Raises:
        InvalidLedgerMetadataError: the node is not a ledger list; it is left unchanged.
        MetadataError: the log may be marked or not.
    """
    try:
        found = await store.get(path)
        if found.version != 0 or not found.value:
            return False
        metadata = LogMetadata.from_json(found.value, path=path)
        if metadata.ledgers or is_marked(metadata.properties):
            return False
        marked = metadata.with_properties({DELETED: "true"})
        await store.set(path, marked.to_json(), version=0)
    except (BadVersionError, NoNodeError):
        return False
    return True


async def is_marked_at(store: MetadataStore, path: str) -> bool:
    """Return whether a log is stored there that is being deleted.

    Raises:
        InvalidLedgerMetadataError, MetadataError
    """
    found = await _cell(store, path).read()
    return found is not None and found.value is not None and is_marked(found.value.properties)


async def remove_marked(store: MetadataStore, path: str) -> LogMetadata | None:
    """Remove the node of a marked log that has nothing below it any more, and leave its ledgers.
    Return what the node held; None if this call has not removed it.

    Raises:
        NotEmptyError: cursors are left below the node.
        InvalidLedgerMetadataError, MetadataError: call again.
    """

    def remove(metadata: LogMetadata | None) -> Deletion | None:
        # No mark: another process finished the deletion, and a new log was created.
        return GONE if metadata is not None and is_marked(metadata.properties) else None

    removed = await _cell(store, path).change(remove)
    return removed.before if removed.is_written else None


async def delete_marked(client: LedgerClient, store: MetadataStore, path: str) -> None:
    """Remove a marked log that has nothing below it any more: its node, then its ledgers.

    A ledger that cannot be deleted now is left to the orphan sweep.

    Raises:
        NotEmptyError: cursors are left below the node.
        InvalidLedgerMetadataError, MetadataError: call again.
    """
    removed = await remove_marked(store, path)
    if removed is None:
        return
    for ledger in removed.ledgers:
        try:
            properties = removed.properties
            await delete_ledger_of(client, path, ledger.ledger_id, properties)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            log.warning(
                "ledger_left_behind", path=path, ledger_id=ledger.ledger_id, error=str(error)
            )


def _cell(store: MetadataStore, path: str) -> Cell[LogMetadata]:
    return Cell(
        store,
        path,
        decode=lambda value: LogMetadata.from_json(value, path=path) if value else LogMetadata(),
        encode=LogMetadata.to_json,
    )
