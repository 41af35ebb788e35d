"""Closed ledgers in an object store, as the official client and an administrator see them.

The store is a directory. The server looks several times a second, and its ledgers hold ten entries.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import connect, publish, read_next, receive_payloads
from tests.ledger_objects import objects_in
from tests.standalone import Standalone
from tests.waiting import wait_until

_numbers = itertools.count()

MESSAGES = [b"%04d" % number for number in range(100)]
NAMESPACE = "/admin/v2/namespaces/public/default"
LAG = {"managedLedgerOffloadDeletionLagInMillis": 0}
ALL = {"managedLedgerOffloadThresholdInBytes": 0}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Standalone]:
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "ACK_PERSIST_INTERVAL_MS": "50",
        "RETENTION_CHECK_INTERVAL_S": "0.2",
        "UNSUBSCRIBED_RETENTION": "false",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OFFLOAD_RETRY_S_MAX": "1",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_SWEEP_INTERVAL_S": "0.2",
        "OBJECT_GRACE_S": "0",
        "TAIL_CACHE_BYTES_MAX": "0",
    }
    directory = tmp_path_factory.mktemp("offloading") / "data"
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
    return f"persistent://public/default/offloaded-{next(_numbers)}"


def admin(server: Standalone, method: str, topic: str, path: str, body: object = None) -> Any:
    answer = call(server, method, f"{topic_path(topic)}/{path}", body)
    assert answer.status in (200, 204), (answer.status, answer.text)
    return json.loads(answer.text) if answer.text else None


def fill(client: pulsar.Client, topic: str) -> list[pulsar.MessageId]:
    """Several ledgers: each is full with ten entries, or with those that were under way then."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(each) for each in MESSAGES]
    producer.close()
    return ids


def ledgers(server: Standalone, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin(server, "GET", topic, "internalStats")["ledgers"]
    return found


def states(server: Standalone, topic: str) -> list[str]:
    """Of all ledgers but the one that is written."""
    found = [each.get("object", {}).get("state", "") for each in ledgers(server, topic)]
    assert len(found) > 1
    return found[:-1]


def are(server: Standalone, topic: str, state: str) -> bool:
    """Whether all closed ledgers are in that state."""
    return set(states(server, topic)) == {state}


def move(server: Standalone, topic: str) -> None:
    """Have all closed ledgers in the object store only."""
    admin(server, "POST", topic, "offloadPolicies", {**ALL, **LAG})
    wait_until(lambda: are(server, topic, "only"))


def read_all(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [read_next(reader).data() for _ in MESSAGES]
    reader.close()
    return found


def objects(store: Path) -> list[Path]:
    return objects_in(store)


def test_what_bookies_have_forgotten_is_read_from_the_object_store(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    ids = fill(client, topic)
    move(server, topic)
    assert read_all(client, topic) == MESSAGES
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert receive_payloads(consumer, len(MESSAGES)) == MESSAGES
    consumer.seek(ids[17])
    assert receive_payloads(consumer, 10) == MESSAGES[18:28]
    consumer.close()


def test_everything_is_there_after_a_restart(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic)
    move(server, topic)
    server.kill()
    server.start()
    assert read_all(client, topic) == MESSAGES
    assert states(server, topic)[0] == "only"


def test_a_ledger_is_on_bookies_too_until_the_lag_is_over(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic)
    admin(server, "POST", topic, "offloadPolicies", ALL)
    wait_until(lambda: are(server, topic, "copied"))
    assert read_all(client, topic) == MESSAGES
    stats = admin(server, "GET", topic, "stats")
    assert stats["offloadedStorageSize"] == sum(e["size"] for e in ledgers(server, topic)[:-1])
    assert stats["lastOffloadLedgerId"] == ledgers(server, topic)[-2]["ledgerId"]
    assert stats["lastOffloadSuccessTimeStamp"] > 0
    assert all(each["offloaded"] for each in ledgers(server, topic)[:-1])


def test_an_administrator_moves_what_ends_before_a_message(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    ids = fill(client, topic)
    assert admin(server, "GET", topic, "offload")["status"] == "NOT_RUN"
    until = {"ledgerId": ids[30].ledger_id(), "entryId": 0, "partitionIndex": -1}
    admin(server, "PUT", topic, "offload", until)
    wait_until(lambda: admin(server, "GET", topic, "offload")["status"] != "RUNNING")
    status = admin(server, "GET", topic, "offload")
    assert (status["status"], status["lastError"]) == ("SUCCESS", "")
    assert status["firstUnoffloadedMessage"]["ledgerId"] == ids[30].ledger_id()
    found = states(server, topic)
    moved = found.count("copied")
    assert found == ["copied"] * moved + [""] * (len(found) - moved)
    assert 0 < moved < len(found)


def test_the_objects_of_a_deleted_topic_are_deleted(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    before = objects(store)
    fill(client, topic)
    move(server, topic)
    assert len(objects(store)) > len(before)
    call(server, "DELETE", f"{topic_path(topic)}?force=true", expect=204)
    wait_until(lambda: objects(store) == before)


def test_an_object_that_is_damaged_is_written_again_before_bookies_forget_the_ledger(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    before = objects(store)
    fill(client, topic)
    admin(server, "POST", topic, "offloadPolicies", ALL)
    wait_until(lambda: are(server, topic, "copied"))
    damaged = [each for each in objects(store) if each not in before][1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    move(server, topic)
    wait_until(lambda: damaged not in objects(store))
    assert read_all(client, topic) == MESSAGES


def test_a_store_that_is_away_delays_old_data_only_and_says_so(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    fill(client, topic)
    move(server, topic)
    away = store.with_name("away")
    store.rename(away)
    store.write_text("not a directory")
    try:
        producer = client.create_producer(topic, batching_enabled=False)
        publish(producer, [b"more"] * 30)
        wait_until(lambda: "offload_failed" in server.log_text())
        producer.close()
    finally:
        store.unlink()
        away.rename(store)
    assert read_all(client, topic) == MESSAGES
    wait_until(lambda: are(server, topic, "only"))


def test_credentials_in_policies_are_refused_with_what_to_do(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic)
    body = {"s3ManagedLedgerOffloadCredentialSecret": "hidden"}
    for path in (f"{topic_path(topic)}/offloadPolicies", f"{NAMESPACE}/offloadPolicies"):
        answer = call(server, "POST", path, body)
        assert answer.status == 412
        assert "environment" in answer.text
        assert "hidden" not in answer.text


def test_a_store_that_the_brokers_do_not_have_is_refused(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic)
    body = {
        "managedLedgerOffloadDriver": "aws-s3",
        "s3ManagedLedgerOffloadBucket": "elsewhere",
    }
    answer = call(server, "POST", f"{topic_path(topic)}/offloadPolicies", body)
    assert answer.status == 412
    assert "object_stores" in answer.text
