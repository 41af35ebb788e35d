"""Changes of the layout that another broker has left, and this one finishes."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.features.scalable.record import ScalableTopicRecord
from magnetar.broker.features.scalable.record_layouts import RecordLayouts
from magnetar.sdk.wire import TopicName
from tests.dictionary_store import DictionaryStore

_TOPIC = TopicName.parse("persistent://public/default/t")
_LONG_MS = 60_000


class _Topics:
    """Scalable topics that finish a change when they may."""

    def __init__(self) -> None:
        self.counts = SimpleNamespace(note=lambda *_: None)
        self.may_finish = asyncio.Event()

    async def finish(self, topic: TopicName) -> None:
        await self.may_finish.wait()


def _with_change(begun_ms: int) -> ScalableTopicRecord:
    change = SimpleNamespace(begun_ms=begun_ms)
    return cast(ScalableTopicRecord, SimpleNamespace(is_deleted=False, change=change))


async def test_a_change_that_is_read_while_another_is_finished_has_one_timer() -> None:
    topics = _Topics()
    layouts = RecordLayouts(DictionaryStore(), cast(Any, topics), patience_ms=_LONG_MS)
    layout = layouts.follow(_TOPIC, lambda: None)
    layout._carry_on()
    layout._watch_over(_with_change(1))
    timer, finishing = layout._timer, layout._finishing
    assert timer is not None
    assert finishing is not None
    topics.may_finish.set()
    await finishing
    assert layout._timer is timer
    layout.close()
    assert timer.cancelled()


async def test_a_change_is_finished_once_at_a_time() -> None:
    topics = _Topics()
    layouts = RecordLayouts(DictionaryStore(), cast(Any, topics), patience_ms=_LONG_MS)
    layout = layouts.follow(_TOPIC, lambda: None)
    layout._carry_on()
    finishing = layout._finishing
    assert finishing is not None
    layout._pending = cast(Any, _with_change(1)).change
    layout._carry_on()
    assert layout._finishing is finishing
    topics.may_finish.set()
    await finishing
    assert layout._timer is not None, "the later change gets its turn"
    layout.close()
