"""Past ledgers: this bookie holds nothing of them, and must not take them for new. Pure.

Deleted ledgers (`Tombstones`). A writer may not know that its ledger was recovered, closed and
deleted meanwhile. Its next add would create the ledger again, without the fence that had stopped
it, and be acknowledged (defect B13). So the bookie remembers a deleted ledger, in memory alone and
for some days: no writer lives longer than that without a look at the metadata. Recovery adds and
fences pass: re-replication may bring a closed ledger back to this bookie.

Ledgers from before a loss of data (`LossHorizon`). The loss took the fences along, also those of
ledgers that no longer name the bookie anywhere. A writer that paused before such a ledger was
recovered would find nothing here that refuses its adds (defect D16). A ledger that was not open
when the loss was noticed never is again: CLOSED, IN_RECOVERY and deleted do not lead back to OPEN.
So of the ledgers that existed then, only the open ones may get ordinary adds. Ledger ids are
assigned in ascending order; the highest one bounds them all.
"""

from dataclasses import dataclass


class Tombstones:
    """Deleted ledgers, bounded in number and time; the oldest is evicted first."""

    def __init__(self, *, keep_s: float = 7 * 86_400.0, count_max: int = 200_000) -> None:
        self._keep_s = keep_s
        self._count_max = count_max
        self._until_s: dict[int, float] = {}
        """Expiry by ledger id, in the order of the deletions."""

    def __len__(self) -> int:
        return len(self._until_s)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._until_s

    def put(self, ledger_id: int, now_s: float) -> None:
        """Remember a deleted ledger."""
        until_s = self._until_s
        until_s.pop(ledger_id, None)
        if self._count_max == 0:
            return
        if len(until_s) >= self._count_max:
            del until_s[next(iter(until_s))]
        until_s[ledger_id] = now_s + self._keep_s

    def expire(self, now_s: float) -> None:
        """Forget the ledgers whose time is over."""
        until_s = self._until_s
        while until_s:
            ledger_id = next(iter(until_s))
            if until_s[ledger_id] > now_s:
                return
            del until_s[ledger_id]


@dataclass(frozen=True, slots=True)
class LossHorizon:
    """The ledgers that existed, and those that were open, when the last loss was noticed."""

    ledger_id: int = -1
    """The highest ledger id at that time; -1 if nothing was ever lost."""
    open_ledgers: frozenset[int] = frozenset()
    """Ledgers that were open, and whose last fragment did not name this bookie.

    Also those that named it in an earlier fragment: they are in limbo, but their writers may choose
    the bookie again. No fence of theirs was lost. A recovery ends OPEN before it fences, and asks
    the last fragment alone.
    """

    def hides(self, ledger_id: int) -> bool:
        """Return whether the bookie may have known and fenced the ledger before the loss."""
        return ledger_id <= self.ledger_id and ledger_id not in self.open_ledgers
