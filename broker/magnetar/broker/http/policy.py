"""One policy: its names, its shape, and where its value is kept; backlog quotas. Pure.

Source: HTTP sheet, sections 8.2 and 9.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magnetar.broker.http import policy_shapes as shapes
from magnetar.broker.http.policy_shapes import Shape
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies import model
from magnetar.broker.policies.effective import EffectivePolicies
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
