"""The right that a request takes: a row for each kind, and super users for what is in no row."""

import pytest

from magnetar.broker.http.rights import need_of
from magnetar.broker.security import Action, Cluster, Namespace, Subscription, Tenant, Topic
from magnetar.sdk.wire import parse_topic_name

NS = Namespace("t/n")
NAME = parse_topic_name("persistent://t/n/x")
TOPIC = Topic(NAME)
COORDINATORS_NAME = "persistent/pulsar/system/transaction_coordinator_assign"
COORDINATORS = f"/admin/v2/{COORDINATORS_NAME}"
COORDINATORS_TOPIC = Topic(parse_topic_name(COORDINATORS_NAME.replace("/", "://", 1)))
P = "/admin/v2/persistent/t/n"
CLIENTS = "/magnetar/v1/topics/persistent/t/n/x"


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/admin/v2/clusters", None),
        ("GET", "/admin/v2/clusters/c", (Action.ADMINISTER, Cluster())),
        ("GET", "/admin/v2/tenants", (Action.ADMINISTER, Cluster())),
        ("GET", "/admin/v2/tenants/t", (Action.ADMINISTER, Tenant("t"))),
        ("PUT", "/admin/v2/tenants/t", (Action.ADMINISTER, Cluster())),
        ("GET", "/admin/v2/namespaces/t", (Action.ADMINISTER, Tenant("t"))),
        ("GET", "/admin/namespaces/t/standalone", (Action.ADMINISTER, Tenant("t"))),
        ("PUT", "/admin/v2/namespaces/t/n", (Action.ADMINISTER, Tenant("t"))),
        ("GET", "/admin/v2/namespaces/t/n", (Action.ADMINISTER, NS)),
        ("GET", "/admin/v2/namespaces/t/n/topics", (Action.LIST_TOPICS, NS)),
        ("POST", "/admin/v2/namespaces/t/n/retention", (Action.ADMINISTER, NS)),
        ("POST", "/admin/v2/namespaces/t/n/permissions/r", (Action.ADMINISTER, NS)),
        ("PUT", "/admin/v2/namespaces/t/n/0x00_0x10/split", (Action.ADMINISTER, Cluster())),
        ("POST", "/admin/v2/namespaces/t/n/0x00_0x10/clearBacklog", (Action.ADMINISTER, NS)),
        ("GET", P, (Action.LIST_TOPICS, NS)),
        ("PUT", f"{P}/x", (Action.ADMINISTER, TOPIC)),
        ("GET", f"{P}/x/stats", (Action.LOOKUP, TOPIC)),
        ("GET", f"{P}/x/partitions", (Action.LOOKUP, TOPIC)),
        ("PUT", f"{P}/x/partitions", (Action.ADMINISTER, TOPIC)),
        ("GET", f"{P}/x/examinemessage", (Action.CONSUME, TOPIC)),
        ("GET", f"{P}/x/ledger/1/entry/2", (Action.CONSUME, TOPIC)),
        ("POST", f"{P}/x/subscription/s/skip_all", (Action.CONSUME, Subscription(NAME, "s"))),
        ("DELETE", f"{P}/x/truncate", (Action.ADMINISTER, TOPIC)),
        ("PUT", f"{P}/x/backlogSize", (Action.CONSUME, TOPIC)),
        # Of subscriptions that are called as something else that consumers may ask for.
        ("POST", f"{P}/x/ledger/dispatchRate", (Action.ADMINISTER, TOPIC)),
        ("GET", f"{P}/x/stats/dispatchRate", (Action.ADMINISTER, TOPIC)),
        ("GET", "/lookup/v2/topic/persistent/t/n/x", (Action.LOOKUP, TOPIC)),
        ("GET", "/admin/v2/schemas/t/n/x/schema", (Action.LOOKUP, TOPIC)),
        ("POST", "/admin/v2/schemas/t/n/x/schema", (Action.PRODUCE, TOPIC)),
        ("DELETE", "/admin/v2/schemas/t/n/x/schema", (Action.ADMINISTER, TOPIC)),
        ("POST", "/magnetar/v1/topics/schemas", None),
        ("GET", "/magnetar/v1/topics/schemas", (Action.ADMINISTER, Cluster())),
        ("GET", "/magnetar/v1/bookies/disks", (Action.ADMINISTER, Cluster())),
        ("GET", "/magnetar/v1/metadata", (Action.ADMINISTER, Cluster())),
        ("POST", f"{CLIENTS}/consumers/disconnect", (Action.ADMINISTER, TOPIC)),
        ("POST", f"{CLIENTS}/producers/disconnect", (Action.ADMINISTER, TOPIC)),
        ("POST", "/magnetar/v1/topics/odd/t/n/x/producers/disconnect", (Action.ADMINISTER, NS)),
        ("GET", f"{COORDINATORS}/partitions", None),
        ("PUT", f"{COORDINATORS}/partitions", (Action.ADMINISTER, COORDINATORS_TOPIC)),
        ("GET", f"{COORDINATORS}/stats", (Action.LOOKUP, COORDINATORS_TOPIC)),
        ("GET", f"/lookup/v2/topic/{COORDINATORS_NAME}-partition-0", None),
        ("GET", "/admin/v3/transactions/transactionMetadata/0/1", None),
        ("GET", "/admin/v3/transactions/coordinatorStats", (Action.ADMINISTER, Cluster())),
        ("GET", "/admin/v2/something/new", (Action.ADMINISTER, Cluster())),
        ("GET", "/anything", (Action.ADMINISTER, Cluster())),
    ],
)
def test_a_request_takes_its_right(method: str, path: str, need: object) -> None:
    parameters = {"sub": "s"} if "/subscription/" in path else {}
    assert need_of(method, path, parameters) == need


def test_a_name_that_is_none_is_for_administrators_of_its_namespace() -> None:
    assert need_of("GET", "/lookup/v2/topic/nonsense/t/n/x", {}) == (Action.ADMINISTER, NS)
