"""Auto-recovery: who is the auditor, what waits for copies, what is copied."""

from tests.dashboards.panels import Dashboard, Panel

_RECOVERY = "magnetar_autorecovery_"
_COPIED = f"{_RECOVERY}worker_bytes_copied_total"

RECOVERY = Dashboard(
    "magnetar-recovery",
    "Magnetar: recovery",
    [
        (
            "Now",
            [
                Panel(
                    "Lost bookies",
                    [(f"max({_RECOVERY}auditor_bookies_lost)", "")],
                    is_number=True,
                    red_above=1,
                ),
                Panel(
                    "Ledgers that lack copies",
                    [(f"max({_RECOVERY}auditor_under_replicated_ledgers)", "")],
                    is_number=True,
                    red_above=1,
                ),
                Panel(
                    "Oldest of them",
                    [(f"max({_RECOVERY}auditor_oldest_item_age_seconds)", "")],
                    "s",
                    is_number=True,
                    red_above=3600,
                ),
                Panel(
                    "Ledgers with entries without a copy",
                    [(f"max({_RECOVERY}auditor_ledgers_without_replica)", "")],
                    is_number=True,
                    red_above=1,
                ),
                Panel(
                    "Auditors",
                    [(f"sum({_RECOVERY}auditor_is_auditor)", "")],
                    is_number=True,
                    red_below=1,
                ),
                Panel(
                    "Switched off",
                    [(f"max({_RECOVERY}auditor_is_disabled)", "")],
                    is_number=True,
                    red_above=1,
                ),
            ],
        ),
        (
            "Work to do",
            [
                Panel(
                    "Ledgers that lack copies",
                    [
                        (f"max({_RECOVERY}auditor_under_replicated_ledgers)", "ledgers"),
                        (f"max({_RECOVERY}auditor_overdue_items)", "overdue"),
                    ],
                ),
                Panel(
                    "Bytes in them",
                    [(f"max({_RECOVERY}auditor_under_replicated_bytes)", "bytes")],
                    "bytes",
                ),
                Panel(
                    "Mass loss",
                    [(f"max({_RECOVERY}auditor_is_mass_loss)", "brake")],
                    text="1: so many bookies vanished at once that the auditor doubts it.",
                ),
            ],
        ),
        (
            "Work done",
            [
                Panel(
                    "Bytes copied",
                    [(f"sum by (instance) (rate({_COPIED}[5m]))", "{{instance}}")],
                    "Bps",
                ),
                Panel(
                    "Entries copied",
                    [
                        (
                            f"sum by (instance) (rate({_RECOVERY}worker_entries_copied_total[5m]))",
                            "{{instance}}",
                        )
                    ],
                    "ops",
                ),
                Panel(
                    "Ledgers taken, finished, put off",
                    [
                        (f"sum(increase({_RECOVERY}worker_items_taken_total[5m]))", "taken"),
                        (f"sum(increase({_RECOVERY}worker_items_finished_total[5m]))", "finished"),
                        (f"sum(increase({_RECOVERY}worker_items_deferred_total[5m]))", "put off"),
                    ],
                ),
                Panel(
                    "Failures by kind",
                    [
                        (
                            f"sum by (kind) (increase({_RECOVERY}worker_failures_total[5m]))",
                            "{{kind}}",
                        )
                    ],
                ),
                Panel(
                    "Entries that could not be read",
                    [(f"sum(increase({_RECOVERY}worker_unreadable_entries_total[5m]))", "entries")],
                ),
                Panel(
                    "Recovery adds at the bookies",
                    [("rate(magnetar_bookie_recovery_add_requests_total[5m])", "{{bookie}}")],
                    "ops",
                ),
            ],
        ),
    ],
)
