"""Ledgers whose metadata no release can read."""

from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore


async def open_ledger_of(manager: LedgerManager, *bookies: str) -> int:
    """Create a ledger whose only fragment lies on these bookies; return its id."""

    def make(ledger_id: int, token: int) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=len(bookies),
            write_quorum=len(bookies),
            ack_quorum=1,
            state=LedgerState.OPEN,
            last_entry_id=-1,
            length=0,
            ensembles=(Fragment(0, bookies),),
            created_ms=1,
            creation_token=token,
        )

    return (await manager.create(make)).metadata.ledger_id


async def spoil_ledger(store: MetadataStore, ledger_id: int) -> str:
    """Overwrite the metadata of a ledger of a low id; return the path of its node."""
    path = f"/ledgers/00/0000/L{ledger_id:04d}"
    await store.set(path, b"{}", version=(await store.get(path)).version)
    return path
