"""Brokers reach each other over TLS alone, if they are told to, and only whom they can trust."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.security.peer_network import PeerNetwork
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.tls import ClientTls, ServerTls, TlsFiles, TlsNetwork
from tests.certificates import Authority
from tests.integration.broker.security.pair import Pair
from tests.integration.broker.security.secured import bearer, token_for
from tests.integration.broker.websocket.sockets import Topic
from tests.processes import HOST
from tests.waiting import until

TOPICS = "/admin/v2/persistent/public/default"
PARTITIONS = 8


def settings_of(authority: Authority) -> list[str]:
    certificate, key = authority.issue("broker")
    return [
        "tls_port = 0",
        "https_port = 0",
        f"tls_certificate_file = '{certificate}'",
        f"tls_key_file = '{key}'",
        "broker_client_tls = true",
        f"broker_client_tls_ca_file = '{authority.path}'",
    ]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, *settings_of(Authority(tmp_path, "cluster")))
    try:
        made.start()
        yield made
    finally:
        for process in reversed(made.processes):
            process.kill()


def spread(pair: Pair) -> None:
    """Partitions that both brokers serve."""
    assert pair.ask(0, "PUT", f"{TOPICS}/pt/partitions", PARTITIONS)[0] == 204
    client = pulsar.Client(
        f"pulsar://{HOST}:{pair.ports[0]}",
        authentication=pulsar.AuthenticationToken(token_for("root")),
    )
    try:
        producer = client.create_producer("persistent://public/default/pt")
        for _ in range(PARTITIONS):
            producer.send(b"hello")
    finally:
        client.close()
    lookup = "/lookup/v2/topic/persistent/public/default/pt-partition-"
    owners = {pair.ask(0, "GET", f"{lookup}{n}")[1]["brokerUrl"] for n in range(PARTITIONS)}
    assert len(owners) == 2


def test_requests_and_web_sockets_find_the_owner_over_tls(pair: Pair) -> None:
    spread(pair)
    for at in (0, 1):
        status, stats = pair.ask(at, "GET", f"{TOPICS}/pt/partitioned-stats")
        assert (status, stats["metadata"]["partitions"]) == (200, PARTITIONS)

    async def publish() -> None:
        options: dict[str, Any] = {"additional_headers": bearer(token_for("root"))}
        topic = Topic(pair.http_ports[0], "public/default/pt")
        async with topic.consumer(**options) as consumer, topic.producer(**options) as producer:
            for number in range(2 * PARTITIONS):
                await producer.publish_ok(str(number), key=str(number))
            received = await consumer.payloads(2 * PARTITIONS)
            assert sorted(received, key=int) == [str(n) for n in range(2 * PARTITIONS)]

    asyncio.run(publish())
    assert pair.ask(1, "PUT", "/admin/v2/namespaces/public/default/unload")[0] == 204


class _Seen:
    """A broker of sorts: a plain port and one for TLS, and how often each was connected to."""

    def __init__(self, authority: Authority) -> None:
        self.plain = self.over_tls = 0
        files = TlsFiles(*map(str, authority.issue("broker")))
        self._tls = TlsNetwork(server=ServerTls(files))

    async def listen(self) -> BrokerRecord:
        def on_plain() -> asyncio.Protocol:
            self.plain += 1
            return asyncio.Protocol()

        def on_tls() -> asyncio.Protocol:
            self.over_tls += 1
            return asyncio.Protocol()

        plain = await SystemNetwork().listen(HOST, 0, on_plain)
        over_tls = await self._tls.listen(HOST, 0, on_tls)
        self.listeners = (plain, over_tls)
        return BrokerRecord(
            name="other",
            native_url=f"pulsar://{HOST}:{plain.port}",
            native_url_tls=f"pulsar+ssl://{HOST}:{over_tls.port}",
            session_token="t",
        )


def to_brokers(trusted: Authority, *records: BrokerRecord) -> PeerNetwork:
    tls = TlsNetwork(client=ClientTls(TlsFiles(authorities=str(trusted.path))))
    return PeerNetwork(SystemNetwork(), tls=lambda: tls, brokers=lambda: records)


async def test_only_brokers_with_tls_that_somebody_vouches_for_are_connected_to(
    tmp_path: Path,
) -> None:
    """And nothing ever goes to a plain port in their place."""
    cluster, stranger = Authority(tmp_path, "cluster"), Authority(tmp_path, "stranger")
    seen = _Seen(cluster)
    record = await seen.listen()
    without = record.model_copy(update={"native_url_tls": ""})
    port = seen.listeners[0].port

    async def connect(network: PeerNetwork) -> None:
        transport = await network.connect(HOST, port, asyncio.Protocol, timeout_s=20)
        transport.abort()

    try:
        await connect(to_brokers(cluster, record))
        await until(lambda: seen.over_tls == 1)
        with pytest.raises(OSError, match="certificate verify failed"):
            await connect(to_brokers(stranger, record))
        for records in ((), (without,)):
            with pytest.raises(ConnectionError, match="no broker advertises"):
                await connect(to_brokers(cluster, *records))
        assert seen.plain == 0
    finally:
        for listener in seen.listeners:
            await listener.close()
