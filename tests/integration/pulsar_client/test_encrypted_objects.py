"""Closed ledgers in encrypted objects, in a directory and in a bucket, and rotation of keys."""

import asyncio
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pulsar
import pytest

from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import open_object_store
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import (
    MESSAGES,
    fill,
    move,
    objects,
    read_all,
)
from tests.integration.pulsar_client.test_offloading_to_s3 import BUCKET, CREDENTIALS
from tests.s3_server import S3Server
from tests.standalone import Standalone
from tests.waiting import wait_until

ONE, TWO = bytes(range(32)).hex(), bytes(range(32, 64)).hex()
TOPIC = "persistent://public/default/hidden"
LATER = "persistent://public/default/hidden-later"
SETTINGS = {
    "LEDGER_ENTRIES_MAX": "10",
    "LEDGER_AGE_MIN_S": "0",
    "RETENTION_MINUTES": "-1",
    "RETENTION_MIB": "-1",
    "OFFLOAD_STORE": "main",
    "OFFLOAD_CHECK_INTERVAL_S": "0.2",
    "OBJECT_BYTES_MIN": "0",
    "TAIL_CACHE_BYTES_MAX": "0",
}


def write_keys(path: Path, **keys: str) -> None:
    path.touch(0o600)
    path.write_text("".join(f"{key_id} {key}\n" for key_id, key in keys.items()))


def settings_for(store: Mapping[str, object], keys: Path, new_key: str) -> dict[str, str]:
    return {
        **SETTINGS,
        "OBJECT_STORES": json.dumps([{"name": "main", **store}]),
        "OBJECT_KEY_FILE": str(keys),
        "OBJECT_KEY_ID": new_key,
    }


def check_hidden(found: Sequence[bytes], server: Standalone) -> None:
    """Objects are encrypted, and no key is anywhere."""
    assert found
    for data in found:
        assert struct.unpack_from(">8sH", data) == (b"MGNTOBJT", 2)
        assert b'"key_id":"one"' in data
    log = server.log_text()
    metadata = b"".join(each.read_bytes() for each in server.directory.rglob("*") if each.is_file())
    for key in (ONE, TWO):
        assert key not in log
        for data in (*found, metadata):
            assert key.encode() not in data
            assert bytes.fromhex(key) not in data


def check_moved(server: Standalone, found: Callable[[], Sequence[bytes]]) -> None:
    client = connect(server.url)
    fill(client, TOPIC)
    move(server, TOPIC)
    client.close()
    server.kill()
    server.start()
    client = connect(server.url)
    assert read_all(client, TOPIC) == MESSAGES
    client.close()
    check_hidden(found(), server)
    assert server.terminate() == 0
    server.assert_log_clean()


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path)
    server.create_bucket(BUCKET)
    yield server
    server.stop()


def test_encrypted_objects_in_a_directory_are_read_after_a_kill(tmp_path: Path) -> None:
    keys, store = tmp_path / "keys", tmp_path / "store"
    write_keys(keys, one=ONE)
    settings = settings_for({"url": store.as_uri()}, keys, "one")
    with Standalone(tmp_path / "data", settings=settings) as server:
        check_moved(server, lambda: [each.read_bytes() for each in objects(store)])


async def bodies(store: Mapping[str, object]) -> list[bytes]:
    """The objects of ledgers in a bucket."""
    opened = open_object_store(ObjectStoreSettings.model_validate({"name": "main", **store}))
    found = [
        (await opened.tail(each.key, each.size_bytes)).data
        async for some in opened.list("")
        for each in some
        if each.key.endswith(".mgo")
    ]
    await opened.close()
    return found


def test_encrypted_objects_in_a_bucket_are_read_after_a_kill(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    keys = tmp_path / "keys"
    write_keys(keys, one=ONE)
    store = {"url": f"s3://{BUCKET}/magnetar", "endpoint": s3.endpoint, "allow_http": True}
    settings = settings_for(store, keys, "one")
    with Standalone(tmp_path / "data", settings=settings, environment=CREDENTIALS) as server:
        check_moved(server, lambda: asyncio.run(bodies(store)))


def test_keys_are_rotated_and_a_missing_one_stops_its_readers_only(tmp_path: Path) -> None:
    keys, store = tmp_path / "keys", tmp_path / "store"

    def serve(new_key: str, **held: str) -> Standalone:
        write_keys(keys, **held)
        settings = settings_for({"url": store.as_uri()}, keys, new_key)
        return Standalone(tmp_path / "data", settings=settings)

    with serve("", one=ONE) as server:  # plain objects are read with keys, too
        client = connect(server.url)
        fill(client, "persistent://public/default/plain")
        move(server, "persistent://public/default/plain")
        client.close()
        assert server.terminate() == 0
    with serve("one", one=ONE) as server:
        client = connect(server.url)
        fill(client, TOPIC)
        move(server, TOPIC)
        client.close()
        assert server.terminate() == 0
    with serve("two", one=ONE, two=TWO) as server:
        client = connect(server.url)
        fill(client, LATER)
        move(server, LATER)
        for topic in (TOPIC, LATER, "persistent://public/default/plain"):
            assert read_all(client, topic) == MESSAGES
        client.close()
        assert server.terminate() == 0
    with serve("two", two=TWO) as server:
        client = connect(server.url)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        wait_until(lambda: "is encrypted with the key 'one'" in server.log_text())
        with pytest.raises(pulsar.Timeout):
            reader.read_next(timeout_millis=1)
        assert read_all(client, LATER) == MESSAGES
        reader.close()
        client.close()
        assert server.terminate() == 0
        server.assert_log_clean()
    with serve("two", two=TWO, one=ONE) as server:
        client = connect(server.url)
        assert read_all(client, TOPIC) == MESSAGES
        client.close()
