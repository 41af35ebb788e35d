"""Rights x actions: who may do what with what, as one table, tested whole."""

from dataclasses import replace

import pytest

from magnetar.broker.security.actions import (
    Action,
    Cluster,
    Namespace,
    Resource,
    Subscription,
    Tenant,
    Topic,
)
from magnetar.broker.security.decide import Denied, Grants, decide
from magnetar.sdk.wire import parse_topic_name

TOPIC = parse_topic_name("persistent://acme/orders/paid")
OTHER_TOPIC = parse_topic_name("persistent://acme/orders/late")
PARTITION = TOPIC.partition(3)
SEGMENT = TOPIC.segment(3, start=0, end=0xFFFF)

GRANTS = Grants(
    super_users=frozenset({"root"}),
    tenant_admins=frozenset({"acme-admin"}),
    namespace={"writer": ("produce",), "reader": ("consume",), "ops": ("functions", "packages")},
    topics={str(TOPIC): {"one-topic": ("produce", "consume")}},
    subscriptions={"audit": ("auditor", "reader")},
)
"""What counts for tenant acme; "stranger" is some other tenant's administrator."""

ROLES = ("root", "acme-admin", "writer", "reader", "ops", "one-topic", "auditor", "stranger", "")

RESOURCES: dict[str, Resource] = {
    "cluster": Cluster(),
    "tenant": Tenant("acme"),
    "namespace": Namespace("acme/orders"),
    "topic": Topic(TOPIC),
    "partition": Topic(PARTITION),
    "segment": Topic(SEGMENT),
    "other topic": Topic(OTHER_TOPIC),
    "subscription": Subscription(TOPIC, "mine"),
    "other topic's subscription": Subscription(OTHER_TOPIC, "mine"),
    "owned subscription": Subscription(OTHER_TOPIC, "audit"),
}

EVERYTHING = {(action, name) for action in Action for name in RESOURCES}
IN_THE_TENANT = {(action, name) for action, name in EVERYTHING if name != "cluster"}
TOPICS = ("topic", "partition", "segment", "other topic")

MAY: dict[str, set[tuple[Action, str]]] = {
    "root": EVERYTHING,
    "acme-admin": IN_THE_TENANT,
    "writer": {
        *((Action.PRODUCE, name) for name in (*TOPICS, "namespace")),
        *((Action.LOOKUP, name) for name in TOPICS),
        *(
            (action, name)
            for action in (Action.PRODUCE, Action.LOOKUP)
            for name in ("subscription", "other topic's subscription")
        ),
    },
    "reader": {
        *((Action.CONSUME, name) for name in (*TOPICS, "namespace")),
        *((Action.LOOKUP, name) for name in TOPICS),
        (Action.LIST_TOPICS, "namespace"),
        *(
            (action, name)
            for action in (Action.CONSUME, Action.LOOKUP)
            for name in (
                "subscription",
                "other topic's subscription",
                "owned subscription",
            )
        ),
    },
    "ops": {
        (action, name)
        for action in (Action.FUNCTIONS, Action.PACKAGES)
        for name in (*TOPICS, "namespace", "subscription", "other topic's subscription")
    },
    "one-topic": {
        (action, name)
        for action in (Action.PRODUCE, Action.CONSUME, Action.LOOKUP)
        for name in ("topic", "partition", "segment", "subscription")
    },
    # A subscription of one's own is no right to consume.
    "auditor": set(),
    "stranger": set(),
    "": set(),
}


@pytest.mark.parametrize("role", ROLES)
def test_every_action_on_every_resource_is_decided_as_the_table_says(role: str) -> None:
    allowed = {
        (action, name)
        for action in Action
        for name, resource in RESOURCES.items()
        if decide(role, action, resource, GRANTS).is_allowed
    }
    assert allowed == MAY[role]


def test_where_names_begin_with_the_role_no_other_subscription_is_anybodys() -> None:
    """But for whoever administers the tenant."""
    grants = replace(GRANTS, wants_prefix=True)
    for name, allowed in {
        "reader-1": {"root", "acme-admin", "reader"},
        "reader": {"root", "acme-admin", "reader"},
        "mine": {"root", "acme-admin"},
        "audit": {"root", "acme-admin"},
        "one-topic.a": {"root", "acme-admin", "one-topic"},
    }.items():
        wanted = Subscription(TOPIC, name)
        found = {r for r in ROLES if decide(r, Action.CONSUME, wanted, grants).is_allowed}
        assert found == allowed, name
    assert decide("reader", Action.CONSUME, Topic(TOPIC), grants).is_allowed
    denied = decide("reader", Action.CONSUME, Subscription(TOPIC, "mine"), grants)
    assert isinstance(denied, Denied)
    assert "begin with the role" in denied.reason


def test_without_any_grant_nobody_may_do_anything() -> None:
    for role in ("", "anybody"):
        for action in Action:
            for resource in RESOURCES.values():
                assert not decide(role, action, resource, Grants()).is_allowed


def test_a_refusal_says_what_is_missing() -> None:
    denied = decide("writer", Action.CONSUME, Topic(TOPIC), GRANTS)
    assert isinstance(denied, Denied)
    assert denied.reason == f"role 'writer' may not consume from {TOPIC}"
    denied = decide("writer", Action.ADMINISTER, Namespace("acme/orders"), GRANTS)
    assert isinstance(denied, Denied)
    assert "an administrator of tenant acme" in denied.reason
