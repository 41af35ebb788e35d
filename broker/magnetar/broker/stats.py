"""The statistics of one topic, as Pulsar's tools read them, and why nothing flows in words.

Counters count since the topic was loaded, or since the client connected; they never go back while
it is there. Rates are averages over about the last minute (`meter.py`); those of what a topic or
subscription sends are sums over the clients that are connected. Backlogs are entries, not messages.

Beyond Pulsar's fields a subscription has `whyIdle`: the name of the reason for which it delivers
nothing just now, and `whyIdleText`, its words; both are null while it delivers.

Source: HTTP sheet, section 9.5. Pure.
"""

from datetime import UTC, datetime
from typing import Any

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.accounted import AccountedDispatcher
from magnetar.broker.dispatch.base import Dispatcher, SingleActiveDispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.producer import Producer
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.cursors import Cursor
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.position import EARLIEST

Stats = dict[str, Any]


def topic_stats(topic: Topic, *, now_ms: int, owner: str) -> Stats:
    """All of one topic. `owner`: the broker that has it."""
    ledgers = topic.log.ledgers
    subscriptions = {
        name: _subscription_stats(topic, each, now_ms)
        for name, each in topic.subscriptions.items()
        if each.is_open
    }
    sent, sent_bytes = topic.subscriptions.sent()
    messages = topic.messages_in
    deduplication = topic.deduplication
    rate_in, throughput_in = topic.meter.per_s(now_ms, messages, topic.bytes_in)
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": _sum(subscriptions, "msgRateOut"),
        "msgThroughputOut": _sum(subscriptions, "msgThroughputOut"),
        "msgInCounter": messages,
        "bytesInCounter": topic.bytes_in,
        "msgOutCounter": sent,
        "bytesOutCounter": sent_bytes,
        "averageMsgSize": topic.bytes_in / messages if messages else 0.0,
        "storageSize": bytes_behind(ledgers, EARLIEST),
        "bytesOutInternalCounter": 0,
        "systemTopicBytesInCounter": 0,
        "msgChunkPublished": False,
        "earliestMsgPublishTimeInBacklogs": 0,
        "oldestBacklogMessageAgeSeconds": -1,
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        **_transaction_stats(topic),
        "nonContiguousDeletedMessagesRanges": int(
            _sum(subscriptions, "nonContiguousDeletedMessagesRanges")
        ),
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "backlogQuotaLimitSize": topic.policies.backlog_quota_bytes or -1,
        "backlogQuotaLimitTime": topic.policies.backlog_quota_s or -1,
        "backlogSize": max((each["backlogSize"] for each in subscriptions.values()), default=0),
        "publishers": [_producer_stats(each, now_ms) for each in topic.producers.values()],
        "subscriptions": subscriptions,
        "publishRateLimitedTimes": topic.publish_policies.rate.limited_times,
        "waitingPublishers": topic.access.waiting,
        "delayedMessageIndexSizeInBytes": topic.delayed.size_bytes if topic.delayed else 0,
        "replication": {},
        "deduplicationStatus": "Enabled" if deduplication is not None else "Disabled",
        "topicEpoch": topic.access.epoch,
        "compaction": topic.compaction.describe() if topic.compaction is not None else {},
        "ownerBroker": owner,
    }


def _transaction_stats(topic: Topic) -> Stats:
    """Transactions with messages on the topic: those without an end, and ends since it is known."""
    buffer = topic.visibility.buffer
    if buffer is None:
        return {"ongoingTxnCount": 0, "abortedTxnCount": 0, "committedTxnCount": 0}
    return {
        "ongoingTxnCount": len(buffer.open),
        "abortedTxnCount": buffer.aborted_count,
        "committedTxnCount": buffer.committed_count,
    }


def _producer_stats(producer: Producer, now_ms: int) -> Stats:
    count = producer.messages_in
    rate_in, throughput_in = producer.meter.per_s(now_ms, count, producer.bytes_in)
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": "Shared" if producer.topic_epoch is None else "Exclusive",
        "address": producer.peer.address,
        "clientVersion": producer.peer.client_version,
        "averageMsgSize": producer.bytes_in / count if count else 0.0,
        "supportsPartialProducer": False,
        "metadata": producer.metadata,
    }


def _subscription_stats(topic: Topic, subscription: Subscription, now_ms: int) -> Stats:
    cursor, dispatcher = subscription.cursor, subscription.dispatcher
    consumers = [_consumer_stats(each, dispatcher, now_ms) for each in subscription.consumers]
    reason = subscription.why_idle()
    backlog = cursor.backlog_entries
    sent, sent_bytes, _ = subscription.sent()
    stats: Stats = {
        "msgRateOut": sum(each["msgRateOut"] for each in consumers),
        "msgThroughputOut": sum(each["msgThroughputOut"] for each in consumers),
        "msgOutCounter": sent,
        "bytesOutCounter": sent_bytes,
        "msgRateRedeliver": sum(each["msgRateRedeliver"] for each in consumers),
        "msgBacklog": backlog,
        "backlogSize": bytes_behind(topic.log.ledgers, cursor.mark_delete) if backlog else 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgRateExpired": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "msgExpired": subscription.expired_entries,
        "totalMsgExpired": subscription.expired_entries,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "unackedMessages": subscription.unacked_messages,
        "type": subscription.type_name,
        "isDurable": subscription.is_durable,
        "durable": subscription.is_durable,
        "isReplicated": False,
        "replicated": False,
        "consumers": consumers,
        "nonContiguousDeletedMessagesRanges": cursor.range_count,
        "subscriptionProperties": dict(cursor.properties) if isinstance(cursor, Cursor) else {},
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "whyIdle": reason.code if reason is not None else None,
        "whyIdleText": reason.value if reason is not None else None,
    }
    if subscription.context is not None and subscription.context.limiters:
        of_topic, own = subscription.context.limiters
        stats |= {
            "dispatchThrottledMsgEventsBySubscriptionLimit": own.message_stops,
            "dispatchThrottledBytesEventsBySubscriptionLimit": own.byte_stops,
            "dispatchThrottledMsgEventsByTopicLimit": of_topic.message_stops,
            "dispatchThrottledBytesEventsByTopicLimit": of_topic.byte_stops,
        }
    if subscription.context is not None and subscription.context.delays is not None:
        stats["msgDelayed"] = subscription.context.delays.withheld
    stats["msgBacklogNoDelayed"] = backlog - stats["msgDelayed"]
    if dispatcher is not None:
        stats |= _dispatcher_stats(dispatcher)
    return stats


def _dispatcher_stats(dispatcher: Dispatcher) -> Stats:
    if isinstance(dispatcher, SingleActiveDispatcher):
        active = dispatcher.active
        return {"activeConsumerName": active.name} if active is not None else {}
    if not isinstance(dispatcher, AccountedDispatcher):
        return {}
    stats: Stats = {
        "blockedSubscriptionOnUnackedMsgs": dispatcher.accounts.is_blocked,
        "msgInReplay": dispatcher.waiting_entries,
    }
    if isinstance(dispatcher, KeySharedDispatcher):
        draining = list(dispatcher.book.draining())
        stats |= {
            "keySharedMode": dispatcher.mode.name,
            "allowOutOfOrderDelivery": dispatcher.mode.is_unordered,
            "drainingHashesCount": len(draining),
            "drainingHashesUnackedMessages": sum(key.in_hand for key in draining),
        }
    return stats


def _consumer_stats(consumer: Consumer, dispatcher: Dispatcher | None, now_ms: int) -> Stats:
    rate_out, throughput_out, rate_again = consumer.rates(now_ms)
    since = datetime.fromtimestamp(consumer.connected_at_ms / 1000, UTC)
    stats: Stats = {
        "consumerName": consumer.name,
        "msgRateOut": rate_out,
        "msgThroughputOut": throughput_out,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "msgRateRedeliver": rate_again,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "address": consumer.peer.address,
        "connectedSince": since.isoformat(timespec="milliseconds"),
        "clientVersion": consumer.peer.client_version,
        "metadata": dict(consumer.metadata),
    }
    if isinstance(dispatcher, KeySharedDispatcher):
        ranges = dispatcher.selector.ranges_of(consumer)
        stats["keyHashRangeArrays"] = [[each.start, each.end] for each in ranges]
        stats["keyHashRanges"] = [f"[{each.start}, {each.end}]" for each in ranges]
    return stats


def _sum(subscriptions: dict[str, Stats], field: str) -> float:
    return float(sum(each[field] for each in subscriptions.values()))
