"""`/health` of real processes in each broken state, and when it is over."""

from collections.abc import Iterator

import pytest

from tests.http_calls import call
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

_WAIT_S = 60.0
_ENVIRONMENT = {
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": "3000",
    "MAGNETAR_BROKER_HEALTH_CHECK_TIMEOUT_MS": "1500",
    "MAGNETAR_BROKER_HEALTH_CHECK_INTERVAL_MS": "50",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with RealCluster(
        tmp_path_factory.mktemp("health"),
        bookies=1,
        brokers=1,
        autorecovery=1,
        environment=_ENVIRONMENT,
    ) as made:
        yield made


def _until(cluster: RealCluster, server: str, status: int, words: str) -> str:
    """Ask until it answers with that status, and with these words; returns all its words."""
    said = ""

    def is_said() -> bool:
        nonlocal said
        answer = call(cluster.http_url(server), "GET", "/health")
        said = str(answer.json["status"])
        return answer.status == status and words in said

    wait_until(is_said, f"{server} says {status} {words}", within_s=_WAIT_S)
    return said


def _all_well(cluster: RealCluster) -> None:
    for server in ("broker-1", "bookie-1", "autorecovery-1"):
        _until(cluster, server, 200, "ok")


def test_a_broker_without_bookies_says_what_it_waits_for_until_they_are_back(
    cluster: RealCluster,
) -> None:
    _all_well(cluster)
    cluster.pause("bookie-1")
    try:
        assert "heartbeat" in _until(cluster, "broker-1", 503, "writing an entry")
        broker = cluster.http_url("broker-1")
        assert "heartbeat" in call(broker, "GET", "brokers/health", expect=503).text
        assert call(broker, "GET", "brokers/ready", expect=200).text == "ok"
    finally:
        cluster.resume("bookie-1")
    _all_well(cluster)
    assert call(broker, "GET", "brokers/health", expect=200).text == "ok"


def test_without_metadata_every_server_says_so_until_it_is_back(cluster: RealCluster) -> None:
    _all_well(cluster)
    (zookeeper,) = [name for name in cluster.names if name.startswith("zookeeper")]
    cluster.pause(zookeeper)
    try:
        _until(cluster, "bookie-1", 503, "the metadata store does not answer")
        _until(cluster, "autorecovery-1", 503, "no metadata")
        assert _until(cluster, "broker-1", 503, "") in (
            "no lease",
            "the metadata store does not answer",
        )
    finally:
        cluster.resume(zookeeper)
    _all_well(cluster)


def test_a_bookie_without_room_says_so_and_is_well(cluster: RealCluster) -> None:
    """What it has is served; 503 would take it from those who read."""
    cluster.terminate("bookie-1")
    cluster._environment["MAGNETAR_BOOKIE_DISK_FULL_SHARE"] = "0.000002"
    cluster._environment["MAGNETAR_BOOKIE_DISK_WARN_SHARE"] = "0.000001"
    cluster._environment["MAGNETAR_BOOKIE_DISK_LOW_WATER_SHARE"] = "0.0000005"
    cluster.start("bookie-1")
    _until(cluster, "bookie-1", 200, "ok")
    said = call(cluster.http_url("bookie-1"), "GET", "/health").json
    assert said["writable"] is False
    assert said["registered_as"] == "read-only"
    assert said["read_only_reasons"] == ["a disk of the bookie is full"]
    _until(cluster, "broker-1", 503, "heartbeat")
