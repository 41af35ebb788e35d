"""What a topic's objects are is written beside them, after each change, by whoever owns the topic.

The store is a directory. The server looks several times a second, and its ledgers hold ten entries.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.log_manifest import LogManifest, newest_manifests, read_manifest
from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import (
    ALL,
    MESSAGES,
    admin,
    are,
    fill,
    ledgers,
    move,
)
from tests.standalone import Standalone
from tests.waiting import wait_until

_numbers = itertools.count()


class Flight(Record):  # type: ignore[misc]
    number = Integer()


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifest-objects") / "store"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Standalone]:
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_CHECK_INTERVAL_S": "0.2",
        "UNSUBSCRIBED_RETENTION": "false",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OFFLOAD_RETRY_S_MAX": "1",
        "OBJECT_BYTES_MIN": "0",
        "MANIFEST_INTERVAL_S": "0",
        "OBJECT_SWEEP_INTERVAL_S": "0.2",
        "OBJECT_GRACE_S": "0",
    }
    directory = tmp_path_factory.mktemp("manifests") / "data"
    with Standalone(directory, settings=settings) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    client = connect(server.url)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/manifested-{next(_numbers)}"


def keys(store: Path, topic: str) -> list[str]:
    """Of the manifests of a topic."""
    name = topic.rpartition("/")[2]
    found = store.glob(f"*/manifests/*/{name}/*.json")
    return sorted(each.relative_to(store).as_posix() for each in found)


def newest(store: Path, topic: str) -> LogManifest | None:
    found = [*newest_manifests(keys(store, topic)).values()]
    return asyncio.run(read_manifest(DirectoryStore(store), found[0])) if found else None


def says_all(server: Standalone, store: Path, topic: str) -> bool:
    """Whether the newest manifest has all objects that the topic has, and no other."""
    manifest = newest(store, topic)
    if manifest is None:
        return False
    node = manifest.node
    named = {
        each.ledger_id: node.object_bases[each.object.base].key(each.ledger_id, each.object.attempt)
        for each in node.ledgers
        if each.object is not None and each.is_in_object
    }
    assert all((store / key).exists() for key in named.values())
    real = {
        each["ledgerId"]: each["object"]["key"]
        for each in ledgers(server, topic)
        if each["offloaded"]
    }
    return named == real and bool(real)


def test_a_manifest_follows_the_objects_and_only_the_newest_stays(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    client.create_producer(topic, schema=AvroSchema(Flight)).close()
    fill(client, topic)
    admin(server, "POST", topic, "offloadPolicies", ALL)
    wait_until(lambda: are(server, topic, "copied"))
    wait_until(lambda: says_all(server, store, topic))
    manifest = newest(store, topic)
    assert manifest is not None
    assert [each.type for each in manifest.schemas] == ["AVRO"]
    assert b"number" in manifest.schemas[0].data
    before = manifest.node.ledgers
    fill(client, topic)
    wait_until(lambda: are(server, topic, "copied"))
    wait_until(lambda: says_all(server, store, topic))
    wait_until(lambda: len(keys(store, topic)) == 1)
    after = newest(store, topic)
    assert after is not None
    assert len(after.node.ledgers) > len(before)


def test_what_retention_removed_is_in_no_later_manifest(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    fill(client, topic)
    move(server, topic)
    wait_until(lambda: says_all(server, store, topic))
    kept = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    # The newest ledger with entries always stays, so one that is open must have some. An entry that
    # fills a ledger has a closed one stay, with nothing but an empty one behind it.
    producer = client.create_producer(topic)
    while producer.send(b"later").entry_id() >= 9:
        pass
    producer.close()
    admin(server, "POST", topic, "retention", kept)
    wait_until(lambda: len(ledgers(server, topic)) == 1)

    def is_empty() -> bool:
        manifest = newest(store, topic)
        return manifest is not None and not any(each.is_in_object for each in manifest.node.ledgers)

    wait_until(is_empty)


def test_the_manifests_of_a_deleted_topic_are_deleted(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    fill(client, topic)
    move(server, topic)
    wait_until(lambda: says_all(server, store, topic))
    call(server, "DELETE", f"{topic_path(topic)}?force=true", expect=204)
    wait_until(lambda: not keys(store, topic))
    # A new one of that name begins anew, with a node of lower versions.
    fill(client, topic)
    admin(server, "POST", topic, "offloadPolicies", ALL)
    wait_until(lambda: are(server, topic, "copied"))
    wait_until(lambda: says_all(server, store, topic))


def test_a_manifest_that_a_crash_prevented_is_written_by_the_next_owner(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    fill(client, topic)
    admin(server, "POST", topic, "offloadPolicies", ALL)
    wait_until(lambda: are(server, topic, "copied"))
    wait_until(lambda: says_all(server, store, topic))
    (instance,) = (each for each in store.iterdir() if (each / "manifests").is_dir())
    # The store takes objects, and no manifest.
    (instance / "manifests").rename(store.with_name("aside"))
    (instance / "manifests").write_text("no directory")
    fill(client, topic)
    wait_until(lambda: are(server, topic, "copied"))
    wait_until(lambda: "manifest_failed" in server.log_text())
    server.kill()
    (instance / "manifests").unlink()
    store.with_name("aside").rename(instance / "manifests")
    assert not has_more_than_one_fill(store, topic)
    server.start()
    wait_until(lambda: says_all(server, store, topic))
    assert has_more_than_one_fill(store, topic)


def has_more_than_one_fill(store: Path, topic: str) -> bool:
    manifest = newest(store, topic)
    assert manifest is not None
    moved = [each for each in manifest.node.ledgers if each.is_in_object]
    return sum(each.entries for each in moved) > len(MESSAGES)
