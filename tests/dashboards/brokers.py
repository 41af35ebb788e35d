"""Brokers: ownership and load, publishing, dispatching."""

from tests.dashboards.panels import Dashboard, Panel, by_broker, quantile

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
