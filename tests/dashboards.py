"""The Grafana dashboards of deploy/grafana/dashboards, from short descriptions of their panels.

usage: python -m tests.dashboards     # writes them

Written by hand, each would be a thousand lines of JSON in which nobody sees a wrong unit. A test
holds the files to this description, others its queries to the metrics that exist.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"

_COLUMNS = 24
_HEIGHT = 8
_DATASOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph, or one number (`is_number`)."""

    title: str
    queries: Sequence[tuple[str, str]]
    """PromQL and the legend of its series."""
    unit: str = "short"
    """A unit of Grafana's: short, s, bytes, Bps, percentunit, ops ..."""
    text: str = ""
    """What it shows and when to worry, on the panel's (i)."""
    is_number: bool = False
    red_above: float | None = None
    red_below: float | None = None


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels in rows."""

    uid: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[tuple[str, str]] = ()
    """Names and the queries of their values; each may be several or all."""


def by_bookie(expression: str) -> str:
    """A rate or gauge of the chosen bookies."""
    return expression.replace("{}", '{bookie=~"$bookie"}')


def by_broker(expression: str) -> str:
    """A rate or gauge of the chosen brokers."""
    return expression.replace("{}", '{instance=~"$broker"}')


def bookie_rate(title: str, metric: str, unit: str, text: str = "") -> Panel:
    return Panel(title, [(by_bookie(f"rate({metric}{{}}[5m])"), "{{bookie}}")], unit, text)


def bookie_p99(title: str, metric: str, text: str = "") -> Panel:
    return Panel(
        title, [(by_bookie(quantile(0.99, "bookie", metric)), "{{bookie}}")], "s", text=text
    )


def quantile(share: float, label: str, metric: str) -> str:
    """A quantile of a histogram over five minutes, by one label."""
    return f"histogram_quantile({share}, sum by ({label}, le) (rate({metric}_bucket{{}}[5m])))"


CLUSTER = Dashboard(
    "magnetar-cluster",
    "Magnetar: cluster",
    [
        (
            "Now",
            [
                Panel("Brokers up", [('sum(up{job="magnetar-broker"})', "")], is_number=True),
                Panel("Bookies up", [('sum(up{job="magnetar-bookie"})', "")], is_number=True),
                Panel(
                    "Bookies writable",
                    [("sum(magnetar_bookie_disks_writable)", "")],
                    is_number=True,
                    red_below=3,
                ),
                Panel("ZooKeeper up", [('sum(up{job="zookeeper"})', "")], is_number=True),
                Panel(
                    "Ledgers that lack copies",
                    [("max(magnetar_autorecovery_auditor_under_replicated_ledgers)", "")],
                    is_number=True,
                    red_above=1,
                ),
                Panel(
                    "Alerts",
                    [('count(ALERTS{alertstate="firing"}) or vector(0)', "")],
                    is_number=True,
                    red_above=1,
                ),
            ],
        ),
        (
            "Traffic",
            [
                Panel(
                    "Messages in and out",
                    [
                        ("sum(rate(pulsar_in_messages_total[5m]))", "in"),
                        ("sum(rate(pulsar_out_messages_total[5m]))", "out"),
                    ],
                    "ops",
                ),
                Panel(
                    "Bytes in and out",
                    [
                        ("sum(rate(pulsar_in_bytes_total[5m]))", "in"),
                        ("sum(rate(pulsar_out_bytes_total[5m]))", "out"),
                    ],
                    "Bps",
                ),
                Panel(
                    "Publish latency",
                    [
                        (
                            quantile(0.5, "job", "magnetar_broker_publish_latency_seconds").replace(
                                "{}", ""
                            ),
                            "p50",
                        ),
                        (
                            quantile(
                                0.99, "job", "magnetar_broker_publish_latency_seconds"
                            ).replace("{}", ""),
                            "p99",
                        ),
                    ],
                    "s",
                    text="From the arrival of an entry to its durability on the ack quorum.",
                ),
            ],
        ),
        (
            "ZooKeeper",
            [
                Panel(
                    "Latency",
                    [('avg_latency{job="zookeeper"}', "{{instance}}")],
                    "ms",
                    text="Mean of all requests. Above 50 ms leases are kept with little to spare.",
                ),
                Panel(
                    "Requests that wait",
                    [('outstanding_requests{job="zookeeper"}', "{{instance}}")],
                ),
                Panel("Nodes", [('znode_count{job="zookeeper"}', "{{instance}}")]),
                Panel(
                    "Bytes of all nodes",
                    [('approximate_data_size{job="zookeeper"}', "{{instance}}")],
                    "bytes",
                ),
                Panel("Watches", [('watch_count{job="zookeeper"}', "{{instance}}")]),
                Panel(
                    "Sessions' nodes",
                    [('ephemerals_count{job="zookeeper"}', "{{instance}}")],
                    text="Leases, registrations, locks and votes.",
                ),
            ],
        ),
        (
            "Processes",
            [
                Panel(
                    "Processor",
                    [
                        (
                            'rate(process_cpu_seconds_total{job=~"magnetar-.*"}[5m])',
                            "{{job}} {{instance}}",
                        )
                    ],
                    "percentunit",
                    text="1 is one core.",
                ),
                Panel(
                    "Memory",
                    [('process_resident_memory_bytes{job=~"magnetar-.*"}', "{{job}} {{instance}}")],
                    "bytes",
                ),
                Panel(
                    "Event loop, p99 of its lateness",
                    [
                        (
                            quantile(
                                0.99, "job, instance", "magnetar_event_loop_lateness_seconds"
                            ).replace("{}", ""),
                            "{{job}} {{instance}}",
                        )
                    ],
                    "s",
                ),
                Panel(
                    "Open files",
                    [
                        (
                            'process_open_fds{job=~"magnetar-.*"} / '
                            'process_max_fds{job=~"magnetar-.*"}',
                            "{{job}} {{instance}}",
                        )
                    ],
                    "percentunit",
                ),
            ],
        ),
    ],
)

BROKERS = Dashboard(
    "magnetar-brokers",
    "Magnetar: brokers",
    [
        (
            "Ownership",
            [
                Panel(
                    "Bundles",
                    [(by_broker("magnetar_broker_bundles_owned{}"), "{{instance}}")],
                    text="Uneven for long: look at who is the leader, and at its log.",
                ),
                Panel(
                    "Serving",
                    [(by_broker("magnetar_broker_serving{}"), "{{instance}}")],
                    text="0: the lease has run out, and the broker has fenced itself.",
                ),
                Panel(
                    "Left of the lease",
                    [(by_broker("magnetar_broker_lease_left_seconds{}"), "{{instance}}")],
                    "s",
                    text="Falls while the metadata store does not answer; at 0 topics stop.",
                ),
                Panel(
                    "Leases that ran out, bundles unloaded",
                    [
                        (
                            by_broker("increase(magnetar_broker_leases_run_out_total{}[5m])"),
                            "run out {{instance}}",
                        ),
                        (
                            by_broker("increase(magnetar_broker_unloads_total{}[5m])"),
                            "unloaded {{instance}}",
                        ),
                    ],
                ),
                Panel("Topics", [(by_broker("magnetar_broker_topics{}"), "{{instance}}")]),
                Panel(
                    "Load",
                    [(by_broker("magnetar_broker_load_usage_ratio{}"), "{{instance}}")],
                    "percentunit",
                    text="What its heaviest resource is used; the leader evens it out.",
                ),
                Panel(
                    "Bundles split, moved for balance",
                    [
                        (
                            by_broker("increase(magnetar_broker_bundle_splits_total{}[5m])"),
                            "split {{instance}}",
                        ),
                        (
                            by_broker("increase(magnetar_broker_bundles_shed_total{}[5m])"),
                            "moved {{instance}}",
                        ),
                    ],
                ),
                Panel("Leader", [(by_broker("magnetar_broker_leader{}"), "{{instance}}")]),
                Panel(
                    "Topics loaded, failed to load, fenced",
                    [
                        (
                            by_broker("increase(magnetar_broker_topic_loads_total{}[5m])"),
                            "loaded {{instance}}",
                        ),
                        (
                            by_broker("increase(magnetar_broker_topic_load_failures_total{}[5m])"),
                            "failed {{instance}}",
                        ),
                        (
                            by_broker("increase(magnetar_broker_topics_fenced_total{}[5m])"),
                            "fenced {{instance}}",
                        ),
                    ],
                ),
            ],
        ),
        (
            "Publishing",
            [
                Panel(
                    "Messages in",
                    [
                        (
                            by_broker("sum by (instance) (rate(pulsar_in_messages_total{}[5m]))"),
                            "{{instance}}",
                        )
                    ],
                    "ops",
                ),
                Panel(
                    "Bytes in",
                    [
                        (
                            by_broker("sum by (instance) (rate(pulsar_in_bytes_total{}[5m]))"),
                            "{{instance}}",
                        )
                    ],
                    "Bps",
                ),
                Panel(
                    "Publish latency, p50 and p99",
                    [
                        (
                            by_broker(
                                quantile(0.5, "instance", "magnetar_broker_publish_latency_seconds")
                            ),
                            "p50 {{instance}}",
                        ),
                        (
                            by_broker(
                                quantile(
                                    0.99, "instance", "magnetar_broker_publish_latency_seconds"
                                )
                            ),
                            "p99 {{instance}}",
                        ),
                    ],
                    "s",
                ),
                Panel(
                    "Messages that were not stored",
                    [
                        (
                            by_broker(
                                "sum by (instance) "
                                "(rate(magnetar_topic_publish_failures_total{}[5m]))"
                            ),
                            "{{instance}}",
                        )
                    ],
                    "ops",
                ),
                Panel(
                    "Bytes not yet durable",
                    [(by_broker("magnetar_broker_pending_publish_bytes{}"), "{{instance}}")],
                    "bytes",
                    text="At publish_bytes_max no publisher is read any more.",
                ),
                Panel(
                    "Publishers paused",
                    [
                        (
                            by_broker("rate(magnetar_broker_publish_pauses_total{}[5m])"),
                            "{{instance}}",
                        )
                    ],
                    "ops",
                ),
            ],
        ),
        (
            "Consuming",
            [
                Panel(
                    "Messages out",
                    [
                        (
                            by_broker("sum by (instance) (rate(pulsar_out_messages_total{}[5m]))"),
                            "{{instance}}",
                        )
                    ],
                    "ops",
                ),
                Panel(
                    "Largest backlogs",
                    [
                        (
                            by_broker("topk(10, pulsar_subscription_back_log{})"),
                            "{{topic}} {{subscription}}",
                        )
                    ],
                ),
                Panel(
                    "Most unacknowledged messages",
                    [
                        (
                            by_broker("topk(10, pulsar_subscription_unacked_messages{})"),
                            "{{topic}} {{subscription}}",
                        )
                    ],
                ),
                Panel(
                    "Tail cache",
                    [(by_broker("magnetar_broker_tail_cache_bytes{}"), "{{instance}}")],
                    "bytes",
                ),
            ],
        ),
        (
            "Connections",
            [
                Panel(
                    "Connections", [(by_broker("magnetar_broker_connections{}"), "{{instance}}")]
                ),
                Panel(
                    "Opened, refused",
                    [
                        (
                            by_broker("rate(magnetar_broker_connections_opened_total{}[5m])"),
                            "opened {{instance}}",
                        ),
                        (
                            by_broker("rate(magnetar_broker_connections_refused_total{}[5m])"),
                            "refused {{instance}}",
                        ),
                    ],
                    "ops",
                ),
                Panel(
                    "Requests that failed",
                    [
                        (
                            by_broker("rate(magnetar_broker_requests_failed_total{}[5m])"),
                            "{{instance}}",
                        )
                    ],
                    "ops",
                ),
                Panel(
                    "Protocol violations, damaged messages",
                    [
                        (
                            by_broker("increase(magnetar_broker_protocol_violations_total{}[5m])"),
                            "violations {{instance}}",
                        ),
                        (
                            by_broker("increase(magnetar_broker_checksum_errors_total{}[5m])"),
                            "damaged {{instance}}",
                        ),
                    ],
                ),
            ],
        ),
    ],
    [("broker", 'label_values(up{job="magnetar-broker"}, instance)')],
)

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

DASHBOARDS = {
    "cluster.json": CLUSTER,
    "brokers.json": BROKERS,
    "bookies.json": BOOKIES,
    "recovery.json": RECOVERY,
}


def rendered(dashboard: Dashboard) -> str:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, object]] = []
    top = 0
    for title, row in dashboard.rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        across = 6 if all(each.is_number for each in row) else 3
        height = _HEIGHT // 2 if across == 6 else _HEIGHT
        width = _COLUMNS // across
        for number, panel in enumerate(row):
            place = {
                "h": height,
                "w": width,
                "x": number % across * width,
                "y": top + number // across * height,
            }
            panels.append(_panel(panel, len(panels) + 1, place))
        top += -(-len(row) // across) * height
    return json.dumps(_page(dashboard, panels), indent=2) + "\n"


def _page(dashboard: Dashboard, panels: list[dict[str, object]]) -> dict[str, object]:
    source = {
        "name": "source",
        "label": "Source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["magnetar"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "type": "dashboards",
                "title": "Magnetar",
                "tags": ["magnetar"],
                "asDropdown": False,
                "includeVars": False,
                "keepTime": True,
            }
        ],
        "templating": {"list": [source, *(_variable(*each) for each in dashboard.variables)]},
        "panels": panels,
    }


def _variable(name: str, query: str) -> dict[str, object]:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": "A"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, object]:
    defaults: dict[str, object] = {"unit": panel.unit, "min": 0}
    if panel.red_above is not None or panel.red_below is not None:
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    options: dict[str, object] = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background"}
        if panel.is_number
        else {"legend": {"displayMode": "list", "placement": "bottom"}}
    )
    return {
        "id": number,
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _steps(panel: Panel) -> list[dict[str, object]]:
    if panel.red_above is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above}]
    return [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]


if __name__ == "__main__":
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(rendered(dashboard))
