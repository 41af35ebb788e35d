"""Queries over very many topics: what they ask of brokers does not grow with each topic."""

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from magnetar.arrow.stored.admin_client import AdminClient
from magnetar.arrow.stored.options import ConnectionOptions, OptionReader
from magnetar.sdk.spark.data_source import MagnetarDataSource
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.driven import SCHEMA, Checkpoint, DrivenQuery
from tests.integration.spark.support import options_for
from tests.real_cluster import RealCluster
from tests.standalone import Standalone

TOPICS = 12
REQUESTS_MAX = 8
"""Of a question about all topics, however many there are (up to a hundred)."""


class Requests:
    """Counts what the driver asks over HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        exchange = AdminClient._exchange

        def counted(client: AdminClient, method: str, base: str, path: str, body: Any) -> Any:
            self.paths.append(f"{method} {path}")
            return exchange(client, method, base, path, body)

        monkeypatch.setattr(AdminClient, "_exchange", counted)

    def taken(self) -> list[str]:
        """Since this was asked last."""
        paths, self.paths = self.paths, []
        return paths


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


@pytest.fixture
def selection(server: Standalone, topic: str) -> dict[str, str]:
    """Plain topics and one with partitions, by a pattern."""
    name = topic.rpartition("/")[2]
    path = topic.replace("://", "/")
    admin(server, "PUT", f"{path}-parted/partitions", TOPICS)
    for number in range(TOPICS):
        admin(server, "PUT", f"{path}-{number}")
    return {"topicsPattern": f"public/default/{name}-.*"}


def published(client: pulsar.Client, topic: str, value: bytes) -> None:
    for number in range(TOPICS):
        publish_to(client, f"{topic}-{number}", [value])
        publish_to(client, f"{topic}-parted-partition-{number}", [value])


def test_a_stream_plans_looks_and_commits_with_few_requests(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    selection: dict[str, str],
    requests: Requests,
) -> None:
    options = options_for(server, **selection, startingOffsets="earliest", subscriptionName="held")
    steps: dict[str, list[str]] = {}
    with DrivenQuery(options, Checkpoint()) as query:
        query.on_step = lambda name: steps.setdefault(name, []).extend(requests.taken())
        for value in (b"a", b"b"):
            published(client, topic, value)
            query.run_available()
    assert len(query.values) == 4 * TOPICS
    assert steps.keys() >= {"initialOffset", "latestOffset", "commit"}
    # Two micro-batches, each of them looked for, and two looks that found nothing.
    for name, times in (("initialOffset", 2), ("latestOffset", 4), ("commit", 1)):
        assert len(steps[name]) <= times * REQUESTS_MAX, (name, steps[name])


@pytest.mark.parametrize("more", [{}, {"startingTime": "0"}], ids=["offsets", "times"])
def test_a_batch_is_planned_with_few_requests(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    selection: dict[str, str],
    requests: Requests,
    more: dict[str, str],
) -> None:
    published(client, topic, b"a")
    source = MagnetarDataSource(options_for(server, **selection, **more))
    requests.taken()
    source.schema()
    assert len(requests.taken()) <= REQUESTS_MAX
    assert source.reader(SCHEMA).partitions()
    assert len(requests.taken()) <= REQUESTS_MAX


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with RealCluster(
        tmp_path_factory.mktemp("many") / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            "MAGNETAR_BROKER_BUNDLE_AUTO_SPLIT": "false",
            "MAGNETAR_BROKER_LOAD_CPU_CORES": "100",
        },
    ) as started:
        yield started


def test_topics_of_several_brokers_are_asked_for_where_they_are(
    cluster: RealCluster, requests: Requests
) -> None:
    """From the second time on at once, and anew where a topic has moved."""
    given = {"service.url": cluster.url("broker-1"), "admin.url": cluster.http_url("broker-1")}
    asked = AdminClient(ConnectionOptions.read(OptionReader(given)))
    topics = [f"persistent://public/default/several-{number}" for number in range(40)]
    for topic in topics:
        asked.put(f"/admin/v2/{topic.replace('://', '/')}", None)
    missing = "persistent://public/default/not-there"

    def stored() -> set[str]:
        answers = asked.ask_topics("internalStats", [*topics, missing])
        assert answers.found.keys() == set(topics)
        assert {name: each.status for name, each in answers.refused.items()} == {missing: 404}
        return {asked._owners.get(topic, cluster.http_url("broker-1")) for topic in topics}

    assert stored() == {cluster.http_url("broker-1"), cluster.http_url("broker-2")}
    requests.taken()
    stored()
    assert len(requests.taken()) <= 4

    asked.put("/admin/v2/namespaces/public/default/unload", None)
    stored()
    cluster.kill("broker-2")
    stored()
    asked.close()
