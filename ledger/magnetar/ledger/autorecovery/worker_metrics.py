"""Metrics of a worker."""

from dataclasses import dataclass, field

from magnetar.ledger.metric_fields import counter, counter_by, counter_s, gauge
from magnetar.ledger.under_replication import Range


@dataclass(slots=True)
class WorkerMetrics:
    """Metrics of one worker. Belong to the event loop."""

    items_taken: int = counter("Attempts to process a work item.")
    items_finished: int = counter(
        "Work items deleted because the ledger has all copies, or was deleted."
    )
    items_changed: int = counter(
        "Work items of complete ledgers that were kept because something was added to the item "
        "meanwhile."
    )
    items_deferred: int = counter("Attempts that postponed a part of the work.")
    items_aborted: int = counter("Attempts that were aborted because the ledger's lock was lost.")
    ledgers_checked: int = counter("Checks of all replicas of a ledger.")
    ledgers_fenced: int = counter(
        "Open ledgers that were fenced and closed because they had lost a bookie."
    )
    ledgers_deleted: int = counter("Work items of ledgers that no longer existed.")
    members_replaced: int = counter("Lost bookies that were replaced in an ensemble.")
    swap_conflicts: int = counter(
        "Replacements in an ensemble that conflicted with another change of the metadata."
    )
    entries_read: int = counter("Entries read to be copied.")
    bytes_read: int = counter("Bytes of the packets of entries read to be copied.")
    entries_copied: int = counter("Copies made: an entry for two bookies counts twice.")
    bytes_copied: int = counter("Bytes of the packets of copies made.")
    read_requests: int = counter("Requests for entries to be copied.")
    write_requests: int = counter("Requests to store copies.")
    read_s: float = counter_s("Total time of reads of entries.")
    write_s: float = counter_s("Total time of requests to store copies.")
    bad_copies: int = counter("Copies that failed their digest when they were read.")
    unreadable_entries: int = counter("Entries that could not be read from any bookie.")
    scans: int = counter("Listings of the work items.")
    failures: dict[str, int] = counter_by(
        "kind", "Attempts that left a part of the work, by kind of failure."
    )

    items_in_work: int = gauge("Ledgers that are being repaired.")
    items_waiting: int = gauge("Ledgers that wait for their next attempt.")
    disabled: int = gauge("1 while auto-recovery is switched off.")
    lost_ledgers: int = gauge("Ledgers with entries that no bookie has: data loss.")
    unreachable_ledgers: int = gauge(
        "Ledgers with entries whose only copies are on bookies that are lost or do not answer."
    )

    lost_entries: dict[int, list[Range]] = field(default_factory=dict)
    """Entries that every bookie is certain not to have, by ledger (rule 5.6)."""
    unreachable: dict[int, str] = field(default_factory=dict)
    """Why some entries cannot be read now, by ledger."""

    def set_lost(self, ledger_id: int, ranges: list[Range]) -> bool:
        """Set the lost entries of a ledger, empty for none; return whether they changed."""
        before = self.lost_entries.pop(ledger_id, [])
        if ranges:
            self.lost_entries[ledger_id] = ranges
        self.lost_ledgers = len(self.lost_entries)
        return ranges != before

    def set_unreachable(self, ledger_id: int, reason: str) -> None:
        """Set why entries of a ledger cannot be read; empty if they can."""
        self.unreachable.pop(ledger_id, None)
        if reason:
            self.unreachable[ledger_id] = reason
        self.unreachable_ledgers = len(self.unreachable)

    def clear_losses(self) -> None:
        """Clear the lost and the unreachable entries of all ledgers."""
        self.lost_entries.clear()
        self.unreachable.clear()
        self.lost_ledgers = self.unreachable_ledgers = 0
