"""Statistics of one topic in the shape of Pulsar's tools, and why subscriptions deliver nothing.

Counters count since the topic was loaded, or since the client connected, and do not decrease
meanwhile. Rates are averages over about the last minute (`base/meter.py`). The outgoing rates of a
topic or subscription are sums over the clients that are connected. Backlogs are in entries, not
messages.

Fields whose value never changes are in the tables of constants below, each with its reason. Every
other field is live. A test compares both with Pulsar's answers.

Fields that Pulsar does not have:

- `whyIdle` of a subscription: the code of the reason why it delivers nothing at present;
  `whyIdleText`: the reason in words. Both are null while it delivers.
- `hoarders`: the consumers that hold messages and acknowledge none.
- `nextDelayedTime`: when the next delayed message of the topic is due, ms since the epoch; 0 if
  the subscription has none.
- `firstHeld` of a consumer: the first entry, in the order of the log, that it has not
  acknowledged, and for how many seconds it has held that entry at least. Samples choose and time
  it (`stats_rate_interval_s`). So the consumer may have held it longer, and entries behind it,
  too; a redelivered entry starts anew. null: the consumer holds no entry that it held at the last
  sample, or its subscription is Exclusive or Failover, whose consumers acknowledge in order.

Source: HTTP sheet, section 9.5. Pure.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from magnetar.broker.features.replication.names import parse_replicator
from magnetar.broker.features.retention.backlog import BacklogAge
from magnetar.broker.http.hoarding import hoarders_of
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import KEY_SHARED, Consumer
from magnetar.broker.topic.dispatch.accounted import AccountedDispatcher
from magnetar.broker.topic.dispatch.base import Delays, Dispatcher, SingleActiveDispatcher
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.keys import Key
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.publish_line import PublishLine
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics.non_persistent import PassingDispatcher
from magnetar.cursors import Cursor
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.position import EARLIEST
from magnetar.sdk.wire.pulsar_pb2 import ProducerAccessMode

Stats = dict[str, Any]

_NO_FILTERS = "brokers run no code of others on messages"
_NO_BROKER_RATE = "rates bound topics and subscriptions, not brokers"

TOPIC_CONSTANTS: Final[Mapping[str, tuple[Any, str]]] = {
    "bytesOutInternalCounter": (0, "what compaction reads is counted nowhere"),
    "systemTopicBytesInCounter": (0, "a broker keeps its own records beside topics"),
}
"""Constant fields of a topic: the value, and why."""

SUBSCRIPTION_CONSTANTS: Final[Mapping[str, tuple[Any, str]]] = {
    "consumersAfterMarkDeletePosition": (
        {},
        "Key_Shared orders by hashes that drain, and never by where a consumer joined",
    ),
    "filterProcessedMsgCount": (0, _NO_FILTERS),
    "filterAcceptedMsgCount": (0, _NO_FILTERS),
    "filterRejectedMsgCount": (0, _NO_FILTERS),
    "filterRescheduledMsgCount": (0, _NO_FILTERS),
    "dispatchThrottledMsgEventsByBrokerLimit": (0, _NO_BROKER_RATE),
    "dispatchThrottledBytesEventsByBrokerLimit": (0, _NO_BROKER_RATE),
}
"""Constant fields of a subscription: the value, and why."""

ABSENT: Final[Mapping[str, str]] = {
    "readPositionWhenJoining": "Key_Shared orders by hashes that drain, see above",
}
"""Fields of Pulsar that are left out, and why."""


NOT_COMPACTED: Final[Mapping[str, int]] = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}
"""Compaction fields of a topic that stores nothing."""

NOT_OFFLOADED: Final[Mapping[str, int]] = {
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
}
"""Offload fields of a topic that has nothing in an object store."""


_NONE_KNOWN: Final[Mapping[str, int]] = {}


def topic_stats(
    topic: Topic,
    *,
    now_ms: int,
    owner: str,
    oldest: BacklogAge | None = None,
    backlogs: Mapping[str, int] = _NONE_KNOWN,
) -> Stats:
    """Return all statistics of one topic.

    Args:
        owner: id of the broker that owns it.
        oldest: the oldest message of its backlogs, if known.
        backlogs: exact numbers of messages in backlogs, by subscription, where known.
    """
    ledgers = topic.log.ledgers
    subscriptions = {
        name: _subscription_stats(topic, each, now_ms, backlogs.get(name, -1))
        for name, each in topic.subscriptions.items()
        if each.is_open
    }
    sent, sent_bytes = topic.subscriptions.sent()
    messages = topic.line.messages_in
    line, shown = topic.line, topic.shown()
    rate_in, throughput_in, drop_rate = line.rates(now_ms)
    replication, copiers = _replication_stats(topic, shown.get("replication", {}), now_ms)
    publishers = [
        _producer_stats(each, now_ms) for each in topic.producers.values() if each not in copiers
    ]
    stats: Stats = {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": float(_sum(subscriptions, "msgRateOut")),
        "msgThroughputOut": float(_sum(subscriptions, "msgThroughputOut")),
        "msgInCounter": messages,
        "bytesInCounter": line.bytes_in,
        "msgOutCounter": sent,
        "bytesOutCounter": sent_bytes,
        "averageMsgSize": line.bytes_in / messages if messages else 0.0,
        "storageSize": bytes_behind(ledgers, EARLIEST),
        "msgChunkPublished": line.chunks_in > 0,
        **_backlogs_stats(topic, subscriptions, oldest),
        "ongoingTxnCount": shown.get("open_transactions", 0),
        "abortedTxnCount": shown.get("aborted_transactions", 0),
        "committedTxnCount": shown.get("committed_transactions", 0),
        "nonContiguousDeletedMessagesRanges": _sum(
            subscriptions, "nonContiguousDeletedMessagesRanges"
        ),
        "nonContiguousDeletedMessagesRangesSerializedSize": _sum(
            subscriptions, "nonContiguousDeletedMessagesRangesSerializedSize"
        ),
        "publishers": publishers,
        "subscriptions": subscriptions,
        "publishRateLimitedTimes": line.rate.limited_times,
        "waitingPublishers": topic.access.waiting,
        "delayedMessageIndexSizeInBytes": shown.get("delayed_index_bytes", 0),
        "deduplicationStatus": "Enabled" if "deduplicates" in shown else "Disabled",
        "topicEpoch": topic.access.epoch,
        "compaction": shown.get("compaction", NOT_COMPACTED),
        "ownerBroker": owner,
        "topicCreationTimeStamp": created_ms(topic),
        "lastPublishTimeStamp": line.last_publish_ms,
        **shown.get("offload", NOT_OFFLOADED),
        **_values_of(TOPIC_CONSTANTS),
        "replication": replication,
    }
    if not topic.name.is_persistent:
        stats["msgDropRate"] = drop_rate
    return stats


def _backlogs_stats(
    topic: Topic, subscriptions: Mapping[str, Stats], oldest: BacklogAge | None
) -> Stats:
    """Return the largest backlog, the oldest message, and the quotas of a topic."""
    return {
        "earliestMsgPublishTimeInBacklogs": 0,
        "oldestBacklogMessageAgeSeconds": oldest.age_s if oldest is not None else -1,
        "oldestBacklogMessageSubscriptionName": (
            oldest.subscription if oldest is not None else None
        ),
        "backlogQuotaLimitSize": topic.policies.size_quota.bytes or -1,
        "backlogQuotaLimitTime": topic.policies.age_quota.seconds or -1,
        "backlogSize": max((each["backlogSize"] for each in subscriptions.values()), default=0),
    }


def copiers_of(topic: Topic) -> Mapping[str, Producer]:
    """Return the producers that copy from other clusters to a topic, by cluster."""
    found: dict[str, Producer] = {}
    for each in topic.producers.values():
        name = parse_replicator(each.name)
        if name is not None:
            found[name.source] = each
    return found


def _replication_stats(
    topic: Topic, shown: Mapping[str, Stats], now_ms: int
) -> tuple[dict[str, Stats], Sequence[Producer]]:
    """Return the copies to and from each cluster that the topic is copied to, and the producers of
    these clusters, which are not shown as publishers. The producer of a cluster that the topic is
    only copied from stays among the publishers."""
    if not shown:
        return {}, ()
    stats = {
        cluster: {**each, "outboundConnectedSince": _time_or_none(each["outboundConnectedSince"])}
        for cluster, each in shown.items()
    }
    copiers = {name: each for name, each in copiers_of(topic).items() if name in stats}
    for cluster, producer in copiers.items():
        rate, throughput, *_ = producer.rates(now_ms)
        stats[cluster] |= {
            "msgRateIn": rate,
            "msgThroughputIn": throughput,
            "msgInCount": producer.messages_in,
            "bytesInCount": producer.bytes_in,
            "inboundConnection": producer.peer.address,
            "inboundConnectedSince": _time(producer.connected_at_ms),
        }
    return stats, list(copiers.values())


def created_ms(topic: Topic) -> int:
    """Return the time of creation in ms since the epoch; 0 if it was not recorded."""
    text = topic.log.properties.get(CREATED_PROPERTY, "")
    return int(text) if text.isdecimal() else 0


def _values_of(constants: Mapping[str, tuple[Any, str]]) -> Stats:
    return {name: value for name, (value, _) in constants.items()}


def _producer_stats(producer: Producer, now_ms: int) -> Stats:
    count = producer.messages_in
    rate_in, throughput_in, chunk_rate, drop_rate = producer.rates(now_ms)
    stats: Stats = {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "chunkedMessageRate": chunk_rate,
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": ProducerAccessMode.Name(producer.access_mode),
        "address": producer.peer.address,
        "connectedSince": _time(producer.connected_at_ms),
        "clientVersion": producer.peer.client_version,
        "averageMsgSize": producer.bytes_in / count if count else 0.0,
        "supportsPartialProducer": producer.peer.is_partial_producer,
        "metadata": producer.metadata,
    }
    if not producer.line.name.is_persistent:
        stats["msgDropRate"] = drop_rate
    return stats


def _words_of(reason: Reason | None, subscription: Subscription) -> str | None:
    """Return why a subscription is idle, in words; for unreadable entries, with the entry and the
    error."""
    found = None if subscription.dispatcher is None else subscription.dispatcher.unreadable
    if reason is not Reason.UNREADABLE or found is None:
        return None if reason is None else reason.value
    (ledger_id, entry_id), error = found
    return f"{reason.value}: from entry {entry_id} of ledger {ledger_id} on: {error}"


def _subscription_stats(
    topic: Topic, subscription: Subscription, now_ms: int, backlog_messages: int
) -> Stats:
    cursor, dispatcher = subscription.cursor, subscription.dispatcher
    consumers = [_consumer_stats(each, dispatcher, now_ms) for each in subscription.consumers]
    reason = subscription.why_idle()
    backlog = cursor.backlog_entries
    sent, sent_bytes, _ = subscription.sent()
    expiry_rate, drop_rate = subscription.rates(now_ms)
    stats: Stats = {
        **{
            rate: float(sum(each[rate] for each in consumers))
            for rate in (
                "msgRateOut",
                "msgThroughputOut",
                "msgRateRedeliver",
                "messageAckRate",
                "chunkedMessageRate",
            )
        },
        "msgOutCounter": sent,
        "bytesOutCounter": sent_bytes,
        **_backlog_stats(topic, subscription, backlog_messages),
        "earliestMsgPublishTimeInBacklog": 0,
        "msgRateExpired": expiry_rate,
        "allowOutOfOrderDelivery": False,
        "msgExpired": subscription.expired_entries,
        "totalMsgExpired": subscription.expired_entries,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        "lastConsumedTimestamp": subscription.last_sent_ms,
        "lastAckedTimestamp": subscription.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_advanced_ms,
        "unackedMessages": subscription.unacked_messages,
        "type": subscription.type_name,
        "activeConsumerName": None,
        "isReplicated": subscription.is_replicated,
        "replicated": subscription.is_replicated,
        "isDurable": subscription.is_durable,
        "durable": subscription.is_durable,
        "consumers": consumers,
        "nonContiguousDeletedMessagesRanges": cursor.range_count,
        "nonContiguousDeletedMessagesRangesSerializedSize": (
            cursor.statistics.record_bytes if isinstance(cursor, Cursor) else 0
        ),
        "subscriptionProperties": dict(cursor.properties) if isinstance(cursor, Cursor) else {},
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "nextDelayedTime": 0,
        "msgInReplay": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "keySharedMode": None,
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        **_values_of(SUBSCRIPTION_CONSTANTS),
        "whyIdle": reason.code if reason is not None else None,
        "whyIdleText": _words_of(reason, subscription),
        "hoarders": [each.name for each in hoarders_of(subscription, now_ms)],
    }
    if subscription.context is not None:
        stats |= _stop_stats(subscription)
        if subscription.context.delays is not None:
            stats |= _delay_stats(subscription.context.delays)
    stats["msgBacklogNoDelayed"] = backlog - stats["msgDelayed"]
    if dispatcher is not None:
        stats |= _dispatcher_stats(dispatcher)
    if not topic.name.is_persistent:
        stats["msgDropRate"] = drop_rate
    return stats


def _delay_stats(delays: Delays) -> Stats:
    """Return the statistics of delayed messages."""
    withheld = delays.withheld
    return {
        "msgDelayed": withheld,
        "nextDelayedTime": (delays.next_due_ms or 0) if withheld else 0,
        "delayedMessageIndexSizeInBytes": delays.size_bytes,
    }


def _backlog_stats(topic: Topic, subscription: Subscription, messages: int) -> Stats:
    """Return how much a subscription has not acknowledged. `messages` is -1 if not known
    exactly."""
    entries = subscription.cursor.backlog_entries
    behind = bytes_behind(topic.log.ledgers, subscription.cursor.mark_delete) if entries else 0
    return {
        "msgBacklog": entries,
        "backlogMessages": messages if entries else 0,
        "backlogMessagesEstimate": messages if messages >= 0 else _messages_in(entries, topic.line),
        "backlogSize": behind,
    }


def _messages_in(entries: int, line: PublishLine) -> int:
    """Estimate the messages in a backlog of entries, by the mean since the topic was loaded; -1 if
    nothing was published since then."""
    if not entries:
        return 0
    return round(entries * line.messages_in / line.entries_in) if line.entries_in else -1


def _stop_stats(subscription: Subscription) -> Stats:
    """Return how often rate limits have stopped a dispatcher."""
    assert subscription.context is not None
    of_topic, own = subscription.context.limiters
    return {
        "dispatchThrottledMsgEventsBySubscriptionLimit": own.message_stops,
        "dispatchThrottledBytesEventsBySubscriptionLimit": own.byte_stops,
        "dispatchThrottledMsgEventsByTopicLimit": of_topic.message_stops,
        "dispatchThrottledBytesEventsByTopicLimit": of_topic.byte_stops,
    }


def _dispatcher_stats(dispatcher: Dispatcher) -> Stats:
    if isinstance(dispatcher, SingleActiveDispatcher | PassingDispatcher):
        active = dispatcher.active
        stats: Stats = {"activeConsumerName": active.name if active is not None else None}
        if isinstance(dispatcher, PassingDispatcher) and dispatcher.sub_type == KEY_SHARED:
            stats["keySharedMode"] = dispatcher.mode.name
            stats["allowOutOfOrderDelivery"] = dispatcher.mode.is_unordered
        return stats
    if not isinstance(dispatcher, AccountedDispatcher):
        return {}
    stats = {
        "blockedSubscriptionOnUnackedMsgs": dispatcher.accounts.is_blocked,
        "msgInReplay": dispatcher.waiting_entries,
    }
    if isinstance(dispatcher, KeySharedDispatcher):
        draining = list(dispatcher.book.draining())
        stats |= {
            "keySharedMode": dispatcher.mode.name,
            "allowOutOfOrderDelivery": dispatcher.mode.is_unordered,
            "drainingHashesCount": len(draining),
            "drainingHashesClearedTotal": dispatcher.book.drained,
            "drainingHashesUnackedMessages": sum(key.in_hand for key in draining),
        }
    return stats


def _consumer_stats(consumer: Consumer, dispatcher: Dispatcher | None, now_ms: int) -> Stats:
    rate_out, throughput_out, rate_again, rate_acked, chunk_rate = consumer.rates(now_ms)
    entries = consumer.entries_out
    return {
        "appId": consumer.peer.role or None,
        "consumerName": consumer.name,
        "msgRateOut": rate_out,
        "msgThroughputOut": throughput_out,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "msgRateRedeliver": rate_again,
        "messageAckRate": rate_acked,
        "chunkedMessageRate": chunk_rate,
        "avgMessagesPerEntry": round(consumer.messages_out / entries) if entries else 0,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "address": consumer.peer.address,
        "connectedSince": _time(consumer.connected_at_ms),
        "clientVersion": consumer.peer.client_version,
        "lastAckedTimestamp": consumer.acked_ms,
        "lastAckedTime": _time(consumer.acked_ms),
        "lastConsumedTimestamp": consumer.sent_ms,
        "lastConsumedTime": _time(consumer.sent_ms),
        "firstMessagesSentTimestamp": consumer.first_sent_ms,
        "lastConsumedFlowTimestamp": consumer.flow_ms,
        "firstConsumedFlowTimestamp": consumer.first_flow_ms,
        "metadata": dict(consumer.metadata),
        "firstHeld": _held(consumer, now_ms),
        **_key_stats(consumer, dispatcher),
    }


def _held(consumer: Consumer, now_ms: int) -> Stats | None:
    """Return the first entry that a consumer holds, and how long it has held the entry at least."""
    held = consumer.first_held(now_ms)
    if held is None:
        return None
    (ledger_id, entry_id), held_ms = held
    return {"messageId": f"{ledger_id}:{entry_id}", "seconds": held_ms // 1000}


def _key_stats(consumer: Consumer, dispatcher: Dispatcher | None) -> Stats:
    """Return a consumer's ranges of key hashes, and the hashes whose messages it still holds
    although another consumer has taken them over."""
    draining: list[Key] = []
    if isinstance(dispatcher, KeySharedDispatcher):
        draining = [key for key in dispatcher.book.draining() if key.holder is consumer]
    stats: Stats = {
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": consumer.drained_hashes,
        "drainingHashesUnackedMessages": sum(key.in_hand for key in draining),
        "drainingHashes": [
            {"hash": key.hash, "unackMsgs": key.in_hand, "blockedAttempts": key.waiting}
            for key in draining
        ],
    }
    if dispatcher is not None and dispatcher.sub_type == KEY_SHARED:
        assert isinstance(dispatcher, KeySharedDispatcher | PassingDispatcher)
        ranges = dispatcher.selector.ranges_of(consumer)
        stats["keyHashRangeArrays"] = [[each.start, each.end] for each in ranges]
        stats["keyHashRanges"] = [f"[{each.start}, {each.end}]" for each in ranges]
    return stats


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _time_or_none(ms: int | None) -> str | None:
    return _time(ms) if ms is not None else None


def _sum(subscriptions: dict[str, Stats], field: str) -> Any:
    return sum(each[field] for each in subscriptions.values())
