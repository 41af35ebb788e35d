"""Pulsar's names of the settings that can be changed while brokers run, and ours. Pure.

Operators' runbooks and tools use Pulsar's names. Names with a meaning here are aliases of ours. The
rest is listed with the reason why there is none, which a refusal contains. Both lists together are
all dynamic settings of Apache Pulsar 4.0, and some that Pulsar reads only at its start.
"""

from collections.abc import Mapping
from typing import Final

OURS: Final[Mapping[str, str]] = {
    "allowAutoSubscriptionCreation": "auto_subscription_creation",
    "allowAutoTopicCreation": "auto_topic_creation",
    "allowAutoTopicCreationType": "auto_topic_type",
    "backlogQuotaDefaultLimitBytes": "backlog_quota_bytes",
    "backlogQuotaDefaultLimitSecond": "backlog_quota_s",
    "backlogQuotaDefaultRetentionPolicy": "backlog_quota_policy",
    "brokerDeduplicationEnabled": "deduplication",
    "brokerDeduplicationEntriesInterval": "dedup_snapshot_entries",
    "brokerDeduplicationSnapshotIntervalSeconds": "dedup_snapshot_s",
    "brokerDeleteInactiveTopicsEnabled": "inactive_topic_deletion",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "inactive_topic_max_s",
    "brokerDeleteInactiveTopicsMode": "inactive_topic_mode",
    "brokerServiceCompactionThresholdInBytes": "compaction_threshold_bytes",
    "defaultNumPartitions": "auto_topic_partitions",
    "defaultRetentionSizeInMB": "retention_mib",
    "defaultRetentionTimeInMinutes": "retention_minutes",
    "delayedDeliveryEnabled": "delayed_delivery",
    "delayedDeliveryMaxDelayInMillis": "delayed_delivery_max_delay_ms",
    "delayedDeliveryTickTimeMillis": "delayed_delivery_tick_ms",
    "dispatchThrottlingRatePerReplicatorInByte": "replicator_dispatch_rate_bytes",
    "dispatchThrottlingRatePerReplicatorInMsg": "replicator_dispatch_rate_messages",
    "dispatchThrottlingRatePerSubscriptionInByte": "subscription_dispatch_rate_bytes",
    "dispatchThrottlingRatePerSubscriptionInMsg": "subscription_dispatch_rate_messages",
    "dispatchThrottlingRatePerTopicInByte": "dispatch_rate_bytes",
    "dispatchThrottlingRatePerTopicInMsg": "dispatch_rate_messages",
    "encryptionRequireOnProducer": "encryption_required",
    "forceDeleteNamespaceAllowed": "force_delete_namespace",
    "forceDeleteTenantAllowed": "force_delete_tenant",
    "isAllowAutoUpdateSchemaEnabled": "allows_schema_update",
    "isSchemaValidationEnforced": "schema_validation_enforced",
    "managedLedgerDefaultAckQuorum": "ack_quorum",
    "managedLedgerDefaultEnsembleSize": "ensemble_size",
    "managedLedgerDefaultWriteQuorum": "write_quorum",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxPublishRatePerTopicInBytes": "publish_rate_bytes",
    "maxPublishRatePerTopicInMessages": "publish_rate_messages",
    "maxSubscriptionsPerTopic": "subscriptions_per_topic_max",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
    "maxUnackedMessagesPerConsumer": "unacked_per_consumer_max",
    "maxUnackedMessagesPerSubscription": "unacked_per_subscription_max",
    "schemaCompatibilityStrategy": "schema_compatibility",
    "subscribeRatePeriodPerConsumerInSecond": "subscribe_rate_period_s",
    "subscribeThrottlingRatePerConsumer": "subscribe_rate_per_consumer",
    "subscriptionExpirationTimeMinutes": "subscription_expiration_minutes",
    "ttlDurationDefaultInSeconds": "ttl_s",
}
"""Our name of each of Pulsar's."""

PULSARS: Final[Mapping[str, str]] = {ours: name for name, ours in OURS.items()}
"""Pulsar's name of each of ours."""

_BALANCING = "bundles are moved and split by the shedding_ and bundle_ settings, read at the start"
_AT_START = "the corresponding setting is read when a broker starts: change the file and restart"
_CODE = "this broker has no plug-in classes"
_LEDGERS = "ledgers, caches and their metadata work differently here"
_DISPATCH = "dispatchers are sized by settings of their own, read when a broker starts"
_ABSENT: Final[tuple[tuple[str, str], ...]] = (
    (
        _BALANCING,
        "defaultNamespaceBundleSplitAlgorithm defaultNumberOfNamespaceBundles "
        "failureDomainsEnabled "
        "flowOrQpsDifferenceThresholdPercentage loadBalanceSheddingDelayInSeconds "
        "loadBalancerAutoBundleSplitEnabled loadBalancerAutoUnloadSplitBundlesEnabled "
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage "
        "loadBalancerAvgShedderHighThreshold loadBalancerAvgShedderHitCountHighThreshold "
        "loadBalancerAvgShedderHitCountLowThreshold loadBalancerAvgShedderLowThreshold "
        "loadBalancerBandwidthInResourceWeight loadBalancerBandwidthOutResourceWeight "
        "loadBalancerBandwithInResourceWeight loadBalancerBandwithOutResourceWeight "
        "loadBalancerBrokerLoadDataTTLInSeconds loadBalancerBrokerLoadTargetStd "
        "loadBalancerBrokerMaxTopics loadBalancerBrokerOverloadedThresholdPercentage "
        "loadBalancerBrokerThresholdShedderPercentage "
        "loadBalancerBundleUnloadMinThroughputThreshold loadBalancerCPUResourceWeight "
        "loadBalancerDebugModeEnabled loadBalancerDirectMemoryResourceWeight "
        "loadBalancerDistributeBundlesEvenlyEnabled loadBalancerHistoryResourcePercentage "
        "loadBalancerHostUsageCheckIntervalMinutes "
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle "
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport "
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle loadBalancerMemoryResourceWeight "
        "loadBalancerMsgRateDifferenceShedderThreshold "
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold "
        "loadBalancerNamespaceBundleMaxBandwidthMbytes loadBalancerNamespaceBundleMaxMsgRate "
        "loadBalancerNamespaceBundleMaxSessions loadBalancerNamespaceBundleMaxTopics "
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold "
        "loadBalancerNamespaceMaximumBundles loadBalancerReportUpdateMaxIntervalMinutes "
        "loadBalancerReportUpdateMinIntervalMillis loadBalancerReportUpdateThresholdPercentage "
        "loadBalancerServiceUnitStateMaxConcurrentOverrides "
        "loadBalancerSheddingBundlesWithPoliciesEnabled "
        "loadBalancerSheddingConditionHitCountThreshold loadBalancerSheddingEnabled "
        "loadBalancerSheddingGracePeriodMinutes loadBalancerSheddingIntervalMinutes "
        "loadBalancerTransferEnabled maxUnloadBundleNumPerShedding maxUnloadPercentage "
        "minUnloadMessage minUnloadMessageThroughput namespaceBundleUnloadingTimeoutMs "
        "supportedNamespaceBundleSplitAlgorithms",
    ),
    (
        _AT_START,
        "brokerClientAuthenticationParameters brokerClientAuthenticationPlugin "
        "brokerClientTlsEnabled brokerDeleteInactiveTopicsFrequencySeconds "
        "brokerShutdownTimeoutMs managedLedgerCacheSizeMB maxConcurrentTopicLoadRequest "
        "maxMessagePublishBufferSizeInMB maxNumPartitionsPerPartitionedTopic superUserRoles",
    ),
    (
        _CODE,
        "allowOverrideEntryFilters dispatcherEntryFilterRescheduledMessageDelay entryFilterNames "
        "entryFiltersDirectory loadBalancerLoadSheddingStrategy loadManagerClassName "
        "loadManagerServiceUnitStateTableViewClassName topicFactoryClassName",
    ),
    (
        _DISPATCH,
        "dispatchThrottlingOnBatchMessageEnabled dispatchThrottlingOnNonBacklogConsumerEnabled "
        "dispatchThrottlingRateRelativeToPublishRate "
        "dispatcherDispatchMessagesInSubscriptionThread dispatcherMaxReadBatchSize "
        "dispatcherMaxReadSizeBytes dispatcherMaxRoundRobinBatchSize dispatcherMinReadBatchSize "
        "dispatcherPauseOnAckStatePersistentEnabled dispatcherReadFailureBackoffInitialTimeInMs "
        "dispatcherReadFailureBackoffMandatoryStopTimeInMs "
        "dispatcherReadFailureBackoffMaxTimeInMs "
        "keySharedLookAheadMsgInReplayThresholdPerConsumer "
        "keySharedLookAheadMsgInReplayThresholdPerSubscription keySharedUnblockingIntervalMs "
        "preciseDispatcherFlowControl subscriptionKeySharedEnable "
        "subscriptionKeySharedUseClassicPersistentImplementation "
        "subscriptionRedeliveryTrackerEnabled "
        "subscriptionSharedUseClassicPersistentImplementation subscriptionTypesEnabled "
        "unblockStuckSubscriptionEnabled",
    ),
    (
        _LEDGERS,
        "autoSkipNonRecoverableData bookkeeperUseV2WireProtocol "
        "brokerDeleteInactivePartitionedTopicMetadataEnabled managedLedgerCacheEvictionWatermark "
        "managedLedgerCacheEvictionTimeThresholdMillis "
        "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis "
        "managedLedgerForceRecovery managedLedgerInactiveLedgerRolloverTimeSeconds "
        "managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds "
        "managedLedgerMaxBacklogBetweenCursorsForCaching "
        "managedLedgerMinimumBacklogCursorsForCaching "
        "managedLedgerMinimumBacklogEntriesForCaching managedLedgerTraceTaskExecution "
        "schemaLedgerForceRecovery transactionLogBatchedWriteEnabled "
        "transactionPendingAckBatchedWriteEnabled",
    ),
    (
        "this broker has no such limit of a whole broker, namespace or tenant",
        "brokerPublisherThrottlingMaxByteRate brokerPublisherThrottlingMaxMessageRate "
        "brokerPublisherThrottlingTickTimeMillis dispatchThrottlingRateInByte "
        "dispatchThrottlingRateInMsg maxConcurrentLookupRequest maxNamespacesPerTenant maxTenants "
        "resourceUsageTransportPublishIntervalInSecs topicPublisherThrottlingTickTimeMillis",
    ),
    (
        "clusters have stores of their own, and what is under way to one is bounded by bytes",
        "configurationMetadataSyncEventTopic metadataSyncEventTopic replicationProducerQueueSize",
    ),
    (
        "this broker has no such feature",
        "clientLibraryVersionCheckEnabled exposeBundlesMetricsInPrometheus "
        "httpRequestsFailOnUnknownPropertiesEnabled preferLaterVersions skipBrokerShutdownOnOOM "
        "strictlyVerifySubscriptionName topicNameCacheMaxCapacity",
    ),
)

WITHOUT_MEANING: Final[Mapping[str, str]] = {
    name: reason for reason, names in _ABSENT for name in names.split()
}
"""Dynamic settings of Pulsar that cannot be set here, with the reason."""

_NONE_IS_ZERO: Final = frozenset(
    {
        "backlog_quota_bytes",
        "backlog_quota_s",
        "compaction_threshold_bytes",
        "dispatch_rate_bytes",
        "dispatch_rate_messages",
        "publish_rate_bytes",
        "publish_rate_messages",
        "replicator_dispatch_rate_bytes",
        "replicator_dispatch_rate_messages",
        "subscribe_rate_per_consumer",
        "subscription_dispatch_rate_bytes",
        "subscription_dispatch_rate_messages",
    }
)
"""Settings for which Pulsar's -1, no limit, is our 0."""


def our_setting(name: str, value: str) -> tuple[str, str]:
    """Return our name and value of a setting that is given by either name."""
    ours = OURS.get(name, name)
    is_none = name in OURS and ours in _NONE_IS_ZERO and value.strip().startswith("-")
    return ours, "0" if is_none else value
