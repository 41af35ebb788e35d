"""GET /health and GET /metrics of a real broker."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from magnetar.broker.base.errors import ListenError
from magnetar.broker.broker import Broker
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.sdk.wire import BaseCommand
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of


async def _get(
    port: int,
    path: str,
    *,
    method: str = "GET",
    origin: str | None = None,
    host: str = "localhost",
) -> tuple[int, str]:
    headers = {"Host": host, **({"Origin": origin} if origin is not None else {})}
    answer = await ask(port, method, path, headers=headers)
    return answer.status, answer.text


async def test_health_and_metrics(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        status, body = await _get(broker.http_port, "/health")
        assert status == 200
        assert '"status":"ok"' in body
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.subscribe(TOPIC, permits=10)
        client.publish(0, b"body")
        kinds = {(await client.next()).type for _ in range(2)}
        assert kinds == {BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE}
        status, body = await _get(broker.http_port, "/metrics")
        assert status == 200
        labels = f'cluster="standalone",namespace="public/default",topic="{TOPIC}"'
        for line in (
            "magnetar_broker_connections 1.0",
            f"pulsar_in_messages_total{{{labels}}} 1.0",
            "magnetar_broker_publish_latency_seconds_count 1.0",
            f"pulsar_out_messages_total{{{labels}}} 1.0",
            f'pulsar_subscription_consumers_count{{{labels},subscription="s"}} 1.0',
            f'pulsar_subscription_back_log{{{labels},subscription="s"}} 1.0',
        ):
            assert line in body, body
        assert (await _get(broker.http_port, "/nothing"))[0] == 404
        await client.close()


async def test_probes_take_no_other_methods_and_head_has_no_body(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        for path in ("/health", "/metrics"):
            status, body = await _get(broker.http_port, path, method="DELETE")
            assert (status, "Method Not Allowed" in body) == (405, True)
            assert await _get(broker.http_port, path, method="HEAD") == (200, "")
        for path, status in (("/status.html", 200), ("/admin/v2/tenants/nobody", 404)):
            assert await _get(broker.http_port, path, method="HEAD") == (status, "")
        assert (await _get(broker.http_port, "/metrics/"))[0] == 200


async def test_first_requests_wait_for_the_interface_to_be_made_and_none_is_refused(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        paths = ["/admin/v2/clusters", "/lookup/v2/topic/persistent/public/default/t"] * 10
        paths += ["/openapi.json", "/docs", "/health", "/metrics"]
        answers = await asyncio.gather(*(_get(port, each) for each in paths))
        assert [status for status, _ in answers] == [200] * len(paths)
        description = json.loads(answers[20][1])
        assert {"/health", "/metrics", "/admin/v2/clusters"} <= description["paths"].keys()


async def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        with pytest.raises(ListenError, match=f"127.0.0.1:{broker.port}"):
            async with broker_on(cluster, port=broker.port):
                pass
        with pytest.raises(ListenError, match=f"127.0.0.1:{broker.http_port}"):
            async with broker_on(cluster, http_port=broker.http_port):
                pass


async def test_a_start_that_ends_early_leaves_no_port_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []

    async def break_off(registry: PolicyRegistry, cluster_data: dict[str, Any]) -> None:
        urls.extend(cluster_data.values())
        raise asyncio.CancelledError

    monkeypatch.setattr(PolicyRegistry, "start", break_off)
    async with cluster_of(1, tmp_path) as cluster:
        with pytest.raises(asyncio.CancelledError):
            async with broker_on(cluster):
                pass
        assert len(urls) == 2
        for url in urls:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def test_a_start_that_ends_early_keeps_nobody_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[WireClient] = []

    async def fail(broker: Broker) -> None:
        clients.append(await WireClient.open(broker.port))
        raise ListenError("the HTTPS port is taken")

    monkeypatch.setattr(Broker, "_start_https", fail)
    async with cluster_of(1, tmp_path) as cluster:
        with pytest.raises(ListenError):
            async with broker_on(cluster):
                pass
        await clients[0].closed()
        await clients[0].close()


@pytest.mark.parametrize(
    "settings", [{"host": "0.0.0.0"}, {"plain_host": "0.0.0.0"}, {"plain_host": "192.0.2.7"}]
)
async def test_no_port_is_open_to_others_without_authentication_unless_told(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        with pytest.raises(ListenError, match=r"refusing to listen on .* without authentication"):
            async with broker_on(cluster, **settings):
                pass


async def test_a_page_of_another_origin_changes_nothing(tmp_path: Path) -> None:
    path = "/admin/v2/persistent/public/default/made"
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        for origin in ("https://elsewhere.example", "http://x.example", "null", "//["):
            for method in ("PUT", "POST", "DELETE"):
                status, body = await _get(broker.http_port, path, method=method, origin=origin)
                assert (status, "websocket_origins" in body) == (403, True), (origin, method, body)
        own = await _get(broker.http_port, path, method="PUT", origin="http://localhost")
        assert own[0] == 204
        # Reading is the browser's to allow: without our word it shows a page nothing.
        stats = await _get(broker.http_port, f"{path}/stats", origin="https://elsewhere.example")
        assert stats[0] == 200


async def test_a_name_that_leads_here_by_a_trick_reaches_nothing(tmp_path: Path) -> None:
    """A page's own name may lead to loopback: to its browser the broker is then a part of it."""
    own, listed = "own.example", "http://listed.example:8080"
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, advertised_host=own, websocket_origins=listed) as broker,
    ):
        port = broker.http_port
        for path in ("/", "/console/index.html", "/metrics", "/admin/v2/clusters"):
            status, body = await _get(port, path, host=f"evil.example:{port}")
            assert (status, "websocket_origins" in body) == (403, True), path
        for host in ("127.0.0.1", f"[::1]:{port}", "LOCALHOST", "own.example", "listed.example:1"):
            assert (await _get(port, "/admin/v2/clusters", host=host))[0] == 200, host
        assert (await _get(port, "/health", host="probe.example"))[0] == 200
        url = f"ws://evil.example:{port}/ws/v2/reader/persistent/public/default/t"
        with pytest.raises(InvalidStatus) as caught:
            await websockets.connect(
                url, host="127.0.0.1", port=port, origin=Origin(f"http://evil.example:{port}")
            )
        assert caught.value.response.status_code == 403


async def test_a_broker_that_asks_for_credentials_goes_by_any_name(tmp_path: Path) -> None:
    secret = "data:;base64," + base64.b64encode(b"k" * 32).decode()
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, token_secret_key=secret, metrics_open=True) as broker,
    ):
        assert (await _get(broker.http_port, "/metrics", host="any.example"))[0] == 200
