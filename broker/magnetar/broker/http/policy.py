"""One policy: its names, how its value looks as Pulsar's JSON, and where it is kept. Pure.

Source: HTTP sheet, sections 8.2, 8.3 and 9.4.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, JsonValue, TypeAdapter, ValidationError

from magnetar.broker.http.bodies import LONG_MAX, Flag, Number, RequestBody, WholeNumber
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies import model
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.model import (
    AuthAction,
    AuthMode,
    BacklogPolicy,
    DeleteMode,
    NamespaceRecord,
    PolicySet,
    QuotaType,
    SchemaCompatibility,
    SubscriptionType,
)
from magnetar.sdk.wire import TopicNameError, parse_topic_name


class RetentionPolicies(RequestBody):
    retentionTimeInMinutes: WholeNumber = 0
    retentionSizeInMB: WholeNumber = 0


class PersistencePolicies(RequestBody):
    bookkeeperEnsemble: WholeNumber = 2
    bookkeeperWriteQuorum: WholeNumber = 2
    bookkeeperAckQuorum: WholeNumber = 2
    managedLedgerMaxMarkDeleteRate: Number = 0.0


class BacklogQuotaBody(RequestBody):
    limitSize: WholeNumber = -1
    limitTime: WholeNumber = -1
    policy: BacklogPolicy | None = None
    limit: WholeNumber | None = None
    """The former name of limitSize."""


class PublishRateBody(RequestBody):
    publishThrottlingRateInMsg: WholeNumber = -1
    publishThrottlingRateInByte: WholeNumber = -1


class DispatchRateBody(RequestBody):
    dispatchThrottlingRateInMsg: WholeNumber = -1
    dispatchThrottlingRateInByte: WholeNumber = -1
    ratePeriodInSecond: WholeNumber = 1
    relativeToPublishRate: Flag = False


class SubscribeRateBody(RequestBody):
    subscribeThrottlingRatePerConsumer: WholeNumber = -1
    ratePeriodInSecond: WholeNumber = 30


class AutoTopicCreationBody(RequestBody):
    allowAutoTopicCreation: Flag
    topicType: Annotated[
        Literal["partitioned", "non-partitioned"] | None, BeforeValidator(lambda name: name or None)
    ] = None
    """Empty, as clients in Go send it, is none."""
    defaultNumPartitions: WholeNumber | None = None


class AutoSubscriptionBody(RequestBody):
    allowAutoSubscriptionCreation: Flag


class DelayedDeliveryBody(RequestBody):
    active: Flag
    tickTime: WholeNumber = 1000
    maxDeliveryDelayInMillis: WholeNumber = 0


class InactiveTopicBody(RequestBody):
    inactiveTopicDeleteMode: DeleteMode = DeleteMode.NO_SUBSCRIPTIONS
    maxInactiveDurationSeconds: WholeNumber = 60
    deleteWhileInactive: Flag = False


class BookieAffinityBody(RequestBody):
    bookkeeperAffinityGroupPrimary: str | None = None
    bookkeeperAffinityGroupSecondary: str | None = None


class EntryFiltersBody(RequestBody):
    entryFilterNames: str


class AutoUpdateStrategy(StrEnum):
    """What strategies of schemas were called once."""

    DISABLED = "AutoUpdateDisabled"
    BACKWARD = "Backward"
    FORWARD = "Forward"
    FULL = "Full"
    ALWAYS = "AlwaysCompatible"
    BACKWARD_TRANSITIVE = "BackwardTransitive"
    FORWARD_TRANSITIVE = "ForwardTransitive"
    FULL_TRANSITIVE = "FullTransitive"


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind of value looks over HTTP."""

    adapter: TypeAdapter[Any]
    """Of the JSON."""
    to_json: Callable[[Any], Any]
    of_json: Callable[[Any], Any]
    """Raises HttpRefusal when the value makes no sense."""
    is_text: bool = False
    """Answered as it is; taken as it is, or as a JSON string: Pulsar's clients do either."""
    of_nothing: Any = None
    """What an empty body stands for."""

    def parse(self, content: bytes) -> Any:
        """A value out of a body; None out of none, or null.

        Raises:
            HttpRefusal: 400, it is of another form; or what `of_json` says.
        """
        if content.strip() in (b"", b"null"):
            return self.of_nothing
        try:
            if self.is_text and not content.lstrip().startswith(b'"'):
                content = json.dumps(content.decode("utf-8", "replace").strip()).encode()
            return self.of_json(self.adapter.validate_json(content, strict=True))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "body"
            raise HttpRefusal(400, f"{where}: {problem['msg']}") from error

    @functools.cache  # noqa: B019 - there are a few shapes, made once
    def schema(self) -> dict[str, Any]:
        """Of the JSON, for the description of the interface; nothing in it refers elsewhere."""
        found = self.adapter.json_schema(mode="serialization")
        parts = found.pop("$defs", {})

        def inlined(value: Any) -> Any:
            if isinstance(value, dict):
                name = value.get("$ref", "").removeprefix("#/$defs/")
                return inlined(parts[name]) if name else {k: inlined(v) for k, v in value.items()}
            return [inlined(each) for each in value] if isinstance(value, list) else value

        return dict(inlined(found))

    def parse_value(self, value: Any) -> Any:
        """Parse a value from JSON that was decoded already."""
        return self.parse(TypeAdapter(Any).dump_json(value))


def _same(value: Any) -> Any:
    return value


def _body(kind: type[BaseModel], to: Callable[[Any], BaseModel], of: Callable[[Any], Any]) -> Shape:
    return Shape(TypeAdapter(kind), lambda value: to(value).model_dump(exclude_none=True), of)


def whole(least: int = 0, *, words: str = "") -> Shape:
    """A number, not below `least`; `words`: what Pulsar says of one that is."""

    def of_json(value: int) -> int:
        if not least <= value <= LONG_MAX:
            text = f"the value must be from {least} to {LONG_MAX}, got {value}"
            raise HttpRefusal(412, words or text, text if words else "")
        return value

    return Shape(TypeAdapter(WholeNumber), _same, of_json)


BOOLEAN = Shape(TypeAdapter(Flag), _same, _same)


def _retention(body: RetentionPolicies) -> model.Retention:
    minutes, mib = body.retentionTimeInMinutes, body.retentionSizeInMB
    if minutes < -1 or mib < -1:
        raise HttpRefusal(412, "a retention is -1 (for ever), 0 or positive")
    if (minutes == 0) != (mib == 0):
        raise HttpRefusal(412, "retention time and size are both set, or both 0")
    return model.Retention(minutes=minutes, mib=mib)


RETENTION = _body(
    RetentionPolicies,
    lambda value: RetentionPolicies(
        retentionTimeInMinutes=value.minutes, retentionSizeInMB=value.mib
    ),
    _retention,
)


def _persistence(body: PersistencePolicies) -> model.Persistence:
    ensemble, write = body.bookkeeperEnsemble, body.bookkeeperWriteQuorum
    ack = body.bookkeeperAckQuorum
    if not 0 < ack <= write <= ensemble:
        raise HttpRefusal(
            400, f"0 < ack quorum <= write quorum <= ensemble must hold: {ack}, {write}, {ensemble}"
        )
    return model.Persistence(
        ensemble=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        mark_delete_rate_max=body.managedLedgerMaxMarkDeleteRate,
    )


PERSISTENCE = _body(
    PersistencePolicies,
    lambda value: PersistencePolicies(
        bookkeeperEnsemble=value.ensemble,
        bookkeeperWriteQuorum=value.write_quorum,
        bookkeeperAckQuorum=value.ack_quorum,
        managedLedgerMaxMarkDeleteRate=value.mark_delete_rate_max,
    ),
    _persistence,
)


def _quota(body: BacklogQuotaBody) -> model.BacklogQuota:
    size = body.limitSize if body.limit is None or body.limitSize >= 0 else body.limit
    if body.policy is None:
        raise HttpRefusal(412, "a backlog quota needs a policy")
    return model.BacklogQuota(bytes=size, seconds=body.limitTime, policy=body.policy)


BACKLOG_QUOTA = _body(
    BacklogQuotaBody,
    lambda value: BacklogQuotaBody(
        limitSize=value.bytes, limitTime=value.seconds, policy=value.policy
    ),
    _quota,
)

PUBLISH_RATE = _body(
    PublishRateBody,
    lambda value: PublishRateBody(
        publishThrottlingRateInMsg=value.messages, publishThrottlingRateInByte=value.bytes
    ),
    lambda body: model.PublishRate(
        messages=body.publishThrottlingRateInMsg, bytes=body.publishThrottlingRateInByte
    ),
)


def _period(seconds: int) -> int:
    if seconds < 1:
        raise HttpRefusal(412, f"a rate's period is a second or more, got {seconds}")
    return seconds


DISPATCH_RATE = _body(
    DispatchRateBody,
    lambda value: DispatchRateBody(
        dispatchThrottlingRateInMsg=value.messages,
        dispatchThrottlingRateInByte=value.bytes,
        ratePeriodInSecond=value.period_s,
        relativeToPublishRate=value.relative,
    ),
    lambda body: model.DispatchRate(
        messages=body.dispatchThrottlingRateInMsg,
        bytes=body.dispatchThrottlingRateInByte,
        period_s=_period(body.ratePeriodInSecond),
        relative=body.relativeToPublishRate,
    ),
)

SUBSCRIBE_RATE = _body(
    SubscribeRateBody,
    lambda value: SubscribeRateBody(
        subscribeThrottlingRatePerConsumer=value.per_consumer, ratePeriodInSecond=value.period_s
    ),
    lambda body: model.SubscribeRate(
        per_consumer=body.subscribeThrottlingRatePerConsumer,
        period_s=_period(body.ratePeriodInSecond),
    ),
)


def _auto_topic(body: AutoTopicCreationBody) -> model.AutoTopicCreation:
    is_partitioned = body.topicType == "partitioned"
    partitions = body.defaultNumPartitions
    if body.allowAutoTopicCreation:
        if body.topicType is None:
            raise HttpRefusal(412, "topicType is missing: partitioned or non-partitioned")
        _check_partitions(partitions, is_partitioned=is_partitioned)
    return model.AutoTopicCreation(
        allowed=body.allowAutoTopicCreation,
        is_partitioned=is_partitioned,
        partitions=max(1, partitions or 1),
    )


def _check_partitions(count: int | None, *, is_partitioned: bool) -> None:
    problem = ""
    if is_partitioned and count is None:
        problem = "cannot be null when the type is partitioned."
    elif is_partitioned and count is not None and count < 1:
        problem = "cannot be less than 1 for partition type."
    elif not is_partitioned and count is not None:
        problem = "is not allowed to be set when the type is non-partition."
    if problem:
        raise HttpRefusal(
            412,
            "Invalid configuration for autoTopicCreationOverride. the detail is "
            f"[defaultNumPartitions] {problem}",
            f"got {count}",
        )


AUTO_TOPIC = _body(
    AutoTopicCreationBody,
    lambda value: AutoTopicCreationBody(
        allowAutoTopicCreation=value.allowed,
        topicType="partitioned" if value.is_partitioned else "non-partitioned",
        defaultNumPartitions=value.partitions if value.is_partitioned else None,
    ),
    _auto_topic,
)

AUTO_SUBSCRIPTION = _body(
    AutoSubscriptionBody,
    lambda value: AutoSubscriptionBody(allowAutoSubscriptionCreation=value),
    lambda body: body.allowAutoSubscriptionCreation,
)


def _delayed(body: DelayedDeliveryBody) -> model.DelayedDelivery:
    if body.tickTime < 1 or body.maxDeliveryDelayInMillis < 0:
        raise HttpRefusal(412, "tickTime is positive, maxDeliveryDelayInMillis is not negative")
    return model.DelayedDelivery(
        active=body.active, tick_ms=body.tickTime, max_delay_ms=body.maxDeliveryDelayInMillis
    )


DELAYED_DELIVERY = _body(
    DelayedDeliveryBody,
    lambda value: DelayedDeliveryBody(
        active=value.active, tickTime=value.tick_ms, maxDeliveryDelayInMillis=value.max_delay_ms
    ),
    _delayed,
)


def _inactive(body: InactiveTopicBody) -> model.InactiveTopic:
    if body.maxInactiveDurationSeconds < 1:
        raise HttpRefusal(412, "maxInactiveDurationSeconds must be positive")
    return model.InactiveTopic(
        is_on=body.deleteWhileInactive,
        mode=body.inactiveTopicDeleteMode,
        max_s=body.maxInactiveDurationSeconds,
    )


INACTIVE_TOPIC = _body(
    InactiveTopicBody,
    lambda value: InactiveTopicBody(
        inactiveTopicDeleteMode=value.mode,
        maxInactiveDurationSeconds=value.max_s,
        deleteWhileInactive=value.is_on,
    ),
    _inactive,
)

SUBSCRIPTION_TYPES = Shape(
    TypeAdapter(list[SubscriptionType]),
    lambda value: sorted(value),
    lambda names: frozenset(names),
)

CLUSTERS = Shape(TypeAdapter(list[str]), list, lambda names: tuple(dict.fromkeys(names)))


def _topics(names: list[str]) -> tuple[str, ...]:
    try:
        return tuple(str(parse_topic_name(name)) for name in names)
    except TopicNameError as error:
        raise HttpRefusal(412, str(error)) from error


TOPICS = Shape(TypeAdapter(list[str]), list, _topics)

SCHEMA_STRATEGY = Shape(TypeAdapter(SchemaCompatibility), _same, _same)
AUTO_UPDATE_STRATEGY = Shape(TypeAdapter(AutoUpdateStrategy), _same, _same)
AUTH_MODE = Shape(TypeAdapter(AuthMode), _same, _same)

SWITCH = Shape(TypeAdapter(Flag), _same, _same, of_nothing=True)
"""Set by a request without a body."""


def _text(value: str) -> str:
    if not value:
        raise HttpRefusal(412, "the value is empty")
    return value


TEXT = Shape(TypeAdapter(str), _same, _text, is_text=True)

BOOKIE_AFFINITY = _body(
    BookieAffinityBody,
    lambda value: BookieAffinityBody.model_validate(value),
    lambda body: body.model_dump(exclude_none=True),
)


def _filters(body: EntryFiltersBody) -> str:
    if not all(name.strip() for name in body.entryFilterNames.split(",")):
        raise HttpRefusal(400, "entryFilterNames is one or more names, with commas between")
    return body.entryFilterNames


ENTRY_FILTERS = _body(
    EntryFiltersBody, lambda value: EntryFiltersBody(entryFilterNames=value), _filters
)

OFFLOAD = Shape(TypeAdapter(dict[str, JsonValue]), _same, _same)
"""What Pulsar's offloaders are told; nobody reads it here."""

PROPERTIES = Shape(TypeAdapter(dict[str, str]), _same, _same)
PERMISSIONS = Shape(TypeAdapter(dict[str, list[AuthAction]]), _same, _same)


_MIB = 1 << 20

Default = Callable[[EffectivePolicies], Any]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy."""

    field: str
    """In PolicySet; of those that only namespaces have, in NamespaceRecord."""
    shape: Shape
    namespace: str = ""
    """Name of the policy below a namespace; empty: namespaces do not have it."""
    topic: str = ""
    """Name of the policy below a topic; empty: topics do not have it."""
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
    unset: Any = None
    """What a namespace answers that has none, as JSON; None: nothing, 204."""
    note: str = ""
    """Why it has no effect; it is kept and shown all the same."""

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


def quotas_to_json(policies: PolicySet) -> dict[str, Any]:
    """The map of backlog quotas."""
    quotas = policies.backlog_quotas or {}
    return {kind.value: BACKLOG_QUOTA.to_json(quota) for kind, quota in quotas.items()}


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
