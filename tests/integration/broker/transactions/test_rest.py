"""Transactions over HTTP, on one real server process."""

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from magnetar.sdk import Client, ConsumerSettings, InitialPosition, SubscriptionType
from magnetar.sdk.errors import SdkError
from tests.http_calls import ask
from tests.processes import magnetar_command, magnetar_environment
from tests.standalone import Standalone

BASE = "/admin/v3/transactions"
SHARED = ConsumerSettings(
    initial_position=InitialPosition.EARLIEST, subscription_type=SubscriptionType.SHARED
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("transactions-rest") / "data") as running:
        yield running


def admin(server: Standalone, *arguments: str) -> str:
    """What a command of `magnetar admin transactions` prints."""
    done = subprocess.run(
        magnetar_command("admin", "transactions", *arguments, "--admin-url", server.http_url),
        env=magnetar_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_what_is_open_can_be_seen_and_aborted(server: Standalone) -> None:
    port = server.http_port
    async with Client(server.url) as client:
        producer = await client.producer("seen")
        consumer = await client.consumer("seen", "s", SHARED)
        await producer.send(b"0")
        message = await consumer.receive(timeout_s=20)
        txn = await client.transaction().begin()
        await producer.send(b"1", transaction=txn)
        await consumer.acknowledge(message, transaction=txn)
        most, least = txn.id
        name = f"({most},{least})"
        found = (await ask(port, "GET", f"{BASE}/transactionMetadata/{most}/{least}")).json
        assert found["status"] == "OPEN"
        assert list(found["producedPartitions"]) == [producer.topic]
        assert found["ackedPartitions"] == {producer.topic: {"s": {}}}
        assert name in (await ask(port, "GET", f"{BASE}/slowTransactions/0")).json
        assert name not in (await ask(port, "GET", f"{BASE}/slowTransactions/3600000")).json
        stats = (await ask(port, "GET", f"{BASE}/coordinatorStats")).json
        assert stats[str(most)]["ongoingTxnSize"] == 1
        one = await ask(port, "GET", f"{BASE}/coordinatorStats?coordinatorId={most}")
        assert one.json == stats[str(most)]
        buffer = f"{BASE}/transactionBufferStats/public/default/seen"
        found = (await ask(port, "GET", buffer)).json
        assert [each["id"] for each in found["ongoingTransactions"]] == [name]
        acks = f"{BASE}/pendingAckStats/public/default/seen/s"
        assert (await ask(port, "GET", acks)).json["pendingAcks"] == 1
        topic = (await ask(port, "GET", "/admin/v2/persistent/public/default/seen/stats")).json
        assert topic["ongoingTxnCount"] == 1
        listed = await asyncio.to_thread(admin, server, "slow", "--older-than", "0")
        assert name in listed
        assert "OPEN" in listed
        said = await asyncio.to_thread(admin, server, "abort", str(most), str(least), "--yes")
        assert f"{name} is aborted" in said
        again = await ask(port, "POST", f"{BASE}/abortTransaction/{most}/{least}")
        assert again.status == 204, "once more is fine"
        assert (await consumer.receive(timeout_s=20)).data == b"0"
        with pytest.raises(SdkError):
            await txn.commit()
        found = (await ask(port, "GET", buffer)).json
        assert (found["ongoingTxnSize"], found["abortedEntries"]) == (0, 1)
        topic = (await ask(port, "GET", "/admin/v2/persistent/public/default/seen/stats")).json
        assert (topic["ongoingTxnCount"], topic["abortedTxnCount"]) == (0, 1)
        gone = await ask(port, "GET", f"{BASE}/transactionMetadata/{most}/{least}")
        assert gone.status == 404


async def test_coordinators_are_listed_with_their_brokers(server: Standalone) -> None:
    found = (await ask(server.http_port, "GET", f"{BASE}/coordinators")).json
    assert [each["id"] for each in found] == [0, 1, 2, 3]
    assert {each["brokerServiceUrl"] for each in found} == {server.url}
    assert server.url in await asyncio.to_thread(admin, server, "coordinators")


async def test_metrics_count_transactions(server: Standalone) -> None:
    async with Client(server.url) as client:
        producer = await client.producer("counted")
        async with client.transaction() as txn:
            await producer.send(b"1", transaction=txn)
    page = (await ask(server.http_port, "GET", "/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("pulsar_txn_")]
    labels = f'{{cluster="standalone",coordinator_id="{txn.id[0]}"}}'
    assert any(line.startswith(f"pulsar_txn_committed_total{labels} ") for line in lines), lines
    assert any(line.startswith("pulsar_txn_tb_committed_total{") for line in lines), lines


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "coordinatorStats?coordinatorId=99", 404),
        ("GET", "coordinatorStats?coordinatorId=x", 400),
        ("GET", "transactionMetadata/0/99999", 404),
        ("GET", "slowTransactions/x", 400),
        ("POST", "abortTransaction/0/99999", 404),
        ("GET", "transactionBufferStats/public/default/no-such-topic", 404),
        ("GET", "pendingAckStats/public/default/no-such-topic/s", 404),
    ],
)
async def test_what_is_not_there_is_refused(
    server: Standalone, method: str, path: str, status: int
) -> None:
    assert (await ask(server.http_port, method, f"{BASE}/{path}")).status == status


async def test_peeking_passes_over_what_is_hidden_or_aborted(server: Standalone) -> None:
    async with Client(server.url) as client:
        producer = await client.producer("peeked")
        consumer = await client.consumer("peeked", "s", SHARED)
        await consumer.close()
        aborted = await client.transaction().begin()
        await producer.send(b"aborted", transaction=aborted)
        await aborted.abort()
        await producer.send(b"plain")
        hidden = await client.transaction().begin()
        await producer.send(b"hidden", transaction=hidden)
        path = "/admin/v2/persistent/public/default/peeked/subscription/s/position"
        first = await ask(server.http_port, "GET", f"{path}/1")
        assert first.status == 200
        await hidden.abort()
