"""The values of tenants, namespaces and policies in the metadata store. Pure.

    /admin/clusters/<cluster>                                 ClusterRecord
    /admin/policies/<tenant>                                  TenantRecord
    /admin/policies/<tenant>/<namespace>                      NamespaceRecord
    /admin/topic-policies/<tenant>/<namespace>/<domain>/<t>   TopicPolicyRecord

A topic's record stands under the name of its partitioned topic: partitions have none of their own.
In a policy set None means "not set here". Fields of newer releases are kept as they came, so that a
change by an older broker does not drop them; another `format` is refused. Units and meanings of
numbers are those of Pulsar's HTTP interface (a limit or rate of -1 or 0 is none), so that every
value can be given back as it was set.
"""

from enum import StrEnum
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.sdk.wire import TopicName

FORMAT_VERSION = 1

CLUSTERS_ROOT = "/admin/clusters"
TENANTS_ROOT = "/admin/policies"
TOPIC_POLICIES_ROOT = "/admin/topic-policies"

SYSTEM_NAMESPACE = "pulsar/system"
"""Namespace of system topics. It exists from the start, beside the namespaces of the settings."""

R = TypeVar("R", bound="Record")


class BacklogPolicy(StrEnum):
    """What happens when a backlog is above its quota."""

    HOLD = "producer_request_hold"
    """Producers are refused, and asked to wait."""
    EXCEPTION = "producer_exception"
    """Producers are refused for good."""
    EVICT = "consumer_backlog_eviction"
    """The oldest messages are taken out of the backlog."""


class QuotaType(StrEnum):
    """What a backlog quota measures."""

    SIZE = "destination_storage"
    AGE = "message_age"


class DeleteMode(StrEnum):
    """When a topic counts as inactive."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


class SubscriptionType(StrEnum):
    """The types of subscriptions, as policies name them."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class SchemaCompatibility(StrEnum):
    """What a topic's schema has to do with those before it."""

    UNDEFINED = "UNDEFINED"
    """As if it was not set."""
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class AuthAction(StrEnum):
    """What a role may be allowed to do, as it is granted over HTTP."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


class AuthMode(StrEnum):
    """How subscriptions must be named when there is authorization."""

    NONE = "None"
    PREFIX = "Prefix"
    """With the role in front."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class Retention(_Value):
    """How long acknowledged messages stay. -1: for ever; both 0: not at all."""

    minutes: int = 0
    mib: int = 0


class Persistence(_Value):
    """Quorums of a topic's ledgers."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    mark_delete_rate_max: float = 0.0


class BacklogQuota(_Value):
    """A bound on what a subscription has not acknowledged; -1: none."""

    bytes: int = -1
    seconds: int = -1
    policy: BacklogPolicy = BacklogPolicy.HOLD


class PublishRate(_Value):
    """Per second."""

    messages: int = -1
    bytes: int = -1


class DispatchRate(_Value):
    """Per period; `relative` adds them to the rate at which the topic is published to."""

    messages: int = -1
    bytes: int = -1
    period_s: int = 1
    relative: bool = False


class SubscribeRate(_Value):
    """SUBSCRIBEs of one consumer per period."""

    per_consumer: int = -1
    period_s: int = 30


class AutoTopicCreation(_Value):
    """Whether topics appear when they are first used, and as what."""

    allowed: bool
    is_partitioned: bool = False
    partitions: int = 1


class DelayedDelivery(_Value):
    """Delivery at a later time. `max_delay_ms` 0: any delay."""

    active: bool
    tick_ms: int = 1000
    max_delay_ms: int = 0


class InactiveTopic(_Value):
    """Deletion of topics that nobody uses."""

    is_on: bool
    mode: DeleteMode = DeleteMode.NO_SUBSCRIPTIONS
    max_s: int = 60


class PolicySet(_Value):
    """The policies that a namespace and a topic can both have."""

    retention: Retention | None = None
    message_ttl_s: int | None = None
    subscription_expiration_minutes: int | None = None
    persistence: Persistence | None = None
    backlog_quotas: dict[QuotaType, BacklogQuota] | None = None
    deduplication: bool | None = None
    deduplication_snapshot_s: int | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rates: dict[str, DispatchRate] | None = None
    """By the name of the subscription; topics only."""
    replicator_dispatch_rate: DispatchRate | None = None
    subscribe_rate: SubscribeRate | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_consumers_per_subscription: int | None = None
    max_subscriptions: int | None = None
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    max_message_bytes: int | None = None
    auto_subscription_creation: bool | None = None
    delayed_delivery: DelayedDelivery | None = None
    inactive_topic: InactiveTopic | None = None
    compaction_threshold_bytes: int | None = None
    subscription_types: frozenset[SubscriptionType] | None = None
    schema_compatibility: SchemaCompatibility | None = None
    schema_validation_enforced: bool | None = None
    entry_filters: str | None = None
    """Names with commas between; kept, without effect: there are no plug-ins."""
    dispatcher_pauses: bool | None = None
    """Kept, without effect: what is acknowledged is stored all the same."""
    offload: dict[str, Any] | None = None
    """As it was set; kept, without effect: there are no offloaders."""
    shadow_topics: tuple[str, ...] | None = None
    """Kept, without effect; topics only."""
    replicated_to: tuple[str, ...] | None = None
    """Clusters; topics only, namespaces have `replication_clusters`."""


class Record(_Value):
    """The value of a node."""

    format: Literal[1] = 1

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class ClusterRecord(Record):
    """A cluster that tenants may use; `data` and the rest as the HTTP interface shows it."""

    data: dict[str, Any] = Field(default_factory=dict)
    failure_domains: dict[str, Any] = Field(default_factory=dict)
    isolation_policies: dict[str, Any] = Field(default_factory=dict)
    """Kept, without effect: bundles are placed by load alone."""
    migration: dict[str, Any] = Field(default_factory=dict)
    """Kept, without effect: clients are not sent to other clusters."""


class TenantRecord(Record):
    """A tenant."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


class NamespaceRecord(Record):
    """A namespace: what holds for its topics, and what it alone can have."""

    policies: PolicySet = PolicySet()
    max_topics: int | None = None
    auto_topic_creation: AutoTopicCreation | None = None
    encryption_required: bool | None = None
    replication_clusters: tuple[str, ...] = ()
    permissions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What each role may do in it, e.g. produce; `security/decide.py` has the rules."""
    topic_permissions: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    """Actions of each role on single topics, by full name; a partitioned topic's hold for its
    partitions."""
    subscription_permissions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By subscription, of any topic in it: the roles that alone may use it."""
    properties: dict[str, str] = Field(default_factory=dict)
    allowed_clusters: tuple[str, ...] | None = None
    subscription_auth_mode: AuthMode | None = None
    allows_schema_update: bool | None = None
    """Whether producers may bring new versions of a schema."""
    schema_auto_update: str | None = None
    """A former name of strategies; see `SchemaCompatibility`."""
    anti_affinity_group: str | None = None
    """Kept, without effect, as what follows: bundles are placed by load alone."""
    bookie_affinity: dict[str, Any] | None = None
    resource_group: str | None = None
    migrated: bool = False
    """Clients are not sent to other clusters."""
    offload_threshold_bytes: int | None = None
    offload_threshold_s: int | None = None
    offload_deletion_lag_ms: int | None = None
    is_deleted: bool = False
    """Whether the namespace is being deleted: nothing new appears in it."""


class TopicPolicyRecord(Record):
    """What a topic has of its own."""

    policies: PolicySet = PolicySet()


def tenant_path(tenant: str) -> str:
    return f"{TENANTS_ROOT}/{tenant}"


def namespace_path(namespace: str) -> str:
    """`namespace` as tenant/namespace."""
    return f"{TENANTS_ROOT}/{namespace}"


def cluster_path(cluster: str) -> str:
    return f"{CLUSTERS_ROOT}/{cluster}"


def topic_policies_root(namespace: str, domain: str) -> str:
    """Path whose children are the topics of a namespace that have policies of their own."""
    return f"{TOPIC_POLICIES_ROOT}/{namespace}/{domain}"


def topic_policies_path(topic: TopicName) -> str:
    return f"{TOPIC_POLICIES_ROOT}/{topic.partitioned.storage_name}"


def decode(kind: type[R], path: str, value: bytes) -> R:
    """Read a record.

    Raises:
        UnreadableRecordError: it is none of this format. Nothing is guessed.
    """
    try:
        return kind.model_validate_json(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "value"
        raise UnreadableRecordError(
            f"{path} holds no {kind.__name__} of format {FORMAT_VERSION} "
            f"({where}: {problem['msg']}); it was left as it is"
        ) from error
