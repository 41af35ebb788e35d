"""Prometheus metrics: read from the broker's own counters when somebody asks.

The hot path counts in plain integers; this collector turns them into samples, so that a message
costs nothing here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from magnetar.broker.keeping.backlog import storage_bytes, topic_backlog_bytes

if TYPE_CHECKING:
    from magnetar.broker.balance.balancer import Balancer
    from magnetar.broker.broker import Broker
    from magnetar.broker.cluster import Cluster

TOPICS_MAX = 1_000
"""Topics with series of their own; beyond it only the totals are exact."""


class BrokerCollector(Collector):
    """Samples of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        yield from self._broker_metrics()
        yield from self._topic_metrics()

    def _broker_metrics(self) -> Iterator[Metric]:
        broker = self._broker
        counters = broker.services.counters
        topics = broker.services.topics
        yield GaugeMetricFamily(
            "magnetar_broker_connections", "Client connections.", broker.connections
        )
        yield GaugeMetricFamily("magnetar_broker_topics", "Topics loaded.", len(topics.loaded))
        yield GaugeMetricFamily(
            "magnetar_broker_pending_publish_bytes",
            "Bytes received and not yet durable.",
            broker.services.budget.pending_bytes,
        )
        yield GaugeMetricFamily(
            "magnetar_broker_tail_cache_bytes", "Bytes in the tail cache.", topics.cached_bytes
        )
        for name, text, value in (
            ("connections_opened", "Connections accepted.", counters.connections_opened),
            ("connections_refused", "Connections over the limit.", counters.connections_refused),
            (
                "protocol_violations",
                "Connections dropped for what they sent, or did not send.",
                counters.protocol_violations,
            ),
            ("requests_failed", "Requests answered with an error.", counters.requests_failed),
            ("checksum_errors", "Messages that arrived damaged.", counters.checksum_errors),
            ("publish_pauses", "Times a connection was not read.", counters.publish_pauses),
            ("topic_loads", "Topics loaded since the start.", topics.loads),
            ("topic_load_failures", "Topics that could not be loaded.", topics.failed_loads),
            ("topics_fenced", "Topics taken over by another owner.", topics.fenced),
            (
                "upkeep_failures",
                "Trimmings, expirations and the like that failed; they are tried again.",
                broker.upkeep.failures,
            ),
        ):
            yield CounterMetricFamily(f"magnetar_broker_{name}", text, value)
        if broker.cluster is not None:
            yield from _cluster_metrics(broker.cluster)

        latency = HistogramMetricFamily(
            "magnetar_broker_publish_latency_seconds",
            "From the arrival of an entry to its durability.",
        )
        latency.add_metric(
            [],
            counters.publish_latency.cumulative(),
            sum_value=counters.publish_latency.sum_s,
        )
        yield latency

    def _topic_metrics(self) -> Iterator[Metric]:
        labels = ["topic"]
        messages_in = CounterMetricFamily(
            "magnetar_topic_messages_in", "Messages stored.", labels=labels
        )
        bytes_in = CounterMetricFamily(
            "magnetar_topic_bytes_in", "Bytes stored, as received.", labels=labels
        )
        failed = CounterMetricFamily(
            "magnetar_topic_publish_failures", "Messages that were not stored.", labels=labels
        )
        messages_out = CounterMetricFamily(
            "magnetar_topic_messages_out", "Messages sent to consumers.", labels=labels
        )
        bytes_out = CounterMetricFamily(
            "magnetar_topic_bytes_out", "Bytes sent to consumers.", labels=labels
        )
        producers = GaugeMetricFamily(
            "magnetar_topic_producers", "Connected producers.", labels=labels
        )
        duplicates = CounterMetricFamily(
            "magnetar_topic_duplicates", "Messages sent again and not stored again.", labels=labels
        )
        rate_limited = CounterMetricFamily(
            "magnetar_topic_publish_rate_limited",
            "Times a connection was not read because of the publish rate.",
            labels=labels,
        )
        storage = GaugeMetricFamily(
            "magnetar_topic_storage_bytes", "Size of its ledgers, one copy of them.", labels=labels
        )
        backlog_bytes = GaugeMetricFamily(
            "magnetar_topic_backlog_bytes",
            "What its slowest subscription has not acknowledged, as its quota counts it.",
            labels=labels,
        )
        trimmed = CounterMetricFamily(
            "magnetar_topic_trimmed_ledgers",
            "Ledgers that were consumed and not retained.",
            labels=labels,
        )
        evicted = CounterMetricFamily(
            "magnetar_topic_evicted_entries",
            "Entries that left a backlog because it was above its quota.",
            labels=labels,
        )
        labels = ["topic", "subscription"]
        expired = CounterMetricFamily(
            "magnetar_subscription_expired_entries",
            "Entries that grew too old before they were acknowledged.",
            labels=labels,
        )
        consumers = GaugeMetricFamily(
            "magnetar_subscription_consumers", "Connected consumers.", labels=labels
        )
        backlog = GaugeMetricFamily(
            "magnetar_subscription_backlog_entries", "Entries not acknowledged.", labels=labels
        )
        unacked = GaugeMetricFamily(
            "magnetar_subscription_unacked_messages",
            "Messages sent to Shared consumers and not acknowledged.",
            labels=labels,
        )
        for topic in self._broker.services.topics.loaded[:TOPICS_MAX]:
            name = str(topic.name)
            sent, sent_bytes = topic.subscriptions.sent()
            messages_in.add_metric([name], topic.messages_in)
            bytes_in.add_metric([name], topic.bytes_in)
            failed.add_metric([name], topic.messages_failed)
            messages_out.add_metric([name], sent)
            bytes_out.add_metric([name], sent_bytes)
            producers.add_metric([name], len(topic.producers))
            storage.add_metric([name], storage_bytes(topic))
            backlog_bytes.add_metric([name], topic_backlog_bytes(topic))
            trimmed.add_metric([name], topic.trimmed_ledgers)
            evicted.add_metric([name], topic.evicted_entries)
            if topic.deduplication is not None:
                duplicates.add_metric([name], topic.deduplication.duplicates)
            if topic.publish_policies.rate.is_limited:
                rate_limited.add_metric([name], topic.publish_policies.rate.limited_times)
            for subscription in topic.subscriptions.values():
                if not subscription.is_open:
                    continue
                both = [name, subscription.name]
                consumers.add_metric(both, len(subscription.consumers))
                backlog.add_metric(both, subscription.cursor.backlog_entries)
                unacked.add_metric(both, subscription.unacked_messages)
                expired.add_metric(both, subscription.expired_entries)
        yield from (messages_in, bytes_in, failed, messages_out, bytes_out, producers)
        yield from (duplicates, rate_limited)
        yield from (storage, backlog_bytes, trimmed, evicted)
        yield from (consumers, backlog, unacked, expired)


def _cluster_metrics(cluster: "Cluster") -> Iterator[Metric]:
    """Samples of a broker that is one of several."""
    guard, ownership = cluster.guard, cluster.ownership
    for name, text, value in (
        ("serving", "1 while the broker may serve, by its own clock; else 0.", guard.is_valid),
        (
            "lease_left_seconds",
            "Time until it stops serving, unless the metadata store answers before.",
            guard.left_s,
        ),
        ("bundles_owned", "Bundles of topics that it owns.", len(ownership.owned())),
        ("leader", "1 if it chooses the owners of bundles; else 0.", cluster.is_leader),
    ):
        yield GaugeMetricFamily(f"magnetar_broker_{name}", text, float(value))
    for name, text, count in (
        ("leases_run_out", "Times that it stopped serving for want of contact.", guard.runs_out),
        ("leases_taken", "Bundles that it took.", ownership.leases_taken),
        ("unloads", "Bundles that it gave up on purpose.", ownership.unloads),
        ("unload_failures", "Bundles that it could not give up.", ownership.unload_failures),
    ):
        yield CounterMetricFamily(f"magnetar_broker_{name}", text, count)
    if cluster.balancer is not None:
        yield from _balance_metrics(cluster.balancer)


def _balance_metrics(balancer: "Balancer") -> Iterator[Metric]:
    """Samples of the broker's part in balance."""
    reporter, shedder = balancer.reporter, balancer.shedder
    load = reporter.latest
    yield GaugeMetricFamily(
        "magnetar_broker_load_usage_ratio",
        "Use of the processor or the network, whichever is nearer to its limit.",
        load.usage_percent / 100,
    )
    yield GaugeMetricFamily(
        "magnetar_broker_load_cost",
        "What its bundles are worth; 1 is one bundle at its limit of topics, sessions or traffic.",
        reporter.cost,
    )
    for name, text, count in (
        ("load_reports_sent", "Load reports that were sent to the others.", reporter.reports_sent),
        ("bundle_splits", "Bundles split because they were over a limit.", reporter.splits),
        ("bundles_shed", "Bundles moved for balance, as the leader.", shedder.moves),
        ("bundle_shed_failures", "Moves that failed, as the leader.", shedder.failed_moves),
        (
            "bundle_splits_for_balance",
            "Bundles split because no move could even out the load, as the leader.",
            shedder.splits,
        ),
    ):
        yield CounterMetricFamily(f"magnetar_broker_{name}", text, count)


def registry_of(broker: "Broker") -> CollectorRegistry:
    """A registry with the broker's metrics, and with what else its process shows."""
    registry = CollectorRegistry()
    for collector in (BrokerCollector(broker), *broker.collectors):
        registry.register(collector)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics in Prometheus' text format."""
    return generate_latest(registry)
