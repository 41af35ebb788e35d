"""A broker without contact to the metadata store stops by itself. Real processes and ZooKeeper."""

import time
from pathlib import Path

import pulsar
import pytest

from tests.integration.cluster.flow import Flow
from tests.integration.cluster.frozen_proxy import FrozenProxy
from tests.integration.cluster.questions import health, owner_of, unload_bundle_of
from tests.processes import HOST
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

SESSION_TIMEOUT_S = 3.0
SERVING_SESSION_S = 9.0
"""Where something is served in the part of it that a lease lasts."""
BUSY_S = 15.0
"""Beside other tests a client may have to wait for a processor so long."""
TOPIC = "persistent://public/default/guarded"
OTHER = {"broker-1": "broker-2", "broker-2": "broker-1"}
WAIT_S = 60.0


def _cluster(directory: Path, session_s: float = SESSION_TIMEOUT_S) -> RealCluster:
    timeout_ms = str(int(session_s * 1000))
    return RealCluster(directory, environment={"MAGNETAR_METADATA_SESSION_TIMEOUT_MS": timeout_ms})


def _wait_for(cluster: RealCluster, broker: str, wanted: tuple[int, str]) -> float:
    """When the broker said so for the first time."""
    wait_until(lambda: health(cluster, broker) == wanted, f"{broker} is {wanted}", within_s=WAIT_S)
    return time.monotonic()


def test_m13_topics_are_served_until_the_lease_runs_out_and_come_back_with_the_store(
    tmp_path: Path,
) -> None:
    with (
        _cluster(tmp_path, SERVING_SESSION_S) as cluster,
        Flow(cluster.service_url, TOPIC) as flow,
    ):
        flow.wait_receipts(100)
        owner = owner_of(cluster, TOPIC, asked="broker-1")
        cluster.kill("zookeeper-1")
        killed_s = time.monotonic()
        flow.wait_receipts(50)  # what is owned is served
        without_lease_s = _wait_for(cluster, owner, (503, "no lease"))
        assert without_lease_s - killed_s < SERVING_SESSION_S
        later = (
            flow.sent
        )  # what was sent before may have been stored, and its receipt be on its way
        with pytest.raises(AssertionError, match="a later one is acknowledged"):
            flow.wait_until(
                lambda: any(number >= later for _, number, _ in flow.receipts),
                "a later one is acknowledged",
                wait_s=1.0,
            )
        assert "no contact with the metadata store" in cluster.log_text(owner)
        cluster.start("zookeeper-1")
        _wait_for(cluster, owner, (200, "ok"))
        flow.wait_receipts(100)
        flow.drain()
        flow.check()


def test_m13_m15_a_broker_that_was_stopped_longer_than_its_session_says_nothing_from_before(
    tmp_path: Path,
) -> None:
    """The zombie has messages to send, credit of a consumer, and publishes in its sockets."""
    with _cluster(tmp_path) as cluster, Flow(cluster.service_url, TOPIC) as flow:
        flow.wait_receipts(100)
        owner = owner_of(cluster, TOPIC, asked="broker-1")
        other = OTHER[owner]
        cluster.pause(owner)
        sent = flow.sent
        flow.wait_until(
            lambda: owner_of(cluster, TOPIC, asked=other) == other, "another owner", WAIT_S
        )
        # Somebody who asks the other one: it takes the topic when the session is over.
        client = pulsar.Client(
            cluster.url(other), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        theirs = client.create_producer(TOPIC, batching_enabled=False)
        place = theirs.send(b"-1")
        taken_s = time.monotonic()
        before = len(flow.receipts)
        cluster.resume(owner)
        assert owner_of(cluster, TOPIC, asked=other) == other
        flow.wait_receipts(100)
        # Whatever was acknowledged since is behind what the new owner had stored before; but for
        # what was stored and on its way out in the very turn in which the process was stopped: no
        # look at the clock can come later than the last one. Nothing that it reads later is there.
        border = (place.ledger_id(), place.entry_id())
        assert all(at > taken_s for at, _, _ in flow.receipts[before:])
        answered = [
            ((place.ledger_id(), place.entry_id()), number)
            for _, number, place in flow.receipts[before:]
        ]
        on_their_way = [each for each in answered if each[0] <= border]
        assert all(number < sent for _, number in on_their_way)
        assert answered[: len(on_their_way)] == on_their_way
        client.close()
        assert '"topics": 1, "reason": "no contact with the metadata store' in cluster.log_text(
            owner
        )
        flow.drain()
        flow.received = [each for each in flow.received if each[1] >= 0]
        flow.check()


def test_clients_of_a_broker_that_is_cut_off_from_the_store_alone_find_the_next_owner(
    tmp_path: Path,
) -> None:
    """The clients know both brokers, and the one that is cut off sends them to the other."""
    cluster = _cluster(tmp_path)
    with FrozenProxy(cluster.server("zookeeper-1").ports["native"]) as proxy:
        url = f"zk://{HOST}:{proxy.port}/" + cluster.metadata_url.rpartition("/")[2]
        cluster._arguments["broker-1"] = ["--metadata", url]
        with cluster, Flow(cluster.service_url, TOPIC) as flow:
            flow.wait_receipts(50)
            if owner_of(cluster, TOPIC, asked="broker-2") != "broker-1":
                unload_bundle_of(cluster, TOPIC, "broker-2", "broker-1")
                flow.wait_receipts(50)
            assert owner_of(cluster, TOPIC, asked="broker-2") == "broker-1"
            proxy.freeze()
            cut_s = time.monotonic()
            flow.wait_until(
                lambda: owner_of(cluster, TOPIC, asked="broker-2") == "broker-2", "the next owner"
            )
            flow.wait_receipts(100)
            gap = flow.longest_gap(cut_s)
            # It serves for the first part of it, and the client asks again every few tenths.
            assert gap.seconds <= SESSION_TIMEOUT_S + BUSY_S, gap
            assert health(cluster, "broker-1") == (503, "no lease")
            proxy.thaw()
            _wait_for(cluster, "broker-1", (200, "ok"))
            flow.drain()
            flow.check()
