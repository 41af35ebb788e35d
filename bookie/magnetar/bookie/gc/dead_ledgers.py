"""The search for dead ledgers: local ledgers that the metadata does not list. Pure.

They are candidates for deletion. Defect B10 shows what may go wrong: listings in an unexpected
order, listings that end early, ranges that are empty because a node vanished meanwhile. Each would
make live ledgers look dead. So:

- The local ledgers are those of a snapshot that was taken *before* the listing (defect B11): it
  excludes ledgers that are created while the listing runs.
- A range speaks for the ids in it and for no others. Ranges must follow each other without a gap
  from 0 to the largest id; any other listing is refused as a whole.
- An empty listing, or one that lacks an implausible share of the local ledgers, is refused as well
  (rule 10.2): it is better to waste space than to lose data.

A candidate is not dead yet: before a deletion, the ledger's own metadata is read (rule 10.1).
"""

from dataclasses import dataclass
from operator import lt

from pyroaring import BitMap64

from magnetar.bookie.errors import ImplausibleListingError
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX


@dataclass(frozen=True, slots=True)
class Brake:
    """Limits beyond which a listing that lacks local ledgers is not believed."""

    vanish_share_max: float = 0.5
    """Greatest share of the local ledgers that may vanish in one round."""
    ledgers_min: int = 100
    """Up to this many local ledgers a share proves nothing, and `patience_s` applies instead."""
    patience_s: float = 3600.0
    """Seconds that a ledger must be missing if most of a few ledgers are missing."""

    def asks_for_patience(self, *, missing: int, local: int) -> bool:
        """Return whether ledgers must be missing for `patience_s`: most of a few are missing."""
        is_most_of_few = local <= self.ledgers_min and missing > self.vanish_share_max * local
        return is_most_of_few and self.patience_s > 0


class DeadLedgerSearch:
    """Finds the local ledgers that a listing lacks. Feed it the ranges of the listing in order."""

    def __init__(self, local_ids: BitMap64) -> None:
        """`local_ids` is the snapshot from before the listing; it is consumed."""
        self.local_count = len(local_ids)
        self.listed_count = 0
        self._missing = local_ids
        self._next_id = 0

    def on_range(self, found: LedgerRange) -> None:
        """Take the next range of the listing.

        Raises:
            ImplausibleListingError: the range does not follow the last one, or lists ids outside of
                it or out of order.
        """
        ids = found.ledger_ids
        if found.first_id != self._next_id or found.last_id < found.first_id:
            raise ImplausibleListingError(
                f"the listing of ledgers goes from {found.first_id} to {found.last_id} where a "
                f"range from {self._next_id} was expected"
            )
        if ids and not (
            found.first_id <= ids[0] and ids[-1] <= found.last_id and all(map(lt, ids, ids[1:]))
        ):
            raise ImplausibleListingError(
                f"the listing of ledgers {found.first_id} to {found.last_id} is not in order, or "
                f"has others: it begins with {ids[0]} and ends with {ids[-1]}"
            )
        self._next_id = found.last_id + 1
        self.listed_count += len(ids)
        self._missing -= BitMap64(ids)

    def candidates(self, brake: Brake | None) -> list[int]:
        """Return the local ledgers that the complete listing lacks, ascending.

        Args:
            brake: None if an operator confirmed that the missing ledgers were really deleted.

        Raises:
            ImplausibleListingError: the listing ended early, or the brake held.
        """
        if self._next_id != LEDGER_ID_MAX + 1:
            raise ImplausibleListingError(
                f"the listing of ledgers ended before {self._next_id}: what follows is unknown"
            )
        if brake is not None:
            self._check_plausible(brake, len(self._missing))
        return list(self._missing)

    def _check_plausible(self, brake: Brake, missing: int) -> None:
        if missing and self.listed_count == 0:
            raise ImplausibleListingError(
                "the metadata store lists no ledgers at all, but this bookie has "
                f"{self.local_count}"
            )
        if (
            self.local_count > brake.ledgers_min
            and missing > brake.vanish_share_max * self.local_count
        ):
            raise ImplausibleListingError(
                f"the metadata lacks {missing} of the {self.local_count} ledgers of this bookie at "
                f"once, more than the share {brake.vanish_share_max} (gc_vanish_share_max)"
            )
