"""The shell of splits and merges by load, on a real embedded metadata store."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.load_report import LoadReport, SegmentLoad
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.broker.cluster.ownership.sole_owner import SoleOwner
from magnetar.broker.features.scalable import AutoScaling
from magnetar.broker.features.scalable.auto_scaling import SegmentLoads
from magnetar.broker.features.scalable.changes import begin_split
from magnetar.broker.features.scalable.scaling import Rates
from magnetar.broker.policies.model import AutoScale
from magnetar.ledger.metadata.url import open_store
from magnetar.sdk.wire import TopicName
from tests.unit.broker.memory_log import ManualClock
from tests.unit.broker.scalable.test_scalable_topics import TOPIC, Scene
from tests.waiting import settle

HOT = SegmentLoad(msg_rate_in=20_000.0)
COLD = SegmentLoad(msg_rate_in=1.0)
_SEGMENTS = [f"segment://public/default/t/{each}" for each in ("0000-7fff-0", "8000-ffff-1")]


class _Ownership(SoleOwner):
    def __init__(self) -> None:
        super().__init__(lambda: "pulsar://here:6650", lambda: "http://here:8080")
        self.others: set[TopicName] = set()

    async def owner_of(
        self, topic: TopicName, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        return Owner("pulsar://b:6650", is_self=topic not in self.others)


class _Looks:
    """A broker that looks, and what it finds reported."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.ownership = _Ownership()
        self.clock = ManualClock()
        self.clock.now_ms += 10_000_000
        self.reports: Sequence[LoadReport | None] = []
        self.override: AutoScale | None = None
        self.consumers: dict[TopicName, int] = {}
        self.scaling = AutoScaling(
            scene.topics,
            self.ownership,
            reports=self._reports,
            override=self._override,
            consumers=lambda: self.consumers,
            settings=BrokerSettings(scalable_segments_max=8),
            clock=self.clock,
        )

    async def _reports(self) -> Sequence[LoadReport | None]:
        return self.reports

    async def _override(self, namespace: str) -> AutoScale | None:
        assert namespace == "public/default"
        return self.override

    async def look(self, *, after_s: int = 60) -> None:
        self.clock.advance(1000 * after_s)
        await self.scaling.look()

    async def active(self) -> list[int]:
        return await self.scene.active()


@pytest.fixture
async def looks(tmp_path: Path) -> AsyncIterator[_Looks]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    scene = Scene(store)
    await scene.create(2)
    yield _Looks(scene)
    await store.close()


def report(*loads: SegmentLoad, left_off: int = 0) -> LoadReport:
    segments = dict(zip(_SEGMENTS, loads, strict=False))
    return LoadReport(segments=segments, segments_left_off=left_off)


async def test_a_hot_segment_is_split_whichever_broker_reports_it(looks: _Looks) -> None:
    looks.reports = [LoadReport(), report(HOT, COLD)]
    await looks.look()
    assert await looks.active() == [2, 3, 1]


async def test_segments_that_nobody_reports_have_no_traffic_and_are_merged(looks: _Looks) -> None:
    looks.reports = [report(COLD)]
    for _ in range(6):
        await looks.look()
    assert await looks.active() == [2]


async def test_consumers_beyond_the_segments_get_entry_buckets(looks: _Looks) -> None:
    looks.reports = [report(COLD, COLD)]
    looks.consumers = {TOPIC: 4}
    for _ in range(4):
        await looks.look(after_s=61)
    assert [each.entry_buckets for each in (await looks.scene.record()).active] == [2, 2]
    epoch = (await looks.scene.record()).epoch
    await looks.look(after_s=61)
    assert (await looks.scene.record()).epoch == epoch, "each has a share"


@pytest.mark.parametrize(
    "reports",
    [
        [report(COLD), None],
        [report(COLD, left_off=1)],
        [report(COLD), LoadReport(segments={"x": COLD})],
    ],
    ids=["a broker that has told nothing", "segments left off", "a name that is none"],
)
async def test_what_may_have_traffic_is_not_merged(
    looks: _Looks, reports: list[LoadReport | None]
) -> None:
    looks.reports = reports
    for _ in range(10):
        await looks.look()
    assert await looks.active() == [0, 1]


async def test_the_topics_of_other_brokers_are_left_to_them(looks: _Looks) -> None:
    looks.reports = [report(HOT, HOT)]
    looks.ownership.others = {TOPIC}
    await looks.look()
    assert await looks.active() == [0, 1]
    assert looks.scaling.failures == 0


async def test_namespaces_and_topics_switch_it_off_and_on(looks: _Looks) -> None:
    looks.reports = [report(HOT, COLD)]
    looks.override = AutoScale(is_on=False)
    await looks.look()
    assert await looks.active() == [0, 1]
    await looks.scene.topics.set_auto_scale(TOPIC, AutoScale(is_on=True))
    await looks.look()
    assert await looks.active() == [2, 3, 1]
    assert (await looks.scene.record()).auto_scale == AutoScale(is_on=True)


async def test_a_topic_that_cannot_be_split_is_counted_and_tried_again(looks: _Looks) -> None:
    looks.reports = [report(HOT, COLD)]
    looks.scene.owners.failures = 1
    await looks.look()
    assert (looks.scaling.failures, await looks.active()) == (1, [0, 1])
    await looks.look()  # The change that has begun stands still: it is carried on.
    assert (looks.scaling.failures, await looks.active()) == (1, [2, 3, 1])


async def test_a_defect_with_some_topics_holds_up_no_other(
    looks: _Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, broken = looks.scene.topics.find, [f"public/default/broken-{each}" for each in range(9)]

    async def find_or_break(topic: TopicName, *, is_sure: bool = False) -> object:
        if topic != TOPIC:
            raise ZeroDivisionError
        await settle()  # The others have failed by now.
        return await find(topic, is_sure=is_sure)

    monkeypatch.setattr(looks.scene.topics, "find", find_or_break)
    names = [f"segment://{each}/0000-ffff-0" for each in broken]
    looks.reports = [report(HOT, COLD), LoadReport(segments=dict.fromkeys(names, HOT))]
    await looks.look()
    assert (looks.scaling.failures, await looks.active()) == (9, [2, 3, 1])


async def test_a_change_that_stands_still_is_carried_on_though_no_client_is_there(
    looks: _Looks,
) -> None:
    now_ms = looks.clock.wall_ms()
    await looks.scene.topics._change(
        TOPIC, lambda record: begin_split(TOPIC, record, 1, now_ms=now_ms, segments_max=8)
    )
    looks.reports = [report(COLD, COLD)]
    await looks.look()
    assert await looks.active() == [0, 2, 3]


async def test_a_decision_on_a_layout_that_has_changed_meanwhile_is_refused(looks: _Looks) -> None:
    looks.reports = [report(HOT, COLD)]
    other, find = looks.scene.broker(), looks.scene.topics.find

    async def find_too_early(topic: TopicName, *, is_sure: bool = False) -> object:
        record = await find(topic, is_sure=is_sure)
        if (await other.get(TOPIC)).epoch == 1:
            await other.split(TOPIC, 1)
        return record

    looks.scene.topics.find = find_too_early  # type: ignore[method-assign, assignment]
    await looks.look()
    assert (looks.scaling.failures, await looks.active()) == (1, [0, 2, 3])


async def test_a_full_topic_is_counted_until_it_is_not_full_any_more(looks: _Looks) -> None:
    looks.reports = [report(HOT, HOT)]
    looks.override = AutoScale(segments_max=2)
    await looks.look()
    assert looks.scaling.full == 1
    looks.reports = [LoadReport()]
    await looks.look()
    assert looks.scaling.full == 0


def test_of_a_segment_in_two_reports_the_higher_rates_count() -> None:
    one = report(SegmentLoad(msg_rate_in=5.0, bytes_rate_in=9.0))
    other = report(SegmentLoad(msg_rate_in=7.0, bytes_rate_in=1.0))
    found = SegmentLoads.of([one, other])
    assert found.by_topic == {TOPIC: {0: Rates(msg_rate_in=7.0, bytes_rate_in=9.0)}}
    assert found.is_complete
