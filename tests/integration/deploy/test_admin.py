"""`magnetar admin`, as a person and a script run it, against a broker that is alone."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from typer.testing import CliRunner

from magnetar.broker.cluster.balance.bundles import Layout
from magnetar.deploy.cli import app
from magnetar.deploy.errors import DeployError, SettingsError
from magnetar.sdk import Client
from magnetar.sdk.wire import parse_topic_name
from tests.integration.deploy.commands import Ended, magnetar
from tests.processes import HOST, free_ports
from tests.standalone import Standalone

TOPIC = "persistent://public/default/orders"
HELD = Layout.even(4).bundle_of(parse_topic_name(TOPIC)).name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("admin") / "data") as started:
        ended = magnetar("produce", "orders", "-m", "one", "--url", started.url)
        assert ended.status == 0, ended.stderr
        yield started


def admin(server: Standalone, *arguments: str) -> Ended:
    """In this process: starting Python takes longer than any of these commands."""
    ended = CliRunner().invoke(app, ["admin", *arguments, "--admin-url", server.http_url])
    if isinstance(ended.exception, DeployError):
        return Ended(ended.exception.exit_status, ended.stdout, str(ended.exception))
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def done(server: Standalone, *arguments: str) -> str:
    ended = admin(server, *arguments)
    assert ended.status == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_a_lookup_names_the_broker_and_the_bundle(server: Standalone) -> None:
    shown = done(server, "lookup", "orders")
    assert server.url in shown
    assert HELD in shown
    found = json.loads(done(server, "lookup", TOPIC, "--json"))
    assert (found["brokerUrl"], found["bundle"]) == (server.url, HELD)


def test_schemas_are_registered_compared_shown_and_deleted(
    server: Standalone, tmp_path: Path
) -> None:
    def file(*names: str) -> str:
        fields = [{"name": each, "type": "int"} for each in names]
        definition = json.dumps({"type": "record", "name": "R", "fields": fields})
        path = tmp_path / "-".join(names)
        path.write_text(json.dumps({"type": "AVRO", "schema": definition, "properties": {}}))
        return str(path)

    topic = "with-schema"
    assert done(server, "schemas", "upload", topic, "-f", file("a")) == "0\n"
    assert done(server, "schemas", "version", topic, "-f", file("a")) == "0\n"
    refused = admin(server, "schemas", "compatibility", topic, "-f", file("a", "b"))
    assert (refused.status, refused.stdout) == (1, "not compatible by strategy FULL\n")
    conflict = admin(server, "schemas", "upload", topic, "-f", file("a", "b"))
    assert conflict.status != 0
    assert "/b: it is not written" in conflict.stderr
    assert "AVRO" in done(server, "schemas", "list", topic)
    assert '"name": "a"' in done(server, "schemas", "get", topic, "--version", "0")
    assert json.loads(done(server, "schemas", "get", topic, "--json"))["type"] == "AVRO"
    assert json.loads(done(server, "schemas", "metadata", topic))["info"]["version"] == 0
    assert admin(server, "schemas", "delete", topic).status != 0  # Nobody is there to ask.
    assert done(server, "schemas", "delete", topic, "--yes") == "1\n"
    assert "has none" in admin(server, "schemas", "get", topic).stderr
    (tmp_path / "list").write_text("[]")
    odd = admin(server, "schemas", "upload", topic, "-f", str(tmp_path / "list"))
    assert "not a JSON object" in odd.stderr


def test_the_brokers_are_a_table_for_people_and_json_for_programs(server: Standalone) -> None:
    shown = done(server, "brokers", "list")
    assert server.url in shown
    assert "leader" in shown
    (known,) = json.loads(done(server, "brokers", "list", "--json"))
    assert known["native_url"] == server.url
    assert server.http_url in done(server, "brokers", "leader")


def test_bundles_and_topics_are_listed(server: Standalone) -> None:
    assert len(json.loads(done(server, "namespaces", "bundles", "public/default", "--json"))) >= 4
    assert HELD in done(server, "namespaces", "bundles", "public/default")
    assert TOPIC in done(server, "topics", "list", "public/default").splitlines()


def test_a_topic_says_what_it_does_and_why_it_does_nothing(server: Standalone) -> None:
    url, earliest = ("--url", server.url), ("--initial", "earliest")
    assert magnetar("consume", "orders", "-n", "1", "-s", "idle", *earliest, *url).status == 0
    assert magnetar("produce", "orders", "-m", "waits", *url).status == 0
    shown = done(server, "topics", "stats", "orders")
    assert "entries stored 2" in " ".join(shown.split())
    assert "no: no consumer is connected" in " ".join(shown.split())
    found = json.loads(done(server, "topics", "stats", "orders", "--json"))
    assert found["subscriptions"]["idle"]["whyIdle"] == "no_consumer"
    assert admin(server, "topics", "stats", "missing").status == 14


def test_a_standalone_keeps_what_nobody_has_subscribed_to_unless_it_is_told_otherwise(
    server: Standalone, tmp_path: Path
) -> None:
    command = ("brokers", "get-runtime-config", "--json")
    assert json.loads(done(server, *command))["unsubscribed_retention"] == "True"
    other = {"UNSUBSCRIBED_RETENTION": "false"}
    with Standalone(tmp_path / "data", settings=other) as pulsars:
        assert json.loads(done(pulsars, *command))["unsubscribed_retention"] == "False"


def test_a_backlog_is_told_in_entries_and_about_in_messages(server: Standalone) -> None:
    done(server, "topics", "create", "batched")
    done(server, "subscriptions", "create", "batched", "slow", "--at", "earliest")
    lines = "\n".join(map(str, range(300)))
    ended = magnetar("produce", "batched", "--url", server.url, stdin=lines)
    assert ended.status == 0, ended.stderr
    stats = json.loads(done(server, "topics", "stats", "batched", "--json"))
    found = stats["subscriptions"]["slow"]
    assert found["msgBacklog"] < 300
    assert found["backlogMessagesEstimate"] == 300
    (line,) = [
        each for each in done(server, "topics", "stats", "batched").splitlines() if "slow" in each
    ]
    assert "300" in line


def test_a_time_is_checked_before_anything_is_asked(server: Standalone) -> None:
    ended = admin(server, "subscriptions", "reset-to-time", "orders", "made", "soon")
    assert ended.status == 2
    assert "bad TIMESTAMP 'soon'" in ended.stderr
    ended = admin(server, "subscriptions", "expire", "orders", "made", "5x")
    assert "bad SECONDS '5x'" in ended.stderr
    ended = admin(server, "subscriptions", "expire", "orders", "made", "2m")
    assert "older than 120 s of made?" in ended.stderr


def test_tenants_and_namespaces_are_made_and_taken_away(server: Standalone) -> None:
    done(server, "tenants", "create", "acme", "--admin-roles", "a, b")
    assert done(server, "tenants", "list").split() == ["acme", "public", "pulsar"]
    done(server, "tenants", "update", "acme", "--admin-roles", "c")
    assert json.loads(done(server, "tenants", "get", "acme"))["adminRoles"] == ["c"]
    done(server, "namespaces", "create", "acme/shop", "--bundles", "2")
    assert done(server, "namespaces", "list", "acme").split() == ["acme/shop"]
    shown = json.loads(done(server, "namespaces", "policies", "acme/shop"))
    assert shown["bundles"]["numBundles"] == 2
    assert "has namespaces" in admin(server, "tenants", "delete", "acme", "--yes").stderr
    done(server, "namespaces", "delete", "acme/shop", "--yes")
    done(server, "tenants", "delete", "acme", "--yes")
    assert admin(server, "tenants", "get", "acme").status == 14


def test_policies_are_set_shown_and_removed_by_their_names(server: Standalone) -> None:
    rate = '{"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}'
    quota = '{"limitSize": 1000, "policy": "producer_exception"}'
    for name, value in (
        ("max-producers-per-topic", "3"),
        ("message-ttl", "60"),
        ("publish-rate", rate),
        ("compaction-threshold", "1000"),
    ):
        assert done(server, "namespaces", f"get-{name}", "public/default") == "not set\n"
        done(server, "namespaces", f"set-{name}", "public/default", value)
        shown = json.loads(done(server, "namespaces", f"get-{name}", "public/default"))
        assert shown == json.loads(value)
        done(server, "namespaces", f"remove-{name}", "public/default")
        assert done(server, "namespaces", f"get-{name}", "public/default") == "not set\n"
    done(server, "namespaces", "set-backlog-quota", "public/default", quota)
    shown = json.loads(done(server, "namespaces", "get-backlog-quota", "public/default"))
    assert shown["destination_storage"]["limitSize"] == 1000
    done(server, "namespaces", "remove-backlog-quota", "public/default")
    done(server, "topicPolicies", "set-message-ttl", "orders", "5")
    assert done(server, "topicPolicies", "get-message-ttl", "orders") == "5\n"
    done(server, "topicPolicies", "remove-all", "orders")
    assert done(server, "topicPolicies", "get-message-ttl", "orders") == "not set\n"
    assert done(server, "topicPolicies", "get-message-ttl", "orders", "--applied") == "0\n"
    refused = admin(server, "namespaces", "set-message-ttl", "public/default", "soon")
    assert refused.status == 2
    assert "a duration" in refused.stderr
    assert admin(server, "namespaces", "set-message-ttl", "public/default", "-1").status != 0
    done(server, "namespaces", "set-retention", "public/default", "--time", "3d", "--size", "10G")
    shown = json.loads(done(server, "namespaces", "get-retention", "public/default"))
    assert shown == {"retentionTimeInMinutes": 4320, "retentionSizeInMB": 10240}
    done(server, "namespaces", "remove-retention", "public/default")


def test_a_topic_is_compacted_and_says_what_came_of_it(server: Standalone) -> None:
    done(server, "topics", "compact", "orders")
    shown = json.loads(done(server, "topics", "compaction-status", "orders", "--json"))
    assert shown["status"] in ("RUNNING", "SUCCESS")
    assert shown["lastError"] == ""
    assert "status" in done(server, "topics", "compaction-status", "orders")
    assert "404" in admin(server, "topics", "compact", "missing").stderr


def test_what_interrupts_clients_asks_first(server: Standalone) -> None:
    for arguments in (
        ("topics", "unload", "orders"),
        ("namespaces", "unload", "public/default"),
        ("namespaces", "unload", "public/default", "--bundle", HELD),
    ):
        ended = admin(server, *arguments)
        assert ended.status == 2
        assert "--yes" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        assert done(server, *arguments, "--yes") == ""


def test_a_bundle_is_split_where_one_says(server: Standalone) -> None:
    bundle = Layout.even(4).bundles[0].name
    split = ("namespaces", "split-bundle", "public/default", "--yes", "--bundle")
    done(server, *split, bundle, "--at", "0x10000000", "--at", "0x20000000")
    done(server, *split, "0x00000000_0x10000000", "--by", "range")
    shown = done(server, "namespaces", "bundles", "public/default", "--json")
    names = [each["bundle"] for each in json.loads(shown)]
    assert names[:4] == [
        "0x00000000_0x08000000",
        "0x08000000_0x10000000",
        "0x10000000_0x20000000",
        "0x20000000_0x40000000",
    ]
    again = admin(server, *split, bundle)
    assert again.status == 13
    assert f"no bundle {bundle}" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("lookup", "a/b"), 2, "a/b"),
        (("namespaces", "bundles", "public"), 2, "tenant/namespace"),
        (("namespaces", "bundles", "public/nowhere"), 14, "does not exist"),
        (("namespaces", "unload", "public/default", "--destination", "x", "--yes"), 2, "--bundle"),
        (("topics", "unload", "missing", "--yes"), 14, "not found"),
        (("namespaces", "split-bundle", "a/b", "--bundle", "x", "--by", "magic"), 2, "magic"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    server: Standalone, arguments: tuple[str, ...], status: int, said: str
) -> None:
    ended = admin(server, *arguments)
    assert ended.status == status
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_next_broker_is_asked_when_one_is_away(server: Standalone) -> None:
    (port,) = free_ports(1)
    leader = ("admin", "brokers", "leader", "--admin-url")
    assert magnetar(*leader, f"http://{HOST}:{port},{server.http_url}").status == 0
    alone = magnetar(*leader, f"http://{HOST}:{port}")
    assert alone.status == 8
    assert str(port) in alone.stderr
    assert len(alone.stderr.splitlines()) == 1


def test_an_address_of_another_kind_is_refused() -> None:
    ended = CliRunner().invoke(app, ["admin", "brokers", "leader", "--admin-url", "pulsar://x:1"])
    assert isinstance(ended.exception, SettingsError)


def test_topics_are_made_grown_ended_and_deleted(server: Standalone) -> None:
    assert done(server, "topics", "create", "made", "--partitions", "2") == ""
    assert done(server, "topics", "partitions", "made") == "2\n"
    assert done(server, "topics", "partitions", "made", "--grow", "3") == "3\n"
    assert done(server, "topics", "terminate", "made", "--yes") == ""
    assert admin(server, "topics", "delete", "made").status != 0  # Nobody is there to ask.
    assert done(server, "topics", "delete", "made", "--yes") == ""
    assert done(server, "topics", "create", "plain") == ""
    assert "already exists" in admin(server, "topics", "create", "plain").stderr
    assert done(server, "topics", "delete", "plain", "--force", "--yes") == ""
    assert "made" not in done(server, "topics", "list", "public/default")


OF_RESOURCES = (
    "clusters create other --service-url http://other:8080",
    "clusters update other --service-url http://elsewhere:8080",
    "clusters update other --tls-enable --auth-plugin token --auth-parameters env:TOKEN",
    "clusters list",
    "clusters get other",
    "clusters update-peer-clusters other --peers standalone",
    "clusters get-peer-clusters other",
    "clusters create-failure-domain other d --brokers b:1",
    "clusters list-failure-domains other",
    "clusters delete-failure-domain other d --yes",
    "clusters delete other --yes",
    "brokers version",
    "brokers healthcheck",
    "brokers list-dynamic-config",
    "brokers update-dynamic-config ttl_s 5",
    "brokers get-all-dynamic-config",
    "brokers delete-dynamic-config ttl_s",
    "brokers get-runtime-config",
    "brokers get-internal-config",
    "brokers backlog-quota-check",
    "broker-stats metrics",
    "broker-stats mbeans",
    "broker-stats topics",
    "broker-stats load-report",
    "resourcegroups create g --publish-messages 5",
    "resourcegroups list",
    "resourcegroups get g",
    "resourcegroups delete g --yes",
    "namespaces topics public/default",
    "namespaces grant-permission public/default r --actions produce,consume",
    "namespaces permissions public/default",
    "namespaces revoke-permission public/default r --yes",
    "namespaces grant-subscription-permission public/default s --roles r",
    "namespaces revoke-subscription-permission public/default s r --yes",
    "namespaces set-properties public/default --property a=b",
    "namespaces get-properties public/default",
    "namespaces clear-properties public/default --yes",
    "namespaces unsubscribe public/default nobody --yes",
    "topics internal-stats orders",
    "topics info orders",
    "topics last-message-id orders",
    "topics get-message-id orders 0",
    "topics examine orders --initial earliest --number 1",
    "subscriptions peek orders looked",
    "topics grant-permission orders r --actions consume",
    "topics permissions orders",
    "topics revoke-permission orders r --yes",
    "topics update-properties orders --property a=b",
    "topics get-properties orders",
    "topics remove-property orders --key a",
    "topics trim orders --yes",
    "subscriptions create orders made --at earliest",
    "subscriptions list orders",
    "subscriptions peek orders made 1",
    "subscriptions analyze-backlog orders made",
    "subscriptions set-properties orders made --property a=b",
    "subscriptions get-properties orders made",
    "subscriptions skip orders made 1 --yes",
    "subscriptions reset orders made --at earliest --yes",
    "subscriptions reset-to-time orders made 0 --yes",
    "subscriptions expire orders made 1000 --yes",
    "subscriptions expire-all orders 1000 --yes",
    "subscriptions clear-backlog orders made --yes",
    "subscriptions delete orders made --yes",
)


def test_every_resource_has_its_commands(server: Standalone) -> None:
    """Text for people; the same with --json is JSON; what destroys does not without --yes."""
    failed = []
    for line in OF_RESOURCES:
        command = line.split()
        if command[-1] == "--yes":
            refused = admin(server, *command[:-1])
            if refused.status != 2 or "--yes" not in refused.stderr:
                failed.append(f"{line} does not ask")
        ended = admin(server, *command)
        if ended.status != 0:
            failed.append(f"{line}: {ended.stderr or ended.stdout}")
        elif ended.stdout:
            json.loads(done(server, *command, "--json"))
    assert not failed, "\n".join(failed)


def test_peeking_shows_each_message_of_a_batch(server: Standalone) -> None:
    async def send() -> None:
        async with Client(server.url) as client, client.producer("peeked") as producer:
            for key, payload in (("one", b"1"), ("two", b"2"), ("", b"3")):
                producer.send_nowait(payload, key=key)
            await producer.flush()

    asyncio.run(send())
    done(server, "subscriptions", "create", "peeked", "s", "--at", "earliest")
    peek = ("subscriptions", "peek", "peeked", "s")
    assert done(server, *peek).splitlines() == ["1", "2", "3"]
    assert done(server, *peek, "1", "--format", "%k=%v").splitlines() == ["one=1", "two=2", "=3"]
    found = [json.loads(line) for line in done(server, *peek, "--json").splitlines()]
    assert [each["key"] for each in found] == ["one", "two", ""]
    ledger, entry, *_ = found[0]["id"].split(":")
    assert done(server, "topics", "get-message", "peeked", ledger, entry) == done(server, *peek)
    assert done(server, "topics", "examine", "peeked", "--raw") == "123"
    assert admin(server, *peek, "2").status == 14
    assert admin(server, *peek, "--format", "%z").status == 2


def test_clients_are_disconnected_by_name_and_the_official_client_comes_back(
    server: Standalone,
) -> None:
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe("persistent://public/default/kicked", "s", consumer_name="c")
        producer = client.create_producer("persistent://public/default/kicked", producer_name="p")
        producer.send(b"before")
        assert consumer.receive(60_000).data() == b"before"
        shown = [each.split() for each in done(server, "topics", "stats", "kicked").splitlines()]
        assert ["c", "s"] in [each[:2] for each in shown]
        assert ["p"] in [each[:1] for each in shown]
        off = ("subscriptions", "disconnect", "kicked", "s", "c")
        assert admin(server, *off).status == 2, "it asks"
        assert admin(server, *off, "--address", "10.0.0.1:1", "--yes").status == 14
        assert json.loads(done(server, *off, "--yes", "--json")) == {"disconnected": 1}
        sensor = ("topics", "disconnect-producer", "kicked", "p")
        assert json.loads(done(server, *sensor, "--yes", "--json")) == {"disconnected": 1}
        producer.send(b"after")
        # It was not acknowledged: the consumer that has come back gets it again.
        assert [consumer.receive(60_000).data() for _ in range(2)] == [b"before", b"after"]
        assert admin(server, "topics", "disconnect-producer", "kicked", "no", "--yes").status == 14
    finally:
        client.close()


def test_url_is_the_address_of_a_broker_too(server: Standalone) -> None:
    def asked(*arguments: str) -> Ended:
        ended = CliRunner().invoke(app, ["admin", *arguments])
        error = ended.exception if isinstance(ended.exception, DeployError) else None
        return Ended(error.exit_status if error else ended.exit_code, ended.stdout, str(error))

    url = ("--url", server.http_url)
    for line in ("brokers list", "tenants list", "namespaces get-retention public/default"):
        assert asked(*line.split(), *url).status == 0, line
    service = asked("brokers", "list", "--url", server.url)
    assert service.status == 2
    assert "that is a service URL" in service.stderr
    # The address of another cluster has that name, as in Pulsar's tool.
    done(server, "clusters", "create", "west", "--url", "http://west:8080")
    assert json.loads(done(server, "clusters", "get", "west", "--json"))["serviceUrl"] == (
        "http://west:8080"
    )
    done(server, "clusters", "delete", "west", "--yes")


def test_what_has_no_effect_is_said_on_stderr(server: Standalone) -> None:
    ended = admin(server, "namespaces", "set-offload-threshold", "public/default", "5")
    assert ended.status == 0
    assert "without effect" in ended.stderr


def test_a_place_that_is_none_is_refused(server: Standalone) -> None:
    ended = admin(server, "subscriptions", "create", "orders", "x", "--at", "middle")
    assert ended.status == 2
    assert "ledger:entry" in ended.stderr


def test_shells_complete_the_commands() -> None:
    # Which shell is asked for, not which one runs the tests.
    asked = CliRunner().invoke(
        app, [], prog_name="magnetar", env={"_MAGNETAR_COMPLETE": "source_bash"}
    )
    assert "_magnetar_completion" in asked.output


def test_a_plain_topic_is_made_scalable(server: Standalone) -> None:
    done(server, "topics", "create", "grown-up")
    done(server, "scalable-topics", "migrate", "grown-up", "--yes")
    shown = json.loads(done(server, "scalable-topics", "get-metadata", "grown-up", "--json"))
    segments = shown["segments"]
    assert segments["0"]["legacyTopicName"] == "persistent://public/default/grown-up"
    assert [each["state"] for each in segments.values()] == ["SEALED", "ACTIVE"]
    again = admin(server, "scalable-topics", "migrate", "grown-up", "--yes")
    assert again.status != 0
    done(server, "scalable-topics", "delete", "grown-up", "--yes")


def test_scalable_topics_are_created_split_merged_shown_and_deleted(server: Standalone) -> None:
    name = "topic://public/default/grows"
    scalable = ("scalable-topics",)
    done(server, *scalable, "create", name, "-p", "team=a")
    assert done(server, *scalable, "list", "public/default").split() == [name]
    done(server, *scalable, "split-segment", "grows", "--segment-id", "0", "--at", "16")
    shown = done(server, *scalable, "get-metadata", name)
    assert "epoch 2" in shown
    assert "0000-000f" in shown
    done(server, *scalable, "merge-segments", name, "--segment-id-1", "1", "--segment-id-2", "2")
    found = json.loads(done(server, *scalable, "get-metadata", name, "--json"))
    assert (found["epoch"], found["properties"]) == (3, {"team": "a"})
    assert json.loads(done(server, *scalable, "stats", name))["layout"]["epoch"] == 3
    subscription = ("--subscription", "s")
    done(server, *scalable, "create-subscription", name, *subscription)
    done(server, *scalable, "seek", name, *subscription, "--time", "0")
    done(server, *scalable, "clear-backlog", name, *subscription)
    done(server, *scalable, "delete-subscription", name, *subscription)
    done(server, *scalable, "set-auto-scale-policy", name, '{"maxSegments": 8}')
    assert json.loads(done(server, *scalable, "get-auto-scale-policy", name)) == {"maxSegments": 8}
    done(server, *scalable, "remove-auto-scale-policy", name)
    assert json.loads(done(server, *scalable, "get-auto-scale-policy", name)) == {}
    for wrong in (
        ("create", "non-persistent://public/default/x"),
        ("create", name, "-p", "x"),
        ("set-auto-scale-policy", name, "x"),
    ):
        ended = admin(server, *scalable, *wrong)
        assert ended.status != 0, wrong
    done(server, *scalable, "delete", name, "--yes")
    assert done(server, *scalable, "list", "public/default") == ""
