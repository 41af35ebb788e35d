"""Ledgers in an object store are read there, beside those on bookies, and with no server at all."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.arrow import TopicNotFoundError, read, scan
from tests.integration.arrow.support import at_bookies, keep_topics
from tests.integration.pulsar_client.support import connect
from tests.integration.pulsar_client.test_offloading import admin, fill, move
from tests.standalone import Standalone
from tests.waiting import wait_until

SMALL = {"sliceBytes": "500"}
FILLED = [b"%04d" % number for number in range(100)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrow-objects") / "store"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Standalone]:
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "OBJECT_BYTES_MIN": "0",
    }
    directory = tmp_path_factory.mktemp("arrow-offloaded") / "data"
    with Standalone(directory, settings=settings) as standalone:
        keep_topics(standalone)
        yield standalone


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(server.url)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    "how", [{}, {"workers": 2}, {"workers": 2, "processes": True}], ids=["one", "two", "processes"]
)
def test_a_read_spans_objects_and_bookies_without_a_seam(
    server: Standalone, client: pulsar.Client, topic: str, how: dict[str, Any]
) -> None:
    fill(client, topic)
    move(server, topic)
    admin(server, "DELETE", topic, "offloadPolicies")
    fill(client, topic)
    where = {**at_bookies(server), "service_url": "pulsar://127.0.0.1:1"}  # workers ask no broker
    table = read(topic, options=SMALL, **where, **how).read_all()
    assert table.column("value").to_pylist() == FILLED * 2


def test_objects_are_read_with_every_server_down(
    server: Standalone, client: pulsar.Client, topic: str, store: Path
) -> None:
    fill(client, topic)
    move(server, topic)
    expected = read(topic, **at_bookies(server)).read_all().column("value").to_pylist()
    assert expected == FILLED
    described = scan(topic, objects=store.as_uri(), workers=2, options=SMALL)

    def is_told_of() -> bool:
        try:
            return bool(described.table().num_rows >= 90)
        except TopicNotFoundError:
            return False

    wait_until(is_told_of, "the store tells of what is in it")
    server.terminate()
    values = described.table().column("value").to_pylist()
    # The last ledger may be in no object yet: what is read is the beginning, without a gap.
    assert values == FILLED[: len(values)]
    assert len(values) >= 90
