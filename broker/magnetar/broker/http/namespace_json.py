"""Conversion between a whole namespace and Pulsar's JSON. Pure. Source: HTTP sheet, 8.3
(Policies)."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from magnetar.broker.http import policy as shapes
from magnetar.broker.http.policy import quota_type, quotas_to_json, shape_of
from magnetar.broker.policies.model import NamespaceRecord
from magnetar.broker.policies.table import POLICIES

UNSET: Final[Mapping[str, Any]] = {
    "allowed_clusters": [],
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "schema_validation_enforced": False,
    "is_allow_auto_update_schema": True,
    "dispatcherPauseOnAckStatePersistentEnabled": False,
    "subscription_types_enabled": [],
}
"""Values that Pulsar shows for policies that are not set; it leaves out the others."""


def namespace_to_json(
    record: NamespaceRecord, cluster: str, boundaries: list[str]
) -> dict[str, Any]:
    """Return a whole namespace as JSON. Policies that are not set are left out, except those in
    `UNSET`."""
    topics = {
        topic: {role: list(actions) for role, actions in roles.items()}
        for topic, roles in record.topic_permissions.items()
    }
    shown: dict[str, Any] = {
        **deepcopy(dict(UNSET)),
        "auth_policies": {
            "namespace_auth": {role: list(each) for role, each in record.permissions.items()},
            "topic_auth": topics,
            "destination_auth": topics,
            "subscription_auth_roles": {
                name: list(roles) for name, roles in record.subscription_permissions.items()
            },
        },
        "replication_clusters": list(record.replication_clusters),
        "bundles": {"boundaries": boundaries, "numBundles": len(boundaries) - 1},
        "backlog_quota_map": quotas_to_json(record.policies),
        "properties": record.properties,
        "deleted": record.is_deleted,
        "resource_group_name": record.resource_group,
        "migrated": record.migrated,
    }
    if record.resource_group is None:
        del shown["resource_group_name"]
    for policy in POLICIES:
        value = policy.of_namespace(record) if policy.key else None
        if value is not None:
            found = shape_of(policy).to_json(value)
            shown[policy.key] = {cluster: found} if policy.is_per_cluster else found
    return shown


def namespace_of_json(body: dict[str, Any], cluster: str) -> NamespaceRecord:
    """Return the record of a new namespace from the body of its request.

    Raises:
        HttpRefusal: a value is not valid.
    """
    clusters = shapes.CLUSTERS.parse_value(body.get("replication_clusters"))
    properties = shapes.PROPERTIES.parse_value(body.get("properties"))
    record = NamespaceRecord(
        replication_clusters=clusters or (cluster,),
        properties=properties or {},
        permissions=_permissions(body.get("auth_policies")),
    )
    quotas = body.get("backlog_quota_map") or {}
    for kind, value in quotas.items() if isinstance(quotas, dict) else ():
        quota = shapes.BACKLOG_QUOTA.parse_value(value)
        record = record.model_copy(
            update={"policies": record.policies.with_quota(quota_type(kind), quota)}
        )
    for policy in POLICIES:
        value = body.get(policy.key) if policy.key else None
        if policy.is_per_cluster and isinstance(value, dict):
            value = value.get(cluster)
        unset = policy.unset, UNSET.get(policy.key)
        if value not in (None, "", []) and value not in unset:  # Go sends "" for no value.
            record = policy.set_in_namespace(record, shape_of(policy).parse_value(value))
    return record


def _permissions(body: Any) -> dict[str, tuple[str, ...]]:
    found = body.get("namespace_auth") if isinstance(body, dict) else None
    roles = shapes.PERMISSIONS.parse_value(found) or {}
    return {role: tuple(actions) for role, actions in roles.items()}
