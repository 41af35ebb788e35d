"""How far a log reaches for its owner: which ledgers it has, and what of it is confirmed. Pure.

One ledger at a time *grows*: the one whose appends are being reported. While ledgers change, that
is the draining one until its last append was reported, and the current one counts for nothing until
then. So positions never go back, and no reader of the owner's is ahead of what was reported.
"""

from collections.abc import Sequence

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_shape import LogShape
from magnetar.ledger.position import Position


class LogExtent:
    """The confirmed part of a log."""

    def __init__(self) -> None:
        self.shape = LogShape([])
        self.last_confirmed = Position(-1, -1)
        self.growing_id = -1
        """The ledger that grows; -1 when none does."""

    def confirm(self, ledger_id: int, last_entry_id: int) -> None:
        """Everything up to this entry of the growing ledger is confirmed."""
        self.last_confirmed = Position(ledger_id, last_entry_id)
        self.shape.grow(last_entry_id + 1)

    def grow_in(self, ledger_id: int) -> None:
        """This ledger grows from now on."""
        self.growing_id = ledger_id
        if ledger_id not in self.shape:
            self.shape.add_ledger(ledger_id)

    def entries(self, ledger_id: int) -> int:
        """Confirmed entries of a ledger; 0 of one that does not grow yet."""
        return self.shape.last_entry_id(ledger_id) + 1 if ledger_id in self.shape else 0

    def reshape(self, listed: Sequence[LogLedger]) -> None:
        """The list has changed: adopt the counters of closed ledgers, and which there are."""
        self.shape = LogShape(
            [
                (
                    ledger.ledger_id,
                    ledger.entries if ledger.is_closed else self.entries(ledger.ledger_id),
                )
                for ledger in listed
                if ledger.is_closed or ledger.ledger_id in self.shape
            ]
        )

    def reach_end(self, listed: Sequence[LogLedger]) -> None:
        """No ledger grows, and all that closed ledgers hold is confirmed."""
        self.growing_id = -1
        self.reshape(listed)
        if self.shape.last_confirmed.entry_id >= 0:
            self.last_confirmed = self.shape.last_confirmed
