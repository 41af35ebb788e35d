"""Metrics of topics, subscriptions and consumers: a column for each.

Names, types and labels are Pulsar's where it has the metric (its reference of metrics); other names
begin with `magnetar_`. Values are additive, so those of a namespace are the sums of its topics'.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from magnetar.broker.features.compaction import Compaction
from magnetar.broker.features.compaction.compaction import CompactionStats
from magnetar.broker.features.message_index import MessageIndex
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.features.retention.backlog import storage_bytes, topic_backlog_bytes
from magnetar.broker.http.metrics.text import Column, Value, counter, gauge
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.shared import SharedDispatcher
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.subscription import Subscription

Numbers = tuple[float, ...]
"""Counters or their rates, in a fixed order."""


class InSubscriptions(NamedTuple):
    """Sums over the subscriptions of a topic."""

    subscriptions: int
    consumers: int
    backlog: int
    delayed: int


class TopicLook(NamedTuple):
    """A topic, with values that are read once for all of its metrics."""

    topic: Topic
    within: InSubscriptions
    rate_in: float
    bytes_rate_in: float
    rate_out: float
    bytes_rate_out: float
    entries_rate: float
    sent: int
    sent_bytes: int
    size: int
    features: Mapping[str, Any]
    """Values that the topic's features show in statistics."""


TOPIC: Sequence[Column[TopicLook]] = (
    gauge("pulsar_subscriptions_count", "Subscriptions.", lambda t: t.within.subscriptions),
    gauge("pulsar_producers_count", "Connected producers.", lambda t: len(t.topic.producers)),
    gauge("pulsar_consumers_count", "Connected consumers.", lambda t: t.within.consumers),
    gauge("pulsar_rate_in", "Messages stored per second.", lambda t: t.rate_in),
    gauge("pulsar_rate_out", "Messages sent to consumers per second.", lambda t: t.rate_out),
    gauge(
        "pulsar_throughput_in", "Bytes stored per second, as received.", lambda t: t.bytes_rate_in
    ),
    gauge(
        "pulsar_throughput_out", "Bytes sent to consumers per second.", lambda t: t.bytes_rate_out
    ),
    gauge("pulsar_storage_write_rate", "Entries stored per second.", lambda t: t.entries_rate),
    counter(
        "pulsar_in_messages_total",
        "Messages stored since the topic was loaded.",
        lambda t: t.topic.line.messages_in,
    ),
    counter(
        "pulsar_in_bytes_total",
        "Bytes of messages stored since the topic was loaded, as received.",
        lambda t: t.topic.line.bytes_in,
    ),
    counter(
        "pulsar_out_messages_total",
        "Messages sent to consumers since the topic was loaded.",
        lambda t: t.sent,
    ),
    counter(
        "pulsar_out_bytes_total",
        "Bytes of messages sent to consumers since the topic was loaded.",
        lambda t: t.sent_bytes,
    ),
    gauge(
        "pulsar_storage_size",
        "Bytes of ledgers, all copies.",
        lambda t: t.size * t.topic.policies.persistence.write_quorum,
    ),
    gauge("pulsar_storage_logical_size", "Bytes of ledgers, one copy.", lambda t: t.size),
    gauge(
        "pulsar_storage_offloaded_size",
        "Bytes of ledgers that are in an object store.",
        lambda t: t.features.get("offload", {}).get("offloadedStorageSize", 0),
    ),
    gauge(
        "pulsar_storage_backlog_size",
        "Unacknowledged bytes of the slowest subscription, as the backlog quota counts them.",
        lambda t: topic_backlog_bytes(t.topic),
    ),
    gauge(
        "pulsar_storage_backlog_quota_limit",
        "Backlog quota in bytes; 0: none.",
        lambda t: max(0, t.topic.policies.size_quota.bytes),
    ),
    gauge(
        "pulsar_msg_backlog",
        "Unacknowledged entries of all subscriptions together.",
        lambda t: t.within.backlog,
    ),
    gauge(
        "pulsar_publish_rate_limit_times",
        "Times the broker stopped reading from a connection because of the publish rate.",
        lambda t: t.topic.line.rate.limited_times,
    ),
    gauge(
        "pulsar_delayed_message_index_size_bytes",
        "Bytes of the index of delayed messages.",
        lambda t: t.features.get("delayed_index_bytes", 0),
    ),
    counter(
        "magnetar_topic_publish_failures_total",
        "Messages that could not be stored.",
        lambda t: t.topic.line.messages_failed,
    ),
    counter(
        "magnetar_topic_duplicates_total",
        "Duplicate messages that were not stored again.",
        lambda t: t.features.get("duplicates", 0),
    ),
    counter(
        "magnetar_topic_trimmed_ledgers_total",
        "Ledgers deleted because they were consumed and not retained.",
        lambda t: t.topic.use.trimmed_ledgers,
    ),
    counter(
        "magnetar_topic_evicted_entries_total",
        "Entries evicted from a backlog because it was above its quota.",
        lambda t: t.topic.use.evicted_entries,
    ),
)
"""Metrics of a topic, or of all topics of a namespace."""

COMPACTION: Sequence[Column[CompactionStats]] = (
    gauge(
        "pulsar_compaction_removed_event_count",
        "Messages that compactions have removed.",
        lambda stats: stats.removed_total,
    ),
    gauge(
        "pulsar_compaction_succeed_count",
        "Compactions that succeeded.",
        lambda stats: stats.succeeded,
    ),
    gauge("pulsar_compaction_failed_count", "Compactions that failed.", lambda stats: stats.failed),
    gauge(
        "pulsar_compaction_duration_time_in_mills",
        "Milliseconds that the last compaction took.",
        lambda stats: stats.duration_ms,
    ),
    gauge(
        "pulsar_compaction_compacted_entries_count",
        "Entries in the result of the last compaction.",
        lambda stats: stats.entries,
    ),
)
"""Metrics of topics that were compacted since they were loaded."""


class SubscriptionLook(NamedTuple):
    """A subscription, with values that are read once for all of its metrics."""

    subscription: Subscription
    backlog: int
    delayed: int
    rate_out: float
    bytes_rate_out: float
    redelivery_rate: float
    expiry_rate: float

    @property
    def is_blocked(self) -> bool:
        """Whether delivery is stopped because of too many unacknowledged messages."""
        dispatcher = self.subscription.dispatcher
        return (
            isinstance(dispatcher, SharedDispatcher | KeySharedDispatcher)
            and dispatcher.accounts.is_blocked
        )


SUBSCRIPTION: Sequence[Column[SubscriptionLook]] = (
    gauge("pulsar_subscription_back_log", "Unacknowledged entries.", lambda s: s.backlog),
    gauge(
        "pulsar_subscription_back_log_no_delayed",
        "Unacknowledged entries that are not delayed.",
        lambda s: max(0, s.backlog - s.delayed),
    ),
    gauge(
        "pulsar_subscription_delayed",
        "Delayed entries that are not due yet.",
        lambda s: s.delayed,
    ),
    gauge(
        "pulsar_subscription_unacked_messages",
        "Messages sent to consumers and not acknowledged.",
        lambda s: s.subscription.unacked_messages,
    ),
    gauge(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 while nothing is sent because of too many unacknowledged messages; else 0.",
        lambda s: s.is_blocked,
    ),
    gauge("pulsar_subscription_msg_rate_out", "Messages sent per second.", lambda s: s.rate_out),
    gauge(
        "pulsar_subscription_msg_throughput_out",
        "Bytes sent per second.",
        lambda s: s.bytes_rate_out,
    ),
    gauge(
        "pulsar_subscription_msg_rate_redeliver",
        "Redelivered messages per second.",
        lambda s: s.redelivery_rate,
    ),
    gauge(
        "pulsar_subscription_msg_rate_expired",
        "Entries that expired per second.",
        lambda s: s.expiry_rate,
    ),
    gauge(
        "pulsar_subscription_total_msg_expired",
        "Entries that expired.",
        lambda s: s.subscription.expired_entries,
    ),
    gauge(
        "pulsar_subscription_last_expire_timestamp",
        "Time of the last expiry, in ms since 1970; 0: none.",
        lambda s: s.subscription.last_expired_ms,
    ),
    gauge(
        "pulsar_subscription_consumers_count",
        "Connected consumers.",
        lambda s: len(s.subscription.consumers),
    ),
)
"""Metrics of a subscription; of a namespace, only the delayed entries."""

INDEXED: Sequence[Column[int]] = (
    gauge(
        "magnetar_subscription_backlog_messages",
        "Exact number of unacknowledged messages, for topics whose entries have an index.",
        float,
    ),
)
"""Metrics of subscriptions whose backlog in messages is known exactly."""

OF_NAMESPACE = tuple(each.name == "pulsar_subscription_delayed" for each in SUBSCRIPTION)
"""Flags, one per metric of `SUBSCRIPTION`: whether namespaces have it, too. Only delayed entries.
"""


class ConsumerLook(NamedTuple):
    """A consumer with its rates."""

    consumer: Consumer
    rate_out: float
    bytes_rate_out: float
    redelivery_rate: float


CONSUMER: Sequence[Column[ConsumerLook]] = (
    gauge("pulsar_consumer_msg_rate_out", "Messages sent per second.", lambda c: c.rate_out),
    gauge(
        "pulsar_consumer_msg_throughput_out", "Bytes sent per second.", lambda c: c.bytes_rate_out
    ),
    gauge(
        "pulsar_consumer_msg_rate_redeliver",
        "Redelivered messages per second.",
        lambda c: c.redelivery_rate,
    ),
    gauge(
        "pulsar_consumer_unacked_messages",
        "Messages sent to consumers and not acknowledged.",
        lambda c: c.consumer.unacked_messages,
    ),
    gauge(
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 while the consumer gets nothing because of too many unacknowledged messages; else 0.",
        lambda c: c.consumer.is_blocked,
    ),
    gauge(
        "pulsar_consumer_available_permits",
        "Messages that the consumer has requested and not received yet.",
        lambda c: max(0, c.consumer.permits),
    ),
)


class CopyLook(NamedTuple):
    """Copies of a topic to and from another cluster."""

    sender: Sending
    now_ms: int
    rate_in: float
    bytes_rate_in: float
    rate_out: float
    bytes_rate_out: float
    expiry_rate: float


REPLICATION: Sequence[Column[CopyLook]] = (
    gauge(
        "pulsar_replication_rate_in",
        "Messages received from the other cluster per second.",
        lambda c: c.rate_in,
    ),
    gauge(
        "pulsar_replication_rate_out",
        "Messages sent to the other cluster per second.",
        lambda c: c.rate_out,
    ),
    gauge(
        "pulsar_replication_throughput_in",
        "Bytes received from the other cluster per second.",
        lambda c: c.bytes_rate_in,
    ),
    gauge(
        "pulsar_replication_throughput_out",
        "Bytes sent to the other cluster per second.",
        lambda c: c.bytes_rate_out,
    ),
    gauge(
        "pulsar_replication_backlog",
        "Entries that the other cluster has not received yet.",
        lambda c: c.sender.cursor.backlog_entries,
    ),
    gauge(
        "pulsar_replication_connected_count",
        "Topics that are connected to the other cluster.",
        lambda c: c.sender.is_connected,
    ),
    gauge(
        "pulsar_replication_disconnected_count",
        "Topics that are not connected to the other cluster.",
        lambda c: not c.sender.is_connected,
    ),
    gauge(
        "pulsar_replication_rate_expired",
        "Entries per second that expired before the other cluster received them.",
        lambda c: c.expiry_rate,
    ),
    gauge(
        "pulsar_replication_delay_in_seconds",
        "Age of the oldest message that the other cluster has not received; for a namespace, the "
        "highest of its topics.",
        lambda c: c.sender.delay_s(c.now_ms),
    ),
)
"""Metrics of a topic and another cluster (label `remote_cluster`), or of all topics of a
namespace."""

_DELAY = len(REPLICATION) - 1

TOPIC_COUNTERS = 5
SUBSCRIPTION_COUNTERS = 4
CONSUMER_COUNTERS = 3


def counters_of_topic(topic: Topic) -> Numbers:
    """Return the counters for rates: messages and bytes in and out, entries in."""
    sent, sent_bytes = topic.subscriptions.sent()
    line = topic.line
    return (line.messages_in, line.bytes_in, sent, sent_bytes, line.entries_in)


def counters_of_subscription(subscription: Subscription) -> Numbers:
    """Return messages, bytes and redeliveries, consumers that have left included; and expired
    entries."""
    return (*subscription.sent(), subscription.expired_entries)


def counters_of_consumer(consumer: Consumer) -> Numbers:
    """Return messages, bytes and redeliveries."""
    return (consumer.messages_out, consumer.bytes_out, consumer.messages_redelivered)


def in_subscriptions(topic: Topic) -> InSubscriptions:
    """Return the sums over a topic's open subscriptions."""
    opened = consumers = backlog = delayed = 0
    for each in topic.subscriptions.values():
        if each.is_open:
            opened += 1
            consumers += len(each.consumers)
            backlog += each.cursor.backlog_entries
            delayed += delayed_of(each)
    return InSubscriptions(opened, consumers, backlog, delayed)


def delayed_of(subscription: Subscription) -> int:
    """Return the number of entries that are held back until they are due."""
    context = subscription.context
    if context is None or context.delays is None:
        return 0
    return context.delays.withheld


def look_at_topic(topic: Topic, rates: Numbers, within: InSubscriptions) -> TopicLook:
    """Read a topic's values. `rates` are in the order of `counters_of_topic`."""
    rate_in, bytes_rate_in, rate_out, bytes_rate_out, entries_rate = rates
    sent, sent_bytes = topic.subscriptions.sent()
    return TopicLook(
        topic,
        within,
        rate_in,
        bytes_rate_in,
        rate_out,
        bytes_rate_out,
        entries_rate,
        sent,
        sent_bytes,
        storage_bytes(topic),
        topic.shown(),
    )


def compactions_of(topic: Topic) -> CompactionStats | None:
    """Return the results of compactions since the topic was loaded; None if none has ended."""
    compaction = topic.find(Compaction)
    if compaction is None:
        return None
    stats = compaction.stats
    return stats if stats.succeeded or stats.failed else None


def look_at_subscription(subscription: Subscription, rates: Numbers) -> SubscriptionLook:
    """Read a subscription's values. `rates` are in the order of `counters_of_subscription`."""
    backlog = subscription.cursor.backlog_entries
    return SubscriptionLook(subscription, backlog, delayed_of(subscription), *rates)


def messages_in_backlog(topic: Topic, look: SubscriptionLook) -> int | None:
    """Return the messages in a backlog as last counted; None if they are not known exactly."""
    index = topic.find(MessageIndex)
    counted = index.counted if index is not None else None
    if counted is None:
        return None
    return counted.get(look.subscription.name) if look.backlog else 0


def namespace_subscription_values(delayed: float) -> list[Value]:
    """Return the row of a namespace in the table of subscriptions."""
    return [delayed if is_shown else None for is_shown in OF_NAMESPACE]


def look_at_copies(sender: Sending, copier: Producer | None, now_ms: int) -> CopyLook:
    """Read the values of copies. `copier`: the producer by which the other cluster copies here."""
    rate_in, bytes_rate_in, *_ = copier.rates(now_ms) if copier is not None else (0.0, 0.0)
    return CopyLook(sender, now_ms, rate_in, bytes_rate_in, *sender.figures.rates(now_ms))


def with_replication(sums: Sequence[float], more: Sequence[float]) -> tuple[float, ...]:
    """Combine two rows of the table `REPLICATION`."""
    added = [a + b for a, b in zip(sums, more, strict=True)]
    return (*added[:_DELAY], max(sums[_DELAY], more[_DELAY]))
