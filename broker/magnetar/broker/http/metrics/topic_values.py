"""What is shown of topics, subscriptions and consumers: each table beside the values for it.

The order of a table is the order of the values. Names, types and labels are Pulsar's where it has
the metric (its reference of metrics); what it lacks begins with `magnetar_`. Values add up, so that
those of a namespace are the sums of its topics'.
"""

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.broker.features.compaction import Compaction
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.features.retention.backlog import storage_bytes, topic_backlog_bytes
from magnetar.broker.http.metrics.rates import Numbers
from magnetar.broker.http.metrics.text import Value, counter, gauge
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.shared import SharedDispatcher
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.subscription import Subscription

TOPIC = (
    gauge("pulsar_subscriptions_count", "Subscriptions."),
    gauge("pulsar_producers_count", "Connected producers."),
    gauge("pulsar_consumers_count", "Connected consumers."),
    gauge("pulsar_rate_in", "Messages stored per second."),
    gauge("pulsar_rate_out", "Messages sent to consumers per second."),
    gauge("pulsar_throughput_in", "Bytes stored per second, as received."),
    gauge("pulsar_throughput_out", "Bytes sent to consumers per second."),
    gauge("pulsar_storage_write_rate", "Entries stored per second."),
    counter("pulsar_in_messages_total", "Messages stored since the topic was loaded."),
    counter("pulsar_in_bytes_total", "Bytes of these, as received."),
    counter("pulsar_out_messages_total", "Messages sent to consumers since it was loaded."),
    counter("pulsar_out_bytes_total", "Bytes of these."),
    gauge("pulsar_storage_size", "Bytes of its ledgers, all copies."),
    gauge("pulsar_storage_logical_size", "Bytes of its ledgers, one copy."),
    gauge("pulsar_storage_offloaded_size", "Bytes of its ledgers that are in an object store."),
    gauge(
        "pulsar_storage_backlog_size",
        "Bytes that its slowest subscription has not acknowledged, as its quota counts them.",
    ),
    gauge("pulsar_storage_backlog_quota_limit", "Its backlog quota in bytes; 0: none."),
    gauge("pulsar_msg_backlog", "Entries not acknowledged, of all subscriptions together."),
    gauge(
        "pulsar_publish_rate_limit_times",
        "Times a connection was not read because of the publish rate.",
    ),
    gauge("pulsar_delayed_message_index_size_bytes", "Bytes of the index of delayed messages."),
    counter("magnetar_topic_publish_failures_total", "Messages that were not stored."),
    counter("magnetar_topic_duplicates_total", "Messages sent again and not stored again."),
    counter("magnetar_topic_trimmed_ledgers_total", "Ledgers that were consumed and not retained."),
    counter(
        "magnetar_topic_evicted_entries_total",
        "Entries that left a backlog because it was above its quota.",
    ),
)
"""Of a topic, or of all topics of a namespace."""

COMPACTION = (
    gauge("pulsar_compaction_removed_event_count", "Messages that compactions have removed."),
    gauge("pulsar_compaction_succeed_count", "Compactions that came to their end."),
    gauge("pulsar_compaction_failed_count", "Compactions that did not."),
    gauge("pulsar_compaction_duration_time_in_mills", "Milliseconds that the last one took."),
    gauge("pulsar_compaction_compacted_entries_count", "Entries that the last one left."),
)
"""Of topics that were compacted since they were loaded."""

SUBSCRIPTION = (
    gauge("pulsar_subscription_back_log", "Entries not acknowledged."),
    gauge("pulsar_subscription_back_log_no_delayed", "Those of them that are not delayed."),
    gauge("pulsar_subscription_delayed", "Entries that are held back until they are due."),
    gauge("pulsar_subscription_unacked_messages", "Messages sent and not acknowledged."),
    gauge(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 while nothing is sent because too much is not acknowledged; else 0.",
    ),
    gauge("pulsar_subscription_msg_rate_out", "Messages sent per second."),
    gauge("pulsar_subscription_msg_throughput_out", "Bytes sent per second."),
    gauge("pulsar_subscription_msg_rate_redeliver", "Messages sent again per second."),
    gauge("pulsar_subscription_msg_rate_expired", "Entries that grew too old, per second."),
    gauge("pulsar_subscription_total_msg_expired", "Entries that grew too old."),
    gauge("pulsar_subscription_last_expire_timestamp", "When the last did, ms; 0: none."),
    gauge("pulsar_subscription_consumers_count", "Connected consumers."),
)
"""Of a subscription; of a namespace only what is delayed."""

OF_NAMESPACE = tuple(each.name == "pulsar_subscription_delayed" for each in SUBSCRIPTION)
"""Flags, one per metric of `SUBSCRIPTION`: whether a namespace has it too. Only delayed messages.
"""

CONSUMER = (
    gauge("pulsar_consumer_msg_rate_out", "Messages sent per second."),
    gauge("pulsar_consumer_msg_throughput_out", "Bytes sent per second."),
    gauge("pulsar_consumer_msg_rate_redeliver", "Messages sent again per second."),
    gauge("pulsar_consumer_unacked_messages", "Messages sent and not acknowledged."),
    gauge(
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 while it is sent nothing because too much is not acknowledged; else 0.",
    ),
    gauge("pulsar_consumer_available_permits", "Messages that it has asked for."),
)

REPLICATION = (
    gauge("pulsar_replication_rate_in", "Messages per second that come from the cluster."),
    gauge("pulsar_replication_rate_out", "Messages per second that are sent to it."),
    gauge("pulsar_replication_throughput_in", "Bytes per second that come from it."),
    gauge("pulsar_replication_throughput_out", "Bytes per second that are sent to it."),
    gauge("pulsar_replication_backlog", "Entries that are not there yet."),
    gauge("pulsar_replication_connected_count", "Topics that are connected to it."),
    gauge("pulsar_replication_disconnected_count", "Topics that are not."),
    gauge(
        "pulsar_replication_rate_expired",
        "Entries per second that were dropped before they were there.",
    ),
    gauge(
        "pulsar_replication_delay_in_seconds",
        "Age of the oldest message that is not there; of a namespace, the highest of its topics.",
    ),
)
"""Of a topic and another cluster (label `remote_cluster`), or of all topics of a namespace."""

_DELAY = len(REPLICATION) - 1

TOPIC_COUNTERS = 5
SUBSCRIPTION_COUNTERS = 4
CONSUMER_COUNTERS = 3


class InSubscriptions(NamedTuple):
    """What the subscriptions of a topic have together."""

    subscriptions: int
    consumers: int
    backlog: int
    delayed: int


def counters_of_topic(topic: Topic) -> Numbers:
    """What rates are made of: messages and bytes in and out, entries in."""
    sent, sent_bytes = topic.subscriptions.sent()
    line = topic.line
    return (line.messages_in, line.bytes_in, sent, sent_bytes, line.entries_in)


def counters_of_subscription(subscription: Subscription) -> Numbers:
    """Messages, bytes and redeliveries, those of consumers that have left included; expired."""
    return (*subscription.sent(), subscription.expired_entries)


def counters_of_consumer(consumer: Consumer) -> Numbers:
    """Messages, bytes, redeliveries."""
    return (consumer.messages_out, consumer.bytes_out, consumer.messages_redelivered)


def in_subscriptions(topic: Topic) -> InSubscriptions:
    """The sums over a topic's subscriptions."""
    consumers = backlog = delayed = 0
    for each in topic.subscriptions.values():
        if each.is_open:
            consumers += len(each.consumers)
            backlog += each.cursor.backlog_entries
            delayed += delayed_of(each)
    return InSubscriptions(len(topic.subscriptions), consumers, backlog, delayed)


def delayed_of(subscription: Subscription) -> int:
    """Entries that are held back until they are due."""
    context = subscription.context
    if context is None or context.delays is None:
        return 0
    return context.delays.withheld


def topic_values(topic: Topic, rates: Numbers, within: InSubscriptions) -> tuple[float, ...]:
    """In the order of `TOPIC`; `rates` in that of `counters_of_topic`."""
    rate_in, bytes_rate_in, rate_out, bytes_rate_out, entries_rate = rates
    sent, sent_bytes = topic.subscriptions.sent()
    size = storage_bytes(topic)
    policies = topic.policies
    line, shown = topic.line, topic.shown()
    return (
        within.subscriptions,
        len(topic.producers),
        within.consumers,
        rate_in,
        rate_out,
        bytes_rate_in,
        bytes_rate_out,
        entries_rate,
        line.messages_in,
        line.bytes_in,
        sent,
        sent_bytes,
        size * policies.persistence.write_quorum,
        size,
        shown.get("offload", {}).get("offloadedStorageSize", 0),
        topic_backlog_bytes(topic),
        max(0, policies.size_quota.bytes),
        within.backlog,
        line.rate.limited_times,
        shown.get("delayed_index_bytes", 0),
        line.messages_failed,
        shown.get("duplicates", 0),
        topic.use.trimmed_ledgers,
        topic.use.evicted_entries,
    )


def compaction_values(topic: Topic) -> tuple[float, ...] | None:
    """In the order of `COMPACTION`; None: none was begun."""
    compaction = topic.find(Compaction)
    if compaction is None:
        return None
    stats = compaction.stats
    if not stats.succeeded and not stats.failed:
        return None
    return (stats.removed_total, stats.succeeded, stats.failed, stats.duration_ms, stats.entries)


def subscription_values(subscription: Subscription, rates: Numbers) -> tuple[float, ...]:
    """In the order of `SUBSCRIPTION`; `rates` in that of `counters_of_subscription`."""
    backlog, delayed = subscription.cursor.backlog_entries, delayed_of(subscription)
    dispatcher = subscription.dispatcher
    is_blocked = (
        isinstance(dispatcher, SharedDispatcher | KeySharedDispatcher)
        and dispatcher.accounts.is_blocked
    )
    rate_out, bytes_rate_out, redelivery_rate, expiry_rate = rates
    return (
        backlog,
        max(0, backlog - delayed),
        delayed,
        subscription.unacked_messages,
        is_blocked,
        rate_out,
        bytes_rate_out,
        redelivery_rate,
        expiry_rate,
        subscription.expired_entries,
        subscription.last_expired_ms,
        len(subscription.consumers),
    )


def namespace_subscription_values(delayed: float) -> list[Value]:
    """The row of a namespace in the table of subscriptions."""
    return [delayed if is_shown else None for is_shown in OF_NAMESPACE]


def replication_values(sender: Sending, copier: Producer | None, now_ms: int) -> tuple[float, ...]:
    """In the order of `REPLICATION`; `copier`: the producer by which that cluster copies here."""
    rate_in, bytes_in, *_ = copier.rates(now_ms) if copier is not None else (0.0, 0.0)
    rate_out, bytes_out, expiry_rate = sender.figures.rates(now_ms)
    return (
        rate_in,
        rate_out,
        bytes_in,
        bytes_out,
        sender.cursor.backlog_entries,
        sender.is_connected,
        not sender.is_connected,
        expiry_rate,
        sender.delay_s(now_ms),
    )


def with_replication(sums: Sequence[float], more: Sequence[float]) -> tuple[float, ...]:
    """Two rows of the table `REPLICATION` as one."""
    added = [a + b for a, b in zip(sums, more, strict=True)]
    return (*added[:_DELAY], max(sums[_DELAY], more[_DELAY]))


def consumer_values(consumer: Consumer, rates: Numbers) -> tuple[float, ...]:
    """In the order of `CONSUMER`; `rates` in that of `counters_of_consumer`."""
    return (
        *rates,
        consumer.unacked_messages,
        consumer.is_blocked,
        max(0, consumer.permits),
    )
