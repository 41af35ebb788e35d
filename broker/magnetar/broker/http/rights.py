"""The rights that requests over HTTP need. Pure.

One table covers all requests, by their paths as the router sees them. A request without a row is
for super users: a route that is forgotten here is closed, not open. Rows of requests that need no
right say so. Source: HTTP sheet, section 1; the rules of single actions are in
`security/decide.py`.
"""

from collections.abc import Mapping, Sequence

from magnetar.broker.features.transactions.ids import is_coordinator
from magnetar.broker.security import (
    Action,
    Cluster,
    Namespace,
    Resource,
    Subscription,
    Tenant,
    Topic,
)
from magnetar.sdk.wire import TopicName, TopicNameError, parse_topic_name

Need = tuple[Action, Resource]

_DOMAINS = ("persistent", "non-persistent")
_OPEN = (
    ("GET", "/status.html"),
    ("GET", "/admin/v2/clusters"),
    ("GET", "/admin/v2/brokers/ready"),
    ("GET", "/admin/v2/brokers/version"),
)
_LOOKED_UP = frozenset(
    {
        "partitions",
        "stats",
        "partitioned-stats",
        "internalStats",
        "partitioned-internalStats",
        "history",
    }
)
"""Paths below a topic that need LOOKUP."""
_CONSUMED = frozenset(
    {
        "subscriptions",
        "lastMessageId",
        "messageid",
        "getMessageIdByIndex",
        "ledger",
        "examinemessage",
        "backlog",
        "backlogSize",
    }
)
"""Paths below a topic that need CONSUME."""

_MANAGED = frozenset({"autoScalePolicy", "migrate", "permissions"})
"""Paths below a scalable topic that need ADMINISTER."""

_EVERYTHING: Need = (Action.ADMINISTER, Cluster())


def need_of(method: str, path: str, parameters: Mapping[str, str]) -> Need | None:
    """Return the action that a request needs, and its resource; None if it needs no right.
    `parameters`: the names in the path."""
    if (method, path.rstrip("/")) in _OPEN:
        return None
    match path.strip("/").split("/"):
        # Any client may have transactions; the rights to their contents are checked.
        case ["lookup", "v2", "topic", *name] if _is_coordinator(name):
            return None
        case ["admin", "v2", *name, "partitions"] if method == "GET" and _is_coordinator(name):
            return None
        case ["admin", "v3", "transactions", "transactionMetadata", _, _]:
            return None  # The route shows each role what it may see.
        case ["lookup", "v2", "topic", domain, tenant, namespace, *rest] if rest:
            return _of_name(domain, tenant, namespace, rest[0], Action.LOOKUP)
        case ["admin", "v2", "tenants", tenant] if method == "GET":
            return Action.ADMINISTER, Tenant(tenant)
        case ["admin", "v2", "namespaces", tenant] | ["admin", "namespaces", tenant, _]:
            return Action.ADMINISTER, Tenant(tenant)
        case ["admin", "v2", "namespaces", tenant, namespace, *rest]:
            return _of_namespace(method, tenant, f"{tenant}/{namespace}", rest)
        case ["magnetar", "v1", "namespaces", tenant, namespace, "bundles" | "topics"]:
            return Action.ADMINISTER, Namespace(f"{tenant}/{namespace}")
        case ["magnetar", "v1", "topics", _] if method == "POST":
            return None  # The routes check the right to each topic in the body.
        case ["magnetar", "v1", "topics", domain, tenant, namespace, topic, *_]:
            return _of_name(domain, tenant, namespace, topic, Action.ADMINISTER)
        case ["admin", "v2", "schemas", tenant, namespace, topic, *rest]:
            return _of_schema(method, tenant, namespace, topic, rest)
        case ["admin", "v2", "scalable", tenant, namespace] if method == "GET":
            return Action.LIST_TOPICS, Namespace(f"{tenant}/{namespace}")
        case ["admin", "v2", "scalable", tenant, namespace, topic] if method != "GET":
            return _of_name("persistent", tenant, namespace, topic, Action.ADMINISTER)
        case ["admin", "v2", "scalable", tenant, namespace, topic, "subscriptions", *_]:
            whole = _named("persistent", tenant, namespace, topic)
            if whole is not None and "subscription" in parameters:
                return Action.CONSUME, Subscription(whole, parameters["subscription"])
        case ["admin", "v2", "scalable", tenant, namespace, topic, what, *_] if what in _MANAGED:
            return _of_name("persistent", tenant, namespace, topic, Action.ADMINISTER)
        case ["admin", "v2", "scalable", tenant, namespace, topic, *rest] if rest in (
            [],
            ["stats"],
        ):
            return _of_name("persistent", tenant, namespace, topic, Action.LOOKUP)
        case ["admin", "v2", domain, tenant, namespace, *rest] if domain in _DOMAINS:
            return _of_topics(method, (domain, tenant, namespace), rest, parameters)
    return _EVERYTHING


def _of_namespace(method: str, tenant: str, namespace: str, rest: Sequence[str]) -> Need:
    match rest:
        case [] if method != "GET":
            return Action.ADMINISTER, Tenant(tenant)
        case ["topics"]:
            return Action.LIST_TOPICS, Namespace(namespace)
        case ["persistence", "bookieAffinity"] | ["resourcegroup", *_] | ["migration"] if (
            method != "GET"
        ):
            return _EVERYTHING
        case [bundle, *action] if bundle.startswith("0x") and action[:1] != ["clearBacklog"]:
            return _EVERYTHING
    return Action.ADMINISTER, Namespace(namespace)


def _of_topics(
    method: str,
    place: tuple[str, str, str],
    rest: Sequence[str],
    parameters: Mapping[str, str],
) -> Need:
    domain, tenant, namespace = place
    match rest:
        case [] | ["partitioned"]:
            return Action.LIST_TOPICS, Namespace(f"{tenant}/{namespace}")
        case [topic, "subscription", *_] if "sub" in parameters:
            name = _named(domain, tenant, namespace, topic)
            if name is not None:
                return Action.CONSUME, Subscription(name, parameters["sub"])
        case [topic, _, "dispatchRate"]:  # Of a subscription with any name.
            return _of_name(domain, tenant, namespace, topic, Action.ADMINISTER)
        case [topic, what, *_] if what in _LOOKED_UP and method == "GET":
            return _of_name(domain, tenant, namespace, topic, Action.LOOKUP)
        case [topic, what, *_] if what in _CONSUMED:
            return _of_name(domain, tenant, namespace, topic, Action.CONSUME)
        case [bundle] if bundle.startswith("0x") and method == "GET":
            return Action.LIST_TOPICS, Namespace(f"{tenant}/{namespace}")
    return _of_name(domain, tenant, namespace, rest[0], Action.ADMINISTER)


def _of_schema(method: str, tenant: str, namespace: str, topic: str, rest: Sequence[str]) -> Need:
    action = Action.ADMINISTER
    if method == "GET" or rest in (["compatibility"], ["version"]):
        action = Action.LOOKUP
    elif method == "POST":
        action = Action.PRODUCE
    return _of_name("persistent", tenant, namespace, topic, action)


def _of_name(domain: str, tenant: str, namespace: str, topic: str, action: Action) -> Need:
    name = _named(domain, tenant, namespace, topic)
    if name is None:  # Not a valid topic name: the route answers those who may know.
        return Action.ADMINISTER, Namespace(f"{tenant}/{namespace}")
    return action, Topic(name)


def _is_coordinator(parts: Sequence[str]) -> bool:
    """Whether these parts of a path name a coordinator's topic, or the topic of all
    coordinators."""
    if len(parts) != 4:
        return False
    name = _named(*parts)
    return name is not None and is_coordinator(name)


def _named(domain: str, tenant: str, namespace: str, topic: str) -> TopicName | None:
    try:
        return parse_topic_name(f"{domain}://{tenant}/{namespace}/{topic}")
    except TopicNameError:
        return None
