"""Ledgers of this bookie that the metadata does not list: candidates for deletion. Pure.

What may go wrong is told by defect B10: listings in another order than assumed, listings that end
early, ranges that are empty because a node vanished meanwhile. Each would make live ledgers look
dead. So:

- The local ledgers are those of a snapshot that was taken *before* the listing (defect B11): a
  ledger that is made while the listing runs is none of them.
- A range speaks for the ids in it and for no others. Ranges must follow each other without a gap
  from 0 to the largest id; what lists anything else is refused as a whole.
- An empty listing, or one that lacks an implausible share of the local ledgers, is refused as well
  (rule 10.2): rather no space than no data.

A candidate is not dead yet: whoever deletes asks for the ledger's own metadata (rule 10.1).
"""

from dataclasses import dataclass
from operator import lt

from pyroaring import BitMap64

from magnetar.bookie.errors import ImplausibleListingError
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX


@dataclass(frozen=True, slots=True)
class Brake:
    """When a listing that lacks many of the local ledgers is not believed."""

    vanish_share_max: float = 0.5
    """Greatest share of the local ledgers that may vanish in one round."""
    ledgers_min: int = 100
    """With no more local ledgers than these, a share proves nothing, and patience takes over."""
    patience_s: float = 3600.0
    """How long a ledger must be missing if most of few ledgers are."""


class DeadLedgerSearch:
    """The local ledgers that a listing does not have. Feed it the ranges as they come."""

    def __init__(self, local_ids: BitMap64) -> None:
        """`local_ids` is the snapshot that was taken before the listing began; it is used up."""
        self.local_count = len(local_ids)
        self.listed_count = 0
        self._missing = local_ids
        self._next_id = 0

    def on_range(self, found: LedgerRange) -> None:
        """
        Raises:
            ImplausibleListingError: the range does not follow the last one, or lists ids that are
                not its own or not in order.
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
        """The local ledgers that the complete listing did not have, ascending.

        Args:
            brake: None if a person said that what vanished has really been deleted.

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
