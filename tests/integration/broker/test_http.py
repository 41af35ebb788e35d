"""GET /health and GET /metrics of a real broker."""

import asyncio
from pathlib import Path

import pytest

from magnetar.broker.errors import ListenError
from magnetar.sdk.wire import BaseCommand
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of


async def _get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


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


async def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        with pytest.raises(ListenError, match=f"127.0.0.1:{broker.port}"):
            async with broker_on(cluster, port=broker.port):
                pass
        with pytest.raises(ListenError, match=f"127.0.0.1:{broker.http_port}"):
            async with broker_on(cluster, http_port=broker.http_port):
                pass
