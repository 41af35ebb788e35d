"""Two brokers with authentication: they prove themselves to each other, and clients to both."""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.integration.broker.security.pair import Pair
from tests.integration.broker.security.secured import token_for
from tests.processes import HOST

TOPICS = "/admin/v2/persistent/public/default"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.start()
        yield made
    finally:
        for process in reversed(made.processes):
            process.kill()


def test_requests_find_the_owner_and_brokers_carry_out_each_others(pair: Pair) -> None:
    client = pulsar.Client(
        f"pulsar://{HOST}:{pair.ports[0]}",
        authentication=pulsar.AuthenticationToken(token_for("root")),
    )
    try:
        assert pair.ask(0, "PUT", f"{TOPICS}/pt/partitions", 8)[0] == 204
        producer = client.create_producer("persistent://public/default/pt")
        for _ in range(8):
            producer.send(b"hello")
        owners = {
            pair.ask(0, "GET", f"/lookup/v2/topic/persistent/public/default/pt-partition-{n}")[1][
                "brokerUrl"
            ]
            for n in range(8)
        }
        assert len(owners) == 2
        for at in (0, 1):
            status, stats = pair.ask(at, "GET", f"{TOPICS}/pt/partitioned-stats")
            assert (status, stats["metadata"]["partitions"]) == (200, 8)
        consumer = client.subscribe("persistent://public/default/pt", "s", consumer_name="c")
        off = "/magnetar/v1/topics/persistent/public/default/pt/consumers/disconnect"
        gone = pair.ask(1, "POST", off, {"subscription": "s", "consumer": "c"})
        assert gone == (200, {"disconnected": 8}), "from the partitions of both brokers"
        producer.send(b"when it is back")
        assert consumer.receive(60_000).data() == b"when it is back"
        assert pair.ask(1, "PUT", "/admin/v2/namespaces/public/default/unload")[0] == 204
        producer.send(b"after")
    finally:
        client.close()
