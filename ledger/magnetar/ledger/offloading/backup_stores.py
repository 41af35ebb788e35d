"""The object stores that have, or had, backups of a cluster, as the metadata store knows them.

    /backup-stores/<name of the store>   a random text

The sweep reads the backups of these stores, and of no others: a store that has none, and cannot be
reached, holds up nothing. The node is there before the first file of a backup is, and the backup
finds it unchanged before its last file is written. It goes with the last backup in the store.

Source: tiered storage, section 21.
"""

from collections.abc import Sequence

from magnetar.ledger.errors import NoNodeError
from magnetar.ledger.metadata.cell import GONE, Deletion, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore

ROOT = "/backup-stores"


async def stores_with_backups(store: MetadataStore) -> Sequence[str]:
    """The names of the object stores that backups may be in, sorted.

    Raises:
        MetadataError
    """
    try:
        return sorted(await store.children(ROOT))
    except NoNodeError:
        return ()


async def note_store(store: MetadataStore, name: str, token: bytes) -> bytes:
    """Note that an object store has backups; returns what is noted, by this call or before it.

    Args:
        token: random: tells a note from a later one.

    Raises:
        MetadataError
    """
    found, _ = await bytes_cell(store, f"{ROOT}/{name}").have(token)
    assert found.value is not None, "bytes are never None"
    return found.value


async def is_noted(store: MetadataStore, name: str, noted: bytes) -> bool:
    """Whether a note has been there all the time.

    Raises:
        MetadataError
    """
    await store.catch_up()
    found = await bytes_cell(store, f"{ROOT}/{name}").read(is_sure=True)
    return found is not None and found.value == noted


async def forget_store(store: MetadataStore, name: str) -> None:
    """Note that an object store has no backup any more.

    Raises:
        MetadataError
    """

    def gone(before: bytes | None) -> Deletion | None:
        return None if before is None else GONE

    await bytes_cell(store, f"{ROOT}/{name}").change(gone)
