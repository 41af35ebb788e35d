"""Every route of the HTTP interface, asked by everybody: nobody reaches another tenant's things."""

import http.client
import re
from typing import Any

import pytest

from tests.integration.broker.security.secured import Secured, bearer, token_for
from tests.processes import HOST

OPEN = {
    ("GET", "/health"),
    ("GET", "/status.html"),
    # Whose transaction it is, and on which topics, is told to those who may look these up.
    ("GET", "/admin/v3/transactions/transactionMetadata/1/1"),
    ("GET", "/admin/v2/clusters"),
    ("GET", "/admin/v2/brokers/ready"),
    ("GET", "/admin/v2/brokers/version"),
    # Topics are in the body: the right to each of them is checked, see below.
    ("POST", "/magnetar/v1/topics/internalStats"),
    ("POST", "/magnetar/v1/topics/schemas"),
    ("POST", "/magnetar/v1/topics/messageIds"),
    ("POST", "/magnetar/v1/topics/subscriptions"),
}
"""For everybody who has proven who they are; the first two for all: load balancers ask for them."""

PARAMETERS = {
    "tenant": "acme",
    "namespace": "ns",
    "domain": "persistent",
    "topic": "secret",
    "topic_name": "secret",
    "encoded_topic": "secret",
    "subscription": "s",
    "sub": "s",
    "cluster": "standalone",
    "role": "other-admin",
    "bundle": "0x00000000_0x40000000",
}

Route = tuple[str, str]


def routes_of(server: Secured, tenant: str) -> list[Route]:
    """All of them, with the names of a tenant in their paths."""
    status, description = server.as_role("root", "GET", "/openapi.json")
    assert status == 200, description
    found: list[Route] = []
    for template, methods in description["paths"].items():
        path = template.replace(":path}", "}")
        for part in path.split("/"):
            if part.startswith("{"):
                name = part.strip("{}")
                path = path.replace(part, {**PARAMETERS, "tenant": tenant}.get(name, "1"))
        found += [(method.upper(), path) for method in methods]
    assert len(found) > 500
    return found


@pytest.fixture(scope="module")
def routes(server: Secured) -> list[Route]:
    return routes_of(server, "acme")


def statuses(server: Secured, routes: list[Route], headers: dict[str, str]) -> dict[Route, int]:
    """All over one connection, which a refusal must not break."""
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=30)
    found: dict[Route, int] = {}
    given = {"Content-Type": "application/json", **headers}
    try:
        for method, path in routes:
            body = "{}" if method in ("POST", "PUT") else None
            connection.request(method, path, body=body, headers=given)
            response = connection.getresponse()
            response.read()
            found[method, path] = response.status
    finally:
        connection.close()
    return found


def test_another_tenants_administrator_gets_403_from_every_route(
    server: Secured, routes: list[Route]
) -> None:
    got = statuses(server, routes, bearer(token_for("other-admin")))
    let_in = {route: status for route, status in got.items() if status != 403}
    assert let_in.keys() <= OPEN, let_in


def test_who_proves_nothing_gets_401_from_every_route(server: Secured, routes: list[Route]) -> None:
    got = statuses(server, routes, {})
    let_in = {route for route, status in got.items() if status != 401}
    assert let_in == {("GET", "/health"), ("GET", "/status.html")}
    assert let_in <= set(routes)
    for headers in (bearer("wrong"), bearer(token_for("root", exp=1)), {"Authorization": "?"}):
        assert server.ask("GET", "/admin/v2/tenants", headers=headers)[0] == 401


def grant(server: Secured, role: str, *actions: str) -> None:
    path = f"/admin/v2/namespaces/acme/ns/permissions/{role}"
    status, answer = server.as_role("acme-admin", "POST", path, list(actions))
    assert status == 204, answer


TOPIC = "/admin/v2/persistent/acme/ns/table"

CLIENTS = "/magnetar/v1/topics/persistent/acme/ns/table"

TABLE: dict[tuple[str, str, Any], set[str]] = {
    ("GET", "/lookup/v2/topic/persistent/acme/ns/table", None): {"admin", "writer", "reader"},
    ("GET", f"{TOPIC}/stats", None): {"admin", "writer", "reader"},
    ("GET", f"{TOPIC}/partitions", None): {"admin", "writer", "reader"},
    ("GET", f"{TOPIC}/subscriptions", None): {"admin", "reader"},
    ("GET", f"{TOPIC}/subscription/s/position/1", None): {"admin", "reader"},
    ("POST", f"{TOPIC}/subscription/s/skip_all", None): {"admin", "reader"},
    ("POST", f"{TOPIC}/subscription/owned/skip_all", None): {"admin"},
    ("GET", "/admin/v2/persistent/acme/ns", None): {"admin", "reader"},
    ("PUT", f"{TOPIC}/unload", None): {"admin"},
    ("GET", f"{TOPIC}/permissions", None): {"admin"},
    ("GET", "/admin/v2/namespaces/acme/ns", None): {"admin"},
    ("GET", "/admin/v2/namespaces/acme", None): {"admin"},
    ("POST", "/admin/v2/namespaces/acme/ns/messageTTL", 60): {"admin"},
    ("PUT", "/admin/v2/namespaces/acme/new", None): {"admin"},
    ("DELETE", "/admin/v2/namespaces/acme/new", None): {"admin"},
    ("GET", "/magnetar/v1/namespaces/acme/ns/topics", None): {"admin"},
    ("GET", f"{TOPIC}/history", None): {"admin", "writer", "reader"},
    ("GET", "/magnetar/v1/attention", None): set(),
    ("GET", "/magnetar/v1/bookies/disks", None): set(),
    ("GET", "/magnetar/v1/metadata", None): set(),
    ("POST", f"{CLIENTS}/consumers/disconnect", None): {"admin"},
    ("POST", f"{CLIENTS}/producers/disconnect", None): {"admin"},
    ("GET", "/admin/v2/scalable/acme/ns", None): {"admin", "reader"},
    ("GET", "/admin/v2/scalable/acme/ns/table", None): {"admin", "writer", "reader"},
    ("PUT", "/admin/v2/scalable/acme/ns/made", None): {"admin"},
    ("POST", "/admin/v2/scalable/acme/ns/made/split/0", None): set(),
    ("POST", "/admin/v2/scalable/acme/ns/made/rebucket/0?bucketCount=2", None): set(),
    ("POST", "/admin/v2/scalable/acme/ns/made/autoScalePolicy", None): {"admin"},
    ("POST", "/admin/v2/scalable/acme/ns/table/migrate", None): {"admin"},
    ("GET", "/admin/v2/tenants", None): set(),
    ("DELETE", "/admin/v2/tenants/acme", None): set(),
    ("GET", "/admin/v2/brokers", None): set(),
    ("GET", "/metrics", None): set(),
}
"""Roles that may send each request, beside super users."""


_T = r"/admin/v2/(non-)?persistent/acme/ns"
_NAME = rf"{_T}/secret"
_STATS = "(partitions|stats|partitioned-stats|internalStats|partitioned-internalStats|history)"
_SCHEMA = "/admin/v2/schemas/acme/ns/secret"
_WHO_USES_IT = (
    rf"GET /lookup/v2/topic/persistent/acme/ns/secret(/bundle)?|GET {_NAME}/{_STATS}"
    rf"|GET {_SCHEMA}/(schema|schema/1|schemas|metadata)|POST {_SCHEMA}/(compatibility|version)"
    r"|GET /admin/v2/scalable/acme/ns/secret(/stats)?"
)
ALL_ROUTES = {
    "writer": rf"{_WHO_USES_IT}|POST {_SCHEMA}/schema",
    "reader": (
        rf"{_WHO_USES_IT}|GET {_T}(/partitioned|/0x00000000_0x40000000)?"
        r"|GET /admin/v2/namespaces/acme/ns/topics|GET /admin/v2/scalable/acme/ns"
        rf"|GET {_NAME}/(subscriptions|lastMessageId|getMessageIdByIndex|examinemessage|backlog)"
        rf"|GET {_NAME}/(messageid/1|ledger/1/entry/1)|PUT {_NAME}/backlogSize"
        rf"|(GET|PUT|POST|DELETE) {_NAME}/subscription/s(/.*)?"
        r"|(PUT|POST|DELETE) /admin/v2/scalable/acme/ns/secret/subscriptions/[^/]+(/.*)?"
    ),
    "one-topic": rf"{_WHO_USES_IT}|POST {_SCHEMA}/schema",
}
"""Every route there is, and the ones among them that a role reaches; all others it does not."""


@pytest.mark.parametrize("role", ALL_ROUTES)
def test_of_all_routes_a_role_reaches_those_of_its_rights_and_no_other(
    server: Secured, routes: list[Route], role: str
) -> None:
    grant(server, "writer", "produce")
    grant(server, "reader", "consume")
    path = "/admin/v2/persistent/acme/ns/secret/permissions/one-topic"
    for each in (path, path.replace("persistent", "non-persistent")):
        assert server.as_role("acme-admin", "POST", each, ["produce"])[0] == 204
    got = statuses(server, routes, bearer(token_for(role)))
    wrong = {
        (method, path): status
        for (method, path), status in got.items()
        if (method, path) not in OPEN
        and (status != 403) != bool(re.fullmatch(ALL_ROUTES[role], f"{method} {path}"))
    }
    assert wrong == {}
    assert any(status < 300 for status in got.values())


OF_THE_CLUSTER = (
    r".* /admin/v2/(clusters|brokers|broker-stats|bookies|resource-quotas|resourcegroups)(/.*)?"
    r"|.* /admin/v2/(worker|proxy-stats|functions)(/.*)?|.* /admin/v3/.*"
    r"|GET /admin/v2/tenants|(PUT|POST|DELETE) /admin/v2/tenants/.*"
    r"|GET /metrics|GET /magnetar/v1/(brokers|bookies(/disks)?|metadata|slow|attention|history)"
    # What moves load between brokers, or chooses machines.
    r"|.* /admin/v2/namespaces/own/ns/0x\w+(/unload|/split|/topicHashPositions)?"
    r"|GET /admin/namespaces/standalone/antiAffinity/.*"
    r"|(POST|DELETE) /admin/v2/namespaces/own/ns/(persistence/bookieAffinity|resourcegroup.*)"
    r"|POST /admin/v2/namespaces/own/ns/migration"
    r"|.* /admin/v2/segments/.*|POST /admin/v2/scalable/own/ns/secret/(split|merge|rebucket)/.*"
)


def test_an_administrator_reaches_all_of_a_tenant_and_nothing_of_the_cluster(
    server: Secured,
) -> None:
    server.make_tenant("own", "own-admin")
    got = statuses(server, routes_of(server, "own"), bearer(token_for("own-admin")))
    wrong = {
        (method, path): status
        for (method, path), status in got.items()
        if (method, path) not in OPEN
        and (status == 403) != bool(re.fullmatch(OF_THE_CLUSTER, f"{method} {path}"))
    }
    assert wrong == {}


def test_each_role_reaches_what_it_was_granted_and_nothing_else(server: Secured) -> None:
    grant(server, "writer", "produce")
    grant(server, "reader", "consume")
    owned = "/admin/v2/namespaces/acme/ns/permissions/subscription/owned"
    assert server.as_role("acme-admin", "POST", owned, ["somebody"])[0] == 204
    assert server.as_role("acme-admin", "PUT", TOPIC)[0] == 204
    for subscription in ("s", "owned"):
        path = f"{TOPIC}/subscription/{subscription}"
        assert server.as_role("acme-admin", "PUT", path)[0] == 204
    roles = {"admin": "acme-admin", "writer": "writer", "reader": "reader", "other": "other-admin"}
    for (method, path, body), allowed in TABLE.items():
        for name, role in roles.items():
            status, answer = server.as_role(role, method, path, body)
            assert (status == 403) == (name not in allowed), (role, method, path, answer)


def test_subscriptions_can_be_kept_for_roles_that_their_names_begin_with(server: Secured) -> None:
    grant(server, "reader", "consume")
    assert server.as_role("acme-admin", "PUT", TOPIC)[0] in (204, 409)
    mode = "/admin/v2/namespaces/acme/ns/subscriptionAuthMode"
    assert server.as_role("acme-admin", "POST", mode, "Prefix")[0] == 204
    try:
        for name, status in (("somebody-1", 403), ("reader-1", 204)):
            path = f"{TOPIC}/subscription/{name}"
            got, answer = server.as_role("reader", "PUT", path)
            assert got == status, (name, answer)
        assert server.as_role("acme-admin", "PUT", f"{TOPIC}/subscription/any")[0] == 204
    finally:
        assert server.as_role("acme-admin", "POST", mode, "None")[0] == 204
    assert server.as_role("reader", "PUT", f"{TOPIC}/subscription/somebody-1")[0] == 204


def test_a_refusal_says_which_right_is_missing(server: Secured) -> None:
    status, answer = server.as_role("other-admin", "GET", "/admin/v2/namespaces/acme/ns")
    assert status == 403
    assert "an administrator of tenant acme" in answer["reason"]


def test_a_certificate_and_a_password_work_over_https(server: Secured) -> None:
    certificate = server.authority.issue("acme-admin", file="https")
    path = "/admin/v2/namespaces/acme"
    assert server.ask("GET", path, over_tls=True, certificate=certificate)[0] == 200
    assert server.ask("GET", path, over_tls=True)[0] == 401


def test_a_proxy_needs_a_principal_and_both_need_the_right(server: Secured) -> None:
    grant(server, "reader", "consume")
    proxied = {**bearer(token_for("proxy")), "X-Original-Principal": "reader"}
    path = "/admin/v2/persistent/acme/ns"
    assert server.ask("GET", path, headers=proxied)[0] == 403
    grant(server, "proxy", "consume")
    assert server.ask("GET", path, headers=proxied)[0] == 200
    assert server.ask("GET", path, headers=bearer(token_for("proxy")))[0] == 401
    as_root = {**bearer(token_for("other-admin")), "X-Original-Principal": "root"}
    assert server.ask("GET", path, headers=as_root)[0] == 401


MANY: dict[str, dict[str, Any]] = {
    "internalStats": {"topics": ["TOPIC"]},
    "schemas": {"topics": ["TOPIC"]},
    "messageIds": {"topics": ["TOPIC"], "timeMs": 0},
    "subscriptions": {"subscription": "s", "action": "move", "topics": {"TOPIC": None}},
}


@pytest.mark.parametrize("what", MANY)
def test_of_many_topics_a_role_reaches_those_of_its_rights_and_no_other(
    server: Secured, what: str
) -> None:
    grant(server, "reader", "consume")
    mine, other = "persistent://acme/ns/secret", "persistent://acme/other/secret"
    server.as_role("acme-admin", "PUT", "/admin/v2/namespaces/acme/other")
    body = MANY[what]
    names: Any = [mine, other] if isinstance(body["topics"], list) else {mine: None, other: None}
    path = f"/magnetar/v1/topics/{what}"
    for role, refused in (("reader", {other}), ("other-admin", {mine, other}), ("root", set())):
        status, answer = server.as_role(role, "POST", path, {**body, "topics": names})
        assert status == 200, answer
        forbidden = {name for name, each in answer["refused"].items() if each["status"] == 403}
        assert forbidden == refused, (role, answer)
