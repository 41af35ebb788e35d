"""Conversion between values of policies and Pulsar's JSON. Pure.

Most have the form of their fields in `policies/model.py`, with their aliases; the others have a
form here. Source: HTTP sheet, sections 8.2, 8.3 and 9.4.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from pydantic import BeforeValidator, JsonValue, TypeAdapter, ValidationError

from magnetar.broker.base.errors import InvalidPolicyError
from magnetar.broker.base.json_values import Flag, WholeNumber
from magnetar.broker.features.offloading.rules import check_offload
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies import model
from magnetar.broker.policies.model import (
    AuthAction,
    BacklogPolicy,
    NamespaceRecord,
    Policies,
    QuotaType,
    SubscriptionType,
)
from magnetar.broker.policies.table import Policy
from magnetar.ledger.validation import first_problem
from magnetar.sdk.wire import TopicNameError, parse_topic_name


class BacklogQuotaBody(RequestBody):
    limitSize: WholeNumber = -1
    limitTime: WholeNumber = -1
    policy: BacklogPolicy | None = None
    limit: WholeNumber | None = None
    """Former name of `limitSize`."""


class AutoTopicCreationBody(RequestBody):
    allowAutoTopicCreation: Flag
    topicType: Annotated[
        Literal["partitioned", "non-partitioned"] | None, BeforeValidator(lambda name: name or None)
    ] = None
    """Type of new topics. Clients in Go send an empty text for none."""
    defaultNumPartitions: WholeNumber | None = None


class AutoSubscriptionBody(RequestBody):
    allowAutoSubscriptionCreation: Flag


class BookieAffinityBody(RequestBody):
    bookkeeperAffinityGroupPrimary: str | None = None
    bookkeeperAffinityGroupSecondary: str | None = None


class EntryFiltersBody(RequestBody):
    entryFilterNames: str


class AutoUpdateStrategy(StrEnum):
    """Former names of schema compatibility strategies."""

    DISABLED = "AutoUpdateDisabled"
    BACKWARD = "Backward"
    FORWARD = "Forward"
    FULL = "Full"
    ALWAYS = "AlwaysCompatible"
    BACKWARD_TRANSITIVE = "BackwardTransitive"
    FORWARD_TRANSITIVE = "ForwardTransitive"
    FULL_TRANSITIVE = "FullTransitive"


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of one kind of value over HTTP."""

    adapter: TypeAdapter[Any]
    """Adapter of the JSON form."""
    to_json: Callable[[Any], Any] = _same
    of_json: Callable[[Any], Any] = _same
    """Converts the JSON form; raises InvalidPolicyError if the value is not valid."""
    is_text: bool = False
    """Whether the value is text: sent unquoted, and accepted unquoted or as a JSON string, because
    Pulsar's clients send both."""
    of_nothing: Any = None
    """Value of an empty body or null."""

    def parse(self, content: bytes) -> Any:
        """Parse a value from a body; an empty body or null gives `of_nothing`. Unknown fields are
        ignored.

        Raises:
            HttpRefusal: 400 if the body has another form; else as `of_json` says.
        """
        if content.strip() in (b"", b"null"):
            return self.of_nothing
        try:
            if self.is_text and not content.lstrip().startswith(b'"'):
                content = json.dumps(content.decode("utf-8", "replace").strip()).encode()
            found = self.adapter.validate_json(
                content, strict=True, extra="ignore", by_alias=True, by_name=False
            )
            return self.of_json(found)
        except ValidationError as error:
            raise HttpRefusal(400, first_problem(error, whole="body")) from error
        except InvalidPolicyError as error:
            raise HttpRefusal(error.status, str(error), error.detail) from error

    @functools.cache  # noqa: B019 - there are a few shapes, made once
    def schema(self) -> dict[str, Any]:
        """Return the schema of the JSON form, for the description of the interface, without
        references."""
        found = self.adapter.json_schema(mode="serialization")
        parts = found.pop("$defs", {})

        def inlined(value: Any) -> Any:
            if isinstance(value, dict):
                name = value.get("$ref", "").removeprefix("#/$defs/")
                return inlined(parts[name]) if name else {k: inlined(v) for k, v in value.items()}
            return [inlined(each) for each in value] if isinstance(value, list) else value

        return dict(inlined(found))

    def parse_value(self, value: Any) -> Any:
        """Parse a value from decoded JSON."""
        return self.parse(TypeAdapter(Any).dump_json(value))


def _body(
    kind: type[RequestBody], to: Callable[[Any], RequestBody], of: Callable[[Any], Any]
) -> Shape:
    return Shape(TypeAdapter(kind), lambda value: to(value).model_dump(exclude_none=True), of)


def _quota(body: BacklogQuotaBody) -> model.BacklogQuota:
    size = body.limitSize if body.limit is None or body.limitSize >= 0 else body.limit
    if body.policy is None:
        raise InvalidPolicyError("a backlog quota needs 'policy': what to do when it is exceeded")
    return model.BacklogQuota(bytes=size, seconds=body.limitTime, policy=body.policy)


BACKLOG_QUOTA: Final = _body(
    BacklogQuotaBody,
    lambda value: BacklogQuotaBody(
        limitSize=value.bytes, limitTime=value.seconds, policy=value.policy
    ),
    _quota,
)


def _auto_topic(body: AutoTopicCreationBody) -> model.AutoTopicCreation:
    is_partitioned = body.topicType == "partitioned"
    partitions = body.defaultNumPartitions
    if body.allowAutoTopicCreation:
        if body.topicType is None:
            raise InvalidPolicyError("topicType is missing: partitioned or non-partitioned")
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
        raise InvalidPolicyError(
            "Invalid configuration for autoTopicCreationOverride. the detail is "
            f"[defaultNumPartitions] {problem}",
            f"got {count}",
        )


def _topics(names: list[str]) -> tuple[str, ...]:
    try:
        return tuple(str(parse_topic_name(name)) for name in names)
    except TopicNameError as error:
        raise InvalidPolicyError(str(error)) from error


def _text(value: str) -> str:
    if not value:
        raise InvalidPolicyError("the value is empty: give a text")
    return value


def _filters(body: EntryFiltersBody) -> str:
    if not all(name.strip() for name in body.entryFilterNames.split(",")):
        raise InvalidPolicyError(
            "entryFilterNames must be one or more names, separated by commas", status=400
        )
    return body.entryFilterNames


CLUSTERS: Final = Shape(TypeAdapter(list[str]), list, lambda names: tuple(dict.fromkeys(names)))


def _offload(value: dict[str, Any]) -> dict[str, Any]:
    check_offload(value)
    return {name: each for name, each in value.items() if each is not None}


_UNLIKE_THEIR_FIELDS: Final = {
    "auto_topic_creation": _body(
        AutoTopicCreationBody,
        lambda value: AutoTopicCreationBody(
            allowAutoTopicCreation=value.allowed,
            topicType="partitioned" if value.is_partitioned else "non-partitioned",
            defaultNumPartitions=value.partitions if value.is_partitioned else None,
        ),
        _auto_topic,
    ),
    "auto_subscription_creation": _body(
        AutoSubscriptionBody,
        lambda value: AutoSubscriptionBody(allowAutoSubscriptionCreation=value),
        lambda body: body.allowAutoSubscriptionCreation,
    ),
    "subscription_types": Shape(
        TypeAdapter(list[SubscriptionType]),
        lambda value: sorted(value),
        lambda names: frozenset(names),
    ),
    "schema_auto_update": Shape(TypeAdapter(AutoUpdateStrategy)),
    "replication_clusters": CLUSTERS,
    "replicated_to": CLUSTERS,
    "allowed_clusters": CLUSTERS,
    "shadow_topics": Shape(TypeAdapter(list[str]), list, _topics),
    "anti_affinity_group": Shape(TypeAdapter(str), _same, _text, is_text=True),
    "bookie_affinity": _body(
        BookieAffinityBody,
        lambda value: BookieAffinityBody.model_validate(value),
        lambda body: body.model_dump(exclude_none=True),
    ),
    "entry_filters": _body(
        EntryFiltersBody, lambda value: EntryFiltersBody(entryFilterNames=value), _filters
    ),
    # A request without a body sets this one.
    "dispatcher_pauses": Shape(TypeAdapter(Flag), of_nothing=True),
    "offload": Shape(TypeAdapter(dict[str, JsonValue]), of_json=_offload),
}


@functools.cache
def shape_of(policy: Policy) -> Shape:
    """Return the form of a policy's values over HTTP."""
    special = _UNLIKE_THEIR_FIELDS.get(policy.field)
    if special is not None:
        return special
    kinds = [each for each in get_args(_hint(policy)) if each is not NoneType]
    is_optional = len(kinds) < len(get_args(_hint(policy)))
    adapter = TypeAdapter(kinds[0] if is_optional else _hint(policy))

    def of_json(value: Any) -> Any:
        policy.check(value)
        return value

    return Shape(
        adapter,
        lambda value: adapter.dump_python(value, mode="json", by_alias=True, exclude_none=True),
        of_json,
    )


def _hint(policy: Policy) -> Any:
    kind = Policies if policy.is_of_topics else NamespaceRecord
    return get_type_hints(kind, include_extras=True)[policy.field]


PROPERTIES: Final = Shape(TypeAdapter(dict[str, str]))
PERMISSIONS: Final = Shape(TypeAdapter(dict[str, list[AuthAction]]))


def quotas_to_json(policies: Policies) -> dict[str, Any]:
    """Return the map of backlog quotas."""
    quotas = policies.own("backlog_quotas") or {}
    return {kind.value: BACKLOG_QUOTA.to_json(quota) for kind, quota in quotas.items()}


def quota_type(name: str) -> QuotaType:
    """Return the quota type with a name.

    Raises:
        HttpRefusal: 412, there is no such type.
    """
    try:
        return QuotaType(name)
    except ValueError:
        known = ", ".join(QuotaType)
        raise HttpRefusal(412, f"there is no backlogQuotaType {name!r}, only {known}") from None
