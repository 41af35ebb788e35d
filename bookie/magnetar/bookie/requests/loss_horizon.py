"""Which ledgers a bookie that once lost data must not take for new. Pure.

The loss took the fences along, also those of ledgers that name the bookie nowhere any more: a
writer that paused before such a ledger was recovered would find nothing here that refuses its adds
(defect D16). Whoever was not open when the loss was noticed never is again: CLOSED, IN_RECOVERY and
deleted do not lead back to OPEN. So of the ledgers that existed then, those alone that were open
may get ordinary adds. Ledger ids are given in ascending order; the highest one bounds them all.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossHorizon:
    """What was known of all ledgers when the last loss was noticed."""

    ledger_id: int = -1
    """The highest id there was; -1: nothing was ever lost."""
    open_ledgers: frozenset[int] = frozenset()
    """The ledgers that were open, and of which this bookie held nothing that it may have lost."""

    def hides(self, ledger_id: int) -> bool:
        """Whether the bookie may have known and fenced the ledger before the loss."""
        return ledger_id <= self.ledger_id and ledger_id not in self.open_ledgers
