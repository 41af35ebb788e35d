"""Table of all policies: where each is set, its range, the broker's value, and how levels merge.
Pure.

A policy is a field of `Policies` and a row of `POLICIES`. Routes over HTTP, the description of a
namespace and the policies of a topic are made from the rows. So are the commands of `magnetar
admin`, by way of a file that `python -m tests.policy_rows` writes.

Source: HTTP sheet, sections 8.2, 8.3 and 9.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.base.errors import InvalidPolicyError
from magnetar.broker.base.json_values import LONG_MAX
from magnetar.broker.base.settings.policies import PolicySettings
from magnetar.broker.policies.model import (
    ALL_TYPES,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopic,
    NamespaceRecord,
    Persistence,
    Policies,
    PolicyValue,
    PublishRate,
    QuotaType,
    Retention,
    SchemaCompatibility,
    SubscribeRate,
)

_BY_LOAD_ALONE = "bundles are placed by load alone"
_OFFLOADING = "features/offloading/rules.py"
_NO_RACK_GROUPS = "bookies are placed by their own racks and zones, not by groups"

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
"""Former names of strategies. They apply to namespaces that set no strategy by its new name."""


def _own(_below: Any, own: Any) -> Any:
    return own


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """One policy."""

    field: str
    """Field in Policies; for a policy that topics do not need, in NamespaceRecord."""
    acts: str = ""
    """Module of the broker that applies it; "": none, and `note` says why."""
    namespace: str = ""
    """Last part of its path for a namespace; "": only topics have it."""
    topic: str = ""
    """Last part of its path for a topic; "": only namespaces have it."""
    key: str = ""
    """Key in the description of a whole namespace."""
    is_per_cluster: bool = False
    """Whether the value in that description is a map with one entry per cluster."""
    broker: Callable[[PolicySettings], Any] | None = None
    """Returns a broker's own value from its settings; None: the default of the field."""
    over: Callable[[Any, Any], Any] = _own
    """Merges the value of the level below with that of this level."""
    least: int = 0
    """Smallest number that is accepted."""
    words: str = ""
    """Pulsar's error text for a smaller number."""
    namespace_verb: str = "POST"
    can_remove: bool = True
    topic_query: str = ""
    """Name of the query parameter that has the value for topics, instead of a body."""
    unset: Any = None
    """Answer for a namespace that does not set it, as JSON; None: 204 without a body."""
    note: str = ""
    """Why it has no effect, although it is stored and shown."""

    @property
    def is_of_topics(self) -> bool:
        """Whether it is one of the policies of a topic."""
        return self.field in Policies.model_fields

    def check(self, value: Any) -> None:
        """Refuse an invalid value.

        Raises:
            InvalidPolicyError
        """
        if isinstance(value, PolicyValue):
            value.check()
        elif type(value) is int and not self.least <= value <= LONG_MAX:
            text = f"the value must be from {self.least} to {LONG_MAX}, got {value}"
            raise InvalidPolicyError(self.words or text, text if self.words else "")

    def of_namespace(self, record: NamespaceRecord) -> Any:
        """Return the value; None if it is not set."""
        if self.is_of_topics:
            return record.policies.own(self.field)
        return getattr(record, self.field)

    def set_in_namespace(self, record: NamespaceRecord, value: Any) -> NamespaceRecord:
        """Return a record with the value; None removes it.

        Raises:
            InvalidPolicyError
        """
        if not self.is_of_topics:
            return record.model_copy(update={self.field: value})
        policies = self.set_in(record.policies, value)
        return record.model_copy(update={"policies": policies})

    def set_in(self, policies: Policies, value: Any) -> Policies:
        """Return policies with the value; None removes it.

        Raises:
            InvalidPolicyError: it conflicts with the others.
        """
        after = policies.with_values(**{self.field: value})
        after.check()
        return after


def _limit(field: str, acts: str, words: str, setting: str = "", **names: Any) -> Policy:
    """Return a policy with a number as its limit; 0 or less is no limit."""
    return Policy(
        field=field,
        acts=acts,
        words=words,
        broker=(lambda settings: getattr(settings, setting)) if setting else None,
        over=lambda _below, own: max(0, own),
        **names,
    )


def _dispatch_rate(_below: DispatchRate, own: DispatchRate) -> DispatchRate:
    return own if own.period_s >= 1 else own.model_copy(update={"period_s": 1})


def _quotas_of_broker(settings: PolicySettings) -> dict[QuotaType, BacklogQuota]:
    size, age = settings.backlog_quota_bytes, settings.backlog_quota_s
    found = {}
    if size:
        found[QuotaType.SIZE] = BacklogQuota(bytes=size, policy=settings.backlog_quota_policy)
    if age:
        found[QuotaType.AGE] = BacklogQuota(seconds=age, policy=settings.backlog_quota_policy)
    return found


POLICIES: Final[tuple[Policy, ...]] = (
    Policy(
        field="retention",
        acts="features/retention/trimming.py",
        namespace="retention",
        topic="retention",
        key="retention_policies",
        broker=lambda settings: Retention(
            minutes=settings.retention_minutes, mib=settings.retention_mib
        ),
    ),
    _limit(
        "message_ttl_s",
        "features/retention/expiry.py",
        "Invalid value for message TTL, message TTL must >= 0",
        "ttl_s",
        namespace="messageTTL",
        topic="messageTTL",
        topic_query="messageTTL",
        key="message_ttl_in_seconds",
    ),
    _limit(
        "subscription_expiration_minutes",
        "features/retention/inactivity.py",
        "Invalid value for subscription expiration time",
        "subscription_expiration_minutes",
        namespace="subscriptionExpirationTime",
        topic="subscriptionExpirationTime",
        topic_query="subscriptionExpirationTime",
        key="subscription_expiration_time_minutes",
    ),
    Policy(
        field="persistence",
        acts="topics/topic_config.py",
        namespace="persistence",
        topic="persistence",
        key="persistence",
        broker=lambda settings: Persistence(
            ensemble=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
        ),
    ),
    Policy(  # It has routes of its own: one quota of each type can be set.
        field="backlog_quotas",
        acts="features/retention/backlog.py",
        broker=_quotas_of_broker,
        over=lambda below, own: {**below, **own},
    ),
    Policy(
        field="deduplication",
        acts="features/deduplication/deduplication.py",
        namespace="deduplication",
        topic="deduplicationEnabled",
        key="deduplicationEnabled",
        broker=lambda settings: settings.deduplication,
    ),
    Policy(
        field="deduplication_snapshot_s",
        acts="features/deduplication/deduplication.py",
        namespace="deduplicationSnapshotInterval",
        topic="deduplicationSnapshotInterval",
        key="deduplicationSnapshotIntervalSeconds",
        broker=lambda settings: settings.dedup_snapshot_s,
        over=lambda below, own: own if own > 0 else below,
    ),
    Policy(
        field="deduplication_snapshot_entries",
        acts="features/deduplication/deduplication.py",
        broker=lambda settings: settings.dedup_snapshot_entries,
    ),
    Policy(
        field="publish_rate",
        acts="topic/publish_limits.py",
        namespace="publishRate",
        topic="publishRate",
        key="publishMaxMessageRate",
        is_per_cluster=True,
        broker=lambda settings: PublishRate(
            messages=settings.publish_rate_messages or -1, bytes=settings.publish_rate_bytes or -1
        ),
    ),
    Policy(
        field="dispatch_rate",
        acts="topic/dispatch/throttle.py",
        namespace="dispatchRate",
        topic="dispatchRate",
        key="topicDispatchRate",
        is_per_cluster=True,
        broker=lambda settings: DispatchRate(
            messages=settings.dispatch_rate_messages or -1,
            bytes=settings.dispatch_rate_bytes or -1,
        ),
        over=_dispatch_rate,
    ),
    Policy(
        field="subscription_dispatch_rate",
        acts="topic/dispatch/throttle.py",
        namespace="subscriptionDispatchRate",
        topic="subscriptionDispatchRate",
        key="subscriptionDispatchRate",
        is_per_cluster=True,
        broker=lambda settings: DispatchRate(
            messages=settings.subscription_dispatch_rate_messages or -1,
            bytes=settings.subscription_dispatch_rate_bytes or -1,
        ),
        over=_dispatch_rate,
    ),
    Policy(  # It has routes of its own: each subscription of a topic can have one.
        field="subscription_dispatch_rates",
        acts="topic/dispatch/throttle.py",
        over=lambda below, own: {
            name: _dispatch_rate(below.get(name), each) for name, each in own.items()
        },
    ),
    Policy(
        field="replicator_dispatch_rate",
        acts="features/replication/sending.py",
        namespace="replicatorDispatchRate",
        topic="replicatorDispatchRate",
        key="replicatorDispatchRate",
        is_per_cluster=True,
        broker=lambda settings: DispatchRate(
            messages=settings.replicator_dispatch_rate_messages or -1,
            bytes=settings.replicator_dispatch_rate_bytes or -1,
        ),
        over=_dispatch_rate,
    ),
    Policy(
        field="subscribe_rate",
        acts="topic/admission.py",
        namespace="subscribeRate",
        topic="subscribeRate",
        key="clusterSubscribeRate",
        is_per_cluster=True,
        broker=lambda settings: SubscribeRate(
            per_consumer=settings.subscribe_rate_per_consumer or -1,
            period_s=settings.subscribe_rate_period_s,
        ),
    ),
    _limit(
        "max_producers",
        "topic/admission.py",
        "maxProducersPerTopic must be 0 or more",
        "max_producers_per_topic",
        namespace="maxProducersPerTopic",
        topic="maxProducers",
        key="max_producers_per_topic",
    ),
    _limit(
        "max_consumers",
        "topic/admission.py",
        "maxConsumersPerTopic must be 0 or more",
        "max_consumers_per_topic",
        namespace="maxConsumersPerTopic",
        topic="maxConsumers",
        key="max_consumers_per_topic",
    ),
    _limit(
        "max_consumers_per_subscription",
        "topic/admission.py",
        "maxConsumersPerSubscription must be 0 or more",
        "max_consumers_per_subscription",
        namespace="maxConsumersPerSubscription",
        topic="maxConsumersPerSubscription",
        key="max_consumers_per_subscription",
    ),
    _limit(
        "max_subscriptions",
        "topic/admission.py",
        "maxSubscriptionsPerTopic must be 0 or more",
        "subscriptions_per_topic_max",
        namespace="maxSubscriptionsPerTopic",
        topic="maxSubscriptionsPerTopic",
        key="max_subscriptions_per_topic",
    ),
    _limit(
        "max_topics",
        "topics/creation.py",
        "maxTopicsPerNamespace must be 0 or more",
        "max_topics_per_namespace",
        namespace="maxTopicsPerNamespace",
        key="max_topics_per_namespace",
    ),
    _limit(
        "max_unacked_per_consumer",
        "topic/dispatch/accounted.py",
        "maxUnackedMessagesPerConsumer must be 0 or more",
        "unacked_per_consumer_max",
        namespace="maxUnackedMessagesPerConsumer",
        topic="maxUnackedMessagesOnConsumer",
        key="max_unacked_messages_per_consumer",
    ),
    _limit(
        "max_unacked_per_subscription",
        "topic/dispatch/accounted.py",
        "maxUnackedMessagesPerSubscription must be 0 or more",
        "unacked_per_subscription_max",
        namespace="maxUnackedMessagesPerSubscription",
        topic="maxUnackedMessagesOnSubscription",
        key="max_unacked_messages_per_subscription",
    ),
    _limit("max_message_bytes", "topic/publish_line.py", "", topic="maxMessageSize"),
    Policy(
        field="auto_topic_creation",
        acts="topics/creation.py",
        namespace="autoTopicCreation",
        key="autoTopicCreationOverride",
        broker=lambda settings: AutoTopicCreation(
            allowed=settings.auto_topic_creation,
            is_partitioned=settings.auto_topic_type == "partitioned",
            partitions=settings.auto_topic_partitions,
        ),
    ),
    Policy(
        field="auto_subscription_creation",
        acts="topic/admission.py",
        namespace="autoSubscriptionCreation",
        topic="autoSubscriptionCreation",
        key="autoSubscriptionCreationOverride",
        broker=lambda settings: settings.auto_subscription_creation,
    ),
    Policy(
        field="delayed_delivery",
        acts="features/delayed/delayed_delivery.py",
        namespace="delayedDelivery",
        topic="delayedDelivery",
        key="delayed_delivery_policies",
        broker=lambda settings: DelayedDelivery(
            active=settings.delayed_delivery,
            tick_ms=settings.delayed_delivery_tick_ms,
            max_delay_ms=settings.delayed_delivery_max_delay_ms,
        ),
    ),
    Policy(
        field="inactive_topic",
        acts="features/retention/inactivity.py",
        namespace="inactiveTopicPolicies",
        topic="inactiveTopicPolicies",
        key="inactive_topic_policies",
        broker=lambda settings: InactiveTopic(
            is_on=settings.inactive_topic_deletion,
            mode=settings.inactive_topic_mode,
            max_s=settings.inactive_topic_max_s,
        ),
    ),
    Policy(
        field="entry_metadata",
        acts="features/message_index/message_index.py",
        namespace="entryMetadata",
        broker=lambda settings: settings.entry_metadata,
    ),
    Policy(
        field="unsubscribed_retention",
        acts="features/retention/trimming.py",
        broker=lambda settings: settings.unsubscribed_retention,
    ),
    _limit(
        "compaction_threshold_bytes",
        "features/compaction/compaction.py",
        "",
        "compaction_threshold_bytes",
        namespace="compactionThreshold",
        namespace_verb="PUT",
        topic="compactionThreshold",
        key="compaction_threshold",
    ),
    Policy(
        field="subscription_types",
        acts="topic/admission.py",
        namespace="subscriptionTypesEnabled",
        topic="subscriptionTypesEnabled",
        key="subscription_types_enabled",
        broker=lambda _settings: ALL_TYPES,
        over=lambda _below, own: own or ALL_TYPES,
    ),
    Policy(
        field="encryption_required",
        acts="topic/access.py",
        namespace="encryptionRequired",
        key="encryption_required",
        can_remove=False,
        broker=lambda settings: settings.encryption_required,
        # A namespace may demand more than the broker, never less.
        over=lambda below, own: below or own,
    ),
    Policy(
        field="schema_compatibility",
        acts="topics/schema_admission.py",
        namespace="schemaCompatibilityStrategy",
        namespace_verb="PUT",
        topic="schemaCompatibilityStrategy",
        key="schema_compatibility_strategy",
        broker=lambda settings: settings.schema_compatibility,
        over=lambda below, own: below if own is SchemaCompatibility.UNDEFINED else own,
        unset="UNDEFINED",
    ),
    Policy(
        field="schema_auto_update",
        acts="policies/table.py",
        namespace="schemaAutoUpdateCompatibilityStrategy",
        namespace_verb="PUT",
        key="schema_auto_update_compatibility_strategy",
        can_remove=False,
    ),
    Policy(
        field="schema_validation_enforced",
        acts="topics/schema_admission.py",
        namespace="schemaValidationEnforced",
        topic="schemaValidationEnforced",
        key="schema_validation_enforced",
        broker=lambda settings: settings.schema_validation_enforced,
        unset=False,
    ),
    Policy(
        field="allows_schema_update",
        acts="topics/schema_admission.py",
        namespace="isAllowAutoUpdateSchema",
        key="is_allow_auto_update_schema",
        can_remove=False,
        broker=lambda settings: settings.allows_schema_update,
        unset=True,
    ),
    Policy(
        field="subscription_auth_mode",
        acts="security/authorizer.py",
        namespace="subscriptionAuthMode",
        key="subscription_auth_mode",
        can_remove=False,
        unset="None",
    ),
    Policy(
        field="auto_scale",
        acts="features/scalable/auto_scaling.py",
        namespace="scalableTopicAutoScalePolicy",
        key="scalableTopicAutoScalePolicy",
    ),
    Policy(
        field="replication_clusters",
        acts="features/replication/replication.py",
        namespace="replication",
        can_remove=False,
        unset=[],
    ),
    Policy(field="replicated_to", acts="features/replication/replication.py", topic="replication"),
    Policy(
        field="allowed_clusters",
        acts="http/policies.py",
        namespace="allowedClusters",
        key="allowed_clusters",
        can_remove=False,
        unset=[],
    ),
    Policy(field="anti_affinity_group", namespace="antiAffinity", note=_BY_LOAD_ALONE),
    Policy(field="bookie_affinity", namespace="persistence/bookieAffinity", note=_NO_RACK_GROUPS),
    Policy(
        field="entry_filters",
        namespace="entryFilters",
        topic="entryFilters",
        key="entryFilters",
        note="entry filters are not supported",
    ),
    Policy(
        field="dispatcher_pauses",
        namespace="dispatcherPauseOnAckStatePersistent",
        topic="dispatcherPauseOnAckStatePersistent",
        key="dispatcherPauseOnAckStatePersistentEnabled",
        broker=lambda _settings: False,
        note="acknowledgements are stored without a pause of dispatch",
    ),
    Policy(
        field="offload_threshold_bytes",
        acts=_OFFLOADING,
        broker=lambda settings: settings.offload_threshold_bytes,
        least=-1,
        namespace="offloadThreshold",
        namespace_verb="PUT",
        key="offload_threshold",
        can_remove=False,
        unset=-1,
    ),
    Policy(
        field="offload_threshold_s",
        acts=_OFFLOADING,
        broker=lambda settings: settings.offload_threshold_s,
        least=-1,
        words="Invalid value for offloadThresholdInSecond",
        namespace="offloadThresholdInSeconds",
        namespace_verb="PUT",
        key="offload_threshold_in_seconds",
        can_remove=False,
        unset=-1,
    ),
    Policy(
        field="offload_deletion_lag_ms",
        acts=_OFFLOADING,
        broker=lambda settings: settings.offload_deletion_lag_s * 1000,
        least=-1,
        namespace="offloadDeletionLagMs",
        namespace_verb="PUT",
        key="offload_deletion_lag_ms",
    ),
    Policy(
        field="offload",
        acts=_OFFLOADING,
        over=lambda below, own: {**below, **own},
        namespace="offloadPolicies",
        topic="offloadPolicies",
        key="offload_policies",
    ),
    Policy(field="shadow_topics", topic="shadowTopics", note="shadow topics are not supported"),
)

BY_FIELD: Final = {policy.field: policy for policy in POLICIES}


def policies_of_broker(settings: PolicySettings) -> Policies:
    """Return the policies of topics without policies of their own or of their namespace."""
    values = {each.field: each.broker(settings) for each in POLICIES if each.broker is not None}
    return Policies(**values)


def effective(
    defaults: Policies, namespace: NamespaceRecord | None, topic: Policies | None = None
) -> Policies:
    """Return the policies of a topic: its own override its namespace's, which override the
    broker's."""
    values: dict[str, Any] = {}
    for level in (_of_namespace(namespace), topic):
        for field in level.model_fields_set if level is not None else ():
            policy = BY_FIELD.get(field)
            if policy is not None:  # else it is of a newer release
                below = values[field] if field in values else getattr(defaults, field)
                values[field] = policy.over(below, getattr(level, field))
    return defaults.with_values(**values) if values else defaults


def _of_namespace(record: NamespaceRecord | None) -> Policies | None:
    if record is None:
        return None
    values: dict[str, Any] = {}
    former = _FORMER_STRATEGIES.get(record.schema_auto_update or "")
    own = record.policies.own("schema_compatibility")
    if former is not None and own in (None, SchemaCompatibility.UNDEFINED):
        values["schema_compatibility"] = former
    if record.replication_clusters:
        values["replicated_to"] = record.replication_clusters
    return record.policies.with_values(**values) if values else record.policies
