"""What counts for one topic: its own policies over its namespace's over the broker's. Pure.

Plain values, converted to the units that their users reckon in; no limit is always 0, except where
it says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from magnetar.broker.policies.model import (
    BacklogPolicy,
    BacklogQuota,
    DeleteMode,
    DispatchRate,
    NamespaceRecord,
    PolicySet,
    QuotaType,
    SchemaCompatibility,
    SubscriptionType,
)

ALL_TYPES = frozenset(SubscriptionType)

_MIB = 1 << 20

_NO_STRATEGY = (None, SchemaCompatibility.UNDEFINED)
_FORMER_STRATEGIES = {
    "AutoUpdateDisabled": SchemaCompatibility.ALWAYS_INCOMPATIBLE,
    "Backward": SchemaCompatibility.BACKWARD,
    "Forward": SchemaCompatibility.FORWARD,
    "Full": SchemaCompatibility.FULL,
    "AlwaysCompatible": SchemaCompatibility.ALWAYS_COMPATIBLE,
    "BackwardTransitive": SchemaCompatibility.BACKWARD_TRANSITIVE,
    "ForwardTransitive": SchemaCompatibility.FORWARD_TRANSITIVE,
    "FullTransitive": SchemaCompatibility.FULL_TRANSITIVE,
}
"""What strategies were called once. They count for namespaces that have none by its new name."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most so many messages and bytes in each period; 0: any number."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1
    relative: bool = False
    """On top of the rate at which the topic is published to."""

    @property
    def is_limited(self) -> bool:
        return self.messages > 0 or self.bytes > 0


UNLIMITED = RateLimit()


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """The policies of one topic. The defaults are those of a broker that sets nothing."""

    retention_time_s: int = 0
    """Of acknowledged messages; -1: for ever."""
    retention_bytes: int = 0
    """-1: any number of bytes. Nothing is retained unless both are set."""
    ttl_s: int = 0
    """Age at which a message counts as acknowledged; 0: never."""
    subscription_expiration_s: int = 0
    """A subscription without consumers is deleted after it; 0: never."""
    backlog_quota_bytes: int = 0
    """0: none."""
    backlog_quota_bytes_policy: BacklogPolicy = BacklogPolicy.HOLD
    backlog_quota_s: int = 0
    """Age of the oldest message in a backlog; 0: any."""
    backlog_quota_s_policy: BacklogPolicy = BacklogPolicy.HOLD
    deduplication: bool = False
    dedup_snapshot_entries: int = 1000
    dedup_snapshot_s: int = 120
    publish_rate: RateLimit = UNLIMITED
    dispatch_rate: RateLimit = UNLIMITED
    """Of all subscriptions together."""
    subscription_dispatch_rate: RateLimit = UNLIMITED
    """Of each subscription, if it is not in `subscription_dispatch_rates`."""
    subscription_dispatch_rates: Mapping[str, RateLimit] = field(default_factory=dict)
    subscribe_rate_per_consumer: int = 0
    subscribe_rate_period_s: int = 30
    max_producers: int = 0
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    max_message_bytes: int = 0
    """0: what the broker announces."""
    delayed_delivery_active: bool = True
    delayed_delivery_tick_ms: int = 1000
    delayed_delivery_max_delay_ms: int = 0
    """0: any delay."""
    inactive_topic_is_on: bool = True
    inactive_topic_mode: DeleteMode = DeleteMode.NO_SUBSCRIPTIONS
    inactive_topic_max_s: int = 60
    compaction_threshold_bytes: int = 0
    """0: compaction only when somebody asks for it."""
    subscription_types: frozenset[SubscriptionType] = ALL_TYPES
    auto_topic_creation: bool = True
    auto_topic_is_partitioned: bool = False
    auto_topic_partitions: int = 1
    auto_subscription_creation: bool = True
    max_topics: int = 0
    """Of the namespace."""
    encryption_required: bool = False
    schema_compatibility: SchemaCompatibility = SchemaCompatibility.FULL
    schema_validation_enforced: bool = False
    allows_schema_update: bool = True
    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1

    def dispatch_rate_of(self, subscription: str) -> RateLimit:
        """The rate of one subscription."""
        return self.subscription_dispatch_rates.get(subscription, self.subscription_dispatch_rate)


DEFAULTS = EffectivePolicies()


def effective(
    defaults: EffectivePolicies,
    namespace: NamespaceRecord | None,
    topic: PolicySet | None = None,
) -> EffectivePolicies:
    """What counts for a topic: its own policy if set, else its namespace's, else the default."""
    values: dict[str, Any] = {}
    if namespace is not None:
        values.update(_of_set(namespace.policies, defaults))
        values.update(_of_namespace(namespace))
    if topic is not None:
        values.update(_of_set(topic, defaults))
    return replace(defaults, **values) if values else defaults


def _of_set(policies: PolicySet, defaults: EffectivePolicies) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if (retention := policies.retention) is not None:
        values["retention_time_s"] = _scaled(retention.minutes, 60)
        values["retention_bytes"] = _scaled(retention.mib, _MIB)
    if policies.backlog_quotas is not None:
        values.update(_of_quotas(policies.backlog_quotas))
    if (publish := policies.publish_rate) is not None:
        values["publish_rate"] = RateLimit(_limit(publish.messages), _limit(publish.bytes))
    if policies.dispatch_rate is not None:
        values["dispatch_rate"] = _rate(policies.dispatch_rate)
    if policies.subscription_dispatch_rate is not None:
        values["subscription_dispatch_rate"] = _rate(policies.subscription_dispatch_rate)
    if (rates := policies.subscription_dispatch_rates) is not None:
        values["subscription_dispatch_rates"] = {name: _rate(each) for name, each in rates.items()}
    if (subscribe := policies.subscribe_rate) is not None:
        values["subscribe_rate_per_consumer"] = _limit(subscribe.per_consumer)
        values["subscribe_rate_period_s"] = max(1, subscribe.period_s)
    if (delayed := policies.delayed_delivery) is not None:
        values["delayed_delivery_active"] = delayed.active
        values["delayed_delivery_tick_ms"] = delayed.tick_ms
        values["delayed_delivery_max_delay_ms"] = _limit(delayed.max_delay_ms)
    if (inactive := policies.inactive_topic) is not None:
        values["inactive_topic_is_on"] = inactive.is_on
        values["inactive_topic_mode"] = inactive.mode
        values["inactive_topic_max_s"] = inactive.max_s
    if (quorums := policies.persistence) is not None:
        values["ensemble_size"] = quorums.ensemble
        values["write_quorum"] = quorums.write_quorum
        values["ack_quorum"] = quorums.ack_quorum
    if (types := policies.subscription_types) is not None:
        values["subscription_types"] = types or ALL_TYPES
    if (minutes := policies.subscription_expiration_minutes) is not None:
        values["subscription_expiration_s"] = _limit(minutes) * 60
    if policies.schema_compatibility not in _NO_STRATEGY:
        values["schema_compatibility"] = SchemaCompatibility(policies.schema_compatibility)
    if policies.schema_validation_enforced is not None:
        values["schema_validation_enforced"] = policies.schema_validation_enforced
    if policies.deduplication is not None:
        values["deduplication"] = policies.deduplication
    if policies.auto_subscription_creation is not None:
        values["auto_subscription_creation"] = policies.auto_subscription_creation
    if (snapshot := policies.deduplication_snapshot_s) is not None:
        values["dedup_snapshot_s"] = snapshot if snapshot > 0 else defaults.dedup_snapshot_s
    for name, value in (
        ("ttl_s", policies.message_ttl_s),
        ("max_producers", policies.max_producers),
        ("max_consumers", policies.max_consumers),
        ("max_consumers_per_subscription", policies.max_consumers_per_subscription),
        ("max_subscriptions", policies.max_subscriptions),
        ("max_unacked_per_consumer", policies.max_unacked_per_consumer),
        ("max_unacked_per_subscription", policies.max_unacked_per_subscription),
        ("max_message_bytes", policies.max_message_bytes),
        ("compaction_threshold_bytes", policies.compaction_threshold_bytes),
    ):
        if value is not None:
            values[name] = _limit(value)
    return values


def _of_namespace(namespace: NamespaceRecord) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if (creation := namespace.auto_topic_creation) is not None:
        values["auto_topic_creation"] = creation.allowed
        values["auto_topic_is_partitioned"] = creation.is_partitioned
        values["auto_topic_partitions"] = max(1, creation.partitions)
    if namespace.max_topics is not None:
        values["max_topics"] = _limit(namespace.max_topics)
    if namespace.encryption_required:  # A namespace asks for more than the broker, never for less.
        values["encryption_required"] = True
    former = _FORMER_STRATEGIES.get(namespace.schema_auto_update or "")
    if former is not None and namespace.policies.schema_compatibility in _NO_STRATEGY:
        values["schema_compatibility"] = former
    if namespace.allows_schema_update is not None:
        values["allows_schema_update"] = namespace.allows_schema_update
    return values


def _of_quotas(quotas: Mapping[QuotaType, BacklogQuota]) -> dict[str, Any]:
    """Each kind of quota is set for itself."""
    values: dict[str, Any] = {}
    if (size := quotas.get(QuotaType.SIZE)) is not None:
        values["backlog_quota_bytes"] = _limit(size.bytes)
        values["backlog_quota_bytes_policy"] = size.policy
    if (age := quotas.get(QuotaType.AGE)) is not None:
        values["backlog_quota_s"] = _limit(age.seconds)
        values["backlog_quota_s_policy"] = age.policy
    return values


def _limit(value: int) -> int:
    return max(0, value)


def _scaled(value: int, factor: int) -> int:
    return value * factor if value >= 0 else -1


def _rate(rate: DispatchRate) -> RateLimit:
    return RateLimit(
        _limit(rate.messages), _limit(rate.bytes), max(1, rate.period_s), rate.relative
    )
