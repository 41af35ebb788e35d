"""All metrics of a bookie (`metric_fields.py` explains the kinds). Owned by the event loop.

Cheap enough for the hot path: updated per group or request, not per entry. The code that composes
the server exports them (to Prometheus or elsewhere). docs/metrics.md explains meaning and units.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.ledger.flight_recorder import FLUSH, RECORDER
from magnetar.ledger.metric_fields import (
    COUNT_BOUNDS,
    SIZE_BOUNDS_BYTES,
    Histogram,
    counter,
    counter_by,
    counter_s,
    gauge,
    gauge_by,
    gauge_of,
    group,
    histogram,
)


@dataclass(slots=True)
class IntegrityMetrics:
    """Counters of damage, loss and repair."""

    # Damage and healing
    damages: int = counter("Damaged places that were reported, by reads or by the scrubber.")
    damages_dropped: int = counter(
        "Damaged places that were dropped because too many wait; the scrubber finds them again."
    )
    heals_waiting: int = gauge("Ledgers with damage that is not healed yet.")
    heals_failing: int = gauge(
        "Ledgers whose damage could not be healed in several attempts: they are listed for repair."
    )
    heal_attempts: int = counter("Attempts to heal the damage of one ledger.")
    healed_entries: int = counter("Entries stored again from another replica, and verified.")
    healed_bytes: int = counter("Bytes of the packets of healed entries.")

    # After a loss
    check_needed: int = gauge("1 while the check after a loss of data is not finished.")
    limbo_ledgers: int = gauge(
        "Ledgers in limbo: the bookie does not know which of their entries it lacks."
    )
    recovered_ledgers: int = counter("Ledgers that the check after a loss had to close.")
    missing_entries: int = counter("Entries that the check after a loss found missing.")
    copied_entries: int = counter("Entries found missing that were copied from other bookies.")
    copied_bytes: int = counter("Bytes of the packets of entries copied by the check after a loss.")
    check_failures: int = counter(
        "Ledgers that a round of the check after a loss could not complete."
    )

    # Scrubbing
    scrub_passes: int = counter(
        "Finished scrub passes: everything in a ledger directory was read and checked."
    )
    scrub_records: int = counter("Index records whose entries were read and checked.")
    scrub_bytes: int = counter("Bytes of entry logs that were read and checked.")
    scrub_damages: int = counter("Damaged places that the scrubber found.")
    scrub_errors: int = counter("Failed reads of the scrubber; it retries them.")
    scrub_pass_share: float = gauge_of(
        "Finished share of the current scrub pass, for the slowest directory."
    )


_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_RUN_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(slots=True)
class GcMetrics:
    """Counters of garbage collection."""

    rounds: int = counter("Finished rounds of garbage collection.")
    failures: dict[str, int] = counter_by(
        "part",
        "Rounds of garbage collection, or parts of them, that failed. They deleted nothing that "
        "is in use.",
    )
    round_s: Histogram = histogram(
        "Time of one round of garbage collection, compaction included.", _RUN_BOUNDS_S
    )
    brakes: int = counter(
        "Rounds that deleted nothing because the list of ledgers was implausible: check the "
        "metadata store."
    )
    listed_in_error: int = counter(
        "Ledgers that exist although a listing of the metadata lacked them."
    )
    unrecorded_ledgers: int = counter(
        "Ledgers kept because the metadata store lacks them and has no record that they were "
        "deleted: it lost them."
    )
    deleted_ledgers: int = counter("Ledgers deleted here because their metadata is gone.")
    surplus_ledgers: int = counter("Ledgers deleted here because other bookies have them.")
    unconfirmed_ledgers: int = counter("Ledgers kept because the metadata store did not answer.")
    tombstones: int = gauge("Deleted ledgers that the bookie remembers, to refuse adds to them.")

    logs: int = gauge("Entry logs that are complete and not written any more.")
    log_bytes: int = gauge("Bytes of complete entry logs.")
    live_bytes: int = gauge("Bytes in complete entry logs that belong to existing ledgers.")
    live_share: Histogram = histogram(
        "Live share of each complete entry log, at each round.", _SHARES
    )
    removed_logs: int = counter("Entry logs removed because nothing in them was in use.")
    removed_bytes: int = counter("Bytes of entry logs removed because nothing in them was in use.")

    compactions: dict[str, int] = counter_by("kind", "Runs of compaction.")
    compaction_s: Histogram = histogram(
        "Time of one compaction run, of all its entry logs.", _RUN_BOUNDS_S
    )
    compacted_logs: int = counter(
        "Entry logs that compaction replaced by a copy of their live entries."
    )
    compacted_bytes: int = counter("Bytes that compaction freed.")
    copied_bytes: int = counter("Bytes that compaction wrote.")
    suspended_compactions: dict[str, int] = counter_by(
        "kind", "Compactions suspended because the disk is full."
    )
    damaged_logs: int = gauge("Entry logs that cannot be compacted because they are damaged.")


class StorageSizes(NamedTuple):
    """Gauges of one storage: its ledgers, and the memory it uses."""

    ledgers: int
    write_cache_bytes: int
    read_cache_bytes: int
    read_cache_hits: int
    """Hits since the storage was opened."""


class FlushTimes(NamedTuple):
    """Durations of the two parts of a flush, in seconds."""

    log_s: float
    """Writing the entry log, its sync included."""
    index_s: float


@dataclass(slots=True)
class StorageMetrics:
    """Counters and gauges of entry storage, summed over all ledger directories of a bookie.

    The storages keep the sizes; `refresh` copies them before an export.
    """

    ledgers: int = gauge("Ledgers that the bookie knows.")
    write_cache_bytes: int = gauge("Memory of entries that are not flushed yet.")
    read_cache_bytes: int = gauge("Memory of entries that were read from entry logs.")

    memory_reads: int = counter("Reads that began in the write cache or the read cache.")
    read_cache_hits: int = counter("Lookups in the read cache that found the entry.")
    ready_reads: int = counter(
        "Other reads that did not wait, because the page cache had the data."
    )
    worker_reads: int = counter("Reads that the read worker did.")
    worker_read_s: Histogram = histogram(
        "Time of one read by the read worker, including the wait for the worker."
    )

    flushes: int = counter("Flushes of a write buffer.")
    flush_failures: int = counter("Flushes that failed; their entries stay in memory.")
    flush_s: Histogram = histogram(
        "Time of one flush of entry log and index, with the sync of both."
    )
    flush_bytes: Histogram = histogram("Memory of the buffer that was flushed.", SIZE_BOUNDS_BYTES)
    flush_log_s: float = counter_s("Time that flushes spent on entry logs.")
    flush_index_s: float = counter_s(
        "Time that flushes spent on the index, ledger states included."
    )

    def on_flushed(self, seconds: float, size_bytes: int, times: FlushTimes) -> None:
        self.flushes += 1
        self.flush_s.observe(seconds)
        self.flush_bytes.observe(size_bytes)
        self.flush_log_s += times.log_s
        self.flush_index_s += times.index_s
        RECORDER.note(FLUSH, seconds, lambda: f"{size_bytes} bytes, index {times.index_s:.3f} s")

    def refresh(self, sizes: Iterable[StorageSizes]) -> None:
        """Take over the present sizes of the storages."""
        each = list(sizes)
        self.ledgers = sum(size.ledgers for size in each)
        self.write_cache_bytes = sum(size.write_cache_bytes for size in each)
        self.read_cache_bytes = sum(size.read_cache_bytes for size in each)
        self.read_cache_hits = sum(size.read_cache_hits for size in each)


@dataclass(slots=True)
class DiskMetrics:
    """Metrics of the disk watch; those with a label are kept per directory."""

    free_bytes: dict[str, float] = gauge_by("directory", "Free bytes of the file system.")
    used_share: dict[str, float] = gauge_by("directory", "Used share of the file system, 0 to 1.")
    level: dict[str, float] = gauge_by("directory", "0 free, 1 almost full, 2 full.")
    writable: int = gauge("1 if the bookie accepts ordinary adds, 0 if it is read-only.")
    refused_adds: int = counter("Adds that were refused because the bookie is read-only.")
    mode_changes: int = counter("How often the disks made the bookie read-only or writable again.")
    check_failures: int = counter(
        "Checks of the directories that failed; one failure ends the bookie."
    )
    unclean_starts: int = counter("1 if the previous run did not stop in an orderly way.")


@dataclass(slots=True)
class BookieMetrics:
    """Metrics of one bookie, summed over its journals or directories unless a label splits them."""

    before_export: list[Callable[[], None]] = field(default_factory=list)
    """Called on the event loop before an export: they set gauges that no other code updates."""

    # Requests
    add_requests: int = counter("Accepted add requests, recovery adds included.")
    recovery_add_requests: int = counter("Accepted add requests that came from a recovery.")
    add_entries: int = counter("Entries in all add requests.")
    add_bytes: int = counter("Bytes of the packets in all add requests.")
    read_requests: int = counter("Requests for entries.")
    read_entries: int = counter("Entries that were sent to readers.")
    read_bytes: int = counter("Bytes of packets that were sent to readers.")
    read_lac_requests: int = counter("Requests for the LAC of a ledger, long polls included.")
    write_lac_requests: int = counter("Explicit LACs that were accepted.")
    list_requests: int = counter("Requests for the list of entries of a ledger.")
    fence_requests: int = counter("Requests that fence a ledger.")
    failures: dict[str, int] = counter_by("status", "Replies that were not OK, by their status.")
    malformed_frames: int = counter("Connections closed because of malformed frames.")
    stalls: int = counter("How often a connection had to wait for room in the write cache.")
    connections: int = gauge("Connections.")
    connections_refused: int = counter(
        "Connections refused because the bookie was at its limit, or stopping."
    )
    received_bytes: int = counter("Bytes received over connections.")
    sent_bytes: int = counter("Bytes handed to connections for sending.")
    reads_pending: int = gauge("Reads that wait for the disk.")
    reads_pending_bytes: int = gauge("Most bytes that the reads waiting for the disk can return.")
    slow_clients_cut: int = counter(
        "Connections closed because their clients did not read replies."
    )
    long_polls: int = gauge("Long polls that wait for changes of a ledger.")

    # Journal
    journal_groups: int = counter("Groups of records that were synced together.")
    journal_records: int = counter("Records that were synced.")
    journal_bytes: int = counter("Bytes of records that were synced.")
    journal_queue_bytes: int = gauge(
        "Bytes of records that were handed to the journal and are not answered yet."
    )
    journal_full_groups: int = counter("Groups that failed because the disk was full.")
    journals_full: int = gauge("Journals whose last group failed because the disk was full.")
    journal_group_bytes: Histogram = histogram("Bytes of one group.", SIZE_BOUNDS_BYTES)
    journal_group_entries: Histogram = histogram("Entries in one group.", COUNT_BOUNDS)
    journal_group_reasons: dict[str, int] = counter_by(
        "reason", "Groups by the reason why they were closed: idle, wait, bytes, entries, close."
    )
    journal_queue_wait_s: Histogram = histogram(
        "Time from handing over the oldest records of a group until its commit begins."
    )
    journal_add_s: Histogram = histogram(
        "Time from handing over the oldest records of a group until they are reported durable."
    )
    journal_append_s: Histogram = histogram("Time of the append of one group, without its sync.")
    journal_sync_s: Histogram = histogram("Time of the sync of one group.")
    journal_commit_s: Histogram = histogram(
        "Time of the append and sync of one group, including the creation of a journal file if "
        "needed."
    )
    journal_files_begun: int = counter("Journal files that were created.")
    journal_file_begin_s: Histogram = histogram("Time to create a journal file.")
    journal_replay_bytes: int = gauge("Bytes of records that a restart would have to replay.")

    # Checkpoints
    checkpoints: int = counter("Checkpoints.")
    checkpoint_failures: int = counter("Checkpoints that failed; the journal keeps everything.")
    checkpoint_s: Histogram = histogram("Time of one checkpoint.")
    checkpoint_age_s: float = gauge_of(
        "Time since the last marks were captured; 0 if nothing was added since."
    )

    storage: StorageMetrics = group(StorageMetrics)

    disks: DiskMetrics = group(DiskMetrics)

    gc: GcMetrics = group(GcMetrics)

    # Damage, loss and repair
    integrity: IntegrityMetrics = group(IntegrityMetrics)

    def count_failure(self, status: str) -> None:
        self.failures[status] = self.failures.get(status, 0) + 1
