"""Every endpoint of the interface: asked rightly, wrongly, for what is not there, by nobody."""

import functools
import http.client
import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from magnetar.broker.policies.table import POLICIES
from tests.http_calls import Answer
from tests.integration.broker.http.endpoints import (
    scalable,
    schemas,
    topics,
    transactions,
    upper,
)
from tests.integration.broker.http.endpoints.rows import (
    NAMESPACE,
    NO_NS,
    NS,
    PARTED,
    PLAIN,
    Row,
    T,
)
from tests.processes import HOST
from tests.standalone import Standalone

TABLES = {
    "clusters": upper.CLUSTERS,
    "brokers": upper.BROKERS,
    "bookies": upper.BOOKIES,
    "tenants": upper.TENANTS,
    "namespaces": upper.NAMESPACES,
    "policies of namespaces": upper.POLICIES_OF_NAMESPACES,
    "resources": upper.RESOURCES,
    "lookups": topics.LOOKUPS,
    "topics": topics.LIFE,
    "messages": topics.MESSAGES,
    "statistics": topics.STATISTICS,
    "subscriptions": topics.SUBSCRIPTIONS,
    "non-persistent topics": topics.NON_PERSISTENT,
    "policies of topics": topics.POLICIES_OF_TOPICS,
    "schemas": schemas.SCHEMAS,
    "transactions": transactions.TRANSACTIONS,
    "scalable topics": scalable.SCALABLE,
}


_IDLE_S = 2.0


class Rest:
    """The HTTP interface of one server, over one connection."""

    def __init__(self, server: Standalone) -> None:
        self.server = server
        self._connection = http.client.HTTPConnection(HOST, server.http_port, timeout=60)
        self._used_s = time.monotonic()
        self.first = (0, 0)
        """Ledger and entry of the first message."""

    def __call__(self, method: str, path: str, body: Any = None) -> Answer:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if time.monotonic() - self._used_s > _IDLE_S:
            self._connection.close()  # The server does so, too, with one that is not used.
        self._connection.request(method, self._filled(path), body=content, headers=headers)
        self._used_s = time.monotonic()
        return Answer.read(self._connection.getresponse(), method, path)

    def _filled(self, path: str) -> str:
        broker = f"{HOST}:{self.server.http_port}"
        ledger, entry = map(str, self.first)
        for name, value in (("{broker}", broker), ("{ledger}", ledger), ("{entry}", entry)):
            path = path.replace(name, value)
        return path

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    directory = tmp_path_factory.mktemp("endpoints")
    # It is well as long as its disk answers at all.
    config = directory / "magnetar.toml"
    config.write_text("[broker]\nhealth_check_timeout_ms = 30_000\n")
    with Standalone(directory / "data", arguments=["--config", str(config)]) as server:
        rest = Rest(server)
        cluster = {"allowedClusters": ["standalone"]}
        assert rest("PUT", "/admin/v2/tenants/acme", cluster).status == 204
        assert rest("PUT", NS).status == 204
        for path, body in ((PLAIN, None), (f"{PARTED}/partitions", 3)):
            assert rest("PUT", path, body).status == 204
        for topic in (PLAIN, PARTED):
            assert rest("PUT", f"{topic}/subscription/s").status == 204
        client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for name in ("plain", "parted"):
            producer = client.create_producer(f"{NAMESPACE}/{name}", batching_enabled=False)
            for number in range(4):
                producer.send(b"%d" % number, properties={"n": str(number)})
            producer.close()
        client.close()
        rest.first = _first_message(rest)
        yield rest
        rest.close()
        assert server.terminate() == 0
        server.assert_log_clean()


def _first_message(rest: Rest) -> tuple[int, int]:
    found = rest("GET", f"{PLAIN}/messageid/0").json
    return found["ledgerId"], found["entryId"]


@pytest.mark.parametrize("table", TABLES)
def test_every_endpoint_answers_as_in_pulsar(rest: Rest, table: str) -> None:
    failed = [problem for row in TABLES[table] for problem in _problems(rest, row)]
    assert not failed, "\n".join(failed)


def test_half_of_a_character_in_a_body_is_refused(rest: Rest) -> None:
    """JSON can escape what no text can hold: it must be noticed before anything is done."""
    for path, body in (
        (f"{NS}/properties", {"a": "\ud800"}),
        (f"{PLAIN}/properties", {"\udfff": "a"}),
        ("/admin/v2/namespaces/acme/made", {"max_producers_per_topic": "\ud800"}),
    ):
        answer = rest("PUT", path, body)
        assert answer.status == 400, answer
        assert "lone surrogate" in answer.json["reason"]
    assert rest("PUT", f"{PLAIN}/properties", {"smile": "\U0001f600 \\ud800"}).status == 204


def test_what_no_record_has_room_for_is_refused_for_good(rest: Rest) -> None:
    """503 would have tools try again what can never be stored."""
    large = {"k": "v" * 1_200_000}
    roles = [f"role-{n}" for n in range(120_000)]
    for method, path, body in (
        ("PUT", f"{NS}/properties", large),
        ("PUT", f"{PLAIN}-large", large),
        ("PUT", f"{PLAIN}/properties", large),
        ("PUT", f"{PLAIN}/subscription/s/properties", large),
        ("PUT", f"{PARTED}-large/partitions", {"partitions": 1, "properties": large}),
        ("POST", f"{NS}/permissions/subscription/s", roles),
        (
            "PUT",
            "/admin/v2/tenants/large",
            {"adminRoles": roles, "allowedClusters": ["standalone"]},
        ),
    ):
        answer = rest(method, path, body)
        assert (answer.status, "bytes" in answer.text) == (412, True), (path, answer.text[:300])


def test_no_topic_has_more_partitions_than_a_request_can_go_through(rest: Rest) -> None:
    for domain in ("persistent", "non-persistent"):
        path = f"/admin/v2/{domain}/{NAMESPACE}/endless/partitions"
        for count in (100_001, 1 << 31, 1 << 62):
            assert rest("PUT", path, count).status == 406
        assert rest("GET", path).status == 404


def test_a_topic_is_not_named_as_a_step_in_a_path(rest: Rest) -> None:
    for name in (".", ".."):
        answer = rest("GET", f"{PLAIN.rpartition('/')[0]}/{name}/partitioned-stats")
        assert answer.status == 412, answer


def _problems(rest: Rest, row: Row) -> Iterator[str]:
    """First what is refused, so that it cannot be what the right request has left behind."""
    for method, path, body in row.before:
        answer = rest(method, path, body)
        if answer.status not in (200, 204, 409):
            yield f"before {row.name}: {method} {path}: {answer.status} {answer.text}"
    if row.missing is not None:
        path, status = row.missing
        yield from _check(rest(row.method, path, row.body), status, f"{row.method} {path}")
    if row.wrong is not None:
        other, body, status = row.wrong
        path = row.path if other is None else other
        yield from _check(rest(row.method, path, body), status, f"{row.method} {path} {body}")
    yield from _check(rest(row.method, row.path, row.body), row.status, row.name)


def _check(answer: Answer, status: int, what: str) -> Iterator[str]:
    if answer.status != status:
        yield f"{what}: {answer.status} instead of {status}: {answer.text[:300]}"
    elif status >= 400 and not answer.json.get("reason"):
        yield f"{what}: {status} without a reason"
    elif status == 204 and answer.text:
        yield f"{what}: 204 with {answer.text[:100]!r}"


ELSEWHERE = (
    ("post", "/admin/v2/brokers/shutdown"),  # it would end the server
    ("*", "/admin/v2/proxy-stats/"),
    ("*", "/magnetar/"),
    ("*", "/health"),
    ("*", "/metrics"),
)
"""What is not in the table, and why, or where it is tested."""


def test_no_endpoint_of_the_description_is_missing_in_the_table(rest: Rest) -> None:
    known = {(row.method.lower(), row.path.partition("?")[0]) for row in _rows()}
    left = [
        f"{method} {template}"
        for template, item in rest("GET", "/openapi.json").json["paths"].items()
        for method in item
        if not any(method == kind and _fits(path, template) for kind, path in known)
        and not any(
            kind in ("*", method) and template.startswith(start) for kind, start in ELSEWHERE
        )
        and not _is_twin(method, template)
    ]
    assert not left, "\n".join(left)


def _rows() -> Iterator[Row]:
    for table in TABLES.values():
        yield from table


def _fits(path: str, template: str) -> bool:
    return _pattern(template).fullmatch(path) is not None


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    """There are more of them than `re` remembers."""
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)))


def _is_twin(method: str, template: str) -> bool:
    """Policies of topics: those of the other domain, and the second verb, are the same routes."""
    names = {policy.topic for policy in POLICIES} | {"backlogQuota", "backlogQuotaMap"}
    names |= {"dispatchRate", "policies", "permissions", "permissions/{role}"}
    names |= {"createMissedPartitions", "partitions", "partitioned", "partitioned-internalStats"}
    is_other = template.startswith("/admin/v2/non-persistent/")
    rest = template.rpartition("{topic}/")[2].removeprefix("{subscription}/")
    rest = template.rpartition("/")[2] if template.endswith("/partitioned") else rest
    return rest in names and (is_other or method == "put")


def test_the_description_says_of_each_endpoint_what_it_is(rest: Rest) -> None:
    found = rest("GET", "/openapi.json").json
    operations = [each for item in found["paths"].values() for each in item.values()]
    assert all(each["summary"] and each["responses"] for each in operations)
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert "412" in found["paths"]["/admin/v2/tenants/{tenant}"]["put"]["responses"]
    assert len(operations) > 500


def test_the_description_is_a_page_that_needs_nothing_from_elsewhere(rest: Rest) -> None:
    found = rest("GET", "/docs")
    assert found.status == 200
    assert "openapi.json" in found.text
    assert "http" not in found.text.replace("HTTP", "").replace("<!doctype html>", "")
    assert "default-src 'none'" in found.headers["content-security-policy"]


def test_a_message_comes_with_its_metadata_in_headers(rest: Rest) -> None:
    ledger, entry = rest.first
    found = rest("GET", f"{PLAIN}/ledger/{ledger}/entry/{entry}")
    assert found.text == "0"
    assert found.headers["x-pulsar-message-id"] == f"{ledger}:{entry}"
    assert json.loads(found.headers["x-pulsar-property"]) == {"n": "0"}
    assert found.headers["x-pulsar-is-encrypted"] == "false"
    assert found.headers["x-pulsar-publish-time"].endswith("+00:00")
    assert rest("GET", f"{PLAIN}/examinemessage").text == "3"
    path = f"{PLAIN}/examinemessage?initialPosition=earliest&messagePosition=2"
    assert rest("GET", path).text == "1"


def test_peeking_shows_what_is_not_acknowledged_and_leaves_it(rest: Rest) -> None:
    assert rest("PUT", f"{PLAIN}/subscription/peeked", _EARLIEST).status == 204
    peeked = f"{PLAIN}/subscription/peeked"
    assert [rest("GET", f"{peeked}/position/{n}").text for n in (1, 2, 4)] == ["0", "1", "3"]
    assert rest("POST", f"{peeked}/skip/2").status == 204
    assert rest("GET", f"{peeked}/position/1").text == "2"
    counted = rest("POST", f"{peeked}/analyzeBacklog").json
    assert (counted["entries"], counted["messages"], counted["aborted"]) == (2, 2, False)
    assert rest("GET", f"{peeked}/position/3").status == 404


_EARLIEST = {"ledgerId": -1, "entryId": -1}


def test_statistics_of_partitions_are_summed(rest: Rest) -> None:
    found = rest("GET", f"{PARTED}/partitioned-stats").json
    assert found["metadata"] == {"partitions": 3, "deleted": False}
    assert len(found["partitions"]) == 3
    parts = found["partitions"].values()
    assert found["msgInCounter"] == sum(each["msgInCounter"] for each in parts)
    assert set(found["subscriptions"]) == {"s"}
    assert rest("GET", f"{PARTED}/partitioned-stats?perPartition=false").json["partitions"] == {}


def test_internal_statistics_show_ledgers_and_cursors(rest: Rest) -> None:
    found = rest("GET", f"{PLAIN}/internalStats").json
    assert found["numberOfEntries"] == 4
    cursor = found["cursors"]["s"]
    assert cursor["individuallyDeletedMessages"] == "[]"
    assert cursor["markDeletePosition"].count(":") == 1
    info = rest("GET", f"{PLAIN}/internal-info").json
    assert "s" in info["cursors"]


def test_a_setting_changes_while_the_broker_runs_and_counts_at_once(rest: Rest) -> None:
    path = "/admin/v2/brokers/configuration"
    applied = f"{PLAIN}/messageTTL?applied=true"
    assert rest("POST", f"{path}/ttl_s/77").status == 204
    both = {"ttl_s": "77", "ttlDurationDefaultInSeconds": "77"}
    assert rest("GET", f"{path}/values").json == both
    assert rest("GET", f"{path}/runtime").json["ttl_s"] == "77"
    assert rest("GET", applied).json == 77
    assert rest("DELETE", f"{path}/ttl_s").status == 204
    assert rest("GET", applied).json == 0


def test_what_has_no_effect_says_so(rest: Rest) -> None:
    answer = rest("PUT", f"{NS}/offloadThreshold", 5)
    assert "no object store" in answer.headers["x-magnetar-note"]
    assert rest("PUT", f"{NS}/offloadThreshold", -1).status == 204


@pytest.mark.parametrize("place", [NS, PLAIN])
def test_a_removal_keeps_nothing_and_notes_nothing(rest: Rest, place: str) -> None:
    path = f"{place}/entryFilters"
    wanted = {"entryFilterNames": "jms"}
    assert "kept, without effect" in rest("POST", path, wanted).headers["x-magnetar-note"]
    assert "x-magnetar-note" not in rest("DELETE", path).headers
    # A request without a body removes the policy, too.
    assert "x-magnetar-note" not in rest("POST", path).headers


def test_grants_are_kept_and_taken_back(rest: Rest) -> None:
    assert rest("POST", f"{NS}/permissions/alice", ["consume", "produce"]).status == 204
    assert rest("POST", f"{PLAIN}/permissions/alice", ["functions"]).status == 204
    assert rest("GET", f"{NS}/permissions").json["alice"] == ["consume", "produce"]
    shown = rest("GET", f"{PLAIN}/permissions").json
    assert shown["alice"] == ["consume", "functions", "produce"]
    assert rest("DELETE", f"{PLAIN}/permissions/alice").status == 204
    assert rest("DELETE", f"{NS}/permissions/alice").status == 204
    assert "alice" not in rest("GET", f"{PLAIN}/permissions").json


def test_topics_are_listed_by_their_properties(rest: Rest) -> None:
    topic = PLAIN.replace("plain", "labelled")
    assert rest("PUT", topic, {"team": "a", "tier": "1"}).status == 204
    listed = topic.rpartition("/")[0]
    full = "persistent://acme/shop/labelled"
    assert rest("GET", f"{listed}?properties=team%3Da,tier%3D1").json == [full]
    assert rest("GET", f"{listed}?properties=team%3Db").json == []


def test_numbers_and_booleans_are_taken_as_text(rest: Rest) -> None:
    """As clients in Go and Rust write them."""
    topic = f"{T}/textual"
    assert rest("PUT", f"{topic}/partitions", "2").status == 204
    assert rest("POST", f"{topic}/partitions", "3").status == 204
    assert rest("GET", f"{topic}/partitions").json["partitions"] == 3
    quota = {"limit": "10240", "limitTime": "-1", "policy": "producer_exception"}
    for method, path, body in (
        ("POST", "messageTTL", "60"),
        ("POST", "backlogQuota", quota),
        ("POST", "deduplication", "true"),
        ("POST", "retention", {"retentionTimeInMinutes": "9", "retentionSizeInMB": "900"}),
        ("POST", "persistence", {"managedLedgerMaxMarkDeleteRate": "0.5"}),
    ):
        assert rest(method, f"{NS}/{path}", body).status == 204, path
    assert rest("GET", f"{NS}/messageTTL").json == 60
    assert rest("GET", f"{NS}/backlogQuotaMap").json["destination_storage"]["limitSize"] == 10240
    assert rest("GET", f"{NS}/persistence").json["managedLedgerMaxMarkDeleteRate"] == 0.5
    for path in ("messageTTL", "backlogQuota", "deduplication", "retention", "persistence"):
        assert rest("DELETE", f"{NS}/{path}").status == 204, path
    place = {"ledgerId": str(rest.first[0]), "entryId": "0", "isExcluded": "false"}
    assert rest("POST", f"{PLAIN}/subscription/s/resetcursor", place).status == 204
    assert rest("DELETE", f"{topic}/partitions").status == 204


def test_peeking_makes_a_subscription_that_is_missing(rest: Rest) -> None:
    found = rest("GET", f"{PLAIN}/subscription/curious/position/1")
    assert (found.status, found.text) == (200, "0")
    assert "curious" in rest("GET", f"{PLAIN}/subscriptions").json
    assert rest("GET", f"{PLAIN}/subscription/curious/position/2").text == "1"
    assert rest("DELETE", f"{PLAIN}/subscription/curious").status == 204
    assert rest("GET", f"{PLAIN}/subscription/curious/position/0").status == 404
    assert "curious" not in rest("GET", f"{PLAIN}/subscriptions").json
    assert rest("POST", f"{PLAIN}/subscription/curious/skip/1").status == 404


def test_peeking_makes_nothing_where_subscriptions_are_not_made_by_themselves(rest: Rest) -> None:
    body = {"allowAutoSubscriptionCreation": False}
    assert rest("POST", f"{NS}/autoSubscriptionCreation", body).status == 204
    assert rest("GET", f"{PLAIN}/subscription/curious/position/1").status == 404
    assert rest("DELETE", f"{NS}/autoSubscriptionCreation").status == 204


CONFIGURATION = "/admin/v2/brokers/configuration"


def test_settings_have_pulsars_names_beside_ours(rest: Rest) -> None:
    names = rest("GET", CONFIGURATION).json
    assert {"allowAutoSubscriptionCreation", "auto_subscription_creation"} <= set(names)
    assert rest("POST", f"{CONFIGURATION}/dispatchThrottlingRatePerTopicInMsg/7").status == 204
    values = rest("GET", f"{CONFIGURATION}/values").json
    assert values["dispatchThrottlingRatePerTopicInMsg"] == "7"
    assert values["dispatch_rate_messages"] == "7"
    runtime = rest("GET", f"{CONFIGURATION}/runtime").json
    assert runtime["dispatchThrottlingRatePerTopicInMsg"] == "7"
    assert rest("POST", f"{CONFIGURATION}/dispatchThrottlingRatePerTopicInMsg/-1").status == 204
    runtime = rest("GET", f"{CONFIGURATION}/runtime").json
    assert runtime["dispatch_rate_messages"] == "0"
    assert rest("DELETE", f"{CONFIGURATION}/dispatchThrottlingRatePerTopicInMsg").status == 204
    assert "dispatch_rate_messages" not in rest("GET", f"{CONFIGURATION}/values").json
    refused = rest("POST", f"{CONFIGURATION}/loadBalancerSheddingEnabled/true")
    assert refused.status == 412
    assert "shedding_" in refused.json["reason"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", f"{NS}/maxTopicsPerNamespace", -1, 412, "maxTopicsPerNamespace must be 0 or more"),
        (
            "POST",
            f"{NS}/messageTTL",
            -1,
            412,
            "Invalid value for message TTL, message TTL must >= 0",
        ),
        (
            "POST",
            f"{NS}/subscriptionExpirationTime",
            -60,
            412,
            "Invalid value for subscription expiration time",
        ),
        (
            "PUT",
            f"{NS}/offloadThresholdInSeconds",
            -60,
            412,
            "Invalid value for offloadThresholdInSecond",
        ),
        ("PUT", f"{NO_NS}/schemaCompatibilityStrategy", "FULL", 404, "Namespace does not exist"),
        (
            "PUT",
            "/admin/v2/namespaces/nobody/ns/schemaCompatibilityStrategy",
            "FULL",
            404,
            "Namespace does not exist",
        ),
        ("GET", "/admin/v2/tenants/nobody", None, 404, "Tenant does not exist"),
        *(
            (
                "POST",
                f"{NS}/autoTopicCreation",
                {"allowAutoTopicCreation": True, "topicType": kind, "defaultNumPartitions": count},
                412,
                "Invalid configuration for autoTopicCreationOverride. the detail is "
                f"[defaultNumPartitions] {problem}",
            )
            for kind, count, problem in (
                ("partitioned", -1, "cannot be less than 1 for partition type."),
                ("partitioned", None, "cannot be null when the type is partitioned."),
                (
                    "non-partitioned",
                    3,
                    "is not allowed to be set when the type is non-partition.",
                ),
            )
        ),
    ],
)
def test_reasons_that_clients_compare_have_pulsars_words(
    rest: Rest, method: str, path: str, body: Any, status: int, words: str
) -> None:
    answer = rest(method, path, body)
    assert (answer.status, answer.json["reason"]) == (status, words)
    assert answer.json["detail"]


def test_a_policy_that_is_not_set_answers_204(rest: Rest) -> None:
    """All of them but those that have a value anyhow."""
    path = "/admin/v2/namespaces/acme/bare"
    assert rest("PUT", path).status == 204
    for policy in POLICIES:
        if policy.namespace and policy.unset is None and policy.field != "replication_clusters":
            answer = rest("GET", f"{path}/{policy.namespace}")
            assert (policy.namespace, answer.status, answer.text) == (policy.namespace, 204, "")
        if policy.topic:
            answer = rest("GET", f"{PLAIN}/{policy.topic}")
            assert answer.status in (200, 204), (policy.topic, answer)
    assert rest("DELETE", path).status == 204


def test_isolation_policies_tell_which_brokers_they_name(rest: Rest) -> None:
    path = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
    policy = {"namespaces": ["acme/.*"], "primary": ["127.*"], "secondary": ["other"]}
    assert rest("POST", f"{path}/mine", policy).status == 204
    wanted = {
        "brokerName": f"{HOST}:{rest.server.http_port}",
        "policyName": "mine",
        "primary": True,
        "namespaceRegex": ["acme/.*"],
    }
    assert wanted in rest("GET", f"{path}/brokers").json
    assert rest("GET", f"{path}/brokers/{{broker}}").json == wanted
    assert rest("DELETE", f"{path}/mine").status == 204
    assert rest("GET", f"{path}/brokers/{{broker}}").json["namespaceRegex"] == []


def test_a_migration_is_kept_and_said_to_have_no_effect(rest: Rest) -> None:
    path = "/admin/v2/clusters/standalone/migrate"
    url = {"serviceUrl": "http://other:8080", "brokerServiceUrl": "pulsar://other:6650"}
    answer = rest("POST", f"{path}?isMigrated=true", url)
    assert (answer.status, "without effect" in answer.headers["x-magnetar-note"]) == (200, True)
    assert rest("GET", path).json == {"migrated": True, "migratedClusterUrl": url}
    assert rest("POST", path, {}).status == 200


def test_there_can_be_more_coordinators_of_transactions(rest: Rest) -> None:
    path = "/admin/v3/transactions"
    before = len(rest("GET", f"{path}/coordinators").json)
    replicas = f"{path}/transactionCoordinator/replicas"
    assert rest("POST", replicas, str(before + 1)).status == 204
    assert len(rest("GET", f"{path}/coordinatorStats").json) == before + 1
    assert rest("POST", replicas, before).status == 406


def test_the_topics_of_all_bundles_lie_inside_of_them(rest: Rest) -> None:
    bounds = rest("GET", f"{NS}/bundles").json["boundaries"]
    found: list[str] = []
    for low, high in itertools.pairwise(bounds):
        answer = rest("GET", f"{NS}/{low}_{high}/topicHashPositions").json
        assert all(int(low, 16) <= at <= int(high, 16) for at in answer["hashPositions"].values())
        found += answer["hashPositions"]
    assert f"persistent://{NAMESPACE}/plain" in found
    assert len(found) == len(set(found))
    path = f"{NS}/{bounds[0]}_{bounds[1]}/topicHashPositions"
    assert rest("GET", f"{path}?topics=other://a/b/c").status == 412


def test_the_namespaces_of_an_anti_affinity_group_are_listed(rest: Rest) -> None:
    assert rest("POST", f"{NS}/antiAffinity", "apart").status == 204
    path = "/admin/namespaces/standalone/antiAffinity/apart"
    assert rest("GET", path).json == [NAMESPACE]
    assert rest("GET", f"{path}?tenant=public").json == []
    assert rest("DELETE", f"{NS}/antiAffinity").status == 204
