"""Metrics of the auditor, and all metrics that one process of auto-recovery shows.

`metric_fields.py` explains the declarations; a worker's metrics are in `worker_metrics.py`. The
numbers belong to the event loop. Those about the whole cluster are 0 in a process that is not the
auditor: take the maximum over all processes.
"""

from dataclasses import dataclass

from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.metric_fields import (
    Histogram,
    counter,
    counter_by,
    gauge,
    gauge_of,
    group,
    histogram,
)

_RUN_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 36000.0)


@dataclass(slots=True)
class AuditorMetrics:
    """Metrics of the auditor; `is_auditor` says whether this process is it."""

    is_auditor: int = gauge("1 in the process that was elected auditor, else 0.")
    elections_won: int = counter("How often this process became the auditor.")
    is_disabled: int = gauge("1 while an operator has switched auto-recovery off.")
    delay_s: float = gauge_of("How long a single lost bookie is waited for.")

    # Lost bookies
    bookies_registered: int = gauge("Registered bookies, read-only ones included.")
    bookies_lost: int = gauge("Known bookies that are not registered.")
    is_mass_loss: int = gauge(
        "1 while so many bookies vanished at once that the metadata store or the network is "
        "suspected: publishing is slowed down."
    )
    delayed_audits_scheduled: int = counter("Audits that wait for a single bookie to come back.")
    delayed_audits_cancelled: int = counter("Of those, how many ended because it came back.")
    audits: dict[str, int] = counter_by(
        "reason", "Audits by why they ran: lost, delayed, mass_loss, asked, again, periodic."
    )
    audit_failures: int = counter("Audits that failed and are tried again.")
    audit_s: Histogram = histogram("One audit.", _RUN_BOUNDS_S)
    audit_ledgers: int = counter("Ledgers whose metadata audits have read.")
    items_published: dict[str, int] = counter_by(
        "source", "Items that were created or extended, by what found them: audit or a check."
    )

    # Checks
    checks: dict[str, int] = counter_by("check", "Periodic checks that came to their end.")
    check_failures: dict[str, int] = counter_by("check", "Periodic checks that failed.")
    check_s: Histogram = histogram("One periodic check.", _RUN_BOUNDS_S)
    checked_ledgers: dict[str, int] = counter_by("check", "Ledgers that checks looked at.")
    checked_fragments: dict[str, int] = counter_by("check", "Fragments of these.")
    undecided_ledgers: dict[str, int] = counter_by(
        "check", "Ledgers about which a check could not decide, after a second look."
    )
    misplaced_fragments: int = gauge(
        "Fragments of closed ledgers, at the last placement check, of which some write set lies in "
        "fewer failure domains than it should."
    )
    concentrated_fragments: int = gauge("Of those, how many lie in a single one.")

    # Items, as of the last survey
    under_replicated_ledgers: int = gauge("Ledgers that wait for copies.")
    under_replicated_bytes: int = gauge("Bytes that have to be copied, about.")
    ledgers_in_work: int = gauge("Ledgers that a worker holds the lock of.")
    oldest_item_age_s: float = gauge_of("Age of the oldest item.")
    overdue_items: int = gauge("Items older than overdue_item_age_s.")
    ledgers_without_replica: int = gauge(
        "Ledgers of which no bookie has some of the entries: data loss."
    )
    unreadable_items: int = gauge("Items that this version cannot read: look at the log.")


@dataclass(slots=True)
class AutoRecoveryMetrics:
    """Metrics of one process of auto-recovery."""

    auditor: AuditorMetrics = group(AuditorMetrics)
    worker: WorkerMetrics = group(WorkerMetrics)
