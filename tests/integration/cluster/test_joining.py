"""Brokers join a cluster: registration, leases, names and listeners. Real processes."""

import asyncio
import json
from collections.abc import Iterator

import pulsar
import pytest

from magnetar.ledger.metadata.url import open_store
from tests.processes import HOST, ServerProcess, free_ports, magnetar_command
from tests.real_cluster import RealCluster
from tests.standalone import is_ready_line

TOPIC = "persistent://public/default/joined"
_QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
_WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """One broker, with two listeners; the second is the same socket by another name."""
    cluster = RealCluster(tmp_path_factory.mktemp("joining"), bookies=1, brokers=1)
    port = cluster.server("broker-1").ports["native"]
    cluster._environment["MAGNETAR_BROKER_ADVERTISED_LISTENERS"] = (
        f"inside:pulsar://{HOST}:{port},outside:pulsar://localhost:{port}"
    )
    with cluster:
        yield cluster


def _nodes(cluster: RealCluster, folder: str) -> dict[str, object]:
    """The values of the nodes in a folder of the metadata store."""

    async def read() -> dict[str, object]:
        store = await open_store(cluster.metadata_url)
        try:
            names = await store.children(folder)
            return {name: json.loads((await store.get(f"{folder}/{name}")).value) for name in names}
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_broker_is_registered_with_its_addresses_and_owns_by_leases(cluster: RealCluster) -> None:
    client = pulsar.Client(cluster.service_url, logger=_QUIET)
    client.create_producer(TOPIC).send(b"1")
    brokers = _nodes(cluster, "/loadbalance/brokers")
    leases = _nodes(cluster, "/namespace/public/default")
    client.close()
    record = brokers["broker-1"]
    assert isinstance(record, dict)
    assert record["format"] == 1
    assert record["native_url"] == cluster.url("broker-1")
    assert record["http_url"] == cluster.http_url("broker-1")
    assert set(record["listeners"]) == {"inside", "outside"}
    assert leases
    for lease in leases.values():
        assert isinstance(lease, dict)
        assert (lease["broker"], lease["session_token"]) == ("broker-1", record["session_token"])


def test_a_client_is_sent_to_the_listener_that_it_names(cluster: RealCluster) -> None:
    client = pulsar.Client(cluster.service_url, listener_name="outside", logger=_QUIET)
    client.create_producer(TOPIC).send(b"2")
    client.close()


def test_a_listener_that_nobody_advertises_is_refused(cluster: RealCluster) -> None:
    client = pulsar.Client(cluster.service_url, listener_name="nowhere", logger=_QUIET)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(TOPIC)
    client.close()


def test_a_second_broker_of_the_same_name_does_not_start_and_says_why(cluster: RealCluster) -> None:
    last = _last_words_of_another(cluster, register_timeout_ms=1_500)
    if "is taken" not in last:  # the store stood still for all of that time
        last = _last_words_of_another(cluster, register_timeout_ms=15_000)
    assert last.startswith("magnetar: broker broker-1 is not registered")
    assert f"the broker name broker-1 is taken by {cluster.url('broker-1')}" in last


def _last_words_of_another(cluster: RealCluster, *, register_timeout_ms: int) -> str:
    """How a second `broker-1` ends that has so long to register."""
    port, http_port = free_ports(2)
    command = magnetar_command(
        *("broker", "--metadata", cluster.metadata_url),
        *("--port", str(port), "--http-port", str(http_port)),
    )
    environment = {
        **cluster._environment,
        "MAGNETAR_BROKER_NAME": "broker-1",
        "MAGNETAR_BROKER_REGISTER_TIMEOUT_MS": str(register_timeout_ms),
    }
    second = ServerProcess(
        command,
        log_path=cluster.directory / "second.log",
        is_ready=is_ready_line,
        environment=environment,
    )
    assert second.wait_exit(_WAIT_S) != 0
    return (cluster.directory / "second.log").read_text().splitlines()[-1]
