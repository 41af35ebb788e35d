"""Policies: the requests that set the source's policies at the target, and what the target lacks.
Pure.

A namespace's policies come as one document (`GET /namespaces/{t}/{ns}`), those of a topic one by
one. The broker's own table (`broker.policies.table`) says which of them the target knows, and under
which path each is set. A policy that is not in it is reported in one line.

Source: pulsar-admin sheet, sections 8.2, 8.3 and 9.4.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from magnetar.broker.http.namespace_json import UNSET
from magnetar.broker.policies.table import POLICIES, Policy
from magnetar.deploy.migration.selection import Clusters

DURING: Final = "ALWAYS_COMPATIBLE"
"""Schema compatibility in namespaces of the target until the cut-over: the source has accepted the
schemas already, perhaps under other rules."""

PROPERTIES: Final = "properties"
"""Key, path and kind of difference of the properties of namespaces and topics."""

COMPATIBILITY_PATH: Final = "schemaCompatibilityStrategy"
_COMPATIBILITY: Final = "schema_compatibility_strategy"
_REPLICATED_TO: Final = "replication_clusters"
_CLUSTER_PATHS: Final = {_REPLICATED_TO: "replication", "allowed_clusters": "allowedClusters"}
"""Paths of the lists of clusters in a document: the names in them are translated."""
_BY_KEY: Final[Mapping[str, Policy]] = {
    each.key: each
    for each in POLICIES
    if each.key and each.namespace and each.key not in _CLUSTER_PATHS
}
_OTHERS: Final = frozenset(
    {
        "auth_policies",  # permissions are moved separately
        *_CLUSTER_PATHS,
        "bundles",
        "backlog_quota_map",
        "deleted",
        PROPERTIES,
        "clusterDispatchRate",  # former name of topicDispatchRate
        "latency_stats_sample_rate",
        "policies_update_count",
        "clusterThatCanDeleteNamespace",  # a mark of a deletion under way
    }
)
_FORMER_RATES: Final = ("clusterDispatchRate", "topicDispatchRate")
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})
_FALSE_IS_UNSET: Final = ("schemaValidationEnforced", "dispatcherPauseOnAckStatePersistent")
"""Topic policies that Pulsar shows as false where they are not set."""

TOPIC_POLICIES: Final[Sequence[Policy]] = tuple(each for each in POLICIES if each.topic)
QUOTAS: Final = "backlogQuotaMap"
REPLICATION: Final = "replication"
_OF_PULSAR: Final = (
    "retention",
    "persistence",
    "messageTTL",
    "subscriptionExpirationTime",
    "deduplicationEnabled",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "inactiveTopicPolicies",
    "maxProducers",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "maxMessageSize",
    "publishRate",
    "dispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "subscribeRate",
    "compactionThreshold",
    "offloadPolicies",
    "replication",
    "subscriptionTypesEnabled",
    "schemaCompatibilityStrategy",
    "schemaValidationEnforced",
    "autoSubscriptionCreation",
    "entryFilters",
    "shadowTopics",
    "dispatcherPauseOnAckStatePersistent",
)

TOPIC_ONLY_AT_SOURCE: Final = tuple(
    name for name in _OF_PULSAR if name not in {each.topic for each in POLICIES}
)
"""Topic policies that Apache Pulsar has, but the target's table does not."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One request that sets a policy."""

    name: str
    method: str
    path: str
    """Path below that of the namespace or topic."""
    body: Any
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """The settings to make, and notes about the rest."""

    settings: tuple[Setting, ...]
    unknown: tuple[str, ...] = ()
    """Names, with values, of policies that the target does not have."""
    notes: tuple[str, ...] = ()
    clusters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Lists of clusters that the target should have, by key."""


def namespace_plan(document: Mapping[str, Any], clusters: Clusters) -> PolicyPlan:
    """Return the plan for the policies of a namespace."""
    settings: list[Setting] = []
    notes: list[str] = []
    for key, value in _values(document, clusters.source):
        if key == _COMPATIBILITY:
            continue
        policy = _BY_KEY[key]
        settings.append(Setting(key, policy.namespace_verb, policy.namespace, value))
        if policy.note:
            notes.append(f"policy {key} has no effect at the target: {policy.note}")
    settings.append(compatibility_setting(document))
    if document.get(PROPERTIES):
        settings.append(properties_setting(document[PROPERTIES]))
    settings += quota_settings(document.get("backlog_quota_map"))
    lists: dict[str, Sequence[str]] = {}
    for key, path in _CLUSTER_PATHS.items():
        names, missing = clusters.names(document.get(key) or ())
        lists[key] = names
        notes += [clusters.left_out_note(key, each) for each in missing]
        if names and not (key == _REPLICATED_TO and names == [clusters.target]):
            settings.append(Setting(key, "POST", path, list(names)))
    unknown = [
        f"{key} = {value}"
        for key, value in document.items()
        if key not in _BY_KEY and key not in _OTHERS and is_set(key, value)
    ]
    return PolicyPlan(
        tuple(settings),
        tuple(sorted(unknown)),
        tuple(notes),
        cluster_lists(lists, clusters.target),
    )


def cluster_lists(document: Mapping[str, Any], cluster: str) -> dict[str, Sequence[str]]:
    """Return a namespace's lists of clusters, by key. Its own cluster is where its messages are if
    none is named."""
    found = {key: document.get(key) or [] for key in _CLUSTER_PATHS}
    return {**found, _REPLICATED_TO: found[_REPLICATED_TO] or [cluster]}


def compatibility_setting(document: Mapping[str, Any]) -> Setting:
    """Return the setting of a namespace's schema compatibility as at the source, in place of
    `DURING`."""
    value = document.get(_COMPATIBILITY) or UNSET[_COMPATIBILITY]
    return Setting(_COMPATIBILITY, "PUT", COMPATIBILITY_PATH, value)


def properties_setting(properties: Mapping[str, str]) -> Setting:
    """Return the setting that adds properties to those of a namespace or topic, or replaces
    them."""
    return Setting(PROPERTIES, "PUT", PROPERTIES, dict(properties))


def removed_property(key: str, *, is_topic: bool) -> Setting:
    """Return the setting that removes one property of a topic or namespace."""
    if is_topic:
        return Setting(key, "DELETE", PROPERTIES, None, {"key": key})
    return Setting(key, "DELETE", f"property/{quote(key, safe='')}", None)


def is_set(key: str, value: Any) -> bool:
    """Return whether a value in a document of policies is set."""
    return value not in _NOTHING and value is not False and value != UNSET.get(key)


def _values(document: Mapping[str, Any], cluster: str) -> Iterator[tuple[str, Any]]:
    """Yield the policies that are set and have a path of their own. Rates are those of the cluster
    itself."""
    for key, policy in _BY_KEY.items():
        value = document.get(key)
        if policy.is_per_cluster and isinstance(value, Mapping):
            value = value.get(cluster)
            if value is None and key == _FORMER_RATES[1]:
                value = (document.get(_FORMER_RATES[0]) or {}).get(cluster)
        if value not in _NOTHING and value != UNSET.get(key):
            yield key, value


def quota_settings(quotas: Any) -> Iterable[Setting]:
    """Return the settings of backlog quotas, by their types."""
    for kind, quota in _quotas(quotas).items():
        yield Setting(
            f"backlogQuota {kind}", "POST", "backlogQuota", quota, {"backlogQuotaType": kind}
        )


def comparable(document: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return a namespace's policies in a form that does not depend on the cluster's name."""
    found = dict(_values(document, cluster))
    quotas = _quotas(document.get("backlog_quota_map"))
    found |= {f"backlogQuota {kind}": quota for kind, quota in quotas.items()}
    return found


def _quotas(quotas: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return quotas by their types, without the former name of `limitSize`, which Pulsar writes as
    well."""
    return {
        kind: {
            name: value
            for name, value in quota.items()
            if name != "limit" or "limitSize" not in quota
        }
        for kind, quota in (quotas or {}).items()
    }


def topic_setting(policy: Policy, value: Any, clusters: Clusters) -> Setting | None:
    """Return the setting of a topic's policy; None if there is nothing to set."""
    if (
        value in _NOTHING
        or value == policy.unset
        or (value is False and policy.topic in _FALSE_IS_UNSET)
    ):
        return None
    if policy.topic == REPLICATION:
        # The target's cluster alone, too: the topic is not copied where its namespace is.
        value = list(clusters.names(value)[0])
        if not value:
            return None
    if policy.topic_query:
        return Setting(policy.topic, "POST", policy.topic, None, {policy.topic_query: str(value)})
    return Setting(policy.topic, "POST", policy.topic, value)


Grants = Mapping[str, Sequence[str]]
"""Actions by role; for subscriptions, roles by subscription."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of roles in a namespace, its topics and its subscriptions."""

    namespace: Grants
    topics: Mapping[str, Grants]
    subscriptions: Grants


def permissions_in(document: Mapping[str, Any]) -> Permissions:
    """Return the permissions in a document of policies, whose form differs between releases."""
    found = document.get("auth_policies") or {}
    topics = found.get("destination_auth") or found.get("topic_auth") or {}
    return Permissions(
        _sorted(found.get("namespace_auth")),
        {topic: _sorted(grants) for topic, grants in topics.items() if grants},
        _sorted(found.get("subscription_auth_roles")),
    )


def _sorted(grants: Any) -> Grants:
    return {name: sorted(each) for name, each in (grants or {}).items()}
