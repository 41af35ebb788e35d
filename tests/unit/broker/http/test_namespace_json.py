"""The policies of a namespace, field by field, as Pulsar 4.0 answers them."""

from magnetar.broker.http.namespace_json import UNSET, namespace_of_json, namespace_to_json
from magnetar.broker.policies.model import NamespaceRecord
from magnetar.broker.policies.table import POLICIES

_FIELDS = """
    auth_policies replication_clusters allowed_clusters bundles backlog_quota_map
    clusterDispatchRate topicDispatchRate subscriptionDispatchRate replicatorDispatchRate
    clusterSubscribeRate persistence deduplicationEnabled autoTopicCreationOverride
    autoSubscriptionCreationOverride publishMaxMessageRate latency_stats_sample_rate
    message_ttl_in_seconds subscription_expiration_time_minutes retention_policies deleted
    encryption_required delayed_delivery_policies inactive_topic_policies subscription_auth_mode
    max_producers_per_topic max_consumers_per_topic max_consumers_per_subscription
    max_unacked_messages_per_consumer max_unacked_messages_per_subscription
    max_subscriptions_per_topic compaction_threshold offload_threshold
    offload_threshold_in_seconds offload_deletion_lag_ms max_topics_per_namespace
    schema_auto_update_compatibility_strategy schema_compatibility_strategy
    is_allow_auto_update_schema schema_validation_enforced offload_policies
    deduplicationSnapshotIntervalSeconds subscription_types_enabled properties
    resource_group_name migrated dispatcherPauseOnAckStatePersistentEnabled entryFilters
"""
FIELDS = frozenset({*_FIELDS.split(), "scalableTopicAutoScalePolicy"})
"""The last one is of Pulsar 5."""

_ALWAYS = """
    auth_policies replication_clusters allowed_clusters bundles backlog_quota_map
    clusterDispatchRate topicDispatchRate subscriptionDispatchRate replicatorDispatchRate
    clusterSubscribeRate publishMaxMessageRate latency_stats_sample_rate deleted
    encryption_required subscription_auth_mode offload_threshold offload_threshold_in_seconds
    schema_compatibility_strategy is_allow_auto_update_schema schema_validation_enforced
    subscription_types_enabled properties migrated dispatcherPauseOnAckStatePersistentEnabled
"""
ALWAYS = frozenset(_ALWAYS.split())
"""What is there whatever is set."""


def test_what_pulsar_always_shows_is_always_there() -> None:
    shown = namespace_to_json(NamespaceRecord(), "c", ["0x0", "0x1"])
    assert shown.keys() == ALWAYS


def test_every_field_can_be_shown() -> None:
    own = {"bundles", "auth_policies", "replication_clusters", "backlog_quota_map", "properties"}
    own |= {"deleted", "migrated", "resource_group_name"}
    assert own | UNSET.keys() | {policy.key for policy in POLICIES if policy.key} == FIELDS


def test_what_is_shown_of_nothing_sets_nothing() -> None:
    shown = namespace_to_json(NamespaceRecord(), "c", ["0x0", "0x1"])
    made = namespace_of_json(shown, "c")
    assert made == NamespaceRecord(replication_clusters=("c",))
