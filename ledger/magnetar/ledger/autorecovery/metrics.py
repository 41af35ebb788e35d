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
    delay_s: float = gauge_of("How long the auditor waits for a single lost bookie.")

    # Lost bookies
    bookies_registered: int = gauge("Registered bookies, read-only ones included.")
    bookies_lost: int = gauge("Known bookies that are not registered.")
    is_mass_loss: int = gauge(
        "1 while so many bookies that vanished at once are away that the metadata store or the "
        "network is suspected: publishing is slowed down."
    )
    delayed_audits_scheduled: int = counter(
        "Audits that were delayed so that a single bookie could come back."
    )
    delayed_audits_cancelled: int = counter(
        "Delayed audits that were cancelled because the bookie came back."
    )
    audits: dict[str, int] = counter_by(
        "reason", "Audits by reason: lost, delayed, mass_loss, asked, again, periodic."
    )
    audit_failures: int = counter("Audits that failed; the auditor retries them.")
    audit_s: Histogram = histogram("Time of one audit.", _RUN_BOUNDS_S)
    audit_ledgers: int = counter("Ledgers whose metadata audits have read.")
    items_published: dict[str, int] = counter_by(
        "source", "Work items that were created or extended, by source: an audit or a check."
    )

    # Checks
    unreadable_ledgers: int = gauge(
        "Ledgers whose metadata this release cannot read: audits and checks leave them out. As of "
        "the last audit or check; see the log."
    )
    checks: dict[str, int] = counter_by("check", "Finished periodic checks.")
    check_failures: dict[str, int] = counter_by("check", "Periodic checks that failed.")
    check_s: Histogram = histogram("Time of one periodic check.", _RUN_BOUNDS_S)
    checked_ledgers: dict[str, int] = counter_by("check", "Ledgers that checks examined.")
    checked_fragments: dict[str, int] = counter_by("check", "Fragments that checks examined.")
    undecided_ledgers: dict[str, int] = counter_by(
        "check", "Ledgers on which a check could not decide, even when it checked them again."
    )
    misplaced_fragments: int = gauge(
        "Fragments of closed ledgers with a write set in fewer failure domains than required, at "
        "the last placement check."
    )
    concentrated_fragments: int = gauge(
        "Fragments of closed ledgers with a write set in a single failure domain, at the last "
        "placement check."
    )

    # Items, as of the last survey
    under_replicated_ledgers: int = gauge("Ledgers that wait for copies.")
    under_replicated_bytes: int = gauge("Approximate bytes that have to be copied.")
    ledgers_in_work: int = gauge("Ledgers whose lock a worker holds.")
    oldest_item_age_s: float = gauge_of("Age of the oldest work item.")
    overdue_items: int = gauge("Work items older than overdue_item_age_s.")
    ledgers_without_replica: int = gauge("Ledgers with entries that no bookie has: data loss.")
    unreadable_items: int = gauge("Work items that this release cannot read: see the log.")


@dataclass(slots=True)
class AutoRecoveryMetrics:
    """Metrics of one process of auto-recovery."""

    auditor: AuditorMetrics = group(AuditorMetrics)
    worker: WorkerMetrics = group(WorkerMetrics)
