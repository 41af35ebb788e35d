"""Every policy that can be set over HTTP: its names, its shape, and where its value is kept. Pure.

Source: HTTP sheet, sections 8.2, 8.3 and 9.4. One row per policy; the routes, the description of a
whole namespace and the commands of `magnetar admin` are made of this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.http import policy_shapes as shapes
from magnetar.broker.http.policy_shapes import Shape
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies import model
from magnetar.broker.policies.effective import EffectivePolicies, RateLimit
from magnetar.broker.policies.model import NamespaceRecord, PolicySet, QuotaType

_MIB = 1 << 20

Default = Callable[[EffectivePolicies], Any]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy."""

    field: str
    """In PolicySet; of those that only namespaces have, in NamespaceRecord."""
    shape: Shape
    namespace: str = ""
    """Its name below a namespace; empty: namespaces do not have it."""
    topic: str = ""
    """Its name below a topic; empty: topics do not have it."""
    key: str = ""
    """In the description of a whole namespace."""
    is_per_cluster: bool = False
    """There, the value is a map with one entry per cluster."""
    default: Default | None = None
    """The broker's value, as `field` would hold it; None: there is none."""
    namespace_verb: str = "POST"
    can_remove: bool = True
    topic_query: str = ""
    """The value comes in this part of the query, not in a body, for topics."""

    @property
    def is_of_set(self) -> bool:
        return self.field in PolicySet.model_fields

    def of_namespace(self, record: NamespaceRecord) -> Any:
        """The value; None: it is not set."""
        return getattr(record.policies if self.is_of_set else record, self.field)

    def set_in_namespace(self, record: NamespaceRecord, value: Any) -> NamespaceRecord:
        """A record with the value; None: without it."""
        if not self.is_of_set:
            return record.model_copy(update={self.field: value})
        policies = self.set_in_topic(record.policies, value)
        return record.model_copy(update={"policies": policies})

    def set_in_topic(self, policies: PolicySet, value: Any) -> PolicySet:
        after = policies.model_copy(update={self.field: value})
        check_quotas(after)
        return after


def check_quotas(policies: PolicySet) -> None:
    """Refuse a backlog quota that retention does not leave room for.

    Raises:
        HttpRefusal
    """
    retention, quotas = policies.retention, policies.backlog_quotas or {}
    if retention is None:
        return
    size, age = quotas.get(QuotaType.SIZE), quotas.get(QuotaType.AGE)
    if size is not None and 0 < retention.mib * _MIB <= size.bytes:
        raise HttpRefusal(
            412, f"a backlog of {size.bytes} bytes exceeds the retention of {retention.mib} MB"
        )
    if age is not None and 0 < retention.minutes * 60 <= age.seconds:
        raise HttpRefusal(
            412, f"a backlog of {age.seconds} s exceeds the retention of {retention.minutes} min"
        )


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
        shapes.whole(),
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
        shapes.whole(),
        namespace="messageTTL",
        topic="messageTTL",
        topic_query="messageTTL",
        key="message_ttl_in_seconds",
        default=lambda policies: policies.ttl_s,
    ),
    Policy(
        "subscription_expiration_minutes",
        shapes.whole(),
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
)

SUBSCRIPTION_DISPATCH_RATE: Final = shapes.DISPATCH_RATE
"""Of one subscription of a topic: kept in `subscription_dispatch_rates` by its name."""


def namespace_to_json(
    record: NamespaceRecord, cluster: str, boundaries: list[str]
) -> dict[str, Any]:
    """A whole namespace. What is not set is left out."""
    shown: dict[str, Any] = {
        "auth_policies": {
            "namespace_auth": {role: list(each) for role, each in record.permissions.items()},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "replication_clusters": list(record.replication_clusters),
        "bundles": {"boundaries": boundaries, "numBundles": len(boundaries) - 1},
        "backlog_quota_map": quotas_to_json(record.policies),
        "properties": record.properties,
        "deleted": record.is_deleted,
    }
    for policy in POLICIES:
        value = policy.of_namespace(record) if policy.key else None
        if value is not None:
            found = policy.shape.to_json(value)
            shown[policy.key] = {cluster: found} if policy.is_per_cluster else found
    return shown


def namespace_of_json(body: dict[str, Any], cluster: str) -> NamespaceRecord:
    """A new namespace as it is asked for.

    Raises:
        HttpRefusal
    """
    clusters = shapes.TEXTS.parse_value(body.get("replication_clusters"))
    record = NamespaceRecord(replication_clusters=clusters or (cluster,))
    quotas = body.get("backlog_quota_map") or {}
    for kind, value in quotas.items() if isinstance(quotas, dict) else ():
        quota = shapes.BACKLOG_QUOTA.parse_value(value)
        record = record.model_copy(
            update={"policies": with_quota(record.policies, quota_type(kind), quota)}
        )
    for policy in POLICIES:
        value = body.get(policy.key) if policy.key else None
        if policy.is_per_cluster and isinstance(value, dict):
            value = value.get(cluster)
        if value is not None and value != []:
            record = policy.set_in_namespace(record, policy.shape.parse_value(value))
    return record


def quotas_to_json(policies: PolicySet) -> dict[str, Any]:
    """The map of backlog quotas."""
    quotas = policies.backlog_quotas or {}
    return {kind.value: shapes.BACKLOG_QUOTA.to_json(quota) for kind, quota in quotas.items()}


def quota_type(name: str) -> QuotaType:
    """
    Raises:
        HttpRefusal
    """
    try:
        return QuotaType(name)
    except ValueError:
        known = ", ".join(QuotaType)
        raise HttpRefusal(412, f"there is no backlogQuotaType {name!r}, only {known}") from None


def with_quota(policies: PolicySet, kind: QuotaType, quota: model.BacklogQuota | None) -> PolicySet:
    """Policies with one more quota, or one less.

    Raises:
        HttpRefusal: retention is smaller.
    """
    quotas = dict(policies.backlog_quotas or {})
    quotas.pop(kind, None)
    if quota is not None:
        quotas[kind] = quota
    after = policies.model_copy(update={"backlog_quotas": quotas or None})
    check_quotas(after)
    return after
