"""Endpoints above topics: clusters, brokers, bookies, tenants, namespaces, resources."""

from magnetar.broker.policies.table import POLICIES
from tests.integration.broker.http.endpoints.rows import (
    BUNDLE,
    NAMESPACE,
    NO_NS,
    NS,
    TENANT,
    Before,
    Row,
    life,
)

ADMIN = "/admin/v2"
C = f"{ADMIN}/clusters"
B = f"{ADMIN}/brokers"
PROXY = f"{ADMIN}/proxy-stats"
OTHER = (("PUT", f"{C}/other", {"serviceUrl": "http://other:8080"}),)
URL = {"serviceUrl": "http://other:8080"}
DOMAIN = {"brokers": ["other:8080"]}
ISOLATION = {
    "namespaces": ["acme/.*"],
    "primary": ["broker-1"],
    "secondary": [],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
}

CLUSTERS = (
    Row("GET", C, is_open=True),
    Row("GET", f"{C}/standalone", None, 200, (f"{C}/a%20b", None, 412), (f"{C}/missing", 404)),
    Row("PUT", f"{C}/made", URL, 200, (None, {"peerClusterNames": 1}, 400)),
    Row("PUT", f"{C}/standalone", URL, 409, (f"{C}/a%20b", URL, 412)),
    Row("POST", f"{C}/other", URL, 200, (None, [], 400), (f"{C}/missing", 404), OTHER),
    Row(
        "DELETE",
        f"{C}/other",
        None,
        204,
        (f"{C}/standalone", None, 412),
        (f"{C}/missing", 404),
        OTHER,
    ),
    Row("GET", f"{C}/standalone/peers", None, 200, None, (f"{C}/missing/peers", 404)),
    Row("GET", f"{C}/standalone/migrate", None, 200, None, (f"{C}/missing/migrate", 404)),
    Row("POST", f"{C}/other/migrate", URL, 200, (None, [], 400), (f"{C}/no/migrate", 404), OTHER),
    Row(
        "GET",
        f"{C}/standalone/namespaceIsolationPolicies/brokers",
        None,
        200,
        None,
        (f"{C}/missing/namespaceIsolationPolicies/brokers", 404),
    ),
    Row(
        "GET",
        f"{C}/standalone/namespaceIsolationPolicies/brokers/{{broker}}",
        None,
        200,
        None,
        (f"{C}/standalone/namespaceIsolationPolicies/brokers/nobody:1", 404),
    ),
    Row(
        "POST",
        f"{C}/standalone/peers",
        ["other"],
        204,
        (None, ["nobody"], 412),
        (f"{C}/missing/peers", 404),
        OTHER,
    ),
    *(
        row
        for what, body, bad in (
            ("failureDomains", DOMAIN, {"brokers": 5}),
            ("namespaceIsolationPolicies", ISOLATION, {"namespaces": [], "primary": []}),
        )
        for row in (
            Row("GET", f"{C}/standalone/{what}", None, 200, None, (f"{C}/missing/{what}", 404)),
            Row(
                "POST",
                f"{C}/standalone/{what}/d",
                body,
                204,
                (None, bad, 400),
                (f"{C}/missing/{what}/d", 404),
            ),
            Row(
                "GET",
                f"{C}/standalone/{what}/d",
                None,
                200,
                None,
                (f"{C}/standalone/{what}/missing", 404),
            ),
            Row(
                "DELETE",
                f"{C}/standalone/{what}/d",
                None,
                204,
                None,
                (f"{C}/standalone/{what}/missing", 404),
                (("POST", f"{C}/standalone/{what}/d", body),),
            ),
        )
    ),
)

BROKERS = (
    Row("GET", B),
    Row("GET", f"{B}/standalone", None, 200, None, (f"{B}/missing", 404)),
    Row("GET", f"{B}/leaderBroker"),
    Row(
        "GET",
        f"{B}/standalone/{{broker}}/ownedNamespaces",
        None,
        200,
        None,
        (f"{B}/standalone/nobody:1/ownedNamespaces", 404),
    ),
    Row("GET", f"{B}/version", is_open=True),
    Row("GET", f"{B}/health", None, 200, None, (f"{B}/health?brokerId=nobody:1", 404)),
    Row("GET", f"{B}/ready", is_open=True),
    Row("GET", "/status.html", is_open=True),
    Row("GET", f"{B}/configuration"),
    Row("GET", f"{B}/configuration/values"),
    Row("GET", f"{B}/configuration/runtime"),
    Row(
        "POST",
        f"{B}/configuration/max_topics_per_namespace/10000",
        None,
        204,
        (f"{B}/configuration/max_topics_per_namespace/many", None, 412),
        (f"{B}/configuration/no_such_setting/1", 412),
    ),
    Row(
        "POST",
        f"{B}/configuration/maxTopicsPerNamespace/10000",
        None,
        204,
        (f"{B}/configuration/maxTopicsPerNamespace/many", None, 412),
        (f"{B}/configuration/loadBalancerSheddingEnabled/true", 412),
    ),
    Row(
        "DELETE",
        f"{B}/configuration/max_topics_per_namespace",
        None,
        204,
        (f"{B}/configuration/port", None, 412),
        (f"{B}/configuration/no_such_setting", 412),
    ),
    Row("GET", f"{B}/internal-configuration"),
    Row("GET", f"{B}/backlog-quota-check", None, 204),
    Row("GET", f"{PROXY}/metrics"),
    Row("GET", f"{PROXY}/stats"),
    # With sessions it is tested where those are.
    Row(
        "GET",
        f"{PROXY}/persistent/acme/shop/plain/stats",
        None,
        404,
        (f"{PROXY}/a/b/c/d/stats", None, 412),
    ),
    *(
        Row("GET", f"{ADMIN}/broker-stats/{name}")
        for name in ("metrics", "mbeans", "topics", "load-report", "bookieops")
    ),
    Row("GET", f"{ADMIN}/broker-stats/allocator-stats/default", None, 404),
    Row(
        "GET",
        f"{ADMIN}/broker-stats/broker-resource-availability/{NAMESPACE}",
        None,
        200,
        None,
        (f"{ADMIN}/broker-stats/broker-resource-availability/acme/nowhere", 404),
    ),
)

RACKS = f"{ADMIN}/bookies/racks-info"
RACK = {"rack": "/r1", "hostname": "h:3181"}
BOOKIES = (
    Row("GET", f"{ADMIN}/bookies/all"),
    Row("GET", RACKS),
    *life(f"{RACKS}/b:3181", RACK, missing=None, wrong={"rack": 1}, verb="POST"),
    Row(
        "GET",
        f"{RACKS}/b:3181",
        None,
        200,
        None,
        (f"{RACKS}/nobody:1", 404),
        (("POST", f"{RACKS}/b:3181", RACK),),
    ),
    Row(
        "DELETE",
        f"{RACKS}/b:3181",
        None,
        204,
        None,
        (f"{RACKS}/nobody:1", 404),
        (("POST", f"{RACKS}/b:3181", RACK),),
    ),
)

TENANTS_PATH = f"{ADMIN}/tenants"
INFO = {"adminRoles": ["r"], "allowedClusters": ["standalone"]}
TENANTS = (
    Row("GET", TENANTS_PATH),
    Row("GET", f"{TENANTS_PATH}/{TENANT}", None, 200, None, (f"{TENANTS_PATH}/missing", 404)),
    Row("PUT", f"{TENANTS_PATH}/made", INFO, 204, (f"{TENANTS_PATH}/a%20b", INFO, 412)),
    Row(
        "PUT",
        f"{TENANTS_PATH}/{TENANT}",
        INFO,
        409,
        (f"{TENANTS_PATH}/x", {"allowedClusters": ["nowhere"]}, 412),
    ),
    Row(
        "POST",
        f"{TENANTS_PATH}/{TENANT}",
        INFO,
        204,
        (None, {"allowedClusters": []}, 412),
        (f"{TENANTS_PATH}/missing", 404),
    ),
    Row(
        "DELETE",
        f"{TENANTS_PATH}/gone",
        None,
        204,
        (f"{TENANTS_PATH}/{TENANT}", None, 409),
        (f"{TENANTS_PATH}/missing", 404),
        (("PUT", f"{TENANTS_PATH}/gone", INFO),),
    ),
    Row("DELETE", f"{TENANTS_PATH}/{TENANT}?force=true", None, 405),
)

N = f"{ADMIN}/namespaces"
SPLIT = "0x80000000_0xc0000000"
SPLIT_BODY = [0x90000000]
EMPTY = (("PUT", f"{N}/acme/empty", None),)
PERMISSIONS = f"{NS}/permissions"
KEY = (("PUT", f"{NS}/property/k/v", None),)
GROUP: tuple[Before, ...] = (("PUT", f"{ADMIN}/resourcegroups/group", {}),)

NAMESPACES = (
    Row("GET", f"{N}/{TENANT}", None, 200, None, (f"{N}/missing", 404)),
    Row("GET", NS, None, 200, None, (NO_NS, 404)),
    Row(
        "PUT",
        f"{N}/acme/made",
        {"max_producers_per_topic": 3},
        204,
        (f"{N}/acme/a%20b", None, 412),
        (f"{N}/missing/ns", 404),
    ),
    Row("PUT", NS, None, 409, (f"{N}/acme/x", {"bundles": {"numBundles": -1}}, 412)),
    Row("DELETE", f"{N}/acme/empty", None, 204, (NS, None, 409), (NO_NS, 404), EMPTY),
    Row("DELETE", f"{NS}?force=true", None, 405),
    Row(
        "GET",
        f"{NS}/topics",
        None,
        200,
        (f"{NS}/topics?mode=SOME", None, 400),
        (f"{NO_NS}/topics", 404),
    ),
    Row("GET", f"{NS}/bundles", None, 200, None, (f"{NO_NS}/bundles", 404)),
    Row(
        "GET",
        f"{NS}/{BUNDLE}/topicHashPositions",
        None,
        200,
        (f"{NS}/0x1_0x2/topicHashPositions", None, 412),
        (f"{NO_NS}/{BUNDLE}/topicHashPositions", 404),
    ),
    Row(
        "GET",
        f"{ADMIN.removesuffix('/v2')}/namespaces/standalone/antiAffinity/group",
        None,
        200,
        None,
        (f"{ADMIN.removesuffix('/v2')}/namespaces/missing/antiAffinity/group", 404),
    ),
    Row(
        "GET",
        f"{ADMIN.removesuffix('/v2')}/namespaces/{TENANT}/standalone",
        None,
        200,
        None,
        (f"{ADMIN.removesuffix('/v2')}/namespaces/{TENANT}/missing", 404),
    ),
    Row("POST", f"{NS}/migration", False, 204, (None, "x", 400), (f"{NO_NS}/migration", 404)),
    Row("PUT", f"{NS}/unload", None, 204, None, (f"{NO_NS}/unload", 404)),
    Row(
        "PUT",
        f"{NS}/{BUNDLE}/unload",
        None,
        204,
        (f"{NS}/0x1_0x2/unload", None, 412),
        (f"{NO_NS}/{BUNDLE}/unload", 404),
    ),
    Row(
        "PUT",
        f"{NS}/{SPLIT}/split",
        SPLIT_BODY,
        204,
        (f"{NS}/{BUNDLE}/split", [5, -1], 412),
        (f"{NO_NS}/{BUNDLE}/split", 404),
    ),
    Row(
        "DELETE",
        f"{N}/acme/empty/{BUNDLE}",
        None,
        204,
        (f"{N}/acme/empty/0x_", None, 412),
        (f"{NO_NS}/{BUNDLE}", 404),
        EMPTY,
    ),
    Row("POST", f"{NS}/clearBacklog/nobody", None, 204, None, (f"{NO_NS}/clearBacklog", 404)),
    Row(
        "POST",
        f"{N}/acme/empty/clearBacklog",
        None,
        204,
        None,
        (f"{NO_NS}/clearBacklog", 404),
        EMPTY,
    ),
    Row(
        "POST",
        f"{N}/acme/empty/{BUNDLE}/clearBacklog",
        None,
        204,
        (f"{NS}/0x_/clearBacklog", None, 412),
        (f"{NO_NS}/{BUNDLE}/clearBacklog", 404),
        EMPTY,
    ),
    Row(
        "POST",
        f"{NS}/{BUNDLE}/clearBacklog/nobody",
        None,
        204,
        None,
        (f"{NO_NS}/{BUNDLE}/clearBacklog/s", 404),
    ),
    Row("POST", f"{NS}/unsubscribe/nobody", None, 204, None, (f"{NO_NS}/unsubscribe/s", 404)),
    Row("GET", PERMISSIONS, None, 200, None, (f"{NO_NS}/permissions", 404)),
    Row(
        "POST",
        f"{PERMISSIONS}/r",
        ["produce", "consume"],
        204,
        (None, ["fly"], 400),
        (f"{NO_NS}/permissions/r", 404),
    ),
    Row("DELETE", f"{PERMISSIONS}/r", None, 204, None, (f"{NO_NS}/permissions/r", 404)),
    Row(
        "POST",
        f"{PERMISSIONS}/subscription/sub",
        ["r"],
        204,
        (None, {"r": 1}, 400),
        (f"{NO_NS}/permissions/subscription/sub", 404),
    ),
    Row(
        "GET",
        f"{PERMISSIONS}/subscription",
        None,
        200,
        None,
        (f"{NO_NS}/permissions/subscription", 404),
    ),
    Row("DELETE", f"{PERMISSIONS}/sub/r", None, 204, None, (f"{NO_NS}/permissions/sub/r", 404)),
    Row("GET", f"{NS}/properties", None, 200, None, (f"{NO_NS}/properties", 404)),
    Row(
        "PUT",
        f"{NS}/properties",
        {"a": "b"},
        204,
        (None, {"a": 1}, 400),
        (f"{NO_NS}/properties", 404),
    ),
    Row("DELETE", f"{NS}/properties", None, 204, None, (f"{NO_NS}/properties", 404)),
    Row("PUT", f"{NS}/property/k/v", None, 204, None, (f"{NO_NS}/property/k/v", 404)),
    Row("GET", f"{NS}/property/k", None, 200, None, (f"{NS}/property/missing", 404), KEY),
    Row("DELETE", f"{NS}/property/k", None, 200, None, (f"{NS}/property/missing", 404), KEY),
    Row(
        "POST",
        f"{NS}/resourcegroup/group",
        None,
        204,
        (f"{NS}/resourcegroup/no", None, 412),
        (f"{NO_NS}/resourcegroup/group", 404),
        GROUP,
    ),
    Row(
        "GET",
        f"{NS}/resourcegroup",
        None,
        200,
        None,
        (f"{NO_NS}/resourcegroup", 404),
        (*GROUP, ("POST", f"{NS}/resourcegroup/group", None)),
    ),
    Row("DELETE", f"{NS}/resourcegroup", None, 204, None, (f"{NO_NS}/resourcegroup", 404)),
    Row("GET", f"{NS}/backlogQuotaMap", None, 200, None, (f"{NO_NS}/backlogQuotaMap", 404)),
    Row(
        "POST",
        f"{NS}/backlogQuota",
        {"limitSize": 1 << 40, "policy": "producer_exception"},
        204,
        (f"{NS}/backlogQuota?backlogQuotaType=x", {"policy": "producer_exception"}, 412),
        (f"{NO_NS}/backlogQuota", 404),
    ),
    Row(
        "DELETE",
        f"{NS}/backlogQuota",
        None,
        204,
        (f"{NS}/backlogQuota?backlogQuotaType=x", None, 412),
        (f"{NO_NS}/backlogQuota", 404),
    ),
)

QUOTA = {
    "msgRateIn": 1.0,
    "msgRateOut": 1.0,
    "bandwidthIn": 1.0,
    "bandwidthOut": 1.0,
    "memory": 1.0,
    "dynamic": False,
}
Q = f"{ADMIN}/resource-quotas"
RESOURCES = (
    Row("GET", Q),
    Row("POST", Q, QUOTA, 204, (None, {"memory": "much"}, 400)),
    *life(
        f"{Q}/{NAMESPACE}/{BUNDLE}",
        QUOTA,
        missing=f"{Q}/acme/nowhere/{BUNDLE}",
        wrong={"memory": "much"},
        verb="POST",
    ),
    Row("GET", f"{ADMIN}/resourcegroups"),
    Row(
        "PUT",
        f"{ADMIN}/resourcegroups/g",
        {"publishRateInMsgs": 5},
        204,
        (f"{ADMIN}/resourcegroups/a%20b", {}, 412),
    ),
    Row(
        "GET",
        f"{ADMIN}/resourcegroups/g",
        None,
        200,
        None,
        (f"{ADMIN}/resourcegroups/missing", 404),
    ),
    Row(
        "DELETE",
        f"{ADMIN}/resourcegroups/g",
        None,
        204,
        None,
        (f"{ADMIN}/resourcegroups/missing", 404),
    ),
    Row("GET", "/admin/v3/functions/public/default", None, 409),
    Row("GET", "/admin/v2/worker/cluster", None, 503),
)

RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 2,
    "relativeToPublishRate": False,
}
BODIES = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.5,
    },
    "publish_rate": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 1000},
    "dispatch_rate": RATE,
    "subscription_dispatch_rate": RATE,
    "replicator_dispatch_rate": RATE,
    "subscribe_rate": {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10},
    "auto_topic_creation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "auto_subscription_creation": {"allowAutoSubscriptionCreation": True},
    "delayed_delivery": {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 60_000},
    "inactive_topic": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 3000,
        "deleteWhileInactive": True,
    },
    "subscription_types": ["Exclusive", "Shared"],
    "schema_compatibility": "BACKWARD",
    "schema_auto_update": "Backward",
    "subscription_auth_mode": "Prefix",
    "replication_clusters": ["standalone"],
    "replicated_to": ["standalone"],
    "allowed_clusters": ["standalone"],
    "anti_affinity_group": "group",
    "bookie_affinity": {"bookkeeperAffinityGroupPrimary": "a"},
    "entry_filters": {"entryFilterNames": "a,b"},
    "auto_scale": {"enabled": False, "maxSegments": 8, "splitMsgRateInThreshold": 20_000.0},
    "offload": {"managedLedgerOffloadDriver": "aws-s3"},
    "shadow_topics": ["persistent://acme/shop/shadow"],
}
SWITCHES = frozenset(
    {
        "deduplication",
        "encryption_required",
        "entry_metadata",
        "schema_validation_enforced",
        "allows_schema_update",
        "dispatcher_pauses",
    }
)
TEXTS = frozenset({"anti_affinity_group"})


def body_of(field: str) -> object:
    """A value that the policy may have."""
    return BODIES.get(field, False if field in SWITCHES else 1_000_000)


def wrong_of(field: str) -> tuple[str | None, object, int]:
    """A value that it may not have."""
    if field in TEXTS:
        return None, "", 412
    return None, 5 if isinstance(body_of(field), dict | list) else {"x": []}, 400


POLICIES_OF_NAMESPACES = tuple(
    row
    for policy in POLICIES
    if policy.namespace
    for path, missing in [(f"{NS}/{policy.namespace}", f"{NO_NS}/{policy.namespace}")]
    for verb in [policy.namespace_verb]
    for row in (
        Row(
            verb,
            path,
            body_of(policy.field),
            204,
            wrong_of(policy.field),
            (missing, 404),
        ),
        Row("GET", path, None, 200, None, (missing, 404)),
        *(
            [
                Row(
                    "DELETE",
                    path.replace("offloadPolicies", "removeOffloadPolicies"),
                    None,
                    204,
                    None,
                    (missing.replace("offloadPolicies", "removeOffloadPolicies"), 404),
                )
            ]
            if policy.can_remove
            else []
        ),
    )
)
