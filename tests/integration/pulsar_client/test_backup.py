"""Backups in the object store, and restores into a cluster that never had the topics.

The official client publishes and reads; `magnetar backup` and `magnetar restore` run as commands.
Ledgers hold ten entries. The store is a directory, and a bucket of a server that speaks S3.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Record, String

from magnetar.broker.features.backup import Restore
from magnetar.deploy import backup_tools
from magnetar.deploy.options import Sources
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.sdk import Client, MessageId
from tests.http_calls import admin, call, topic_path
from tests.integration.deploy.commands import Ended, magnetar
from tests.integration.pulsar_client.support import connect, publish, read_next, receive_payloads
from tests.ledger_objects import objects_in
from tests.processes import magnetar_environment
from tests.s3_server import S3Server
from tests.standalone import Standalone
from tests.waiting import wait_until

BUCKET = "backups"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "hidden-from-logs"}
MESSAGES = [b"%04d" % number for number in range(45)]
NAMESPACE = "acme/air"
FLIGHTS = f"persistent://{NAMESPACE}/flights"
SPLIT = f"persistent://{NAMESPACE}/split"
MARKED = 12
"""Messages that subscription `s` has acknowledged without a gap."""
SINGLY = (15, 16, 30)
"""Further ones, each by itself."""


class Flight(Record):  # type: ignore[misc]  # The client has no types.
    number = String()


class FlightWithGate(Record):  # type: ignore[misc]  # The client has no types.
    number = String()
    gate = String(default="", required_default=True)


@dataclass
class Stores:
    """The object stores that two clusters share, as settings say it."""

    settings: Mapping[str, str]
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a command needs."""
        named = {f"MAGNETAR_BROKER_{name}": value for name, value in self.settings.items()}
        return {**named, **CREDENTIALS}

    def objects(self) -> list[Path]:
        """Of ledgers, in a directory."""
        return objects_in(self.directory)


def settings_of(store: Mapping[str, object]) -> dict[str, str]:
    return {"OBJECT_STORES": json.dumps([store]), "OFFLOAD_STORE": "main"}


@pytest.fixture
def directory(tmp_path: Path) -> Stores:
    root = tmp_path / "objects"
    return Stores(settings_of({"name": "main", "url": root.as_uri()}), root)


@pytest.fixture(params=["directory", "s3"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "directory":
        yield request.getfixturevalue("directory")
        return
    server = S3Server(tmp_path)
    server.create_bucket(BUCKET)
    url = f"s3://{BUCKET}/magnetar"
    store = {"name": "main", "url": url, "endpoint": server.endpoint, "allow_http": True}
    yield Stores(settings_of(store), tmp_path / "objects")
    server.stop()


def cluster(directory: Path, stores: Stores, name: str) -> Standalone:
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "ACK_PERSIST_INTERVAL_MS": "50",
        "RETENTION_CHECK_INTERVAL_S": "0.2",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "INACTIVE_TOPIC_DELETION": "false",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_SWEEP_INTERVAL_S": "0.2",
        "OBJECT_GRACE_S": "0",
        "TAIL_CACHE_BYTES_MAX": "0",
        **stores.settings,
    }
    return Standalone(directory / name, settings=settings, environment=CREDENTIALS)


def run(server: Standalone, stores: Stores, *arguments: str) -> Ended:
    """A command against a server's metadata."""
    return magnetar(*arguments, "--metadata", server.metadata_url, environment=stores.environment)


def done(server: Standalone, stores: Stores, *arguments: str) -> list[dict[str, Any]]:
    """The JSON lines that a command prints, which must succeed."""
    ended = run(server, stores, *arguments, "--json")
    assert ended.status == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def back_up(server: Standalone, stores: Stores, name: str, *more: str) -> dict[str, Any]:
    """Make a backup with all that there is; returns what is said of the whole."""
    command = ("backup", "create", "--name", name, "--copy-open", "--admin-url", server.http_url)
    return done(server, stores, *command, *more)[-1]


@dataclass
class Published:
    """What the old cluster has."""

    instance_id: str
    ids: list[pulsar.MessageId]
    shown: dict[str, Any]
    """Answers of the HTTP interface, by path."""


SHOWN = (
    "tenants/acme",
    f"namespaces/{NAMESPACE}/retention",
    f"namespaces/{NAMESPACE}/permissions",
    f"namespaces/{NAMESPACE}/maxProducersPerTopic",
    f"persistent/{NAMESPACE}/split/partitions",
    f"persistent/{NAMESPACE}/flights/maxConsumers",
    f"schemas/{NAMESPACE}/flights/schemas",
)


def shown(server: Standalone) -> dict[str, Any]:
    found = {path: admin(server, "GET", path) for path in SHOWN}
    assert all(found.values()), found
    return found


def fill(server: Standalone, stores: Stores) -> Published:
    """Topics with policies, schemas and subscriptions."""
    admin(
        server, "PUT", "tenants/acme", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    )
    admin(server, "PUT", f"namespaces/{NAMESPACE}")
    retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    admin(server, "POST", f"namespaces/{NAMESPACE}/retention", retention)
    admin(server, "POST", f"namespaces/{NAMESPACE}/permissions/reader", ["consume"])
    admin(server, "POST", f"namespaces/{NAMESPACE}/maxProducersPerTopic", 7)
    admin(server, "PUT", f"persistent/{NAMESPACE}/split/partitions", 2)
    client = connect(server.url)
    ids = publish_flights(client)
    admin(server, "POST", f"persistent/{NAMESPACE}/flights/maxConsumers", 5)
    producer = client.create_producer(SPLIT, batching_enabled=False)
    publish(producer, MESSAGES)
    acknowledge(client)
    client.close()
    listed = done(server, stores, "backup", "list")
    assert listed == []
    return Published("", ids, shown(server))


def publish_flights(client: pulsar.Client) -> list[pulsar.MessageId]:
    """Messages of two versions of a schema."""
    ids: list[pulsar.MessageId] = []
    for kind, part in ((Flight, MESSAGES[:20]), (FlightWithGate, MESSAGES[20:])):
        producer = client.create_producer(FLIGHTS, schema=AvroSchema(kind), batching_enabled=False)
        ids += [producer.send(kind(number=each.decode())) for each in part]
        producer.close()
    return ids


def subscribe(client: pulsar.Client) -> pulsar.Consumer:
    return client.subscribe(
        FLIGHTS,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        schema=AvroSchema(FlightWithGate),
    )


def acknowledge(client: pulsar.Client) -> None:
    consumer = subscribe(client)
    got = [consumer.receive(30_000) for _ in MESSAGES]
    for at, message in enumerate(got):
        if at < MARKED or at in SINGLY:
            consumer.acknowledge(message)
    consumer.close()


def numbers(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    return sorted(consumer.receive(30_000).value().number.encode() for _ in range(count))


def nodes_below(server: Standalone, stores: Stores) -> list[str]:
    """Topics and tenants that a server shows."""
    names = admin(server, "GET", "tenants")
    return sorted(names)


def assert_restored(server: Standalone, published: Published) -> None:
    """The topics are as they were: messages and their ids, subscriptions, and all beside them."""
    assert shown(server) == published.shown
    client = connect(server.url)
    reader = client.create_reader(
        FLIGHTS, pulsar.MessageId.earliest, schema=AvroSchema(FlightWithGate)
    )
    found = [read_next(reader) for _ in MESSAGES]
    assert [each.value().number.encode() for each in found] == MESSAGES
    assert [places(each.message_id()) for each in found] == [places(each) for each in published.ids]
    assert not reader.has_message_available()
    reader.close()
    consumer = subscribe(client)
    left = [each for at, each in enumerate(MESSAGES) if at >= MARKED and at not in SINGLY]
    assert numbers(consumer, len(left)) == left
    producer = client.create_producer(FLIGHTS, schema=AvroSchema(FlightWithGate))
    new = producer.send(FlightWithGate(number="new"))
    assert places(new) > places(published.ids[-1])
    assert numbers(consumer, 1) == [b"new"]
    consumer.close()
    both = client.subscribe(SPLIT, "t", initial_position=pulsar.InitialPosition.Earliest)
    assert sorted(receive_payloads(both, len(MESSAGES))) == MESSAGES
    client.close()


def places(message_id: pulsar.MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()


def test_topics_come_back_in_a_new_cluster_while_the_old_one_is_dead(
    stores: Stores, tmp_path: Path
) -> None:
    with cluster(tmp_path, stores, "old") as old:
        published = fill(old, stores)
        made = back_up(old, stores, "daily")
        assert made["topics"] == 3
        assert made["not_covered"]["entries"] == 0
        assert [each["state"] for each in done(old, stores, "backup", "list")] == ["finished"]
        old.kill()
    with cluster(tmp_path, stores, "new") as new:
        command = ("restore", "daily", "--from", made["instance_id"])
        before = nodes_below(new, stores)
        tried = done(new, stores, *command, "--dry-run")[-1]
        assert (tried["topics"], tried["restored"]) == (3, False)
        assert nodes_below(new, stores) == before, "a dry run changes nothing"
        restored = done(new, stores, *command)[-1]
        assert (restored["topics"], restored["cursors"], restored["kept"]) == (3, 1, [])
        assert_restored(new, published)
        again = done(new, stores, *command)[-1]
        assert (again["topics"], again["restored_before"]) == (0, 3)
        assert new.terminate() == 0
        new.assert_log_clean()


def flights_of(server: Standalone) -> list[pulsar.MessageId]:
    """Fill one topic of the namespace that every cluster has."""
    client = connect(server.url)
    producer = client.create_producer("flights", batching_enabled=False)
    ids = [producer.send(each) for each in MESSAGES]
    client.close()
    return ids


def read_flights(server: Standalone) -> list[bytes]:
    client = connect(server.url)
    reader = client.create_reader("flights", pulsar.MessageId.earliest)
    found = [read_next(reader).data() for _ in MESSAGES]
    client.close()
    return found


PLAIN = "persistent://public/default/flights"


def test_a_damaged_or_missing_object_ends_a_restore_before_anything_is_written(
    directory: Stores, tmp_path: Path
) -> None:
    with cluster(tmp_path, directory, "old") as old:
        flights_of(old)
        made = back_up(old, directory, "daily")
    whole = tmp_path / "whole"
    shutil.copytree(directory.directory, whole)
    with cluster(tmp_path, directory, "new") as new:
        command = ("restore", "daily", "--from", made["instance_id"])
        for damage in (damage_end, Path.unlink):
            hit = directory.objects()[1]
            damage(hit)
            ended = run(new, directory, *command)
            assert ended.status == 11, ended.stderr
            (message,) = ended.messages()
            assert hit.name in message
            assert "nothing was changed" in message
            assert admin(new, "GET", "persistent/public/default") == []
            shutil.rmtree(directory.directory)
            shutil.copytree(whole, directory.directory)
        assert done(new, directory, *command)[-1]["topics"] == 1
        assert read_flights(new) == MESSAGES


def damage_end(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


def test_a_restore_that_was_broken_off_is_repeated(
    directory: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path, directory, "old") as old:
        published = fill(old, directory)
        made = back_up(old, directory, "daily")
    with cluster(tmp_path, directory, "new") as new:
        create = Restore._create
        begun: list[str] = []
        is_made = asyncio.Event()

        async def ends_behind_the_first(self: Restore, path: str, node: LogMetadata) -> None:
            begun.append(path)
            if begun[0] != path:
                await is_made.wait()
                raise OSError("the command was killed")
            await create(self, path, node)
            is_made.set()

        monkeypatch.setattr(Restore, "_create", ends_behind_the_first)
        with pytest.raises(OSError, match="killed"):
            restore_here(new, directory, made["instance_id"])
        monkeypatch.undo()
        again = done(new, directory, "restore", "daily", "--from", made["instance_id"])[-1]
        assert (again["topics"], again["restored_before"]) == (2, 1)
        assert_restored(new, published)


def restore_here(server: Standalone, stores: Stores, instance_id: str) -> None:
    """Restore in this process."""
    environment = {**magnetar_environment(), **stores.environment}

    async def work(tools: backup_tools.BackupTools) -> None:
        await tools.restore(
            "daily",
            instance_id,
            tools.scope(tenant="", namespace="", topic=""),
            is_dry_run=False,
            keeps_gaps=False,
            ids_max=10_000,
            as_json=True,
        )

    backup_tools.run(server.metadata_url, Sources(environment=environment), "main", work)


def test_objects_of_a_backup_outlive_their_topic_until_the_backup_is_deleted(
    directory: Stores, tmp_path: Path
) -> None:
    with cluster(tmp_path, directory, "old") as old:
        ids = flights_of(old)
        back_up(old, directory, "daily")
        kept = directory.objects()
        have_retention_remove_all(old)
        see_two_sweeps(old, directory, kept)
        assert directory.objects() == kept
        call(old, "DELETE", f"{topic_path(PLAIN)}?force=true", expect=204)
        see_two_sweeps(old, directory, kept)
        assert directory.objects() == kept
        # Its counter is past the ids of the backup: none need be used up.
        flights = ("--topic", "flights", "--ledger-ids-max", "0")
        restored = done(old, directory, "restore", "daily", *flights)[-1]
        assert restored["topics"] == 1
        assert read_flights(old) == MESSAGES
        client = connect(old.url)
        reader = client.create_reader("flights", ids[20])
        assert read_next(reader).data() == MESSAGES[21]
        client.close()
        call(old, "DELETE", f"{topic_path(PLAIN)}?force=true", expect=204)
        ended = run(old, directory, "backup", "delete", "daily", "--yes")
        assert ended.status == 0, ended.stderr
        wait_until(lambda: directory.objects() == [])
        assert old.terminate() == 0
        old.assert_log_clean()


def ledgers_of(server: Standalone, topic: str = PLAIN) -> list[dict[str, Any]]:
    stats = admin(server, "GET", f"{topic_path(topic)}/internalStats")
    found: list[dict[str, Any]] = stats["ledgers"]
    return found


def have_retention_remove_all(server: Standalone) -> None:
    """Keep nothing that the only subscription has consumed, but the last ledger."""
    client = connect(server.url)
    client.create_producer("flights").send(b"in another ledger")
    consumer = client.subscribe("flights", "s", initial_position=pulsar.InitialPosition.Earliest)
    receive_payloads(consumer, len(MESSAGES) + 1)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    admin(server, "POST", f"{topic_path(PLAIN)}/retention", nothing)
    wait_until(lambda: not any("object" in each for each in ledgers_of(server)))
    client.close()


def see_two_sweeps(server: Standalone, stores: Stores, kept: list[Path]) -> None:
    """Wait until objects of another topic, which is in no backup, were deleted."""
    topic = "persistent://public/default/other"
    client = connect(server.url)
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, MESSAGES)
    client.close()
    policies = {"managedLedgerOffloadThresholdInBytes": 0}
    call(server, "POST", f"{topic_path(topic)}/offloadPolicies", policies, expect=204)
    wait_until(lambda: len(stores.objects()) > len(kept))
    call(server, "DELETE", f"{topic_path(topic)}?force=true", expect=204)
    wait_until(lambda: len(stores.objects()) == len(kept))


def test_what_is_on_bookies_only_is_said_with_its_age(directory: Stores, tmp_path: Path) -> None:
    with cluster(tmp_path, directory, "old") as old:
        flights_of(old)
        made = done(old, directory, "backup", "create", "--name", "partial")
        assert made[0]["topic"] == PLAIN
        assert made[-1]["not_covered"]["entries"] == len(MESSAGES)
        assert made[-1]["not_covered"]["bytes"] >= sum(map(len, MESSAGES))
        assert made[-1]["rpo_s"] >= 0
        text = run(old, directory, "backup", "show", "partial").stdout
        assert "not covered: 45 entries" in text
        assert "RPO" in text
        refused = run(old, directory, "backup", "create", "--name", "partial")
        assert refused.status == 2
        assert "there is a backup partial" in refused.stderr
        conflict = run(old, directory, "restore", "partial")
        assert conflict.status == 2
        assert f"{PLAIN}" in conflict.stderr


async def test_a_scalable_topic_is_named_as_left_out_with_its_entries(
    directory: Stores, tmp_path: Path
) -> None:
    topic = "topic://public/default/wide"
    with cluster(tmp_path, directory, "old") as old:
        admin(old, "PUT", "scalable/public/default/wide")
        async with Client(old.url) as client:
            producer = await client.producer(topic)
            for payload in MESSAGES:
                await producer.send(payload)
        made = await asyncio.to_thread(done, old, directory, "backup", "create", "--name", "one")
        assert [each["topic"] for each in made[:-1]] == [topic]
        assert made[0]["not_covered"]["entries"] == len(MESSAGES)
        assert made[-1]["scalable_topics_left_out"] == 1
        assert made[-1]["not_covered"] == made[0]["not_covered"]
        text = (await asyncio.to_thread(run, old, directory, "backup", "show", "one")).stdout
        assert f"{topic}: not covered: 45 entries" in text
        assert "a scalable topic is not in the backup" in text
        restored = await asyncio.to_thread(run, old, directory, "restore", "one", "--dry-run")
        assert "a scalable topic is not in the backup" in restored.stdout


async def test_transactions_that_had_no_end_are_aborted_and_new_ones_work(
    directory: Stores, tmp_path: Path
) -> None:
    with cluster(tmp_path, directory, "old") as old:
        async with Client(old.url) as client:
            producer = await client.producer("flights")
            await producer.send(b"plain")
            for payload, end in ((b"committed", True), (b"aborted", False), (b"open", None)):
                txn = await client.transaction().begin()
                await producer.send(payload, transaction=txn)
                if end is not None:
                    await (txn.commit() if end else txn.abort())
            made = back_up(old, directory, "daily")
    with cluster(tmp_path, directory, "new") as new:
        done(new, directory, "restore", "daily", "--from", made["instance_id"])
        async with Client(new.url) as client:
            reader = await client.reader("flights", MessageId.EARLIEST)
            assert [(await reader.read_next(timeout_s=20)).data for _ in range(2)] == [
                b"plain",
                b"committed",
            ]
            producer = await client.producer("flights")
            for payload, commits in ((b"lost", False), (b"new", True)):
                txn = await client.transaction().begin()
                await producer.send(payload, transaction=txn)
                await (txn.commit() if commits else txn.abort())
            assert (await reader.read_next(timeout_s=20)).data == b"new"


def cursor_of(server: Standalone) -> dict[str, Any]:
    found: dict[str, Any] = admin(server, "GET", f"{topic_path(PLAIN)}/internalStats")["cursors"][
        "s"
    ]
    return found


def test_acknowledgements_in_the_cursor_ledger_of_a_running_broker_are_in_a_backup(
    directory: Stores, tmp_path: Path
) -> None:
    """The last record is written, and nothing behind it has confirmed it yet."""
    with cluster(tmp_path, directory, "old") as old:
        flights_of(old)
        back_up(old, directory, "before")
        client = connect(old.url)
        consumer = client.subscribe(
            "flights",
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        got = [consumer.receive(30_000) for _ in MESSAGES]
        consumer.acknowledge(got[0])
        wait_until(lambda: cursor_of(old)["cursorLedgerLastEntry"] >= 0)
        last = cursor_of(old)["cursorLedgerLastEntry"]
        consumer.acknowledge(got[7])
        wait_until(lambda: cursor_of(old)["cursorLedgerLastEntry"] > last)
        made = done(old, directory, "backup", "create", "--name", "daily")[-1]
        assert made["not_covered"]["entries"] == 0
        old.kill()
        client.close()
    with cluster(tmp_path, directory, "new") as new:
        restored = done(new, directory, "restore", "daily", "--from", made["instance_id"])[-1]
        assert restored["cursors"] == 1
        client = connect(new.url)
        consumer = client.subscribe("flights", "s", consumer_type=pulsar.ConsumerType.Shared)
        left = [each for at, each in enumerate(MESSAGES) if at not in (0, 7)]
        assert sorted(receive_payloads(consumer, len(left))) == left
        client.close()


def test_a_restored_topic_takes_no_ledgers_of_others_along_that_have_its_ids(
    directory: Stores, tmp_path: Path
) -> None:
    """Ledger ids of the old cluster are those of another topic in the new one."""
    with cluster(tmp_path, directory, "old") as old:
        flights_of(old)
        made = back_up(old, directory, "daily")
    with cluster(tmp_path, directory, "new") as new:
        mine = "persistent://public/default/mine"
        client = connect(new.url)
        producer = client.create_producer(mine, batching_enabled=False)
        publish(producer, MESSAGES)
        client.close()
        ids = {each["ledgerId"] for each in ledgers_of(new, mine)}
        done(new, directory, "restore", "daily", "--from", made["instance_id"])
        assert ids & {each["ledgerId"] for each in ledgers_of(new)}
        assert read_flights(new) == MESSAGES
        have_retention_remove_all(new)
        call(new, "DELETE", f"{topic_path(PLAIN)}?force=true", expect=204)
        new.kill()
        new.start()
        client = connect(new.url)
        reader = client.create_reader(mine, pulsar.MessageId.earliest)
        assert [read_next(reader).data() for _ in MESSAGES] == MESSAGES
        client.close()
