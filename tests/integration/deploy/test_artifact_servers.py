"""Real servers take the environment of the Compose file, and show each metric that is used."""

import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts import (
    COMPOSE,
    COMPOSE_STANDALONE,
    DOCKERFILE,
    SERVERS,
    alerts,
    dashboard_queries,
    metrics_in_query,
    metrics_on_the_page,
    read_yaml,
)
from tests.cluster import READY_TIMEOUT_S
from tests.http_calls import call
from tests.integration.deploy.commands import magnetar, run_command
from tests.processes import HOST, ServerProcess, free_ports, magnetar_command, magnetar_environment
from tests.standalone import is_ready_line

SERVICES = read_yaml(COMPOSE)["services"]
SECRET_VOLUME = "shared-secret"
PROBE = (sys.executable, str(DOCKERFILE.with_name("magnetar_health.py")))


class Servers:
    """One bookie, one broker and auto-recovery, with what the Compose file tells its containers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[ServerProcess] = []
        self.http: dict[str, str] = {}
        self.addresses: dict[str, list[str]] = {}

    def start(self) -> None:
        bookie, broker, http, bookie_http, recovery_http = map(str, free_ports(5))
        here = {"_HOST": HOST, "_ADVERTISED_HOST": HOST}
        self._launch("bookie-1", {**here, "_PORT": bookie, "_METRICS_PORT": bookie_http})
        # One bookie is all there is here: no ensemble of three.
        changes = {**here, "_PORT": broker, "_HTTP_PORT": http, "_QUORUM": "1,1,1"}
        changes["_ADVERTISED_LISTENERS"] = f"internal:pulsar://{HOST}:{broker}"
        self._launch("broker-1", changes)
        self._launch("autorecovery", {**here, "_METRICS_PORT": recovery_http})

    def _launch(self, name: str, changes: Mapping[str, str]) -> None:
        service = SERVICES[name]
        environment = {**magnetar_environment()}
        for variable, value in service["environment"].items():
            if variable.endswith("_METADATA"):
                value = f"embedded:{self._directory / 'metadata.db'}"
            for folder, place in self._mounted(name, service).items():
                value = value.replace(folder, str(place))
            environment[variable] = value
            for ending, other in changes.items():
                if re.fullmatch(rf"MAGNETAR_[A-Z]+{ending}", variable):
                    environment[variable] = other
        server = ServerProcess(
            magnetar_command(*service["command"]),
            log_path=self._directory / f"{name}.log",
            is_ready=is_ready_line,
            environment=environment,
        )
        self._running.append(server)
        server.wait_ready(READY_TIMEOUT_S)
        self.addresses[name] = server.ready_line.split()[1:]
        self.http[name] = next(each for each in self.addresses[name] if each.startswith("http"))

    def _mounted(self, name: str, service: Any) -> dict[str, Path]:
        """Where the volumes of a service are here; one that several have is one place."""
        places = {}
        for volume in service.get("volumes", []):
            source, folder, *_ = volume.split(":")
            places[folder] = (
                self._directory / (source if source == SECRET_VOLUME else name) / folder[1:]
            )
            places[folder].mkdir(parents=True, exist_ok=True)
        return places

    def stop(self) -> list[int]:
        """SIGTERM to all; their exit statuses."""
        return [server.terminate() for server in reversed(self._running)]

    def kill(self) -> None:
        for server in self._running:
            if server.returncode is None:
                server.kill()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(tmp_path_factory.mktemp("servers"))
    try:
        running.start()
        yield running
    finally:
        running.kill()


def shown(url: str) -> set[str]:
    """The series names of a server's page of metrics."""
    names = set()
    for line in call(url, "GET", "/metrics").text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            names |= (
                {f"{name}_{end}" for end in ("bucket", "sum", "count")}
                if (kind == "histogram")
                else {name}
            )
    return names


def test_every_server_is_ready_by_the_probe_of_its_container(servers: Servers) -> None:
    for name, url in servers.http.items():
        deadline_s = time.monotonic() + 20
        while True:
            asked = run_command([*PROBE, f"{url}/health"])
            if asked.status == 0 or time.monotonic() > deadline_s:
                break
        assert asked.status == 0, f"{name}: {asked.stderr}"
        assert run_command([*PROBE, "--alive", f"{url}/health"]).status == 0


def test_the_probe_tells_unwell_from_gone() -> None:
    (port,) = free_ports(1)
    for options in ([], ["--alive"]):
        asked = run_command([*PROBE, *options, f"http://{HOST}:{port}/health"])
        assert asked.status == 1
        assert str(port) in asked.stderr


def test_an_answer_that_is_no_good_is_alive_but_not_well(servers: Servers) -> None:
    url = f"{servers.http['bookie-1']}/no-such-page"
    assert run_command([*PROBE, url]).status == 1
    assert run_command([*PROBE, "--alive", url]).status == 0


def test_the_cluster_of_the_file_publishes_and_reads(servers: Servers) -> None:
    url = servers.addresses["broker-1"][0]
    sent = magnetar("produce", "t", "--message", "hello", "--url", url)
    assert sent.status == 0, sent.stderr
    read = magnetar("read", "t", "--start", "earliest", "--count", "1", "--url", url)
    assert "hello" in read.stdout, read.stderr


def test_the_metrics_page_lists_exactly_what_is_shown(servers: Servers) -> None:
    """But for what is shown when it is switched on, or once a topic was compacted or copied, or
    there was a transaction, a segment of a scalable topic, or an index of messages."""
    url = servers.addresses["broker-1"][0]
    options = ("--subscription", "s", "--initial", "earliest", "--count", "1", "--url", url)
    consumed = magnetar("consume", "t", *options)
    assert consumed.status == 0, consumed.stderr
    there = {name for url in servers.http.values() for name in shown(url)}
    listed = metrics_on_the_page()
    assert sorted(there - listed) == []
    seldom = (
        "magnetar_broker_segments",
        "magnetar_subscription_backlog_messages",
        "pulsar_bundle_",
        "pulsar_consumer_",
        "pulsar_compaction_",
        "pulsar_replication_",
        "pulsar_txn_",
    )
    assert sorted(name for name in listed - there if not name.startswith(seldom)) == []


def test_alerts_and_dashboards_ask_for_metrics_that_are_shown(servers: Servers) -> None:
    there = {name for url in servers.http.values() for name in shown(url)}
    queries = [alert["expr"] for alert in alerts()]
    queries += [query for queries in dashboard_queries().values() for query in queries]
    asked = {name for query in queries for name in metrics_in_query(query)}
    ours = {name for name in asked if name.startswith(("magnetar_", "process_"))}
    assert sorted(ours - there) == []


def test_servers_end_in_order_and_within_their_time(servers: Servers) -> None:
    begun_s = time.monotonic()
    assert servers.stop() == [0] * len(SERVERS)
    assert time.monotonic() - begun_s < 30


def test_the_single_server_of_its_compose_file_serves_this_machine_only(tmp_path: Path) -> None:
    service = read_yaml(COMPOSE_STANDALONE)["services"]["magnetar"]
    port, http_port = map(str, free_ports(2))
    environment = {
        **magnetar_environment(),
        **service["environment"],
        "MAGNETAR_STANDALONE_DATA": str(tmp_path / "data"),
        "MAGNETAR_STANDALONE_PORT": port,
        "MAGNETAR_STANDALONE_HTTP_PORT": http_port,
    }
    server = ServerProcess(
        magnetar_command(*service["command"]),
        log_path=tmp_path / "standalone.log",
        is_ready=is_ready_line,
        environment=environment,
    )
    try:
        server.wait_ready(READY_TIMEOUT_S)
        url, http_url = server.ready_line.split()[1:]
        assert (url, http_url) == (f"pulsar://{HOST}:{port}", f"http://{HOST}:{http_port}")
        sent = magnetar("produce", "t", "--message", "hello", "--url", url)
        assert sent.status == 0, sent.stderr
        assert call(http_url, "GET", "/admin/v2/tenants").status == 200
        foreign = call(http_url, "GET", "/admin/v2/tenants", headers={"Host": "page.example"})
        assert foreign.status == 403
        assert server.terminate() == 0
    finally:
        if server.returncode is None:
            server.kill()
