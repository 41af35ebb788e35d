"""The flat layout, deprecated: all ledgers are children of the root, `L` and ten digits.

The list of all children must fit into one reply of the store. For ZooKeeper that ends at about 1
MiB, some tens of thousands of ledgers. Kept for tests and for old roots.
"""

import re
from collections.abc import AsyncIterator

from magnetar.ledger.errors import NoSuchLedgerError
from magnetar.ledger.layouts.ledger_ids import LEDGER_ID_LIMIT, ShortLedgerIds
from magnetar.ledger.layouts.ledger_layout import LayoutName, LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX
from magnetar.ledger.metadata.store import MetadataStore

_LEDGER = re.compile(r"L([0-9]{10})")


class FlatLayout:
    """The flat layout, deprecated: one list of all ledgers."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root
        self._ids = ShortLedgerIds(store, root)

    @property
    def name(self) -> LayoutName:
        return "flat"

    def path(self, ledger_id: int) -> str:
        if not 0 <= ledger_id < LEDGER_ID_LIMIT:
            raise NoSuchLedgerError(
                f"ledger ids are from 0 to {LEDGER_ID_LIMIT - 1}, not {ledger_id}"
            )
        return f"{self._root}/L{ledger_id:010d}"

    async def next_id(self) -> int:
        return await self._ids.next_id()

    def keeps(self, child_of_root: str) -> bool:
        return _LEDGER.fullmatch(child_of_root) is not None

    async def ranges(self) -> AsyncIterator[LedgerRange]:
        names = await self._store.children(self._root)
        ids = [int(found[1]) for name in names if (found := _LEDGER.fullmatch(name))]
        yield LedgerRange(0, LEDGER_ID_MAX, tuple(sorted(ids)))
