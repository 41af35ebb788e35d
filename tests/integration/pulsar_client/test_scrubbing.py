"""Objects are read back now and then: what bookies have is healed, and what is lost is an alarm.

Two stores: a directory, and a server that speaks S3. Each object is due every second.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest

from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import open_object_store
from tests.http_calls import call
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import (
    ALL,
    LAG,
    MESSAGES,
    admin,
    are,
    fill,
    ledgers,
    move,
    read_all,
)
from tests.ledger_objects import objects_in
from tests.s3_server import S3Server
from tests.standalone import Standalone
from tests.waiting import wait_until

T = TypeVar("T")

BUCKET = "ledgers"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything"}
FORMER, PRESENT = "former/", "present/"


class Objects:
    """The objects of one store, for somebody who has the credentials."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self.name = settings.name
        self._settings = settings

    def lose(self, key: str) -> None:
        """Delete an object by hand."""

        async def delete(store: ObjectStore) -> None:
            await store.delete([key])

        self._with_store(delete)

    def rot(self, key: str) -> None:
        """Change a bit of an object."""
        data = bytearray(self.read(key))
        data[len(data) // 2] ^= 1
        self.write(key, bytes(data))

    def write(self, key: str, data: bytes) -> None:
        """Write an object, whether there is one or not."""

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        async def put(store: ObjectStore) -> None:
            await store.put(key, pieces())

        self._with_store(put)

    def read(self, key: str) -> bytes:
        """The bytes of an object."""

        async def tail(store: ObjectStore) -> bytes:
            return (await store.tail(key, 1 << 20)).data

        return self._with_store(tail)

    def _with_store(self, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
        async def run() -> T:
            store = open_object_store(self._settings)
            try:
                return await call(store)
            finally:
                await store.close()

        return asyncio.run(run())


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("moto"))
    server.create_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def stores_of(directory: Path, s3: S3Server) -> list[ObjectStoreSettings]:
    return [
        ObjectStoreSettings(name="files", url=directory.as_uri()),
        ObjectStoreSettings(
            name="bucket", url=f"s3://{BUCKET}/magnetar", endpoint=s3.endpoint, allow_http=True
        ),
    ]


def settings_of(directory: Path, s3: S3Server, **more: str) -> dict[str, str]:
    stores = [each.model_dump(mode="json") for each in stores_of(directory, s3)]
    return {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps(stores),
        "OFFLOAD_STORE": "files",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
        "OBJECT_SCRUB_DAYS": "0.00001",
        "OBJECT_SWEEP_INTERVAL_S": "0.2",
        "OBJECT_GRACE_S": "0",
        "TAIL_CACHE_BYTES_MAX": "0",
        **more,
    }


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, directory: Path, s3: S3Server
) -> Iterator[Standalone]:
    data = tmp_path_factory.mktemp("scrubbing") / "data"
    settings = settings_of(directory, s3)
    with Standalone(data, settings=settings, environment=CREDENTIALS) as standalone:
        yield standalone
        assert standalone.terminate() == 0


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    client = connect(server.url)
    yield client
    client.close()


@pytest.fixture(params=[0, 1], ids=["files", "bucket"])
def objects(
    request: pytest.FixtureRequest,
    directory: Path,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Objects:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return Objects(stores_of(directory, s3)[request.param])


def placed(server: Standalone, topic: str) -> list[dict[str, Any]]:
    """Where the objects of the topic's ledgers are."""
    return [each["object"] for each in ledgers(server, topic) if "object" in each]


def metric(server: Standalone, name: str) -> float:
    lines = call(server, "GET", "/metrics").text.splitlines()
    (found,) = (each for each in lines if each.startswith(f"{name} "))
    return float(found.split(" ")[1])


def copy(server: Standalone, topic: str, objects: Objects) -> None:
    """Have all closed ledgers on bookies and in the store."""
    policies = {**ALL, "managedLedgerOffloadDriver": objects.name}
    admin(server, "POST", topic, "offloadPolicies", policies)
    wait_until(lambda: are(server, topic, "copied"))


def forget(server: Standalone, topic: str, objects: Objects) -> None:
    """Have all closed ledgers in the store only: each object is read back in full before."""
    policies = {**ALL, **LAG, "managedLedgerOffloadDriver": objects.name}
    admin(server, "POST", topic, "offloadPolicies", policies)
    wait_until(lambda: are(server, topic, "only"))


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "gone"])
def test_the_object_of_a_ledger_that_bookies_have_is_written_again(
    server: Standalone, client: pulsar.Client, objects: Objects, is_lost: bool
) -> None:
    topic = f"persistent://public/default/healed-{objects.name}-{is_lost}"
    fill(client, topic)
    copy(server, topic, objects)
    replaced = metric(server, "magnetar_broker_objects_replaced_total")
    spoiled = placed(server, topic)[1]["key"]
    (objects.lose if is_lost else objects.rot)(spoiled)
    wait_until(lambda: placed(server, topic)[1]["key"] != spoiled)
    assert metric(server, "magnetar_broker_objects_replaced_total") == replaced + 1
    assert are(server, topic, "copied")
    assert not any("scrub" in each for each in placed(server, topic))
    forget(server, topic, objects)
    assert read_all(client, topic) == MESSAGES


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "gone"])
def test_an_object_that_is_the_only_copy_is_an_alarm_until_it_is_back(
    server: Standalone, client: pulsar.Client, objects: Objects, is_lost: bool
) -> None:
    topic = f"persistent://public/default/lost-{objects.name}-{is_lost}"
    fill(client, topic)
    forget(server, topic, objects)
    key = placed(server, topic)[1]["key"]
    before = objects.read(key)
    (objects.lose if is_lost else objects.rot)(key)
    verdict = "gone" if is_lost else "damaged"
    wait_until(lambda: placed(server, topic)[1].get("scrub") == verdict)
    assert metric(server, "magnetar_broker_ledgers_lost") == 1
    assert metric(server, f"magnetar_broker_objects_{verdict}_total") >= 1
    told = [each for each in server.log_text().splitlines() if key in each and verdict in each]
    assert told
    assert are(server, topic, "only")
    server.kill()
    server.start()
    wait_until(lambda: placed(server, topic)[1].get("scrub") == verdict)
    wait_until(lambda: metric(server, "magnetar_broker_ledgers_lost") == 1)
    objects.write(key, before)
    wait_until(lambda: "scrub" not in placed(server, topic)[1])
    assert metric(server, "magnetar_broker_ledgers_lost") == 0
    assert read_all(client, topic) == MESSAGES


def test_a_time_in_ledgers_that_bookies_have_forgotten_is_found_by_their_indexes(
    server: Standalone, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/times"
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(100):
        producer.send(b"%04d" % number)
    producer.close()
    move(server, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    times = [reader.read_next().publish_timestamp() for _ in range(100)]
    for at in (0, 1, 35, 57, 99):
        reader.seek(times[at])
        expected = times.index(times[at])
        assert reader.read_next().data() == b"%04d" % expected
    reader.close()


def test_the_objects_of_a_topic_that_nobody_uses_are_healed_too(
    tmp_path: Path, s3: S3Server
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    settings = settings_of(files, s3, OBJECT_SCRUB_DAYS="0", TOPICS_AT_REST_INTERVAL_S="0.5")
    topic = "persistent://public/default/unused"
    with Standalone(tmp_path / "data", settings=settings, environment=CREDENTIALS) as before:
        client = connect(before.url)
        fill(client, topic)
        admin(before, "POST", topic, "offloadPolicies", ALL)
        wait_until(lambda: are(before, topic, "copied"))
        client.close()
        assert before.terminate() == 0
    spoiled = objects_in(files)[1]
    spoiled.unlink()
    settings["OBJECT_SCRUB_DAYS"] = "0.00001"
    with Standalone(tmp_path / "data", settings=settings, environment=CREDENTIALS) as after:
        wait_until(lambda: "object_healed" in after.log_text())
        assert read_with_a_client(after, topic) == MESSAGES
        assert after.terminate() == 0


def read_with_a_client(server: Standalone, topic: str) -> list[bytes]:
    client = connect(server.url)
    found = read_all(client, topic)
    client.close()
    return found


def test_objects_under_a_former_prefix_are_read_and_swept(
    tmp_path: Path, directory: Path, s3: S3Server
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    settings = settings_of(files, s3, OBJECT_PREFIX=FORMER, OBJECT_SCRUB_DAYS="0")
    topic = "persistent://public/default/moved"
    with Standalone(tmp_path / "data", settings=settings, environment=CREDENTIALS) as before:
        client = connect(before.url)
        fill(client, topic)
        move(before, topic)
        client.close()
        assert before.terminate() == 0
    assert objects_in(files / FORMER)
    settings |= {"OBJECT_PREFIX": PRESENT, "OBJECT_PREFIXES_FORMER": json.dumps([FORMER])}
    with Standalone(tmp_path / "data", settings=settings, environment=CREDENTIALS) as after:
        assert read_with_a_client(after, topic) == MESSAGES
        path = "/admin/v2/persistent/public/default/moved?force=true"
        call(after, "DELETE", path, expect=204)
        wait_until(lambda: not objects_in(files))
        assert after.terminate() == 0
