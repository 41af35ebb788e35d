"""A 405 names every method that its path has, as HTTP asks for."""

from pathlib import Path

from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.ledger.cluster import cluster_of

TOPIC = "/admin/v2/persistent/public/default/topic"


async def test_a_refused_method_comes_with_those_that_the_path_has(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        assert (await ask(broker.http_port, "PUT", f"{TOPIC}/partitions", 2)).status == 204
        for method, path, allowed in (
            ("PATCH", "/admin/v2/tenants/public", "DELETE, GET, HEAD, POST, PUT"),
            ("POST", TOPIC, "DELETE, PUT"),
            ("DELETE", "/admin/v2/clusters", "GET, HEAD"),
            ("POST", f"{TOPIC}/terminate", "POST"),
        ):
            answer = await ask(broker.http_port, method, path)
            assert answer.status == 405, path
            assert answer.headers["allow"] == allowed, path
