"""Layouts and states of segments, as brokers tell them. Over the life of a topic:
tests/property/sdk/spark/test_readers.py."""

from typing import Any

import pytest

from magnetar.arrow.stored.errors import DataLossError, OptionError, TopicNotFoundError
from magnetar.arrow.stored.scalable_states import LAYOUT_BEHIND_S, ScalableStates, layout_of
from magnetar.arrow.stored.segment_order import Begun
from magnetar.arrow.stored.source_options import Selection
from magnetar.arrow.stored.topic_states import state_of
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.wire.topic_name import TopicName
from tests.property.sdk.spark.segment_model import KEYS, TOPIC, WHOLE, ModelAdmin, ModelTopic

NAME = LayoutName.parse(TOPIC)


class Clock:
    """Passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def states_of(admin: ModelAdmin, clock: Clock, *, allows_loss: bool = False) -> ScalableStates:
    return ScalableStates(
        admin, Selection((WHOLE,)), allows_loss=allows_loss, clock=clock, pause=clock.pause
    )


def test_a_layout_that_is_behind_is_asked_for_again() -> None:
    topic, clock = ModelTopic(), Clock()
    admin = ModelAdmin(topic)
    old = topic.record()
    topic.split(0)
    states = states_of(admin, clock)
    assert len(states.read(Begun())) == 3
    admin.stale = [old, old]
    assert len(states.read(Begun())) == 3
    assert 0 < clock.now_s < LAYOUT_BEHIND_S


@pytest.mark.parametrize("allows_loss", [False, True])
def test_a_topic_that_was_created_again_is_noticed(allows_loss: bool) -> None:
    states = states_of(ModelAdmin(ModelTopic()), Clock(), allows_loss=allows_loss)
    begun = Begun(epochs={TOPIC: 2})
    if allows_loss:
        assert len(states.read(begun)) == 1
    else:
        with pytest.raises(DataLossError, match="epoch 1, and the query has seen epoch 2"):
            states.read(begun)


def test_segments_that_were_read_are_not_asked_for() -> None:
    topic = ModelTopic()
    topic.split(0)
    states = states_of(ModelAdmin(topic), Clock())
    first = topic.active[0].name
    assert set(states.read(Begun([first]))) == {each.name for each in topic.active}


def test_a_segment_that_has_no_log_is_empty() -> None:
    topic = ModelTopic()
    admin = ModelAdmin(topic)
    topic.split(0)
    record = topic.record()
    sealed = topic.segments[0].name
    topic.prune()
    admin.get = lambda path: record  # type: ignore[method-assign]
    found = states_of(admin, Clock()).read(Begun())
    assert found[sealed].has_ended
    assert not found[sealed].ledgers
    assert not any(found[each.name].has_ended for each in topic.active)


def test_a_topic_that_is_not_there_is_said_so() -> None:
    class Missing(ModelAdmin):
        def get(self, path: str) -> Any:
            from magnetar.arrow.stored.errors import RefusedError

            raise RefusedError(404, "not found")

    states = states_of(Missing(ModelTopic()), Clock())
    with pytest.raises(TopicNotFoundError, match=r"topic://.* does not exist.*persistent://"):
        states.read(Begun())
    assert states.read(Begun(), missing_ok=True) == {}


def test_segments_that_were_partitions_go_by_their_names() -> None:
    record = ModelTopic().record()
    record["segments"]["0"]["legacyTopicName"] = f"{WHOLE}-partition-0"
    layout = layout_of(NAME, record)
    assert str(layout.segments[0].topic) == f"{WHOLE}-partition-0"


@pytest.mark.parametrize("answer", [None, {}, [], {"epoch": 1, "segments": {}}, {"segments": 3}])
def test_what_is_no_layout_is_refused_in_one_line(answer: object) -> None:
    with pytest.raises(OptionError, match=r"admin\.url: it answers with no layout"):
        layout_of(NAME, answer)


def test_a_topic_has_ended_when_all_of_a_terminated_one_can_be_read() -> None:
    name = TopicName.parse("t")
    ledgers = [{"ledgerId": 3, "entries": 10, "size": 1_000}]
    stats: dict[str, Any] = {
        "lastConfirmedEntry": "3:9",
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "ledgers": ledgers,
        "state": "Terminated",
    }
    assert state_of(name, stats).has_ended
    assert not state_of(name, {**stats, "state": "LedgerOpened"}).has_ended
    open_one = {"transactions": {"maxReadPosition": "3:4", "aborted": {}}}
    assert not state_of(name, {**stats, **open_one}).has_ended, "a transaction is open"
    empty = {**stats, "lastConfirmedEntry": "3:-1", "ledgers": []}
    assert state_of(name, empty).has_ended
    assert state_of(name, {**empty, "transactions": {"maxReadPosition": "-1:-1"}}).has_ended


def test_the_model_tells_of_its_segments() -> None:
    topic = ModelTopic()
    topic.publish(KEYS[0])
    (found,) = states_of(ModelAdmin(topic), Clock()).read(Begun()).values()
    assert (found.end.ledger_id, found.end.entry_id) == (1, 0)
