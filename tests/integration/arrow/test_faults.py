"""Servers that die while a topic is read: the read goes on with those that are left, or waits."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from magnetar.arrow import read
from tests.cluster import ProcessCluster
from tests.integration.arrow.support import at_bookies, keep_topics, through_brokers
from tests.integration.pulsar_client.support import connect, publish_to
from tests.waiting import wait_until

TOPIC = "persistent://public/default/arrow-faults"
VALUES = [b"%d:" % number + bytes(20_000) for number in range(1_000)]
SMALL: dict[str, Any] = {"options": {"sliceBytes": "2000000", "requestBytes": "100000"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    """Three bookies, each of which has everything, and a broker."""
    with ProcessCluster(tmp_path / "cluster") as running:
        keep_topics(running)
        client = connect(running.url)
        publish_to(client, TOPIC, VALUES, batching_enabled=False)
        client.close()
        yield running


def _numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [
        int(value.partition(b":")[0]) for batch in batches for value in batch.column(0).to_pylist()
    ]


@pytest.mark.parametrize(
    "how", [{}, {"workers": 2}, {"workers": 2, "processes": True, "memory_bytes": 64 << 20}]
)
def test_bookies_that_die_while_they_are_read_leave_no_gap(
    cluster: ProcessCluster, how: dict[str, Any]
) -> None:
    reader = read(TOPIC, columns=["value"], **{**at_bookies(cluster), **SMALL, **how})
    batches = [reader.read_next_batch()]
    for each in cluster.servers[:2]:
        each.kill()
    batches += list(reader)
    assert _numbers(batches) == list(range(len(VALUES)))


def test_a_broker_that_dies_is_not_needed_to_read_bookies(cluster: ProcessCluster) -> None:
    reader = read(TOPIC, columns=["value"], **{**at_bookies(cluster), **SMALL})
    cluster.servers[-1].kill()
    assert _numbers(list(reader)) == list(range(len(VALUES)))


@pytest.mark.parametrize("how", [{}, {"workers": 2}])
def test_a_broker_that_dies_while_it_is_read_through_is_waited_for(
    cluster: ProcessCluster, how: dict[str, Any]
) -> None:
    reader = read(TOPIC, columns=["value"], **{**through_brokers(cluster), **SMALL, **how})
    batches = [reader.read_next_batch()]
    cluster.servers[-1].kill()
    rest: list[pa.RecordBatch] = []
    reading = threading.Thread(target=lambda: rest.extend(reader), daemon=True)
    reading.start()
    cluster.restart_broker()
    wait_until(lambda: not reading.is_alive(), "the read ends", within_s=120)
    assert _numbers([*batches, *rest]) == list(range(len(VALUES)))


def test_bookies_that_nobody_reaches_are_read_through_the_broker(
    cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from magnetar.arrow.stored import bookie_link

    def refuse(*_: Any) -> Any:
        raise ConnectionRefusedError("no way to bookies")

    monkeypatch.setattr(bookie_link.BookieConnector, "connect", refuse)
    reader = read(TOPIC, columns=["value"], **{**at_bookies(cluster), **SMALL})
    assert _numbers(list(reader)) == list(range(len(VALUES)))
