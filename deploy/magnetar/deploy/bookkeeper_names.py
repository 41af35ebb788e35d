"""Metrics of bookies and auto-recovery under BookKeeper's names, where BookKeeper has the same
number.

Dashboards made for Pulsar ask for these names. The metrics add nothing to those under Magnetar's
own names. Their Prometheus type is `unknown`, because BookKeeper's counters do not end in `_total`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.autorecovery.metrics import AutoRecoveryMetrics

OF_BOOKIE: Sequence[tuple[str, str, Mapping[str, str], Callable[[BookieMetrics], float]]] = (
    (
        "bookie_SERVER_STATUS",
        "1 if the bookie accepts ordinary adds, 0 if it is read-only.",
        {},
        lambda m: m.disks.writable,
    ),
    (
        "bookkeeper_server_ADD_ENTRY_count",
        "Entries that were added.",
        {"success": "true"},
        lambda m: m.add_entries,
    ),
    (
        "bookkeeper_server_READ_ENTRY_count",
        "Entries that were sent to readers.",
        {"success": "true"},
        lambda m: m.read_entries,
    ),
    ("bookie_WRITE_BYTES", "Bytes that were added.", {}, lambda m: m.add_bytes),
    ("bookie_READ_BYTES", "Bytes that were sent to readers.", {}, lambda m: m.read_bytes),
    (
        "bookie_journal_JOURNAL_SYNC_count",
        "Syncs of the journal.",
        {"success": "true"},
        lambda m: m.journal_groups,
    ),
    ("bookie_ledgers_count", "Ledgers that the bookie knows.", {}, lambda m: m.storage.ledgers),
    (
        "bookie_write_cache_size",
        "Bytes that are not flushed yet.",
        {},
        lambda m: m.storage.write_cache_bytes,
    ),
    (
        "bookie_read_cache_size",
        "Bytes that were read from entry logs.",
        {},
        lambda m: m.storage.read_cache_bytes,
    ),
    (
        "bookie_DELETED_LEDGER_COUNT",
        "Ledgers deleted because their metadata is gone.",
        {},
        lambda m: m.gc.deleted_ledgers,
    ),
    (
        "bookie_ledger_writable_dirs",
        "Directories that are not full.",
        {},
        lambda m: sum(level < 2 for level in m.disks.level.values()),
    ),
    (
        "bookie_throttled_write_requests",
        "Times that a connection waited for room in the write cache.",
        {},
        lambda m: m.stalls,
    ),
)
"""Name, help text, labels and value of each metric."""

OF_RECOVERY: Sequence[tuple[str, str, Callable[[AutoRecoveryMetrics], float]]] = (
    (
        "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
        "Ledgers with entries that no bookie has.",
        lambda m: m.auditor.ledgers_without_replica,
    ),
    (
        "replication_worker_NUM_ENTRIES_READ",
        "Entries read to be copied.",
        lambda m: m.worker.entries_read,
    ),
    (
        "replication_worker_NUM_ENTRIES_WRITTEN",
        "Copies made.",
        lambda m: m.worker.entries_copied,
    ),
    (
        "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
        "Ledgers that have all copies again, or were deleted.",
        lambda m: m.worker.items_finished,
    ),
    (
        "replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION",
        "Entries that could not be read from any bookie.",
        lambda m: m.worker.unreadable_entries,
    ),
)


def bookie_families(bookies: Sequence[tuple[str, BookieMetrics]]) -> Iterator[Metric]:
    """Yield one metric family per name, with a sample for each pair of bookie id and metrics."""
    for name, text, labels, read in OF_BOOKIE:
        family = Metric(name, text, "unknown")
        for bookie_id, metrics in bookies:
            family.add_sample(name, {"bookie": bookie_id, **labels}, read(metrics))
        yield family


def recovery_families(metrics: AutoRecoveryMetrics) -> Iterator[Metric]:
    """Yield one metric family per name."""
    for name, text, read in OF_RECOVERY:
        family = Metric(name, text, "unknown")
        family.add_sample(name, {}, read(metrics))
        yield family
