"""Metrics of a worker."""

from dataclasses import dataclass, field

from magnetar.ledger.metric_fields import counter, counter_by, counter_s, gauge
from magnetar.ledger.under_replication import Range


@dataclass(slots=True)
class WorkerMetrics:
    """Metrics of one worker. Belong to the event loop."""

    items_taken: int = counter("Work items that were begun, each attempt.")
    items_finished: int = counter("Work items deleted: the ledger is whole, or deleted.")
    items_changed: int = counter(
        "Work items of ledgers that were whole, not deleted since something was added meanwhile."
    )
    items_deferred: int = counter("Attempts after which something was left for later.")
    items_aborted: int = counter("Attempts that ended because the ledger's lock was lost.")
    ledgers_checked: int = counter("Looks at all replicas of a ledger.")
    ledgers_fenced: int = counter("Open ledgers that were closed since they had lost a bookie.")
    ledgers_deleted: int = counter("Work items of ledgers that no longer existed.")
    members_replaced: int = counter("Lost bookies that another one took the place of.")
    swap_conflicts: int = counter("Replacements that met another change of the metadata.")
    entries_read: int = counter("Entries read to be copied.")
    bytes_read: int = counter("Bytes of their packets.")
    entries_copied: int = counter("Copies made: an entry for two bookies counts twice.")
    bytes_copied: int = counter("Bytes of their packets.")
    read_requests: int = counter("Requests for entries to be copied.")
    write_requests: int = counter("Requests to store copies.")
    read_s: float = counter_s("Time that reads of entries took, added up.")
    write_s: float = counter_s("Time that requests to store copies took, added up.")
    bad_copies: int = counter("Copies that failed their digest when they were read.")
    unreadable_entries: int = counter("Entries that could not be read from any bookie.")
    scans: int = counter("Listings of the work items.")
    failures: dict[str, int] = counter_by("kind", "Attempts after which something was left.")

    items_in_work: int = gauge("Ledgers that are being repaired.")
    items_waiting: int = gauge("Ledgers that wait for their next attempt.")
    disabled: int = gauge("1 while auto-recovery is switched off.")
    lost_ledgers: int = gauge("Ledgers of which no bookie has some of the entries: data loss.")
    unreachable_ledgers: int = gauge(
        "Ledgers of which some entries are only on bookies that are lost or do not answer."
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
