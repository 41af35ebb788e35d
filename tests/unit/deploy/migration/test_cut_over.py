import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration import cut_over
from magnetar.deploy.migration.creating import Inventory
from magnetar.deploy.migration.cut_over import CutOver, is_moved_whole
from magnetar.deploy.migration.positions import PositionMap
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.schema_copies import SchemaCopies
from magnetar.deploy.migration.selection import Clusters, TopicPlan
from magnetar.deploy.migration.sides import Side
from magnetar.deploy.migration.subscriptions import HOLD
from magnetar.deploy.migration.topic_copy import TopicCopy
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName

TOPIC = TopicName.parse("persistent://public/default/t")
NEW = TopicName.parse("persistent://public/default/new")
CLUSTERS = Clusters("east", "west", frozenset({"west"}))


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_over, "LOOK_S", 0.0)


class Cluster:
    """A cluster with one topic of one entry, over HTTP."""

    what = "source"

    def __init__(self) -> None:
        self.producers: list[str] = []
        self.left = 0
        """Entries that are not copied."""
        self.subscriptions: dict[str, Any] = {}
        """Statistics of applications' subscriptions, by name."""
        self.missing = ""
        """End of the path of the next request that is answered as if the topic did not exist."""
        self.gone = "/none/"
        """In the paths of a topic that does not exist."""
        self.on_ask: Callable[[str], None] = lambda _: None
        """Called with the path of each request, before it is answered."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        self.on_ask(path)
        if self.missing and path.endswith(self.missing):
            self.missing = ""
            return None
        if self.gone in path:
            return None
        if path.endswith("/internalStats"):
            return {"numberOfEntries": 1}
        if path.endswith("/stats"):
            publishers = [{"producerName": each} for each in self.producers]
            subscriptions = {HOLD: {"msgBacklog": self.left}, **self.subscriptions}
            return {"publishers": publishers, "subscriptions": subscriptions}
        return None

    async def settings(self) -> Mapping[str, str]:
        return {}


class Copy:
    """The copy of a topic."""

    problem = ""
    is_idle = True

    def __init__(self) -> None:
        self.copied = PositionMap()
        self.copied.add(Position(5, 0), Position(90, 0), 1)


class SlowCopy(Copy):
    """A copy that is idle when it was looked at some times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks_left = looks

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        self.looks_left = max(0, self.looks_left - 1)
        return not self.looks_left


class Schemas:
    def __init__(self) -> None:
        self.on_copy: Callable[[], None] = lambda: None

    async def copy(self, topic: TopicName) -> Mapping[bytes, bytes]:
        self.on_copy()
        return {}


class Scene:
    def __init__(self) -> None:
        self.source = Cluster()
        self.schemas = Schemas()
        self.said: list[str] = []
        self.found = Inventory(topics=[TopicPlan(TOPIC)])
        self.copies: dict[TopicName, Copy] = {}
        self.failures = 0
        """Number of scans, after the first, that fail."""

    async def scan(self) -> Inventory:
        """Find topics, and have schemas of all kinds accepted at the target while they are
        copied."""
        assert not any("policies follow" in each for each in self.said), "they are final by now"
        if self.copies and self.failures:
            self.failures -= 1
            raise BrokerUnreachableError("no broker owns it just now")
        for topic in set(self.copies) - set(self.found.parts):
            del self.copies[topic]
        for topic in self.found.parts:
            self.copies.setdefault(topic, Copy())
        return self.found

    async def look(self) -> Inventory:
        return self.found

    def create_topic(self) -> None:
        """Have a client of the source create a topic."""
        self.found = Inventory(topics=[TopicPlan(TOPIC), TopicPlan(NEW)], notes=["late"])

    async def run(self) -> Report:
        return await CutOver(
            cast(Side, self.source),
            cast(Side, Cluster()),
            CLUSTERS,
            self.scan,
            self.look,
            cast(dict[TopicName, TopicCopy], self.copies),
            cast(SchemaCopies, self.schemas),
            self.said.append,
        ).run()


async def test_a_source_without_clients_is_moved_whole() -> None:
    scene = Scene()
    report = await scene.run()
    assert is_moved_whole(report)
    assert not report.differs()


async def test_a_producer_that_comes_back_while_the_rest_is_copied_is_waited_for() -> None:
    scene = Scene()
    asked = 0

    def on_ask(path: str) -> None:
        nonlocal asked
        if path.endswith("/stats"):
            asked += 1
            # The first question finds nothing to wait for, the second is to confirm that.
            scene.source.producers = ["p"] if asked in (2, 3, 4) else []

    scene.source.on_ask = on_ask
    assert is_moved_whole(await scene.run())
    (line,) = [each for each in scene.said if each.startswith("waiting")]
    assert line == f"waiting for clients to leave the source: producer p of {TOPIC}"


async def test_a_producer_that_comes_back_before_the_comparison_ends_keeps_messages_held() -> None:
    scene = Scene()
    scene.schemas.on_copy = lambda: scene.source.producers.append("p")
    report = await scene.run()
    assert not is_moved_whole(report)
    (found,) = report.differences
    assert (found.kind, found.name) == ("topic", f"{TOPIC} clients")
    assert found.source == [f"producer p of {TOPIC}"]
    assert any("repeat --cut-over" in each for each in report.notes)


async def test_an_entry_that_comes_before_the_comparison_ends_keeps_messages_held() -> None:
    scene = Scene()

    def on_ask(path: str) -> None:
        if path.endswith("/retention"):  # policies come after messages
            scene.source.left = 1

    scene.source.on_ask = on_ask
    report = await scene.run()
    assert not is_moved_whole(report)
    assert [(each.kind, each.name) for each in report.differences] == [
        ("messages", f"{TOPIC} left")
    ]


@pytest.mark.parametrize("missing", ["", "/stats"])
async def test_a_subscription_that_the_source_does_not_tell_whole_is_not_left_behind(
    missing: str,
) -> None:
    """Without a cursor in the internal statistics, or without the topic in the statistics."""
    scene = Scene()
    scene.source.subscriptions["s"] = {"msgBacklog": 1}
    scene.schemas.on_copy = lambda: setattr(scene.source, "missing", missing)
    with pytest.raises(BrokerUnreachableError):  # the cut-over begins again
        await scene.run()


async def test_a_topic_that_is_created_while_the_cut_over_waits_is_moved() -> None:
    scene = Scene()
    scene.source.producers = ["p"]

    def on_ask(path: str) -> None:
        if path.endswith("/t/stats") and scene.source.producers and scene.said:
            scene.create_topic()
            scene.source.producers = []

    scene.source.on_ask = on_ask
    report = await scene.run()
    assert is_moved_whole(report)
    assert report.entries == 2
    assert report.notes == ["late"]


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_topic_that_is_deleted_while_the_cut_over_waits_is_not_waited_for(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`failures`: number of scans of the waiting cut-over that find no source."""
    monkeypatch.setattr(cut_over, "SCAN_S", 0.0)
    scene = Scene()
    scene.create_topic()
    scene.failures = failures
    scene.source.producers = ["p"]

    def on_ask(path: str) -> None:
        if scene.source.producers and scene.said:
            scene.source.producers = []
            scene.source.gone = "/new/"
            scene.found = Inventory(topics=[TopicPlan(TOPIC)])
            scene.copies[NEW].is_idle = False
            scene.copies[NEW].problem = "topic not found"

    scene.source.on_ask = on_ask
    async with asyncio.timeout(20):
        report = await scene.run()
    assert is_moved_whole(report)
    assert report.entries == 1
    told = [each for each in scene.said if each.startswith("waiting for copies")]
    assert told[0] == f"waiting for copies: {NEW}: topic not found"
    assert any("no broker owns it" in each for each in scene.said) == bool(failures)


async def test_a_cut_over_that_waits_for_a_copy_does_not_ask_about_all_topics_again() -> None:
    scene = Scene()
    topics = [TopicName.parse(f"persistent://public/default/t{each}") for each in range(20)]
    scene.found = Inventory(topics=[TopicPlan(each) for each in topics])
    slow = SlowCopy(1000)
    scene.copies[topics[-1]] = slow
    asked: list[int] = []
    scene.source.on_ask = lambda _: asked.append(slow.looks_left)
    assert is_moved_whole(await scene.run())
    assert len([each for each in asked if each]) == len(topics), "once, at the beginning"


async def test_a_cut_over_that_waits_for_clients_asks_about_those_it_names() -> None:
    scene = Scene()
    topics = [TopicName.parse(f"persistent://public/default/t{each}") for each in range(20)]
    scene.found = Inventory(topics=[TopicPlan(each) for each in topics])
    scene.source.producers = ["p"]
    asked: list[str] = []

    def on_ask(path: str) -> None:
        asked.append(path)
        if len(asked) == 20 + 5 * 100:
            scene.source.producers = []

    scene.source.on_ask = on_ask
    assert is_moved_whole(await scene.run())
    told = [each for each in scene.said if each.startswith("waiting")]
    assert told[0].endswith("t4, and 15 more")
    names = "persistent/public/default"
    assert asked[20:-1][: 5 * 99] == [f"{names}/t{each}/stats" for each in range(5)] * 99


async def test_a_cut_over_waits_on_while_the_source_does_not_commit_what_was_copied() -> None:
    scene = Scene()
    scene.create_topic()
    scene.source.left = 1
    asked: list[str] = []

    def on_ask(path: str) -> None:
        asked.append(path)
        scene.source.left = int(len(asked) < 50)

    scene.source.on_ask = on_ask
    assert is_moved_whole(await scene.run())
    assert {each.split("/")[-2] for each in asked[2:50]} == {"t"}, "the first that it waits for"
    assert scene.said[0] == f"waiting for copies: {TOPIC}"


async def test_a_source_that_does_not_answer_for_a_while_does_not_end_the_wait() -> None:
    scene = Scene()
    scene.source.producers = ["p"]
    asked = 0

    def on_ask(_: str) -> None:
        nonlocal asked
        asked += 1
        if asked == 40:
            scene.source.producers = []
        elif asked < 40 and asked % 2 == 0:
            raise RequestRefusedError("no broker owns it just now", 412)

    scene.source.on_ask = on_ask
    assert is_moved_whole(await scene.run())
    assert any("no broker owns it" in each for each in scene.said)


async def test_a_source_that_does_not_answer_the_last_look_is_asked_again() -> None:
    scene = Scene()
    asked = 0

    def on_ask(_: str) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise BrokerUnreachableError("no answer in time")

    scene.source.on_ask = on_ask
    assert is_moved_whole(await scene.run())
    assert any("no answer in time" in each for each in scene.said)


async def test_a_source_that_refuses_the_credentials_ends_the_wait() -> None:
    scene = Scene()
    scene.source.producers = ["p"]

    def on_ask(_: str) -> None:
        if scene.said:
            raise RequestRefusedError("the token is expired", 401)

    scene.source.on_ask = on_ask
    async with asyncio.timeout(20):
        with pytest.raises(RequestRefusedError, match="expired"):
            await scene.run()


async def test_a_topic_that_is_created_before_the_comparison_ends_keeps_messages_held() -> None:
    scene = Scene()

    def on_ask(path: str) -> None:
        if path.endswith("/retention"):  # policies come after messages
            scene.create_topic()

    scene.source.on_ask = on_ask
    report = await scene.run()
    assert not is_moved_whole(report)
    (found,) = report.differences
    assert (found.kind, found.source) == ("topic", [str(NEW)])
    assert any("repeat --cut-over" in each for each in report.notes)
