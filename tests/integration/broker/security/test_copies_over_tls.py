"""Copies to a cluster that wants TLS and a token, set up by `magnetar admin clusters`."""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from typer.testing import CliRunner

from magnetar.deploy.cli import app
from tests.http_calls import admin, call, topic_path
from tests.integration.broker.security.secured import Secured, bearer, token_for
from tests.processes import HOST
from tests.standalone import Standalone
from tests.waiting import wait_until

NAMESPACE = "public/copied"
TOPIC = f"persistent://{NAMESPACE}/t"


@pytest.fixture
def west(tmp_path: Path) -> Iterator[Secured]:
    running = Secured(tmp_path / "west", settings=["cluster_name = 'west'"])
    with running:
        root = bearer(token_for("root"))
        running.ask("PUT", "/admin/v2/clusters/east", headers=root, body={})
        clusters = {"allowedClusters": ["east", "west"], "adminRoles": []}
        running.ask("POST", "/admin/v2/tenants/public", headers=root, body=clusters)
        running.ask("PUT", f"/admin/v2/namespaces/{NAMESPACE}", headers=root, body={})
        yield running
        running.assert_log_clean()


@pytest.fixture
def east(tmp_path: Path) -> Iterator[Standalone]:
    settings = {"CLUSTER_NAME": "east", "REPLICATION_RETRY_S_MAX": "0.2"}
    with Standalone(tmp_path / "east", settings=settings) as running:
        yield running
        running.assert_log_clean()


def clusters(server: Standalone, *arguments: str) -> None:
    ended = CliRunner().invoke(
        app, ["admin", "clusters", *arguments, "--admin-url", server.http_url]
    )
    assert ended.exit_code == 0, ended.output


def problem(server: Standalone) -> str:
    stats = admin(server, "GET", f"{topic_path(f'{TOPIC}-partition-0')}/stats")
    return str(stats["replication"].get("west", {}).get("problem"))


def test_partitions_and_messages_reach_a_cluster_that_wants_tls_and_a_token(
    east: Standalone, west: Secured, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(token_for("nobody"))
    clusters(
        east,
        "create",
        "west",
        "--tls-enable",
        *("--broker-url-secure", west.tls_url),
        *("--url-secure", f"https://{HOST}:{west.https_port}"),
        *("--tls-trust-certs-filepath", str(west.authority.path)),
        *("--auth-plugin", "token"),
        *("--auth-parameters", f"file://{token}"),
    )
    here = {"allowedClusters": ["east", "west"], "adminRoles": []}
    call(east, "POST", "/admin/v2/tenants/public", here, expect=204)
    call(east, "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {}, expect=204)
    path = f"/admin/v2/namespaces/{NAMESPACE}/replication"
    call(east, "POST", path, ["east", "west"], expect=204)
    note = call(east, "PUT", f"{topic_path(TOPIC)}/partitions", 2, expect=204).headers
    assert "not in cluster west yet" in note["x-magnetar-note"]
    client = pulsar.Client(east.url)
    producer = client.create_producer(TOPIC)
    wait_until(lambda: "nobody" in problem(east) or "uthoriz" in problem(east))
    producer.send(b"hello")
    token.write_text(token_for("root"))
    there = pulsar.Client(
        west.tls_url,
        authentication=pulsar.AuthenticationToken(token_for("root")),
        tls_trust_certs_file_path=str(west.authority.path),
    )
    wait_until(lambda: problem(east) == "")
    reader = there.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert reader.receive(timeout_millis=20_000).data() == b"hello"
    assert admin_of(west, "GET", f"{topic_path(TOPIC)}/partitions")["partitions"] == 2
    client.close()
    there.close()


def admin_of(server: Secured, method: str, path: str) -> dict[str, int]:
    answer = call(server, method, path, headers=bearer(token_for("root")), expect=200).json
    assert isinstance(answer, dict)
    return answer
