"""The official client of Pulsar 5 on scalable topics while layouts, owners and brokers change.

Producers, stream, queue and checkpoint consumers are at work all the time. In the end each of them
got all messages, each key in order, and the topic holds each message once.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from tests.clients.java_story import JavaStory
from tests.clients.suites import needs
from tests.clients.test_clients import CLIENTS, run
from tests.http_calls import call
from tests.integration.broker.balance.test_several_brokers import (
    NAMESPACE,
    bundle_of,
    follow,
    lookup,
)
from tests.integration.sdk.scalable.scene import Layouts, path_of
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

_BROKERS = ("broker-1", "broker-2")
_BY_HAND = {"enabled": False}
_BY_CONSUMERS = {"enabled": True, "maxSegments": 1}
"""There may be no more segments, so consumers without one get a share."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with all that it needs."""
    needs("java", "mvn")
    folder = tmp_path_factory.mktemp("java") / "java_v5"
    shutil.copytree(CLIENTS / "java_v5", folder)
    copy = "dependency:copy-dependencies"
    run(folder, "mvn", "-q", "-B", copy, f"-DoutputDirectory={folder / 'lib'}")
    return folder


@pytest.fixture
def cluster(place: Path, tmp_path: Path) -> Iterator[RealCluster]:
    """Two brokers that move nothing by themselves."""
    with RealCluster(
        tmp_path / "cluster",
        bookies=1,
        brokers=2,
        environment={
            "MAGNETAR_BROKER_SHEDDING": "false",
            "MAGNETAR_BROKER_BUNDLE_AUTO_SPLIT": "false",
            "MAGNETAR_BROKER_DEDUPLICATION": "true",
            "MAGNETAR_BROKER_RETENTION_MINUTES": "60",
            "MAGNETAR_BROKER_RETENTION_MIB": "-1",
            "MAGNETAR_BROKER_SCALABLE_AUTO_SCALE_INTERVAL_S": "0.5",
            "MAGNETAR_BROKER_SCALABLE_REBUCKET_COOLDOWN_S": "0",
            "MAGNETAR_BROKER_LOAD_SAMPLE_INTERVAL_MS": "500",
        },
    ) as started:
        yield started


class _Topic:
    """A scalable topic of one segment, and what is done to it."""

    def __init__(self, cluster: RealCluster, name: str, policy: object) -> None:
        self._cluster = cluster
        self.name, self.url = name, f"topic://public/default/{name}"
        self._path = path_of(self.url)
        self._layouts = Layouts(cluster.http_url("broker-1"), self.url)
        call(cluster.http_url("broker-1"), "PUT", self._path).ok()
        call(cluster.http_url("broker-1"), "POST", f"{self._path}/autoScalePolicy", policy).ok()

    def do(self, change: Awaitable[None]) -> None:
        async def work() -> None:
            await change

        asyncio.run(work())

    def split(self, at: int) -> None:
        self.do(self._layouts.split(at))

    def merge(self, at: int) -> None:
        self.do(self._layouts.merge(at))

    def rebucket(self, at: int, buckets: int) -> None:
        self.do(self._layouts.rebucket(at, buckets))

    def owner(self) -> str:
        """The broker that coordinates the topic's stream consumers."""
        return lookup(self._cluster, "broker-1", self.name)

    def move(self) -> None:
        """Have all that the owner of the topic's name serves go to the other broker: the
        coordinator of the consumers, and segments."""
        owner = self.owner()
        (other,) = set(_BROKERS) - {owner}
        bundle = bundle_of(self._cluster, self.name)
        path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={other}"
        assert follow(self._cluster, owner, "PUT", path).status == 204

    def unload(self) -> None:
        """Have each segment find an owner anew."""
        assert follow(self._cluster, "broker-1", "PUT", f"{NAMESPACE}/unload").status == 204

    def buckets(self) -> list[int]:
        """Entry buckets of the active segments."""
        stats = call(self._cluster.http_url("broker-1"), "GET", f"{self._path}/stats").json
        segments = stats["layout"]["segments"].values()
        return [each["entryBuckets"] for each in segments if each["state"] == "ACTIVE"]


def _check_logs(cluster: RealCluster) -> None:
    for name in _BROKERS:
        assert "Traceback" not in cluster.log_text(name)


def test_splits_merges_moves_and_restarts_lose_double_and_reorder_nothing(
    cluster: RealCluster, place: Path
) -> None:
    topic = _Topic(cluster, "through", _BY_HAND)
    with JavaStory(place, cluster.service_url, topic.url) as story:
        story.join("a")
        topic.split(0)
        story.goes_on()
        story.join("b")
        topic.split(1)
        topic.split(0)
        story.goes_on("got a", "got b")
        topic.move()
        story.goes_on("got a", "got b", "got queue", "got checkpoint")
        story.tell("restore")
        topic.merge(1)
        story.goes_on()
        topic.unload()
        story.goes_on()
        cluster.kill(killed := topic.owner())
        story.goes_on("got a", "got b", "got queue", "got checkpoint")
        cluster.start(killed)
        topic.split(0)
        story.tell("leave a")
        story.goes_on("got b")
        for name in _BROKERS:
            cluster.restart(name)
            story.goes_on("got b", "got queue", "got checkpoint")
        story.tell("restore")
        topic.merge(0)
        topic.merge(0)
        story.goes_on()
        story.stop()
    _check_logs(cluster)


def test_consumers_share_a_segment_by_its_entry_buckets(cluster: RealCluster, place: Path) -> None:
    """The number of buckets changes by request while they consume; a split and a merge divide and
    unite them, and the segments get other owners."""
    topic = _Topic(cluster, "shared", _BY_HAND)
    with JavaStory(place, cluster.service_url, topic.url) as story:
        story.join("a")
        assert topic.buckets() == [4]
        story.join("b", "c")
        all_three = ("got a", "got b", "got c")
        story.goes_on(*all_three)
        topic.rebucket(0, 16)
        story.goes_on(*all_three)
        story.join("d")
        story.tell("leave b")
        topic.move()
        story.goes_on("got a", "got c", "got d")
        topic.split(0)
        story.goes_on("got a", "got c", "got d")
        topic.merge(0)
        story.join("e")
        assert topic.buckets() == [16]
        cluster.kill(killed := topic.owner())
        story.goes_on("got a", "got c", "got d", "got e")
        cluster.start(killed)
        topic.rebucket(0, 2)
        story.tell("leave a")
        story.tell("leave c")
        story.goes_on("got d", "got e", "got queue", "got checkpoint")
        story.stop()
    _check_logs(cluster)


def test_consumers_that_come_get_buckets_by_themselves(cluster: RealCluster, place: Path) -> None:
    topic = _Topic(cluster, "by-consumers", _BY_CONSUMERS)
    with JavaStory(place, cluster.service_url, topic.url) as story:
        story.join("a")
        story.join("b")
        story.join("c")
        story.goes_on("got a", "got b", "got c")
        story.tell("leave a")
        story.goes_on("got b", "got c")
        story.join("a", "d")
        assert topic.buckets() == [4], "a new topic has them: nothing had to change so far"
        story.join("e")
        wait_until(lambda: topic.buckets() == [8])
        story.goes_on(*(f"got {name}" for name in "abcde"))
        story.stop()
    _check_logs(cluster)
