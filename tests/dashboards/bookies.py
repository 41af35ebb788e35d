"""Bookies: requests, journals, storage, disks, garbage collection, integrity."""

from tests.dashboards.panels import Dashboard, Panel, bookie_p99, bookie_rate, by_bookie

BOOKIES = Dashboard(
    "magnetar-bookies",
    "Magnetar: bookies",
    [
        (
            "Disks",
            [
                Panel(
                    "Writable",
                    [(by_bookie("magnetar_bookie_disks_writable{}"), "{{bookie}}")],
                    text="0: read-only, for want of room or as told.",
                ),
                Panel(
                    "Used share of the file systems",
                    [(by_bookie("magnetar_bookie_disks_used_ratio{}"), "{{bookie}} {{directory}}")],
                    "percentunit",
                ),
                Panel(
                    "Free",
                    [(by_bookie("magnetar_bookie_disks_free_bytes{}"), "{{bookie}} {{directory}}")],
                    "bytes",
                ),
            ],
        ),
        (
            "Adds",
            [
                bookie_rate("Entries added", "magnetar_bookie_add_entries_total", "ops"),
                bookie_rate("Bytes added", "magnetar_bookie_add_bytes_total", "Bps"),
                bookie_p99(
                    "Journal: sync, p99",
                    "magnetar_bookie_journal_sync_seconds",
                    "The latency of a publish is made of this.",
                ),
                bookie_p99(
                    "Journal: hand-over to durable, p99", "magnetar_bookie_journal_add_seconds"
                ),
                Panel(
                    "Journal: bytes waiting",
                    [(by_bookie("magnetar_bookie_journal_queue_bytes{}"), "{{bookie}}")],
                    "bytes",
                ),
                bookie_rate(
                    "Connections that waited for the write cache",
                    "magnetar_bookie_stalls_total",
                    "ops",
                ),
            ],
        ),
        (
            "Reads",
            [
                bookie_rate("Entries read", "magnetar_bookie_read_entries_total", "ops"),
                bookie_rate("Bytes read", "magnetar_bookie_read_bytes_total", "Bps"),
                bookie_p99("Read from disk, p99", "magnetar_bookie_storage_worker_read_seconds"),
                Panel(
                    "Where reads were answered",
                    [
                        (
                            by_bookie(
                                "sum(rate(magnetar_bookie_storage_memory_reads_total{}[5m]))"
                            ),
                            "memory",
                        ),
                        (
                            by_bookie("sum(rate(magnetar_bookie_storage_ready_reads_total{}[5m]))"),
                            "page cache",
                        ),
                        (
                            by_bookie(
                                "sum(rate(magnetar_bookie_storage_worker_reads_total{}[5m]))"
                            ),
                            "disk",
                        ),
                    ],
                    "ops",
                ),
                Panel(
                    "Reads that wait",
                    [(by_bookie("magnetar_bookie_reads_pending{}"), "{{bookie}}")],
                ),
                Panel(
                    "Failures by status",
                    [
                        (
                            by_bookie(
                                "sum by (status) (rate(magnetar_bookie_failures_total{}[5m]))"
                            ),
                            "{{status}}",
                        )
                    ],
                    "ops",
                ),
            ],
        ),
        (
            "Upkeep",
            [
                bookie_p99("Flush, p99", "magnetar_bookie_storage_flush_seconds"),
                Panel(
                    "Write cache",
                    [(by_bookie("magnetar_bookie_storage_write_cache_bytes{}"), "{{bookie}}")],
                    "bytes",
                ),
                Panel(
                    "Journal that a restart would replay",
                    [(by_bookie("magnetar_bookie_journal_replay_bytes{}"), "{{bookie}}")],
                    "bytes",
                ),
                Panel(
                    "Entry logs: all bytes, and those that live",
                    [
                        (by_bookie("magnetar_bookie_gc_log_bytes{}"), "all {{bookie}}"),
                        (by_bookie("magnetar_bookie_gc_live_bytes{}"), "live {{bookie}}"),
                    ],
                    "bytes",
                ),
                bookie_rate(
                    "Bytes that compaction wrote", "magnetar_bookie_gc_copied_bytes_total", "Bps"
                ),
                Panel("Ledgers", [(by_bookie("magnetar_bookie_storage_ledgers{}"), "{{bookie}}")]),
            ],
        ),
        (
            "Integrity",
            [
                Panel(
                    "Damage found, entries healed",
                    [
                        (
                            by_bookie("increase(magnetar_bookie_integrity_damages_total{}[1h])"),
                            "damaged {{bookie}}",
                        ),
                        (
                            by_bookie(
                                "increase(magnetar_bookie_integrity_healed_entries_total{}[1h])"
                            ),
                            "healed {{bookie}}",
                        ),
                    ],
                ),
                Panel(
                    "Ledgers in limbo",
                    [(by_bookie("magnetar_bookie_integrity_limbo_ledgers{}"), "{{bookie}}")],
                ),
                Panel(
                    "This pass of the scrubber",
                    [(by_bookie("magnetar_bookie_integrity_scrub_pass_ratio{}"), "{{bookie}}")],
                    "percentunit",
                ),
            ],
        ),
    ],
    [("bookie", "label_values(magnetar_bookie_connections, bookie)")],
)
