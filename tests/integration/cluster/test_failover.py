"""A topic gets another broker: the owner dies, stops in order, or gives it up. Real processes.

The bounds are those of the product where they hold on any machine (the session timeout and a
second); where it comes to tenths of a second, `python -m tests.bench --only gaps` measures, and
here they are wide enough for a busy machine.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.flow import Flow
from tests.integration.cluster.questions import owner_of, unload_bundle_of
from tests.real_cluster import RealCluster

SESSION_TIMEOUT_S = 3.0
BUSY_S = 5.0
"""The promise is one second, and the benchmark of gaps measures it; beside tests it is more."""
TOPIC = "persistent://public/default/moving"
BROKERS = {"broker-1": "broker-2", "broker-2": "broker-1"}
"""Each and the other."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    timeout_ms = str(int(SESSION_TIMEOUT_S * 1000))
    directory: Path = tmp_path_factory.mktemp("failover")
    with RealCluster(
        directory, environment={"MAGNETAR_METADATA_SESSION_TIMEOUT_MS": timeout_ms}
    ) as cluster:
        yield cluster


def test_another_broker_serves_when_the_session_of_one_killed_with_9_has_ended(
    cluster: RealCluster,
) -> None:
    with Flow(cluster.service_url, TOPIC) as flow:
        flow.wait_receipts(100)
        owner = owner_of(cluster, TOPIC, asked="broker-1")
        killed_s = time.monotonic()
        cluster.kill(owner)
        flow.wait_receipts(100)
        gap = flow.longest_gap(killed_s - 0.1)
        assert gap.seconds <= SESSION_TIMEOUT_S + BUSY_S, gap
        other = BROKERS[owner]
        assert owner_of(cluster, TOPIC, asked=other) == other
        flow.drain()
        flow.check()
    cluster.start(owner)


def test_a_broker_that_gets_sigterm_hands_its_topics_over_and_ends_with_status_0(
    cluster: RealCluster,
) -> None:
    with Flow(cluster.service_url, TOPIC) as flow:
        flow.wait_receipts(100)
        owner = owner_of(cluster, TOPIC, asked="broker-1")
        asked_s = time.monotonic()
        assert cluster.terminate(owner) == 0
        flow.wait_receipts(100)
        gap = flow.longest_gap(asked_s - 0.1)
        assert gap.seconds < SESSION_TIMEOUT_S, gap  # nobody waited for a session to end
        flow.drain()
        flow.check()
        # Publishes were answered before the topic moved: nothing was stored twice.
        assert len({place for _, place in _stored(flow)}) == flow.sent
    cluster.start(owner)


def test_an_unloaded_bundle_goes_where_it_is_told_to_and_its_clients_with_it(
    cluster: RealCluster,
) -> None:
    with Flow(cluster.service_url, TOPIC) as flow:
        flow.wait_receipts(100)
        for _ in range(2):
            owner = owner_of(cluster, TOPIC, asked="broker-1")
            asked_s = time.monotonic()
            unload_bundle_of(cluster, TOPIC, owner, BROKERS[owner])
            flow.wait_receipts(100)
            gap = flow.longest_gap(asked_s - 0.1)
            assert gap.seconds < SESSION_TIMEOUT_S, gap
            assert owner_of(cluster, TOPIC, asked="broker-1") == BROKERS[owner]
        flow.drain()
        flow.check()
        assert len({place for _, place in _stored(flow)}) == flow.sent


def test_both_brokers_have_a_share_and_each_tells_the_way_to_the_other(
    cluster: RealCluster,
) -> None:
    topics = [f"persistent://public/default/spread-{number}" for number in range(12)]
    owners = [owner_of(cluster, topic, asked="broker-1") for topic in topics]
    assert owners == [owner_of(cluster, topic, asked="broker-2") for topic in topics]
    assert set(owners) == {"broker-1", "broker-2"}


def _stored(flow: Flow) -> set[tuple[int, tuple[int, int]]]:
    """What was delivered: numbers and positions."""
    return {(number, (place.ledger_id(), place.entry_id())) for _, number, place in flow.received}
