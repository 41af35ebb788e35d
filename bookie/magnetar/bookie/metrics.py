"""Everything a bookie counts (metric_fields.py says how). Owned by the event loop.

Cheap enough for the hot path: touched per group or request, not per entry. Whoever composes the
server exports them (Prometheus or otherwise); nothing here knows how. Meaning and units are told in
docs/metrics.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.bookie.disks.disk_metrics import DiskMetrics
from magnetar.bookie.engine.storage_metrics import StorageMetrics
from magnetar.bookie.gc.gc_metrics import GcMetrics
from magnetar.bookie.integrity.integrity_metrics import IntegrityMetrics
from magnetar.ledger.metric_fields import (
    COUNT_BOUNDS,
    SIZE_BOUNDS_BYTES,
    Histogram,
    counter,
    counter_by,
    gauge,
    gauge_of,
    group,
    histogram,
)


@dataclass(slots=True)
class BookieMetrics:
    """The counters of one bookie. Several journals or directories add up, unless a label says."""

    before_export: list[Callable[[], None]] = field(default_factory=list)
    """Called on the event loop before the values are read: for gauges that nobody else keeps."""

    # Requests
    add_requests: int = counter("Add requests that were taken, recovery adds included.")
    recovery_add_requests: int = counter("Of those, how many came from a recovery.")
    add_entries: int = counter("Entries in all add requests.")
    add_bytes: int = counter("Bytes of the packets in them.")
    read_requests: int = counter("Requests for entries.")
    read_entries: int = counter("Entries that were sent to readers.")
    read_bytes: int = counter("Bytes of packets that were sent to readers.")
    read_lac_requests: int = counter("Requests for the LAC of a ledger, long polls included.")
    write_lac_requests: int = counter("Explicit LACs that were taken.")
    list_requests: int = counter("Requests for the list of entries of a ledger.")
    fence_requests: int = counter("Requests that fence a ledger.")
    failures: dict[str, int] = counter_by("status", "Replies that were not OK, by their status.")
    malformed_frames: int = counter("Connections ended for frames that make no sense.")
    stalls: int = counter("How often a connection had to wait for room in the write cache.")
    connections: int = gauge("Connections.")
    connections_refused: int = counter("Connections over the limit, or while the bookie stops.")
    received_bytes: int = counter("Bytes that came in over connections.")
    sent_bytes: int = counter("Bytes that were handed to connections.")
    reads_pending: int = gauge("Reads that wait for the disk.")
    reads_pending_bytes: int = gauge("Bytes that these have asked for at most.")
    slow_clients_cut: int = counter("Connections cut off because their clients took no replies.")
    long_polls: int = gauge("Requests that wait for news of a ledger.")

    # Journal
    journal_groups: int = counter("Groups of records that were synced together.")
    journal_records: int = counter("Records that were synced.")
    journal_bytes: int = counter("Bytes of records that were synced.")
    journal_queue_bytes: int = gauge("Bytes of records that are handed over and not answered.")
    journal_full_groups: int = counter("Groups that failed because the disk was full.")
    journals_full: int = gauge("Journals whose last group failed because the disk was full.")
    journal_group_bytes: Histogram = histogram("Bytes of one group.", SIZE_BOUNDS_BYTES)
    journal_group_entries: Histogram = histogram("Entries in one group.", COUNT_BOUNDS)
    journal_group_reasons: dict[str, int] = counter_by(
        "reason", "Groups by why they were closed: idle, wait, bytes, entries, close."
    )
    journal_queue_wait_s: Histogram = histogram(
        "From the hand-over of the oldest records of a group to the begin of its commit."
    )
    journal_add_s: Histogram = histogram(
        "From the hand-over of the oldest records of a group to the report that they are durable."
    )
    journal_append_s: Histogram = histogram("Append of one group, without its sync.")
    journal_sync_s: Histogram = histogram("Sync of one group.")
    journal_commit_s: Histogram = histogram(
        "Append and sync of one group, and the begin of a file if there was one."
    )
    journal_files_begun: int = counter("Journal files that were begun.")
    journal_file_begin_s: Histogram = histogram("The begin of a journal file.")
    journal_replay_bytes: int = gauge("Bytes of records that a restart would have to replay.")

    # Checkpoints
    checkpoints: int = counter("Checkpoints.")
    checkpoint_failures: int = counter("Checkpoints that failed; the journal keeps everything.")
    checkpoint_s: Histogram = histogram("One checkpoint.")
    checkpoint_age_s: float = gauge_of(
        "Time since the last marks were captured; 0 if nothing came since."
    )

    storage: StorageMetrics = group(StorageMetrics)

    disks: DiskMetrics = group(DiskMetrics)

    gc: GcMetrics = group(GcMetrics)

    # Damage, loss and repair
    integrity: IntegrityMetrics = group(IntegrityMetrics)

    def count_failure(self, status: str) -> None:
        self.failures[status] = self.failures.get(status, 0) + 1
