"""Statistics of a partitioned topic: those of its partitions, combined field by field. Pure.

The tables below have a rule for each field. Most fields are summed. For ages and times the latest
or the earliest counts, and for values that all partitions share, the first. A producer or consumer
that a client has in several partitions is shown once, identified by its name, as in Pulsar.

Source: HTTP sheet, section 9.2.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

Stats = dict[str, Any]
Rule = Callable[[Sequence[Any]], Any]
"""Combines the values of the partitions into one value."""

SUMMED_ABSENT: Final[Mapping[str, str]] = {
    "ownerBroker": "each partition has an owner of its own",
}
"""Fields of a topic that a partitioned topic does not have, and why."""

_UNKNOWN = -1
"""Placeholder of a number that was not requested, or is not known."""


def _sum(values: Sequence[Any]) -> Any:
    return sum(values)


def _size(values: Sequence[int]) -> int:
    return _UNKNOWN if _UNKNOWN in values else sum(values)


def _earliest(values: Sequence[int]) -> int:
    """Return the smallest value other than 0; 0 if there is none."""
    return min((each for each in values if each), default=0)


def _largest(values: Sequence[Any]) -> Any:
    """Return the largest value; None if there is none."""
    return max((each for each in values if each is not None), default=None)


def _held_longest(values: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """Return the entry that is known to be held longest among the first ones of all partitions;
    None if no entry is held."""
    return max((each for each in values if each), key=lambda held: held["seconds"], default=None)


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _first_known(values: Sequence[str | None]) -> str | None:
    """Return the first known value: a partition without consumers has neither a type nor a mode."""
    return next((each for each in values if each not in (None, "None")), values[0])


def _earliest_text(values: Sequence[str | None]) -> str | None:
    """Return the earliest value; None if there is none."""
    return min((each for each in values if each is not None), default=None)


def _first_problem(values: Sequence[str]) -> str:
    """Return the first problem; empty if there is none."""
    return next(filter(None, values), "")


def _common(values: Sequence[Any]) -> Any:
    """Return the value that all share; None if they differ."""
    return values[0] if all(each == values[0] for each in values) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _whole_mean(values: Sequence[float]) -> int:
    return round(_mean(values))


def _united(values: Sequence[Mapping[str, Any]]) -> Stats:
    return {name: each for value in reversed(values) for name, each in value.items()}


def _listed(values: Sequence[Iterable[Any]]) -> list[Any]:
    return [each for value in values for each in value]


def _names(values: Sequence[Iterable[str]]) -> list[str]:
    """Return each name once: a client has a consumer in every partition."""
    return sorted({name for value in values for name in value})


def _rules(rules: Mapping[Rule, str]) -> Mapping[str, Rule]:
    return {field: rule for rule, fields in rules.items() for field in fields.split()}


def _joined(rules: Mapping[str, Rule], parts: Sequence[Mapping[str, Any]]) -> Stats:
    """Combine field by field. A field without a rule is from a newer release: its numbers are
    summed."""
    values: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {
        name: rules.get(name, _sum if _are_numbers(found) else _first)(found)
        for name, found in values.items()
    }


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _by_name(rules: Mapping[str, Rule]) -> Rule:
    """Return a rule that combines values with the same name."""

    def join(values: Sequence[Mapping[str, Any]]) -> Stats:
        parts: dict[str, list[Any]] = {}
        for value in values:
            for name, each in value.items():
                parts.setdefault(name, []).append(each)
        return {name: _joined(rules, each) for name, each in parts.items()}

    return join


def _of_clients(rules: Mapping[str, Rule], *key: str) -> Rule:
    """Return a rule that combines a client's producers or consumers in several partitions; two in
    one partition stay two."""

    def join(values: Sequence[Iterable[Mapping[str, Any]]]) -> list[Stats]:
        parts: dict[tuple[Any, ...], list[Any]] = {}
        for value in values:
            seen: dict[tuple[Any, ...], int] = {}
            for each in value:
                who = tuple(each.get(field) for field in key)
                seen[who] = seen.get(who, 0) + 1
                parts.setdefault((*who, seen[who]), []).append(each)
        return [_joined(rules, each) for each in parts.values()]

    return join


PUBLISHER_RULES: Final = _rules(
    {
        _sum: "msgRateIn msgThroughputIn chunkedMessageRate msgDropRate",
        _mean: "averageMsgSize",
        any: "supportsPartialProducer",
        min: "connectedSince",
        _first: "accessMode producerId producerName address clientVersion metadata",
    }
)
CONSUMER_RULES: Final = _rules(
    {
        _sum: """
            msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver
            messageAckRate chunkedMessageRate availablePermits unackedMessages
            drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages""",
        _whole_mean: "avgMessagesPerEntry",
        any: "blockedConsumerOnUnackedMsgs",
        min: "connectedSince",
        _largest: """
            lastAckedTimestamp lastConsumedTimestamp lastConsumedFlowTimestamp lastAckedTime
            lastConsumedTime""",
        _earliest: "firstMessagesSentTimestamp firstConsumedFlowTimestamp",
        _first: """
            appId consumerName address clientVersion metadata keyHashRangeArrays keyHashRanges""",
        _listed: "drainingHashes",
        _held_longest: "firstHeld",
    }
)
SUBSCRIPTION_RULES: Final = {
    **_rules(
        {
            _sum: """
                msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver
                messageAckRate chunkedMessageRate msgBacklog msgBacklogNoDelayed msgDelayed
                msgInReplay unackedMessages msgRateExpired msgExpired totalMsgExpired
                drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages
                nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize
                delayedMessageIndexSizeInBytes filterProcessedMsgCount filterAcceptedMsgCount
                filterRejectedMsgCount filterRescheduledMsgCount
                dispatchThrottledMsgEventsBySubscriptionLimit
                dispatchThrottledBytesEventsBySubscriptionLimit
                dispatchThrottledMsgEventsByTopicLimit dispatchThrottledBytesEventsByTopicLimit
                dispatchThrottledMsgEventsByBrokerLimit dispatchThrottledBytesEventsByBrokerLimit
                msgDropRate""",
            _size: "backlogSize backlogMessages backlogMessagesEstimate",
            _earliest: "earliestMsgPublishTimeInBacklog nextDelayedTime",
            _largest: """
                lastExpireTimestamp lastConsumedFlowTimestamp lastConsumedTimestamp
                lastAckedTimestamp lastMarkDeleteAdvancedTimestamp""",
            any: """
                blockedSubscriptionOnUnackedMsgs isDurable durable isReplicated replicated
                allowOutOfOrderDelivery""",
            _first_known: "type keySharedMode",
            _common: "activeConsumerName",
            _first: "whyIdle whyIdleText",
            _names: "hoarders",
            _united: "subscriptionProperties consumersAfterMarkDeletePosition",
        }
    ),
    "consumers": _of_clients(CONSUMER_RULES, "consumerName", "address"),
}
REPLICATION_RULES: Final = _rules(
    {
        _sum: """
            msgRateIn msgThroughputIn msgInCount bytesInCount msgRateOut msgThroughputOut
            msgOutCount bytesOutCount msgRateExpired msgExpiredCount replicationBacklog""",
        _largest: "replicationDelayInSeconds",
        all: "connected",
        _first_known: "inboundConnection outboundConnection",
        _earliest_text: "inboundConnectedSince outboundConnectedSince",
        _first_problem: "problem",
    }
)
COMPACTION_RULES: Final = _rules(
    {
        _sum: "lastCompactionRemovedEventCount",
        _largest: """
            lastCompactionSucceedTimestamp lastCompactionFailedTimestamp
            lastCompactionDurationTimeInMills""",
    }
)
TOPIC_RULES: Final = {
    **_rules(
        {
            _sum: """
                msgRateIn msgThroughputIn msgRateOut msgThroughputOut bytesInCounter msgInCounter
                systemTopicBytesInCounter bytesOutCounter msgOutCounter bytesOutInternalCounter
                storageSize backlogSize publishRateLimitedTimes offloadedStorageSize
                ongoingTxnCount abortedTxnCount committedTxnCount waitingPublishers
                nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize
                delayedMessageIndexSizeInBytes msgDropRate""",
            _earliest: "earliestMsgPublishTimeInBacklogs topicCreationTimeStamp",
            _largest: """
                backlogQuotaLimitSize backlogQuotaLimitTime oldestBacklogMessageAgeSeconds
                lastOffloadLedgerId lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp
                topicEpoch lastPublishTimeStamp""",
            any: "msgChunkPublished",
            _first: "deduplicationStatus oldestBacklogMessageSubscriptionName averageMsgSize",
        }
    ),
    "replication": _by_name(REPLICATION_RULES),
    "publishers": _of_clients(PUBLISHER_RULES, "producerName"),
    "subscriptions": _by_name(SUBSCRIPTION_RULES),
    "compaction": lambda parts: _joined(COMPACTION_RULES, parts),
}
"""Rules of a topic's fields; `summed` computes two fields from others."""


def summed(parts: Iterable[Mapping[str, Any]]) -> Stats:
    """Return the statistics of all partitions as one topic."""
    parts = [part for part in parts if part]
    total = _joined(TOPIC_RULES, parts)
    for field in SUMMED_ABSENT:
        total.pop(field, None)
    if total.get("msgInCounter"):
        total["averageMsgSize"] = total["bytesInCounter"] / total["msgInCounter"]
    oldest = max(parts, key=lambda part: part.get("oldestBacklogMessageAgeSeconds", -1), default={})
    if "oldestBacklogMessageSubscriptionName" in total:
        total["oldestBacklogMessageSubscriptionName"] = oldest.get(
            "oldestBacklogMessageSubscriptionName"
        )
    return total


def summed_at_rest(parts: Iterable[Mapping[str, Any]]) -> Stats:
    """Return the stored backlogs of the partitions that are not loaded, as one topic."""
    subscriptions: dict[str, Stats] = {}
    storage = 0
    for part in parts:
        storage += part["storageSize"]
        for name, each in part["subscriptions"].items():
            whole = subscriptions.setdefault(
                name, {"msgBacklog": 0, "backlogSize": 0, "isUpperBound": False}
            )
            whole["msgBacklog"] += each["msgBacklog"]
            whole["backlogSize"] += each["backlogSize"]
            whole["isUpperBound"] |= each["isUpperBound"]
    return {"storageSize": storage, "subscriptions": subscriptions}
