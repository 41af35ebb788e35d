"""Layouts that are followed: one watch per topic, and news for all who follow it."""

from collections.abc import Callable

from magnetar.broker.features.scalable.layout import Layout
from magnetar.broker.features.scalable.layouts import Layouts
from magnetar.broker.features.scalable.record_layouts import PartitionLayouts
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import TopicName
from tests.unit.broker.scalable.watched_store import WatchedPartitions, WatchedStore
from tests.waiting import settle

_TOPIC = TopicName.parse("persistent://public/default/t")


class _Scene:
    def __init__(self) -> None:
        self.store = WatchedStore()
        self.partitions = WatchedPartitions(self.store)
        source = PartitionLayouts(self.store, self.partitions)
        self.layouts = Layouts([source], SystemClock())


def _counter() -> tuple[list[int], Callable[[], None]]:
    calls: list[int] = []
    return calls, lambda: calls.append(1)


async def test_followers_of_one_topic_share_a_watch_a_read_and_the_layout() -> None:
    scene = _Scene()
    scene.partitions.set(_TOPIC, 2)
    first = scene.layouts.join(_TOPIC, lambda: None)
    second = scene.layouts.join(_TOPIC, _counter()[1])
    assert await first.get() is await second.get()
    assert scene.partitions.reads == 1
    assert [len(each) for each in scene.store.watches.values()] == [1]


async def test_all_followers_hear_of_a_growth_and_find_it() -> None:
    scene = _Scene()
    scene.partitions.set(_TOPIC, 2)
    counters = [_counter() for _ in range(3)]
    followed = [scene.layouts.join(_TOPIC, listener) for _, listener in counters]
    await followed[0].get()
    scene.partitions.set(_TOPIC, 5)
    await settle()
    assert [len(calls) for calls, _ in counters] == [1, 1, 1]
    known = followed[0].known
    assert known is not None
    assert known.epoch == 5


async def test_a_topic_that_becomes_partitioned_is_heard_of() -> None:
    scene = _Scene()
    calls, listener = _counter()
    followed = scene.layouts.join(_TOPIC, listener)
    layout = await followed.get()
    assert layout is not None
    assert layout.epoch == 0
    scene.partitions.set(_TOPIC, 1)
    await settle()
    assert len(calls) == 1
    assert followed.known is not None
    assert followed.known.epoch == 1


async def test_changes_of_the_record_beside_the_partitions_are_no_news() -> None:
    scene = _Scene()
    scene.partitions.set(_TOPIC, 2)
    calls, listener = _counter()
    await scene.layouts.join(_TOPIC, listener).get()
    scene.partitions.set(_TOPIC, 2)
    await settle()
    assert scene.partitions.reads == 2
    assert calls == []


async def test_who_has_left_hears_nothing_and_the_last_one_ends_the_watch() -> None:
    scene = _Scene()
    gone_calls, gone = _counter()
    calls, stays = _counter()
    scene.layouts.join(_TOPIC, gone)
    await scene.layouts.join(_TOPIC, stays).get()
    scene.layouts.leave(_TOPIC, gone)
    scene.partitions.set(_TOPIC, 3)
    await settle()
    assert (len(gone_calls), len(calls)) == (0, 1)
    scene.layouts.leave(_TOPIC, stays)
    assert len(scene.layouts) == 0
    assert scene.store.watches == {}


async def test_the_first_source_that_knows_a_topic_has_the_word() -> None:
    """Records of scalable topics will be such a source."""

    class Fixed:
        def __init__(self, layout: Layout | None) -> None:
            self.known = layout

        async def get(self) -> Layout | None:
            return self.known

        async def reread(self) -> Layout | None:
            return self.known

        def close(self) -> None:
            self.known = None

    class Source:
        def __init__(self, layout: Layout | None) -> None:
            self.followed = Fixed(layout)

        def follow(self, topic: TopicName, on_change: Callable[[], None]) -> Fixed:
            return self.followed

    record, partitions = Source(None), Source(Layout(3, ()))
    followed = Layouts([record, partitions], SystemClock()).join(_TOPIC, lambda: None)
    assert await followed.get() == followed.known == Layout(3, ())
    record.followed.known = Layout(9, ())
    assert await followed.get() == followed.known == Layout(9, ())
    assert await followed.reread() == Layout(9, ())
