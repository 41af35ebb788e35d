"""Every policy that can be set over HTTP. Pure.

Source: HTTP sheet, sections 8.2, 8.3 and 9.4. One row per policy; the routes, the description of a
whole namespace and the commands of `magnetar admin` are made of this table.
"""

from typing import Final

from magnetar.broker.http import policy as shapes
from magnetar.broker.http.policy import Policy
from magnetar.broker.policies import model
from magnetar.broker.policies.effective import RateLimit

_MIB = 1 << 20

_BY_LOAD_ALONE = "bundles are placed by load alone"
_NO_OFFLOADER = "this broker has no offloader"
_NO_RACK_GROUPS = "bookies are chosen by their own racks and zones, not by groups"


def _rate(rate: RateLimit) -> model.DispatchRate:
    return model.DispatchRate(
        messages=rate.messages or -1,
        bytes=rate.bytes or -1,
        period_s=rate.period_s,
        relative=rate.relative,
    )


def _scaled(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -1


def _limit(name: str, field: str, topic: str, attribute: str, key: str) -> Policy:
    """A number, 0 for none."""
    return Policy(
        field,
        shapes.whole(words=f"{name} must be 0 or more"),
        namespace=name,
        topic=topic,
        key=key,
        default=lambda policies: getattr(policies, attribute),
    )


POLICIES: Final[tuple[Policy, ...]] = (
    Policy(
        "retention",
        shapes.RETENTION,
        namespace="retention",
        topic="retention",
        key="retention_policies",
        default=lambda policies: model.Retention(
            minutes=_scaled(policies.retention_time_s, 60),
            mib=_scaled(policies.retention_bytes, _MIB),
        ),
    ),
    Policy(
        "message_ttl_s",
        shapes.whole(words="Invalid value for message TTL, message TTL must >= 0"),
        namespace="messageTTL",
        topic="messageTTL",
        topic_query="messageTTL",
        key="message_ttl_in_seconds",
        default=lambda policies: policies.ttl_s,
    ),
    Policy(
        "subscription_expiration_minutes",
        shapes.whole(words="Invalid value for subscription expiration time"),
        namespace="subscriptionExpirationTime",
        topic="subscriptionExpirationTime",
        topic_query="subscriptionExpirationTime",
        key="subscription_expiration_time_minutes",
        default=lambda policies: policies.subscription_expiration_s // 60,
    ),
    Policy(
        "persistence",
        shapes.PERSISTENCE,
        namespace="persistence",
        topic="persistence",
        key="persistence",
        default=lambda policies: model.Persistence(
            ensemble=policies.ensemble_size,
            write_quorum=policies.write_quorum,
            ack_quorum=policies.ack_quorum,
        ),
    ),
    Policy(
        "deduplication",
        shapes.BOOLEAN,
        namespace="deduplication",
        topic="deduplicationEnabled",
        key="deduplicationEnabled",
        default=lambda policies: policies.deduplication,
    ),
    Policy(
        "deduplication_snapshot_s",
        shapes.whole(),
        namespace="deduplicationSnapshotInterval",
        topic="deduplicationSnapshotInterval",
        key="deduplicationSnapshotIntervalSeconds",
        default=lambda policies: policies.dedup_snapshot_s,
    ),
    Policy(
        "publish_rate",
        shapes.PUBLISH_RATE,
        namespace="publishRate",
        topic="publishRate",
        key="publishMaxMessageRate",
        is_per_cluster=True,
        default=lambda policies: model.PublishRate(
            messages=policies.publish_rate.messages or -1, bytes=policies.publish_rate.bytes or -1
        ),
    ),
    Policy(
        "dispatch_rate",
        shapes.DISPATCH_RATE,
        namespace="dispatchRate",
        topic="dispatchRate",
        key="topicDispatchRate",
        is_per_cluster=True,
        default=lambda policies: _rate(policies.dispatch_rate),
    ),
    Policy(
        "subscription_dispatch_rate",
        shapes.DISPATCH_RATE,
        namespace="subscriptionDispatchRate",
        topic="subscriptionDispatchRate",
        key="subscriptionDispatchRate",
        is_per_cluster=True,
        default=lambda policies: _rate(policies.subscription_dispatch_rate),
    ),
    Policy(
        "replicator_dispatch_rate",
        shapes.DISPATCH_RATE,
        namespace="replicatorDispatchRate",
        topic="replicatorDispatchRate",
        key="replicatorDispatchRate",
        is_per_cluster=True,
    ),
    Policy(
        "subscribe_rate",
        shapes.SUBSCRIBE_RATE,
        namespace="subscribeRate",
        topic="subscribeRate",
        key="clusterSubscribeRate",
        is_per_cluster=True,
        default=lambda policies: model.SubscribeRate(
            per_consumer=policies.subscribe_rate_per_consumer or -1,
            period_s=policies.subscribe_rate_period_s,
        ),
    ),
    _limit(
        "maxProducersPerTopic",
        "max_producers",
        "maxProducers",
        "max_producers",
        "max_producers_per_topic",
    ),
    _limit(
        "maxConsumersPerTopic",
        "max_consumers",
        "maxConsumers",
        "max_consumers",
        "max_consumers_per_topic",
    ),
    _limit(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "max_consumers_per_subscription",
    ),
    _limit(
        "maxSubscriptionsPerTopic",
        "max_subscriptions",
        "maxSubscriptionsPerTopic",
        "max_subscriptions",
        "max_subscriptions_per_topic",
    ),
    _limit("maxTopicsPerNamespace", "max_topics", "", "max_topics", "max_topics_per_namespace"),
    _limit(
        "maxUnackedMessagesPerConsumer",
        "max_unacked_per_consumer",
        "maxUnackedMessagesOnConsumer",
        "max_unacked_per_consumer",
        "max_unacked_messages_per_consumer",
    ),
    _limit(
        "maxUnackedMessagesPerSubscription",
        "max_unacked_per_subscription",
        "maxUnackedMessagesOnSubscription",
        "max_unacked_per_subscription",
        "max_unacked_messages_per_subscription",
    ),
    Policy("max_message_bytes", shapes.whole(), topic="maxMessageSize"),
    Policy(
        "auto_topic_creation",
        shapes.AUTO_TOPIC,
        namespace="autoTopicCreation",
        key="autoTopicCreationOverride",
    ),
    Policy(
        "auto_subscription_creation",
        shapes.AUTO_SUBSCRIPTION,
        namespace="autoSubscriptionCreation",
        topic="autoSubscriptionCreation",
        key="autoSubscriptionCreationOverride",
        default=lambda policies: policies.auto_subscription_creation,
    ),
    Policy(
        "delayed_delivery",
        shapes.DELAYED_DELIVERY,
        namespace="delayedDelivery",
        topic="delayedDelivery",
        key="delayed_delivery_policies",
        default=lambda policies: model.DelayedDelivery(
            active=policies.delayed_delivery_active,
            tick_ms=policies.delayed_delivery_tick_ms,
            max_delay_ms=policies.delayed_delivery_max_delay_ms,
        ),
    ),
    Policy(
        "inactive_topic",
        shapes.INACTIVE_TOPIC,
        namespace="inactiveTopicPolicies",
        topic="inactiveTopicPolicies",
        key="inactive_topic_policies",
        default=lambda policies: model.InactiveTopic(
            is_on=policies.inactive_topic_is_on,
            mode=policies.inactive_topic_mode,
            max_s=policies.inactive_topic_max_s,
        ),
    ),
    Policy(
        "compaction_threshold_bytes",
        shapes.whole(),
        namespace="compactionThreshold",
        namespace_verb="PUT",
        topic="compactionThreshold",
        key="compaction_threshold",
        default=lambda policies: policies.compaction_threshold_bytes,
    ),
    Policy(
        "subscription_types",
        shapes.SUBSCRIPTION_TYPES,
        namespace="subscriptionTypesEnabled",
        topic="subscriptionTypesEnabled",
        key="subscription_types_enabled",
        default=lambda policies: policies.subscription_types,
    ),
    Policy(
        "encryption_required",
        shapes.BOOLEAN,
        namespace="encryptionRequired",
        key="encryption_required",
        can_remove=False,
    ),
    Policy(
        "schema_compatibility",
        shapes.SCHEMA_STRATEGY,
        namespace="schemaCompatibilityStrategy",
        namespace_verb="PUT",
        topic="schemaCompatibilityStrategy",
        key="schema_compatibility_strategy",
        default=lambda policies: policies.schema_compatibility,
        unset="UNDEFINED",
    ),
    Policy(
        "schema_auto_update",
        shapes.AUTO_UPDATE_STRATEGY,
        namespace="schemaAutoUpdateCompatibilityStrategy",
        namespace_verb="PUT",
        key="schema_auto_update_compatibility_strategy",
        can_remove=False,
    ),
    Policy(
        "schema_validation_enforced",
        shapes.BOOLEAN,
        namespace="schemaValidationEnforced",
        topic="schemaValidationEnforced",
        key="schema_validation_enforced",
        default=lambda policies: policies.schema_validation_enforced,
        unset=False,
    ),
    Policy(
        "allows_schema_update",
        shapes.BOOLEAN,
        namespace="isAllowAutoUpdateSchema",
        key="is_allow_auto_update_schema",
        can_remove=False,
        unset=True,
    ),
    Policy(
        "subscription_auth_mode",
        shapes.AUTH_MODE,
        namespace="subscriptionAuthMode",
        key="subscription_auth_mode",
        can_remove=False,
        unset="None",
    ),
    Policy(
        "replication_clusters", shapes.CLUSTERS, namespace="replication", can_remove=False, unset=[]
    ),
    Policy("replicated_to", shapes.CLUSTERS, topic="replication"),
    Policy(
        "allowed_clusters",
        shapes.CLUSTERS,
        namespace="allowedClusters",
        key="allowed_clusters",
        can_remove=False,
        unset=[],
    ),
    Policy("anti_affinity_group", shapes.TEXT, namespace="antiAffinity", note=_BY_LOAD_ALONE),
    Policy(
        "bookie_affinity",
        shapes.BOOKIE_AFFINITY,
        namespace="persistence/bookieAffinity",
        note=_NO_RACK_GROUPS,
    ),
    Policy(
        "entry_filters",
        shapes.ENTRY_FILTERS,
        namespace="entryFilters",
        topic="entryFilters",
        key="entryFilters",
        note="there are no plug-ins",
    ),
    Policy(
        "dispatcher_pauses",
        shapes.SWITCH,
        namespace="dispatcherPauseOnAckStatePersistent",
        topic="dispatcherPauseOnAckStatePersistent",
        key="dispatcherPauseOnAckStatePersistentEnabled",
        default=lambda policies: False,
        note="what is acknowledged is stored all the same",
    ),
    Policy(
        "offload_threshold_bytes",
        shapes.whole(least=-1),
        namespace="offloadThreshold",
        namespace_verb="PUT",
        key="offload_threshold",
        can_remove=False,
        unset=-1,
        note=_NO_OFFLOADER,
    ),
    Policy(
        "offload_threshold_s",
        shapes.whole(least=-1, words="Invalid value for offloadThresholdInSecond"),
        namespace="offloadThresholdInSeconds",
        namespace_verb="PUT",
        key="offload_threshold_in_seconds",
        can_remove=False,
        unset=-1,
        note=_NO_OFFLOADER,
    ),
    Policy(
        "offload_deletion_lag_ms",
        shapes.whole(least=-1),
        namespace="offloadDeletionLagMs",
        namespace_verb="PUT",
        key="offload_deletion_lag_ms",
        note=_NO_OFFLOADER,
    ),
    Policy(
        "offload",
        shapes.OFFLOAD,
        namespace="offloadPolicies",
        topic="offloadPolicies",
        key="offload_policies",
        note=_NO_OFFLOADER,
    ),
    Policy(
        "shadow_topics", shapes.TOPICS, topic="shadowTopics", note="one cluster, and no shadows"
    ),
)

SUBSCRIPTION_DISPATCH_RATE: Final = shapes.DISPATCH_RATE
"""Of one subscription of a topic: kept in `subscription_dispatch_rates` by its name."""
