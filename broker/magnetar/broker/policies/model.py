"""The values of tenants, namespaces and policies in the metadata store. Pure.

    /admin/clusters/<cluster>                                 ClusterRecord
    /admin/policies/<tenant>                                  TenantRecord
    /admin/policies/<tenant>/<namespace>                      NamespaceRecord
    /admin/topic-policies/<tenant>/<namespace>/<domain>/<t>   TopicPolicyRecord

A topic's record has the name of its partitioned topic: partitions have none of their own. A record
holds the policies that are set at its level, and no others. Fields of newer releases are kept as
they came, so that a change by an older broker does not drop them; another `format` is refused.
Units and meanings of numbers are those of Pulsar's HTTP interface (a limit or rate of -1 or 0 is
none), so that every value can be returned as it was set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from magnetar.broker.base.errors import InvalidPolicyError, UnreadableRecordError
from magnetar.broker.base.json_values import Flag, Number, WholeNumber, without_nulls
from magnetar.ledger.validation import first_problem
from magnetar.sdk.wire import TopicName

FORMAT_VERSION = 1

CLUSTERS_ROOT = "/admin/clusters"
TENANTS_ROOT = "/admin/policies"
TOPIC_POLICIES_ROOT = "/admin/topic-policies"

SYSTEM_NAMESPACE = "pulsar/system"
"""Namespace of system topics. It exists from the start, beside the namespaces of the settings."""

_MIB = 1 << 20

R = TypeVar("R", bound=BaseModel)


class BacklogPolicy(StrEnum):
    """Action when a backlog exceeds its quota."""

    HOLD = "producer_request_hold"
    """Producers are refused, and told to wait."""
    EXCEPTION = "producer_exception"
    """Producers are refused for good."""
    EVICT = "consumer_backlog_eviction"
    """The oldest messages are taken out of the backlog."""


class QuotaType(StrEnum):
    """What a backlog quota measures."""

    SIZE = "destination_storage"
    AGE = "message_age"


class DeleteMode(StrEnum):
    """Condition under which a topic counts as inactive."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


class SubscriptionType(StrEnum):
    """The types of subscriptions, as policies name them."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


ALL_TYPES = frozenset(SubscriptionType)


class SchemaCompatibility(StrEnum):
    """Required compatibility of a topic's schema with earlier versions."""

    UNDEFINED = "UNDEFINED"
    """Treated as not set."""
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class AuthAction(StrEnum):
    """Actions that may be granted to a role over HTTP."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


class AuthMode(StrEnum):
    """Rule for the names of subscriptions when authorization is on."""

    NONE = "None"
    PREFIX = "Prefix"
    """Names must begin with the role."""


class _Value(BaseModel):
    """A value that is stored by our names. `http/policy.py` reads and shows Pulsar's names, the
    aliases."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        validate_by_name=True,
        validate_by_alias=False,
        allow_inf_nan=False,
    )


def _pulsars(name: str, default: Any = ...) -> Any:
    """Return a field that Pulsar's JSON calls `name`."""
    return Field(default, validation_alias=name, serialization_alias=name)


@dataclass(frozen=True, slots=True)
class CommandOption:
    """How `magnetar admin` takes a part of a policy: `set-retention --time 3d --size 10G`.

    The end of the field's name gives the unit of a number.
    """

    name: str
    """Name on the command line, without dashes."""
    help: str
    is_required: bool = False
    """Whether the command refuses to run without this option; for an optional one, the field's
    default is sent."""


class PolicyValue(_Value):
    """The value of a policy that has parts. A part that is null counts as left out."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return without_nulls(value)

    def check(self) -> None:
        """Refuse invalid values when they are set. Stored values are read without this check.

        Raises:
            InvalidPolicyError
        """


class Retention(PolicyValue):
    """How long, and how much of, the acknowledged messages stay. -1: without limit; both 0: not at
    all."""

    minutes: Annotated[
        WholeNumber,
        CommandOption("time", "How long; -1: for ever, 0: not at all.", is_required=True),
    ] = _pulsars("retentionTimeInMinutes", 0)
    mib: Annotated[
        WholeNumber,
        CommandOption("size", "How much; -1: without limit, 0: nothing.", is_required=True),
    ] = _pulsars("retentionSizeInMB", 0)

    @property
    def time_s(self) -> int:
        """Retention time in seconds; -1: for ever."""
        return self.minutes * 60 if self.minutes >= 0 else -1

    @property
    def size_bytes(self) -> int:
        """Retention size in bytes; -1: without limit. Nothing is retained unless time and size are
        set."""
        return self.mib * _MIB if self.mib >= 0 else -1

    @property
    def is_set(self) -> bool:
        """Whether anything is retained."""
        return self.minutes != 0 and self.mib != 0

    def check(self) -> None:
        if self.minutes < -1 or self.mib < -1:
            raise InvalidPolicyError("a retention must be -1 (forever), 0 or positive")
        if (self.minutes == 0) != (self.mib == 0):
            raise InvalidPolicyError("retention time and size must be both set, or both 0")


class Persistence(PolicyValue):
    """Quorums of a topic's ledgers: 0 < ack quorum <= write quorum <= ensemble."""

    ensemble: WholeNumber = _pulsars("bookkeeperEnsemble", 2)
    write_quorum: WholeNumber = _pulsars("bookkeeperWriteQuorum", 2)
    ack_quorum: WholeNumber = _pulsars("bookkeeperAckQuorum", 2)
    mark_delete_rate_max: Number = _pulsars("managedLedgerMaxMarkDeleteRate", 0.0)

    def check(self) -> None:
        if not 0 < self.ack_quorum <= self.write_quorum <= self.ensemble:
            raise InvalidPolicyError(
                "0 < ack quorum <= write quorum <= ensemble must hold: "
                f"{self.ack_quorum}, {self.write_quorum}, {self.ensemble}",
                status=400,
            )


class BacklogQuota(_Value):
    """A limit of what a subscription has not acknowledged; -1: none."""

    bytes: int = -1
    seconds: int = -1
    policy: BacklogPolicy = BacklogPolicy.HOLD


_NO_QUOTA = BacklogQuota()


_RateMessages = Annotated[
    WholeNumber, CommandOption("messages", "Messages per period; -1: no limit.")
]
_RateBytes = Annotated[WholeNumber, CommandOption("bytes", "Bytes per period; -1: no limit.")]


class PublishRate(PolicyValue):
    """Messages and bytes per second; 0 or less: no limit."""

    messages: _RateMessages = _pulsars("publishThrottlingRateInMsg", -1)
    bytes: _RateBytes = _pulsars("publishThrottlingRateInByte", -1)

    @property
    def is_limited(self) -> bool:
        return self.messages > 0 or self.bytes > 0


class DispatchRate(PolicyValue):
    """Messages and bytes per period; 0 or less: no limit."""

    messages: _RateMessages = _pulsars("dispatchThrottlingRateInMsg", -1)
    bytes: _RateBytes = _pulsars("dispatchThrottlingRateInByte", -1)
    period_s: Annotated[WholeNumber, CommandOption("period", "Period of the rate.")] = _pulsars(
        "ratePeriodInSecond", 1
    )
    relative: Flag = _pulsars("relativeToPublishRate", False)
    """Whether the limit is added to the rate at which the topic is published to."""

    def check(self) -> None:
        _check_period(self.period_s)


class SubscribeRate(PolicyValue):
    """SUBSCRIBEs of one consumer per period; 0 or less: no limit."""

    per_consumer: WholeNumber = _pulsars("subscribeThrottlingRatePerConsumer", -1)
    period_s: WholeNumber = _pulsars("ratePeriodInSecond", 30)

    def check(self) -> None:
        _check_period(self.period_s)


def _check_period(seconds: int) -> None:
    if seconds < 1:
        raise InvalidPolicyError(f"the period of a rate must be at least 1 s, got {seconds}")


class AutoTopicCreation(_Value):
    """Whether topics are created at their first use, and of which kind."""

    allowed: bool
    is_partitioned: bool = False
    partitions: int = 1


class DelayedDelivery(PolicyValue):
    """Delivery at a later time. `max_delay_ms` 0: any delay."""

    active: Flag = _pulsars("active")
    tick_ms: WholeNumber = _pulsars("tickTime", 1000)
    max_delay_ms: WholeNumber = _pulsars("maxDeliveryDelayInMillis", 0)

    def check(self) -> None:
        if self.tick_ms < 1 or self.max_delay_ms < 0:
            raise InvalidPolicyError(
                "tickTime must be positive, maxDeliveryDelayInMillis must not be negative"
            )


class InactiveTopic(PolicyValue):
    """Deletion of unused topics."""

    mode: Annotated[
        DeleteMode,
        CommandOption("mode", f"{DeleteMode.NO_SUBSCRIPTIONS} or {DeleteMode.CAUGHT_UP}."),
    ] = _pulsars("inactiveTopicDeleteMode", DeleteMode.NO_SUBSCRIPTIONS)
    max_s: Annotated[WholeNumber, CommandOption("after", "How long unused.")] = _pulsars(
        "maxInactiveDurationSeconds", 60
    )
    is_on: Annotated[
        Flag,
        CommandOption("delete", "true: delete unused topics; false: keep them.", is_required=True),
    ] = _pulsars("deleteWhileInactive", False)

    def check(self) -> None:
        if self.max_s < 1:
            raise InvalidPolicyError("maxInactiveDurationSeconds must be positive")


class AutoScale(PolicyValue):
    """Splits and merges of scalable topics by load; values that are not set are those of the level
    below.

    Units are those of the settings: messages, bytes and seconds, rates per second.
    """

    is_on: Flag | None = _pulsars("enabled", None)
    segments_max: WholeNumber | None = _pulsars("maxSegments", None)
    segments_min: WholeNumber | None = _pulsars("minSegments", None)
    depth_max: WholeNumber | None = _pulsars("maxDagDepth", None)
    split_cooldown_s: WholeNumber | None = _pulsars("splitCooldownSeconds", None)
    merge_cooldown_s: WholeNumber | None = _pulsars("mergeCooldownSeconds", None)
    merge_window_s: WholeNumber | None = _pulsars("mergeWindowSeconds", None)
    rebucket_cooldown_s: WholeNumber | None = _pulsars("rebucketCooldownSeconds", None)
    consumers_split_msg_rate_in: Number | None = _pulsars(
        "splitVsRebucketMinMsgRateInThreshold", None
    )
    split_msg_rate_in: Number | None = _pulsars("splitMsgRateInThreshold", None)
    split_msg_rate_out: Number | None = _pulsars("splitMsgRateOutThreshold", None)
    split_bytes_rate_in: Number | None = _pulsars("splitBytesRateInThreshold", None)
    split_bytes_rate_out: Number | None = _pulsars("splitBytesRateOutThreshold", None)
    merge_msg_rate_in: Number | None = _pulsars("mergeMsgRateInThreshold", None)
    merge_msg_rate_out: Number | None = _pulsars("mergeMsgRateOutThreshold", None)
    merge_bytes_rate_in: Number | None = _pulsars("mergeBytesRateInThreshold", None)
    merge_bytes_rate_out: Number | None = _pulsars("mergeBytesRateOutThreshold", None)

    def check(self) -> None:
        for name, field in type(self).model_fields.items():
            value, least = getattr(self, name), _AUTO_SCALE_LEAST.get(name, 0)
            if value is not None and value < least:
                raise InvalidPolicyError(
                    f"{field.serialization_alias} must be at least {least}, got {value}"
                )
            if value == 0 and name in _AUTO_SCALE_POSITIVE:
                raise InvalidPolicyError(f"{field.serialization_alias} must be positive")


_AUTO_SCALE_LEAST: Mapping[str, int] = {"segments_max": 1, "segments_min": 1, "depth_max": 1}
_AUTO_SCALE_POSITIVE = frozenset(
    {
        "split_msg_rate_in",
        "split_msg_rate_out",
        "split_bytes_rate_in",
        "split_bytes_rate_out",
        "consumers_split_msg_rate_in",
    }
)


class Policies(PolicyValue):
    """The policies of a topic, a namespace or a broker, as stored and as used.

    For stored ones, `model_fields_set` names the policies that are set; the others come from the
    level below (`table.effective`). The defaults are those of a broker that sets nothing. A limit
    or rate of 0 or less is none.
    """

    retention: Retention = Retention()
    message_ttl_s: WholeNumber = 0
    """Age in seconds at which a message counts as acknowledged; 0: never."""
    subscription_expiration_minutes: WholeNumber = 0
    """Time after which a subscription without consumers is deleted; 0: never."""
    persistence: Persistence = Persistence(ensemble=1, write_quorum=1, ack_quorum=1)
    backlog_quotas: dict[QuotaType, BacklogQuota] = Field(default_factory=dict)
    deduplication: Flag = False
    deduplication_snapshot_s: WholeNumber = 120
    deduplication_snapshot_entries: WholeNumber = 1000
    """Entries between two snapshots; set by the broker alone."""
    publish_rate: PublishRate = PublishRate()
    dispatch_rate: DispatchRate = DispatchRate()
    """Dispatch rate of all subscriptions together."""
    subscription_dispatch_rate: DispatchRate = DispatchRate()
    """Dispatch rate of each subscription that is not in `subscription_dispatch_rates`."""
    subscription_dispatch_rates: dict[str, DispatchRate] = Field(default_factory=dict)
    """Dispatch rates by the name of the subscription; topics only."""
    replicator_dispatch_rate: DispatchRate = DispatchRate()
    subscribe_rate: SubscribeRate = SubscribeRate()
    max_producers: WholeNumber = 0
    max_consumers: WholeNumber = 0
    max_consumers_per_subscription: WholeNumber = 0
    max_subscriptions: WholeNumber = 0
    max_topics: WholeNumber = 0
    """Most topics of a namespace; set for namespaces alone, as are the policies in
    `_BESIDE_POLICIES`."""
    max_unacked_per_consumer: WholeNumber = 50_000
    max_unacked_per_subscription: WholeNumber = 200_000
    max_message_bytes: WholeNumber = 0
    """Largest message; 0: the size that the broker announces."""
    auto_topic_creation: AutoTopicCreation = AutoTopicCreation(allowed=True)
    auto_subscription_creation: Flag = True
    delayed_delivery: DelayedDelivery = DelayedDelivery(active=True)
    inactive_topic: InactiveTopic = InactiveTopic(is_on=True)
    entry_metadata: Flag = False
    """Whether entries are stored with an index and a broker's time; set for namespaces alone."""
    unsubscribed_retention: Flag = False
    """Whether a topic without a subscription keeps its messages; set by the broker alone."""
    compaction_threshold_bytes: WholeNumber = 0
    """Backlog at which compaction begins; 0: only on request."""
    subscription_types: frozenset[SubscriptionType] = ALL_TYPES
    encryption_required: Flag = False
    schema_compatibility: SchemaCompatibility = SchemaCompatibility.FULL
    schema_validation_enforced: Flag = False
    allows_schema_update: Flag = True
    """Whether producers may register new versions of a schema."""
    entry_filters: str = ""
    """Names with commas between; stored without effect, because there are no plug-ins."""
    dispatcher_pauses: bool = False
    """Stored without effect: acknowledgements are saved without a pause of dispatch."""
    offload_threshold_bytes: WholeNumber = -1
    """Newest bytes of a topic that stay on bookies; -1: size does not decide."""
    offload_threshold_s: WholeNumber = -1
    """Time for which a ledger stays on bookies after its close; -1: age does not decide."""
    offload_deletion_lag_ms: WholeNumber = 4 * 60 * 60 * 1000
    """Time for which a ledger copied to an object store stays on bookies, too; -1: for ever."""
    offload: dict[str, Any] = Field(default_factory=dict)
    """Pulsar's offload policies under their names, as they were set; they take precedence over the
    three above. `features/offloading/rules.py` reads them."""
    shadow_topics: tuple[str, ...] = ()
    """Stored without effect; topics only."""
    replicated_to: tuple[str, ...] = ()
    """Clusters that get copies; for a namespace, its `replication_clusters`."""

    @model_serializer(mode="wrap")
    def _only_what_is_set(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: each for name, each in dump(self).items() if name in self.model_fields_set}

    def __eq__(self, other: object) -> bool:
        """Whether the same policies are set, to the same values: set to a default differs from
        unset."""
        return isinstance(other, Policies) and self._set() == other._set()

    def _set(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}

    def changed_from(self, before: "Policies") -> frozenset[str]:
        """Return the names of the policies that have another value than in `before`."""
        return frozenset(
            name for name in Policies.model_fields if getattr(self, name) != getattr(before, name)
        )

    def own(self, field: str) -> Any:
        """Return the value if the policy is set, else None."""
        return getattr(self, field) if field in self.model_fields_set else None

    def with_values(self, **values: Any) -> Self:
        """Return these policies with others set; None unsets one."""
        after = {**self._set(), **values}
        kept = {name: value for name, value in after.items() if value is not None}
        return self.model_construct(_fields_set=set(kept), **kept)

    # Policies that are used in another unit or place than they are set in.

    @property
    def subscription_expiration_s(self) -> int:
        """Idle time in seconds after which a subscription is deleted; 0: never."""
        return self.subscription_expiration_minutes * 60

    @property
    def size_quota(self) -> BacklogQuota:
        return self.backlog_quotas.get(QuotaType.SIZE, _NO_QUOTA)

    @property
    def age_quota(self) -> BacklogQuota:
        return self.backlog_quotas.get(QuotaType.AGE, _NO_QUOTA)

    def dispatch_rate_of(self, subscription: str) -> DispatchRate:
        """Return the rate of one subscription."""
        return self.subscription_dispatch_rates.get(subscription, self.subscription_dispatch_rate)

    def with_quota(self, kind: QuotaType, quota: BacklogQuota | None) -> Self:
        """Return these policies with a backlog quota; None removes it.

        Raises:
            InvalidPolicyError: retention is smaller.
        """
        quotas = {name: each for name, each in self.backlog_quotas.items() if name != kind}
        if quota is not None:
            quotas[kind] = quota
        after = self.with_values(backlog_quotas=quotas or None)
        after.check()
        return after

    def check(self) -> None:
        """Refuse a backlog quota that is not below the retention.

        Raises:
            InvalidPolicyError
        """
        minutes, mib = self.retention.minutes, self.retention.mib
        size, age = self.size_quota.bytes, self.age_quota.seconds
        if QuotaType.SIZE in self.backlog_quotas and 0 < mib * _MIB <= size:
            raise InvalidPolicyError(f"a backlog of {size} bytes exceeds the retention of {mib} MB")
        if QuotaType.AGE in self.backlog_quotas and 0 < minutes * 60 <= age:
            raise InvalidPolicyError(f"a backlog of {age} s exceeds the retention of {minutes} min")


DEFAULTS = Policies()
"""Policies of a broker that sets nothing."""


class Record(_Value):
    """The value of a node."""

    format: Literal[1] = 1

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class ClusterRecord(Record):
    """A cluster that tenants may use; `data` and the rest are as the HTTP interface shows them."""

    data: dict[str, Any] = Field(default_factory=dict)
    failure_domains: dict[str, Any] = Field(default_factory=dict)
    isolation_policies: dict[str, Any] = Field(default_factory=dict)
    """Stored without effect: bundles are placed by load alone."""
    migration: dict[str, Any] = Field(default_factory=dict)
    """Stored without effect: clients are not sent to other clusters."""


class TenantRecord(Record):
    """A tenant."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


_BESIDE_POLICIES = frozenset(
    {
        "max_topics",
        "auto_topic_creation",
        "encryption_required",
        "allows_schema_update",
        "offload_threshold_bytes",
        "offload_threshold_s",
        "offload_deletion_lag_ms",
    }
)
"""Policies that only namespaces have. They are stored beside `policies`, in their former place."""


class NamespaceRecord(Record):
    """A namespace: the policies of its topics, and its own properties."""

    policies: Policies = Policies()
    replication_clusters: tuple[str, ...] = ()
    permissions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Actions allowed to each role in it, e.g. produce; `security/decide.py` has the rules."""
    topic_permissions: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    """Actions of each role on single topics, by full name; those of a partitioned topic hold for
    its partitions."""
    subscription_permissions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Roles that alone may use a subscription, by its name in any topic of the namespace."""
    properties: dict[str, str] = Field(default_factory=dict)
    allowed_clusters: tuple[str, ...] | None = None
    auto_scale: AutoScale | None = None
    """Policy of its scalable topics; a topic's own policy overrides it field by field."""
    subscription_auth_mode: AuthMode | None = None
    schema_auto_update: str | None = None
    """Strategy by a former name; see `SchemaCompatibility`."""
    anti_affinity_group: str | None = None
    """Stored without effect, as are the fields after it: bundles are placed by load alone."""
    bookie_affinity: dict[str, Any] | None = None
    resource_group: str | None = None
    migrated: bool = False
    """Stored without effect: clients are not sent to other clusters."""
    is_deleted: bool = False
    """Whether the namespace is being deleted: nothing new can be created in it."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Take the policies of `_BESIDE_POLICIES` from where they are stored."""
        if not isinstance(value, dict) or not value.keys() & _BESIDE_POLICIES:
            return value
        policies = value.get("policies", {})
        if isinstance(policies, Policies):
            policies = policies._set()
        if not isinstance(policies, dict):
            return value
        beside = {name: each for name, each in value.items() if name in _BESIDE_POLICIES}
        own = {name: each for name, each in beside.items() if each is not None}
        rest = {name: each for name, each in value.items() if name not in beside}
        return {**rest, "policies": {**policies, **own}}

    @model_serializer(mode="wrap")
    def _spread(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        policies = found["policies"]
        for name in _BESIDE_POLICIES:
            if name in policies:
                found[name] = policies.pop(name)
        return found


class TopicPolicyRecord(Record):
    """The policies that are set for a topic itself."""

    policies: Policies = Policies()


def tenant_path(tenant: str) -> str:
    return f"{TENANTS_ROOT}/{tenant}"


def namespace_path(namespace: str) -> str:
    """Return the path of a namespace, given as tenant/namespace."""
    return f"{TENANTS_ROOT}/{namespace}"


def cluster_path(cluster: str) -> str:
    return f"{CLUSTERS_ROOT}/{cluster}"


def topic_policies_root(namespace: str, domain: str) -> str:
    """Return the path whose children are the topics of a namespace that have policies of their
    own."""
    return f"{TOPIC_POLICIES_ROOT}/{namespace}/{domain}"


def topic_policies_path(topic: TopicName) -> str:
    return f"{TOPIC_POLICIES_ROOT}/{topic.partitioned.storage_name}"


def decode(kind: type[R], path: str, value: bytes) -> R:
    """Read a record.

    Raises:
        UnreadableRecordError: it is not of this format. Nothing is guessed.
    """
    try:
        return kind.model_validate_json(value)
    except ValidationError as error:
        raise UnreadableRecordError(
            f"{path} holds no {kind.__name__} of format {FORMAT_VERSION} "
            f"({first_problem(error)}); it was left as it is"
        ) from error
