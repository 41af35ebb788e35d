"""The cluster as a whole: what is up, what passes through it, ZooKeeper, the processes."""

from tests.dashboards.panels import Dashboard, Panel, quantile

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
