"""Endpoints of topics: life, messages, subscriptions, statistics, policies, schemas' neighbours."""

from magnetar.broker.policies.table import POLICIES
from tests.integration.broker.http.endpoints.rows import (
    BUNDLE,
    MISSING,
    NAMESPACE,
    NONE,
    NP,
    PARTED,
    PLAIN,
    Before,
    Row,
    T,
)
from tests.integration.broker.http.endpoints.upper import RATE, body_of, wrong_of

L = "/lookup/v2/topic/persistent"
LOOKUPS = (
    Row(
        "GET",
        f"{L}/{NAMESPACE}/plain",
        None,
        200,
        (f"/lookup/v2/topic/wrong/{NAMESPACE}/plain", None, 412),
        (f"{L}/acme/nowhere/plain", 404),
    ),
    Row(
        "GET",
        f"{L}/{NAMESPACE}/plain/bundle",
        None,
        200,
        None,
        (f"{L}/acme/nowhere/plain/bundle", 404),
    ),
)


def made(topic: str) -> tuple[Before, ...]:
    """A topic that is there for one row."""
    return (("PUT", f"{T}/{topic}", None),)


def parted(topic: str) -> tuple[Before, ...]:
    return (("PUT", f"{T}/{topic}/partitions", 2),)


LIFE = (
    Row("GET", T, None, 200, (f"{T}?bundle=x", None, 412), (NONE, 404)),
    Row("GET", f"{T}/partitioned", None, 200, None, (f"{NONE}/partitioned", 404)),
    Row(
        "PUT",
        f"{T}/fresh",
        {"k": "v"},
        204,
        (f"{T}/x-partition-0", None, 412),
        (f"{NONE}/fresh", 404),
    ),
    Row("PUT", PLAIN, None, 409),
    Row(
        "PUT",
        f"{T}/fresh-parted/partitions",
        2,
        204,
        (f"{T}/x/partitions", 0, 406),
        (f"{NONE}/x/partitions", 404),
    ),
    Row("PUT", f"{PARTED}/partitions", 2, 409, (f"{T}/x/partitions", "many", 400)),
    Row("GET", f"{PARTED}/partitions", None, 200, None, (f"{MISSING}/partitions", 404)),
    Row(
        "POST",
        f"{T}/grows/partitions",
        3,
        204,
        (f"{PARTED}/partitions", 1, 422),
        (f"{MISSING}/partitions", 404),
        parted("grows"),
    ),
    Row("POST", f"{PLAIN}/partitions", 3, 409),
    Row(
        "DELETE",
        f"{T}/gone/partitions",
        None,
        204,
        (f"{PLAIN}/partitions", None, 409),
        (f"{MISSING}/partitions", 404),
        parted("gone"),
    ),
    Row(
        "POST",
        f"{PARTED}/createMissedPartitions",
        None,
        204,
        None,
        (f"{MISSING}/createMissedPartitions", 404),
    ),
    Row(
        "DELETE",
        f"{T}/gone-plain",
        None,
        204,
        (PARTED, None, 409),
        (MISSING, 404),
        made("gone-plain"),
    ),
    Row("DELETE", PLAIN, None, 412),
    Row("GET", f"{PLAIN}/properties", None, 200, None, (f"{MISSING}/properties", 404)),
    Row(
        "PUT",
        f"{PLAIN}/properties",
        {"a": "b"},
        204,
        (None, {"a": 1}, 400),
        (f"{MISSING}/properties", 404),
    ),
    Row(
        "DELETE",
        f"{PLAIN}/properties?key=a",
        None,
        204,
        (f"{PLAIN}/properties", None, 400),
        (f"{MISSING}/properties?key=a", 404),
    ),
    Row("PUT", f"{PLAIN}/unload", None, 204, None, (f"{MISSING}/unload", 404)),
    Row("DELETE", f"{T}/cut/truncate", None, 204, None, (f"{MISSING}/truncate", 404), made("cut")),
    Row(
        "POST",
        f"{T}/ended/terminate",
        None,
        200,
        (f"{PARTED}/terminate", None, 405),
        (f"{MISSING}/terminate", 404),
        made("ended"),
    ),
    Row(
        "POST",
        f"{T}/ended-parted/terminate/partitions",
        None,
        200,
        (f"{PLAIN}/terminate/partitions", None, 405),
        (f"{NONE}/x/terminate/partitions", 404),
        parted("ended-parted"),
    ),
    Row(
        "PUT",
        f"{T}/compacted/compaction",
        None,
        204,
        None,
        (f"{MISSING}/compaction", 404),
        made("compacted"),
    ),
    Row("GET", f"{PLAIN}/compaction", None, 200, None, (f"{MISSING}/compaction", 404)),
    Row(
        "PUT",
        f"{PLAIN}/offload",
        {"ledgerId": 1, "entryId": 1},
        412,
        (None, {}, 400),
        (f"{MISSING}/offload", 404),
    ),
    Row("GET", f"{PLAIN}/offload", None, 200, None, (f"{MISSING}/offload", 404)),
    Row("POST", f"{PLAIN}/trim", None, 204, None, (f"{MISSING}/trim", 404)),
    Row("GET", f"{PLAIN}/permissions", None, 200, None, (f"{NONE}/x/permissions", 404)),
    Row(
        "POST",
        f"{PLAIN}/permissions/r",
        ["produce"],
        204,
        (None, ["fly"], 400),
        (f"{NONE}/x/permissions/r", 404),
    ),
    Row(
        "DELETE",
        f"{PLAIN}/permissions/r",
        None,
        204,
        None,
        (f"{PLAIN}/permissions/no", 404),
        (("POST", f"{PLAIN}/permissions/r", ["produce"]),),
    ),
)

MESSAGES = (
    Row(
        "GET",
        f"{PLAIN}/lastMessageId",
        None,
        200,
        (f"{PARTED}/lastMessageId", None, 405),
        (f"{MISSING}/lastMessageId", 404),
    ),
    Row(
        "GET",
        f"{PLAIN}/messageid/0",
        None,
        200,
        (f"{PLAIN}/messageid/then", None, 400),
        (f"{MISSING}/messageid/0", 404),
    ),
    Row(
        "GET",
        f"{PLAIN}/getMessageIdByIndex?index=1",
        None,
        412,
        (f"{PLAIN}/getMessageIdByIndex", None, 400),
        (f"{MISSING}/getMessageIdByIndex?index=1", 404),
    ),
    Row(
        "GET",
        f"{PLAIN}/ledger/{{ledger}}/entry/{{entry}}",
        None,
        200,
        (f"{PLAIN}/ledger/one/entry/0", None, 400),
        (f"{PLAIN}/ledger/{{ledger}}/entry/99", 404),
    ),
    Row(
        "GET",
        f"{PLAIN}/examinemessage?initialPosition=earliest&messagePosition=2",
        None,
        200,
        (f"{PLAIN}/examinemessage?initialPosition=middle", None, 400),
        (f"{MISSING}/examinemessage", 404),
    ),
    Row("GET", f"{PLAIN}/examinemessage?messagePosition=99", None, 412),
    Row(
        "PUT",
        f"{PLAIN}/backlogSize",
        {"ledgerId": -1, "entryId": -1},
        200,
        (None, {}, 400),
        (f"{MISSING}/backlogSize", 404),
    ),
    Row(
        "GET",
        f"{PLAIN}/backlog",
        None,
        200,
        (f"{PARTED}/backlog", None, 405),
        (f"{MISSING}/backlog", 404),
    ),
)

STATISTICS = (
    Row(
        "GET",
        f"{PLAIN}/stats?getEarliestTimeInBacklog=true",
        None,
        200,
        (f"{PLAIN}/stats?getPreciseBacklog=x", None, 400),
        (f"{MISSING}/stats", 404),
    ),
    Row("GET", f"{PARTED}/partitioned-stats", None, 200, None, (f"{PLAIN}/partitioned-stats", 404)),
    Row("GET", f"{PARTED}/history", None, 200, None, (f"{MISSING}/history", 404)),
    Row("GET", f"{PLAIN}/history", None, 200, None, (f"{MISSING}/history", 404)),
    Row("GET", f"{PLAIN}/internalStats", None, 200, None, (f"{PARTED}/internalStats", 404)),
    Row(
        "GET",
        f"{PARTED}/partitioned-internalStats",
        None,
        200,
        None,
        (f"{MISSING}/partitioned-internalStats", 404),
    ),
    Row("GET", f"{PLAIN}/internal-info", None, 200, None, (f"{MISSING}/internal-info", 404)),
    Row("GET", f"{PARTED}/internal-info", None, 200, None, (f"{NONE}/x/internal-info", 404)),
)

S = f"{PLAIN}/subscription/s"
NO_S = f"{PLAIN}/subscription/missing"
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1}
SUBSCRIPTIONS = (
    Row("GET", f"{PLAIN}/subscriptions", None, 200, None, (f"{MISSING}/subscriptions", 404)),
    Row(
        "PUT",
        f"{PLAIN}/subscription/made",
        None,
        204,
        (f"{PLAIN}/subscription/bad", {"ledgerId": "x", "entryId": 1}, 400),
        (f"{NONE}/x/subscription/s", 404),
    ),
    Row("PUT", S, None, 409),
    Row(
        "DELETE",
        f"{PLAIN}/subscription/gone",
        None,
        204,
        None,
        (NO_S, 404),
        (("PUT", f"{PLAIN}/subscription/gone", None),),
    ),
    Row(
        "GET",
        f"{S}/position/1",
        None,
        200,
        (f"{S}/position/first", None, 400),
        (f"{S}/position/99", 404),
    ),
    Row(
        "POST",
        f"{S}/skip/1",
        None,
        204,
        (f"{PARTED}/subscription/s/skip/1", None, 405),
        (f"{NO_S}/skip/1", 404),
    ),
    Row(
        "POST",
        f"{S}/analyzeBacklog",
        None,
        200,
        (None, {"ledgerId": "x"}, 400),
        (f"{NO_S}/analyzeBacklog", 404),
    ),
    Row(
        "POST",
        f"{S}/expireMessages/100000",
        None,
        204,
        (f"{S}/expireMessages/0", None, 412),
        (f"{NO_S}/expireMessages/5", 404),
    ),
    Row(
        "POST",
        f"{S}/expireMessages",
        EARLIEST,
        204,
        (None, {}, 400),
        (f"{NO_S}/expireMessages", 404),
    ),
    Row(
        "POST",
        f"{PLAIN}/all_subscription/expireMessages/100000",
        None,
        204,
        (f"{PLAIN}/all_subscription/expireMessages/-1", None, 412),
        (f"{MISSING}/all_subscription/expireMessages/5", 404),
    ),
    Row("POST", f"{S}/skip_all", None, 204, None, (f"{NO_S}/skip_all", 404)),
    Row("POST", f"{S}/skipUnreadable", None, 412, None, (f"{NO_S}/skipUnreadable", 404)),
    Row(
        "POST",
        f"{S}/resetcursor/0",
        None,
        204,
        (f"{S}/resetcursor/then", None, 400),
        (f"{NO_S}/resetcursor/0", 404),
    ),
    Row(
        "POST",
        f"{S}/resetcursor",
        EARLIEST,
        204,
        (f"{PARTED}/subscription/s/resetcursor", EARLIEST, 405),
        (f"{NO_S}/resetcursor", 404),
    ),
    Row("GET", f"{S}/properties", None, 200, None, (f"{NO_S}/properties", 404)),
    Row(
        "PUT",
        f"{S}/properties",
        {"a": "b"},
        204,
        (None, {"a": 1}, 400),
        (f"{NO_S}/properties", 404),
    ),
    Row(
        "GET",
        f"{S}/replicatedSubscriptionStatus",
        None,
        200,
        None,
        (f"{NO_S}/replicatedSubscriptionStatus", 404),
    ),
    Row(
        "POST",
        f"{S}/replicatedSubscriptionStatus",
        True,
        204,
        (None, "maybe", 400),
        (f"{NO_S}/replicatedSubscriptionStatus", 404),
    ),
)

HAVE: tuple[Before, ...] = (("PUT", f"{NP}/np", None),)
NON_PERSISTENT = (
    Row("GET", NP, None, 200, None, ("/admin/v2/non-persistent/acme/nowhere", 404)),
    Row(
        "GET",
        f"{NP}/{BUNDLE}",
        None,
        200,
        (f"{NP}/x_y", None, 412),
        (f"/admin/v2/non-persistent/acme/nowhere/{BUNDLE}", 404),
    ),
    Row(
        "PUT",
        f"{NP}/made",
        None,
        204,
        (f"{NP}/x-partition-1", None, 412),
        ("/admin/v2/non-persistent/acme/nowhere/x", 404),
    ),
    Row("GET", f"{NP}/np/stats", None, 200, None, (f"{NP}/missing/stats", 404), HAVE),
    Row(
        "GET", f"{NP}/np/internalStats", None, 200, None, (f"{NP}/missing/internalStats", 404), HAVE
    ),
    Row(
        "GET", f"{NP}/np/subscriptions", None, 200, None, (f"{NP}/missing/subscriptions", 404), HAVE
    ),
    Row("PUT", f"{NP}/np/unload", None, 204, None, (f"{NP}/missing/unload", 404), HAVE),
    Row("DELETE", f"{NP}/np", None, 204, None, (f"{NP}/missing", 404), HAVE),
    Row(
        "PUT",
        f"{NP}/parted/partitions",
        2,
        204,
        (f"{NP}/x/partitions", 0, 406),
        ("/admin/v2/non-persistent/acme/nowhere/x/partitions", 404),
    ),
    Row("GET", f"{NP}/parted/partitions", None, 200, None, (f"{NP}/missing/partitions", 404)),
    Row(
        "GET",
        f"{NP}/parted/partitioned-stats",
        None,
        200,
        None,
        (f"{NP}/missing/partitioned-stats", 404),
    ),
    Row("GET", f"{NP}/parted/history", None, 200, None, (f"{NP}/missing/history", 404)),
    Row("DELETE", f"{NP}/parted/partitions", None, 204, None, (f"{NP}/missing/partitions", 404)),
    Row("DELETE", f"{NP}/np/truncate", None, 412),
    Row("POST", f"{NP}/np/subscription/s/skip_all", None, 405),
    Row("POST", f"{NP}/np/terminate", None, 405),
)

QUOTA = {"limitSize": 1 << 40, "policy": "producer_exception"}
POLICIES_OF_TOPICS = (
    *(
        row
        for policy in POLICIES
        if policy.topic
        for value in [body_of(policy.field)]
        for query in [f"?{policy.topic_query}={value}" if policy.topic_query else ""]
        for path, missing in [(f"{PLAIN}/{policy.topic}", f"{MISSING}/{policy.topic}")]
        for row in (
            Row(
                "POST",
                path + query,
                None if query else value,
                204,
                (f"{path}?{policy.topic_query}=x", None, 400) if query else wrong_of(policy.field),
                (missing + query, 404),
            ),
            Row("GET", path, None, 200, None, (missing, 404)),
            Row("DELETE", path, None, 204, None, (missing, 404)),
        )
    ),
    Row("GET", f"{PLAIN}/backlogQuotaMap", None, 200, None, (f"{MISSING}/backlogQuotaMap", 404)),
    Row(
        "POST",
        f"{PLAIN}/backlogQuota",
        QUOTA,
        204,
        (f"{PLAIN}/backlogQuota?backlogQuotaType=x", QUOTA, 412),
        (f"{MISSING}/backlogQuota", 404),
    ),
    Row("DELETE", f"{PLAIN}/backlogQuota", None, 204, None, (f"{MISSING}/backlogQuota", 404)),
    Row(
        "POST",
        f"{PLAIN}/s/dispatchRate",
        RATE,
        204,
        (None, {"ratePeriodInSecond": 0}, 412),
        (f"{MISSING}/s/dispatchRate", 404),
    ),
    Row("GET", f"{PLAIN}/s/dispatchRate", None, 200, None, (f"{MISSING}/s/dispatchRate", 404)),
    Row("DELETE", f"{PLAIN}/s/dispatchRate", None, 204, None, (f"{MISSING}/s/dispatchRate", 404)),
    Row("DELETE", f"{PLAIN}/policies", None, 204, None, (f"{MISSING}/policies", 404)),
)
