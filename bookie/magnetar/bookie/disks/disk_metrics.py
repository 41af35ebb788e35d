"""What the watch on the directories counts. Owned by the event loop."""

from dataclasses import dataclass

from magnetar.ledger.metric_fields import counter, gauge, gauge_by


@dataclass(slots=True)
class DiskMetrics:
    """By directory, where a label says so."""

    free_bytes: dict[str, float] = gauge_by("directory", "Free bytes of the file system.")
    used_share: dict[str, float] = gauge_by("directory", "Used share of the file system, 0 to 1.")
    level: dict[str, float] = gauge_by("directory", "0 free, 1 almost full, 2 full.")
    writable: int = gauge("1 if ordinary adds are taken, 0 if the bookie is read-only.")
    refused_adds: int = counter("Adds that were refused because the bookie is read-only.")
    mode_changes: int = counter("How often the disks made the bookie read-only or writable again.")
    check_failures: int = counter("Looks at the directories that failed; one ends the bookie.")
    unclean_starts: int = counter("1 if the run before did not stop in order.")
