"""What an operator may do wrong with an object store, and what stores do by themselves.

Each time the log says what is wrong, publishing goes on, nothing is lost, and moving goes on by
itself once the store is right.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.chaos.offloading.bad_store import BadStore
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import (
    ALL,
    LAG,
    MESSAGES,
    admin,
    are,
    fill,
    objects,
    read_all,
)
from tests.s3_server import S3Server, refusal
from tests.small_disk import SmallDisk
from tests.standalone import Standalone
from tests.waiting import wait_until

_numbers = itertools.count()
_BUCKET = "ledgers"
_DISK_BYTES = 8 << 20


class Gate(BadStore):
    """The way to a bucket: each request meets the same fault, if any."""

    fault = ""

    def _drawn(self) -> str:
        return self.fault


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    s3 = S3Server(tmp_path_factory.mktemp("moto"))
    s3.create_bucket(_BUCKET)
    gate = Gate(s3.port, seed=0)
    gate.start()
    yield gate
    gate.stop()
    s3.stop()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    path = tmp_path_factory.mktemp("objects") / "disk"
    with SmallDisk(path, size_bytes=_DISK_BYTES) as small:
        yield small


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, gate: Gate, disk: SmallDisk
) -> Iterator[Standalone]:
    bucket = {
        "name": "bucket",
        "url": f"s3://{_BUCKET}",
        "endpoint": f"http://127.0.0.1:{gate.port}",
        "allow_http": True,
        "retries_max": 0,
    }
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([bucket, {"name": "disk", "url": disk.path.as_uri()}]),
        "OFFLOAD_CHECK_INTERVAL_S": "0.1",
        "OFFLOAD_RETRY_S": "0.1",
        "OFFLOAD_RETRY_S_MAX": "0.5",
        "OBJECT_BYTES_MIN": "0",
        "TAIL_CACHE_BYTES_MAX": "0",
    }
    credentials = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "hidden-from-logs"}
    with Standalone(
        tmp_path_factory.mktemp("failures") / "data",
        settings=settings,
        environment=credentials,
        command_prefix=disk.command_prefix,
    ) as standalone:
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
    return f"persistent://public/default/unlucky-{next(_numbers)}"


def failures(server: Standalone, topic: str) -> list[str]:
    """The reasons for which ledgers of the topic did not move, from the log."""
    lines = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
    return [
        line["error"]
        for line in lines
        if line["event"] == "offload_failed" and line.get("topic") == topic
    ]


def begin(server: Standalone, client: pulsar.Client, topic: str, store: str) -> None:
    """Fill a topic whose ledgers are to go to a store."""
    fill(client, topic)
    policies = {**ALL, **LAG, "managedLedgerOffloadDriver": store}
    admin(server, "POST", topic, "offloadPolicies", policies)


def publish_and_read(client: pulsar.Client, topic: str) -> None:
    """Everything is as if there were no store."""
    fill(client, f"{topic}-beside")
    assert read_all(client, f"{topic}-beside") == MESSAGES
    assert read_all(client, topic) == MESSAGES


@pytest.mark.parametrize(
    ("fault", "status", "code", "reason"),
    [
        ("unavailable", 403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("unavailable", 404, "NoSuchBucket", _BUCKET),
        ("unavailable", 503, "SlowDown", "503"),
        ("refused", 0, "", "may succeed later"),
    ],
    ids=["wrong credentials", "missing bucket", "busy", "away"],
)
def test_a_store_that_does_not_serve_is_said_so_and_gets_the_ledgers_later(
    server: Standalone,
    client: pulsar.Client,
    gate: Gate,
    topic: str,
    fault: str,
    status: int,
    code: str,
    reason: str,
) -> None:
    gate.busy = refusal(status, code)
    gate.fault = fault
    try:
        begin(server, client, topic, "bucket")
        wait_until(lambda: len(failures(server, topic)) >= 5)
        assert reason in failures(server, topic)[-1]
        assert admin(server, "GET", topic, "stats")["lastOffloadFailureTimeStamp"] > 0
        publish_and_read(client, topic)
    finally:
        gate.fault = ""
    wait_until(lambda: are(server, topic, "only"))
    assert read_all(client, topic) == MESSAGES
    assert "hidden-from-logs" not in server.log_text()


def test_a_store_that_answers_after_a_second_delays_nobody_who_does_not_read_there(
    server: Standalone, client: pulsar.Client, gate: Gate, topic: str
) -> None:
    gate.slow_s, gate.fault = 1.0, "slow"
    try:
        begin(server, client, topic, "bucket")
        publish_and_read(client, topic)
        wait_until(lambda: are(server, topic, "only"), within_s=300)
        gate.slow_s = 0.2
        assert read_all(client, topic) == MESSAGES
    finally:
        gate.fault = ""
    assert failures(server, topic) == []


def test_a_full_disk_below_a_store_is_said_so_and_gets_the_ledgers_when_there_is_room(
    server: Standalone, client: pulsar.Client, disk: SmallDisk, topic: str
) -> None:
    disk.fill()
    try:
        begin(server, client, topic, "disk")
        wait_until(lambda: len(failures(server, topic)) >= 3)
        assert "No space left" in failures(server, topic)[-1]
        publish_and_read(client, topic)
    finally:
        disk.make_room()
    wait_until(lambda: are(server, topic, "only"))
    assert read_all(client, topic) == MESSAGES


def test_an_object_that_was_deleted_by_hand_is_written_again_while_bookies_have_the_ledger(
    server: Standalone, client: pulsar.Client, disk: SmallDisk, topic: str
) -> None:
    fill(client, topic)
    policies = {**ALL, "managedLedgerOffloadDriver": "disk"}
    admin(server, "POST", topic, "offloadPolicies", policies)
    wait_until(lambda: are(server, topic, "copied"))
    own_objects(disk, topic)[0].unlink()
    publish_and_read(client, topic)
    admin(server, "POST", topic, "offloadPolicies", {**policies, **LAG})
    wait_until(lambda: are(server, topic, "only"))
    assert read_all(client, topic) == MESSAGES


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "changed"])
def test_an_object_that_only_the_store_has_is_missed_by_its_readers_only(
    server: Standalone, client: pulsar.Client, disk: SmallDisk, topic: str, is_deleted: bool
) -> None:
    begin(server, client, topic, "disk")
    wait_until(lambda: are(server, topic, "only"))
    lost = own_objects(disk, topic)[0]
    data = lost.read_bytes()
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    lost.unlink() if is_deleted else lost.write_bytes(changed)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    attempt = lost.stem.rpartition("-")[2]
    wait_until(lambda: attempt in server.log_text().partition("read_failed")[2])
    fill(client, f"{topic}-beside")
    assert read_all(client, f"{topic}-beside") == MESSAGES
    lost.write_bytes(data)
    found = [reader.read_next(60_000).data() for _ in MESSAGES]
    assert found == MESSAGES


def own_objects(disk: SmallDisk, topic: str) -> list[Path]:
    """The objects of a topic, which has no other topic's name in its own."""
    name = topic.rpartition("/")[2] + "/"
    return [each for each in objects(disk.path_here) if name in f"{each.parent.name}/"]
