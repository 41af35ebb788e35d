"""What garbage collection counts."""

from dataclasses import dataclass

from magnetar.ledger.metric_fields import (
    Histogram,
    counter,
    counter_by,
    gauge,
    histogram,
)

_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_RUN_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(slots=True)
class GcMetrics:
    """Owned by the event loop."""

    rounds: int = counter("Rounds of garbage collection that came to their end.")
    failures: dict[str, int] = counter_by(
        "part", "Rounds or parts of them that failed; nothing of use was deleted."
    )
    round_s: Histogram = histogram("One round, compaction included.", _RUN_BOUNDS_S)
    brakes: int = counter(
        "Rounds that deleted nothing because the list of ledgers was not believed: look at the "
        "metadata store."
    )
    listed_in_error: int = counter(
        "Ledgers that a listing of the metadata lacked and that are there."
    )
    unrecorded_ledgers: int = counter(
        "Ledgers kept because the metadata store lacks them and has no record that they were "
        "deleted: it lost them."
    )
    deleted_ledgers: int = counter("Ledgers deleted here because their metadata is gone.")
    surplus_ledgers: int = counter("Ledgers deleted here because other bookies have them.")
    unconfirmed_ledgers: int = counter("Ledgers kept because the metadata store did not answer.")
    tombstones: int = gauge("Deleted ledgers that are remembered so that they take no adds.")

    logs: int = gauge("Entry logs that nobody writes any more.")
    log_bytes: int = gauge("Bytes of these entry logs.")
    live_bytes: int = gauge("Bytes of these entry logs that belong to ledgers that are alive.")
    live_share: Histogram = histogram("Live share of each log, at each round.", _SHARES)
    removed_logs: int = counter("Entry logs removed because nothing in them was in use.")
    removed_bytes: int = counter("Bytes of those logs.")

    compactions: dict[str, int] = counter_by("kind", "Runs of compaction.")
    compaction_s: Histogram = histogram("One run of compaction, of all its logs.", _RUN_BOUNDS_S)
    compacted_logs: int = counter("Entry logs that were replaced by a copy of what lives in them.")
    compacted_bytes: int = counter("Bytes that this gave back.")
    copied_bytes: int = counter("Bytes that compaction wrote.")
    suspended_compactions: dict[str, int] = counter_by(
        "kind", "Compactions put off because the disk is full."
    )
    damaged_logs: int = gauge("Entry logs that cannot be compacted because they are damaged.")
