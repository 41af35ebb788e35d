"""Deleting a log that nobody has open, in steps that can be taken again after a crash.

First the node is marked, which fences whoever may still have the log open: its next change of the
list fails. Then what lies below the node goes (cursors, by whoever knows them), then the node, and
after it the ledgers: a crash between leaves orphans, never a list of ledgers that are gone. A
marked log is never opened again; whoever finds one goes on with its deletion.
"""

from collections.abc import Mapping

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BadVersionError,
    LedgerError,
    NoNodeError,
    NoSuchLedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore

log = structlog.get_logger()

DELETED = "magnetar.deleted"
"""Property of a log that is being deleted."""


def is_marked(properties: Mapping[str, str]) -> bool:
    """Whether a log with these properties is being deleted."""
    return DELETED in properties


async def mark_deleted(store: MetadataStore, path: str) -> bool:
    """Mark the log; whoever has it open is fenced. False: there is none.

    Raises:
        InvalidLedgerMetadataError: what is there is no ledger list; it is left alone.
        MetadataError: nobody knows whether it is marked; call again.
    """
    while True:
        try:
            node = await store.get(path)
            metadata = LogMetadata.from_json(node.value, path=path)
            if is_marked(metadata.properties):
                return True
            marked = metadata.with_properties({DELETED: "true"})
            await store.set(path, marked.to_json(), version=node.version)
        except NoNodeError:
            return False
        except (BadVersionError, UnknownOutcomeError):
            continue  # The owner was faster, or nobody knows: look again.
        return True


async def delete_marked(client: LedgerClient, store: MetadataStore, path: str) -> None:
    """Remove a marked log that has nothing below it any more: its node, then its ledgers.

    A ledger that cannot be deleted now is left to the orphan sweep.

    Raises:
        NotEmptyError: cursors are left below the node.
        InvalidLedgerMetadataError, MetadataError: call again.
    """
    while True:
        try:
            node = await store.get(path)
            metadata = LogMetadata.from_json(node.value, path=path)
            if not is_marked(metadata.properties):
                return  # Somebody finished this, and somebody else made a new one.
            await store.delete(path, version=node.version)
        except NoNodeError:
            return
        except (BadVersionError, UnknownOutcomeError):
            continue
        break
    for ledger in metadata.ledgers:
        try:
            await client.delete(ledger.ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            log.warning(
                "ledger_left_behind", path=path, ledger_id=ledger.ledger_id, error=str(error)
            )
