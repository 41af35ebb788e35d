"""Closed ledgers in a bucket of a server that speaks S3."""

import json
from collections.abc import Iterator

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import (
    MESSAGES,
    admin,
    are,
    fill,
    move,
    read_all,
    states,
)
from tests.s3_server import S3Server
from tests.standalone import Standalone
from tests.waiting import wait_until

BUCKET = "ledgers"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "hidden-from-logs"}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("moto"))
    server.create_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Standalone]:
    def store(name: str, bucket: str) -> dict[str, object]:
        url = f"s3://{bucket}/magnetar"
        return {"name": name, "url": url, "endpoint": s3.endpoint, "allow_http": True}

    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([store("main", BUCKET), store("wrong", "no-such-bucket")]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_SWEEP_INTERVAL_S": "0.2",
        "OBJECT_GRACE_S": "0",
        "TAIL_CACHE_BYTES_MAX": "0",
    }
    directory = tmp_path_factory.mktemp("offloading-to-s3") / "data"
    with Standalone(directory, settings=settings, environment=CREDENTIALS) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in standalone.log_text()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    client = connect(server.url)
    yield client
    client.close()


def test_ledgers_go_to_the_bucket_and_are_read_there_after_a_kill_and_deleted_with_the_topic(
    server: Standalone, client: pulsar.Client, s3: S3Server
) -> None:
    topic = "persistent://public/default/cold"
    fill(client, topic)
    move(server, topic)
    objects = [key for key in s3.keys(BUCKET) if key.endswith(".mgo")]
    assert len(objects) == len(states(server, topic))
    server.kill()
    server.start()
    assert read_all(client, topic) == MESSAGES
    call(server, "DELETE", f"{topic_path(topic)}?force=true", expect=204)
    wait_until(lambda: s3.keys(BUCKET) == [])


def test_a_bucket_that_is_not_there_is_said_so_and_publishing_goes_on(
    server: Standalone, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/nowhere"
    ids = fill(client, topic)
    body = {"managedLedgerOffloadDriver": "wrong"}
    admin(server, "POST", topic, "offloadPolicies", body)
    until = {"ledgerId": ids[-1].ledger_id(), "entryId": 0, "partitionIndex": -1}
    admin(server, "PUT", topic, "offload", until)
    wait_until(lambda: admin(server, "GET", topic, "offload")["status"] == "ERROR")
    error = admin(server, "GET", topic, "offload")["lastError"]
    assert "no-such-bucket" in error
    fill(client, topic)
    assert are(server, topic, "") or "copying" in states(server, topic)
    assert read_all(client, topic) == MESSAGES
