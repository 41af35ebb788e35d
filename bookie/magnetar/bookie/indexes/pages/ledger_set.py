"""The ledgers of a page index, and a digest of their ids. Pure.

The index mark has the digest: a page file that is lost, or comes back, changes it.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct

_ID = Struct(">q")


class LedgerSet:
    """Ledger ids with a digest that does not depend on their order."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self.digest = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ids

    def ascending(self) -> list[int]:
        return sorted(self._ids.copy())

    def fill(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self.add(ledger_id)

    def add(self, ledger_id: int) -> None:
        if ledger_id not in self._ids:
            self._ids.add(ledger_id)
            self.digest ^= _mixed(ledger_id)

    def discard(self, ledger_id: int) -> None:
        if ledger_id in self._ids:
            self._ids.discard(ledger_id)
            self.digest ^= _mixed(ledger_id)


def _mixed(ledger_id: int) -> int:
    """Return 64 bits unrelated to those of other ids.

    Stored on disk as part of the digest: never change.
    """
    return int.from_bytes(blake2b(_ID.pack(ledger_id), digest_size=8).digest(), "big")
