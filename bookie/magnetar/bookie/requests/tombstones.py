"""Ledgers that were deleted here a while ago: what is left of them is that they take no adds. Pure.

A writer may not know that its ledger was recovered, closed and deleted meanwhile. Its next add
would make the ledger again, without the fence that had stopped it, and be acknowledged (defect
B13). So a deleted ledger is remembered, in memory alone and for some days: writers do not live
longer than that without a look at the metadata. Recovery adds and fences pass: re-replication may
bring a closed ledger back to this bookie.
"""


class Tombstones:
    """Deleted ledgers, bounded in number and time; the oldest goes first."""

    def __init__(self, *, keep_s: float = 7 * 86_400.0, count_max: int = 200_000) -> None:
        self._keep_s = keep_s
        self._count_max = count_max
        self._until_s: dict[int, float] = {}
        """In the order of the deletions."""

    def __len__(self) -> int:
        return len(self._until_s)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._until_s

    def put(self, ledger_id: int, now_s: float) -> None:
        """The ledger was deleted."""
        until_s = self._until_s
        until_s.pop(ledger_id, None)
        if self._count_max == 0:
            return
        if len(until_s) >= self._count_max:
            del until_s[next(iter(until_s))]
        until_s[ledger_id] = now_s + self._keep_s

    def expire(self, now_s: float) -> None:
        """Forget those whose time is over."""
        until_s = self._until_s
        while until_s:
            ledger_id = next(iter(until_s))
            if until_s[ledger_id] > now_s:
                return
            del until_s[ledger_id]
