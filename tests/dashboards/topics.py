"""Namespaces, topics and subscriptions, by the metrics that have Pulsar's names."""

from tests.dashboards.panels import Dashboard, Panel

_CHOSEN = '{namespace=~"$namespace"}'
_MOST = 10


def _by_namespace(title: str, metric: str, unit: str, text: str = "") -> Panel:
    query = f"sum by (namespace) ({metric}{_CHOSEN})"
    return Panel(title, [(query, "{{namespace}}")], unit, text)


def _most(title: str, metric: str, unit: str, by: str = "topic", text: str = "") -> Panel:
    query = f"topk({_MOST}, sum by ({by}) ({metric}{_CHOSEN}))"
    legend = " ".join("{{" + label.strip() + "}}" for label in by.split(","))
    return Panel(title, [(query, legend)], unit, text)


_WRITE_STEPS = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000", "overflow")
_SIZE_STEPS = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")

TOPICS = Dashboard(
    "magnetar-topics",
    "Magnetar: topics",
    [
        (
            "Namespaces",
            [
                _by_namespace("Topics", "pulsar_topics_count", "short"),
                _by_namespace("Messages in", "pulsar_rate_in", "ops"),
                _by_namespace("Messages out", "pulsar_rate_out", "ops"),
                _by_namespace("Bytes in", "pulsar_throughput_in", "Bps"),
                _by_namespace("Bytes out", "pulsar_throughput_out", "Bps"),
                _by_namespace(
                    "Bytes stored", "pulsar_storage_size", "bytes", "All copies of its ledgers."
                ),
            ],
        ),
        (
            "Busiest topics",
            [
                _most("Messages in", "pulsar_rate_in", "ops"),
                _most("Bytes out", "pulsar_throughput_out", "Bps"),
                _most("Producers", "pulsar_producers_count", "short"),
            ],
        ),
        (
            "Backlogs",
            [
                _most(
                    "Largest backlogs",
                    "pulsar_subscription_back_log",
                    "short",
                    "topic, subscription",
                    "Entries that are not acknowledged.",
                ),
                _most(
                    "Backlogs in bytes",
                    "pulsar_storage_backlog_size",
                    "bytes",
                    text="Of the slowest subscription of each topic, as quotas count it.",
                ),
                _most("Delayed", "pulsar_subscription_delayed", "short", "topic, subscription"),
                _most(
                    "Unacknowledged",
                    "pulsar_subscription_unacked_messages",
                    "short",
                    "topic, subscription",
                    "Sent to Shared and Key_Shared consumers.",
                ),
                _most(
                    "Blocked on unacknowledged messages",
                    "pulsar_subscription_blocked_on_unacked_messages",
                    "short",
                    "topic, subscription",
                    "1: nothing is sent until more is acknowledged. Look at the consumers.",
                ),
                _most(
                    "Redelivered per second",
                    "pulsar_subscription_msg_rate_redeliver",
                    "ops",
                    "topic, subscription",
                ),
            ],
        ),
        (
            "Entries of all topics",
            [
                Panel(
                    "Durable within ms, each interval",
                    [
                        (f"sum(pulsar_storage_write_latency_le_{step})", step)
                        for step in _WRITE_STEPS
                    ],
                    text="Not cumulative: each entry is in one step.",
                ),
                Panel(
                    "Sizes, each interval",
                    [(f"sum(pulsar_entry_size_le_{step})", step) for step in _SIZE_STEPS],
                    text="Not cumulative; entries of one read count with their mean.",
                ),
                Panel(
                    "Without series of their own",
                    [
                        ("magnetar_metrics_topics_left_out", "topics {{instance}}"),
                        ("magnetar_metrics_subscriptions_left_out", "subscriptions {{instance}}"),
                    ],
                    text="Beyond metrics_topics_max: the panels of topics do not show them, those "
                    "of namespaces do.",
                ),
            ],
        ),
    ],
    variables=[("namespace", "label_values(pulsar_topics_count, namespace)")],
)
