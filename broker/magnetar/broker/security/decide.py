"""Decide whether a role may do something, from the role, the action and the grants alone. Pure.

In this order:

1. A super user may do everything.
2. An administrator of a tenant may do everything in it, but not create or delete the tenant.
3. Actions that rules 4 and 5 do not name are only for super users and administrators.
4. If roles were granted for a subscription, only these roles may use it. If the namespace
   requires subscription names to begin with the role, no role may use other names.
5. PRODUCE and CONSUME need a grant to the role in the namespace or on the topic; LOOKUP needs one
   of either; LIST_TOPICS needs CONSUME in the namespace. FUNCTIONS, SOURCES, SINKS and PACKAGES
   need their own.

Everything else is denied. Resources that do not exist are denied in the same way, so a refusal does
not reveal what exists. Source: HTTP sheet, section 1; the rules are those of Pulsar's provider.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.broker.security.actions import (
    GRANTABLE,
    Action,
    Cluster,
    Namespace,
    Resource,
    Subscription,
    Tenant,
    Topic,
    tenant_of,
)

Permissions = Mapping[str, tuple[str, ...]]
"""Names of granted actions, by role."""


@dataclass(frozen=True, slots=True)
class Grants:
    """All grants that can matter for one resource."""

    super_users: frozenset[str] = frozenset()
    tenant_admins: frozenset[str] = frozenset()
    """Roles that administer the resource's tenant."""
    namespace: Permissions = field(default_factory=dict)
    """Grants in the resource's namespace."""
    topics: Mapping[str, Permissions] = field(default_factory=dict)
    """Grants by full topic name, in the namespace; for partitions, the name of the partitioned
    topic."""
    subscriptions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By subscription name, for all topics of the namespace: the only roles that may use it."""
    wants_prefix: bool = False
    """Whether subscription names must begin with the role (`subscriptionAuthMode`)."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A positive decision."""

    is_allowed = True


@dataclass(frozen=True, slots=True)
class Denied:
    """A refusal; `reason` says what is missing, and nothing about what exists."""

    reason: str
    is_allowed = False


ALLOWED = Allowed()

Decision = Allowed | Denied


def decide(role: str, action: Action, resource: Resource, grants: Grants) -> Decision:
    """Decide whether `role` may do `action` with `resource`."""
    if role in grants.super_users:
        return ALLOWED
    if not isinstance(resource, Cluster) and role and role in grants.tenant_admins:
        return ALLOWED
    if not role or not _is_granted(role, action, resource, grants):
        return Denied(_missing(role, action, resource, grants))
    return ALLOWED


def _is_granted(role: str, action: Action, resource: Resource, grants: Grants) -> bool:
    match resource:
        case Cluster() | Tenant(_):
            return False
        case Namespace(_):
            wanted = Action.CONSUME if action == Action.LIST_TOPICS else action
            return wanted in GRANTABLE and wanted in grants.namespace.get(role, ())
        case Subscription(topic, name):
            owners = grants.subscriptions.get(name, ())
            if owners and role not in owners:
                return False
            if grants.wants_prefix and not name.startswith(role):
                return False
            return _is_granted(role, action, Topic(topic), grants)
        case Topic(name):
            own = grants.topics.get(str(name.partitioned), {}).get(role, ())
            given = {*grants.namespace.get(role, ()), *own}
            if action == Action.LOOKUP:
                return Action.PRODUCE in given or Action.CONSUME in given
            return action in GRANTABLE and action in given


def _missing(role: str, action: Action, resource: Resource, grants: Grants) -> str:
    who = f"role {role!r}" if role else "nobody"
    if action == Action.ADMINISTER:
        needed = (
            "a super user"
            if isinstance(resource, Cluster)
            else f"an administrator of tenant {tenant_of(resource)}"
        )
        return f"{who} may not administer {resource}: that needs {needed}"
    if action == Action.LOOKUP:
        return f"{who} may neither produce to nor consume from {resource}"
    said = f"{who} may not {_WORDS.get(action, f'use {action.value} in')} {resource}"
    if grants.wants_prefix and isinstance(resource, Subscription):
        said += ": subscription names must begin with the role here"
    return said


_WORDS = {
    Action.PRODUCE: "produce to",
    Action.CONSUME: "consume from",
    Action.LIST_TOPICS: "list the topics of",
}
