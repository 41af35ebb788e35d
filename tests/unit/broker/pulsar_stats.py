"""The fields of Pulsar's statistics, by level: those of 4.0, and those that 4.2 has added."""

from collections.abc import Mapping

PULSAR: Mapping[str, frozenset[str]] = {
    level: frozenset(fields.split())
    for level, fields in {
        "topic": """
            msgRateIn msgThroughputIn msgRateOut msgThroughputOut bytesInCounter msgInCounter
            systemTopicBytesInCounter bytesOutCounter msgOutCounter bytesOutInternalCounter
            averageMsgSize msgChunkPublished storageSize backlogSize backlogQuotaLimitSize
            backlogQuotaLimitTime oldestBacklogMessageAgeSeconds
            oldestBacklogMessageSubscriptionName publishRateLimitedTimes
            earliestMsgPublishTimeInBacklogs offloadedStorageSize lastOffloadLedgerId
            lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp ongoingTxnCount
            abortedTxnCount committedTxnCount publishers waitingPublishers subscriptions
            replication deduplicationStatus topicEpoch nonContiguousDeletedMessagesRanges
            nonContiguousDeletedMessagesRangesSerializedSize delayedMessageIndexSizeInBytes
            compaction ownerBroker topicCreationTimeStamp lastPublishTimeStamp msgDropRate""",
        "compaction": """
            lastCompactionRemovedEventCount lastCompactionSucceedTimestamp
            lastCompactionFailedTimestamp lastCompactionDurationTimeInMills""",
        "publisher": """
            accessMode msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate producerId
            supportsPartialProducer producerName address connectedSince clientVersion metadata
            msgDropRate""",
        "subscription": """
            msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver
            messageAckRate chunkedMessageRate msgBacklog backlogSize
            earliestMsgPublishTimeInBacklog msgBacklogNoDelayed blockedSubscriptionOnUnackedMsgs
            msgDelayed msgInReplay unackedMessages type activeConsumerName msgRateExpired
            totalMsgExpired lastExpireTimestamp lastConsumedFlowTimestamp lastConsumedTimestamp
            lastAckedTimestamp lastMarkDeleteAdvancedTimestamp consumers isDurable isReplicated
            allowOutOfOrderDelivery keySharedMode consumersAfterMarkDeletePosition
            drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages
            nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize
            delayedMessageIndexSizeInBytes subscriptionProperties filterProcessedMsgCount
            filterAcceptedMsgCount filterRejectedMsgCount filterRescheduledMsgCount
            dispatchThrottledMsgEventsBySubscriptionLimit
            dispatchThrottledBytesEventsBySubscriptionLimit
            dispatchThrottledMsgEventsByTopicLimit dispatchThrottledBytesEventsByTopicLimit
            dispatchThrottledMsgEventsByBrokerLimit dispatchThrottledBytesEventsByBrokerLimit
            durable replicated msgDropRate""",
        "consumer": """
            appId msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver
            messageAckRate chunkedMessageRate consumerName availablePermits unackedMessages
            avgMessagesPerEntry blockedConsumerOnUnackedMsgs readPositionWhenJoining
            drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages
            drainingHashes address connectedSince clientVersion lastAckedTimestamp
            lastConsumedTimestamp lastConsumedFlowTimestamp firstMessagesSentTimestamp
            firstConsumedFlowTimestamp keyHashRangeArrays keyHashRanges metadata lastAckedTime
            lastConsumedTime""",
        "draining": "hash unackMsgs blockedAttempts",
    }.items()
}

BEYOND = frozenset(
    {
        "whyIdle",
        "whyIdleText",
        "hoarders",
        "nextDelayedTime",
        "msgExpired",
        "backlogMessages",
        "backlogMessagesEstimate",
    }
)
"""Fields of a subscription that Pulsar 4.0 does not have."""

BEYOND_OF_CONSUMER = frozenset({"firstHeld"})
"""Fields of a consumer that Pulsar 4.0 does not have."""
