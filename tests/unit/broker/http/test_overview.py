"""A row per topic, and what of all topics needs a person."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.http import overview
from magnetar.broker.http.attention import (
    KEPT_MS,
    SHARE_OF_TIME,
    _Attention,
    kept_s,
    merged,
    quorum_of,
)
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.hoarding import (
    HOARDING_AFTER_MS,
    HOARDING_MESSAGES_MIN,
    is_hoarding,
)
from magnetar.broker.http.members import Members
from magnetar.broker.http.overview import (
    ITEMS_MAX,
    QUOTA_SHARE_MIN,
    Row,
    Trouble,
    is_stuck,
    largest_backlogs,
    row_of,
    troubles_in,
)
from magnetar.broker.policies.model import BacklogPolicy, BacklogQuota, QuotaType
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness, batch, entry
from tests.unit.broker.memory_log import ManualClock
from tests.waiting import settle


def _row(topic: str, backlog: int, *troubles: Trouble) -> Row:
    return Row(topic, 0.0, 0.0, backlog, "s", 1, 0, 1, 0, 0.0, troubles)


def _stuck(backlog: int) -> Trouble:
    return Trouble("stuck", "s", "no_consumer", "no consumer is connected", backlog)


async def test_a_row_tells_of_a_subscription_that_nobody_reads() -> None:
    harness = Harness()
    client = harness.client()
    await client.subscribe(subType=pb.CommandSubscribe.Shared)
    client.connection.lost()
    harness.log.store(entry(), entry())
    await settle()
    row = row_of(harness.topic, harness.clock.wall_ms())
    assert (row.backlog, row.largest, row.subscriptions, row.consumers) == (2, "s", 1, 0)
    (trouble,) = row.troubles
    assert (trouble.kind, trouble.subscription, trouble.code) == ("stuck", "s", "no_consumer")
    shown = row.shown()
    assert (shown["msgBacklog"], shown["troubles"][0]["text"]) == (2, "no consumer is connected")


async def test_a_row_names_the_consumer_that_hoards() -> None:
    harness = Harness()
    client = harness.client()
    shared = pb.CommandSubscribe.Shared
    await client.subscribe(subType=shared, consumer_name="slow")
    harness.log.store(batch(HOARDING_MESSAGES_MIN))
    client.flow(2 * HOARDING_MESSAGES_MIN)
    await settle()
    (consumer,) = harness.topic.subscriptions["s"].consumers
    later_ms = consumer.first_sent_ms + HOARDING_AFTER_MS
    assert not row_of(harness.topic, later_ms - 1).troubles
    found = [each for each in row_of(harness.topic, later_ms).troubles if each.kind == "hoarding"]
    assert [each.consumer for each in found] == ["slow"]
    assert found[0].text == f"slow holds {HOARDING_MESSAGES_MIN} messages and acknowledges none"
    consumer.acked_ms = later_ms - 1
    assert not is_hoarding(consumer, later_ms)
    consumer.acked_ms, consumer.unacked_messages = 0, HOARDING_MESSAGES_MIN - 1
    assert not is_hoarding(consumer, later_ms)


async def test_a_backlog_that_is_about_to_fill_its_quota_is_told_of() -> None:
    harness = Harness()
    client = harness.client()
    await client.subscribe()
    client.connection.lost()
    harness.log.store(*(entry(b"x" * 100) for _ in range(10)))
    await settle()
    topic = harness.topic
    stored = row_of(topic, 1).storage_size
    for share, is_told in ((QUOTA_SHARE_MIN, True), (QUOTA_SHARE_MIN / 2, False)):
        quota = BacklogQuota(bytes=round(stored / share), policy=BacklogPolicy.HOLD)
        topic.apply_policies(topic.policies.with_quota(QuotaType.SIZE, quota))
        kinds = {each.kind for each in row_of(topic, 1).troubles}
        assert ("quota" in kinds) is is_told, share


async def test_a_topic_that_keeps_much_which_nobody_has_subscribed_to_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    topic = harness.topic
    harness.log.store(*(entry(b"x" * 100) for _ in range(10)))
    await settle()
    monkeypatch.setattr(overview, "UNSUBSCRIBED_BYTES_MIN", row_of(topic, 1).storage_size)
    assert not row_of(topic, 1).troubles  # A cluster keeps nothing for that reason.
    topic.apply_policies(topic.policies.with_values(unsubscribed_retention=True))
    (trouble,) = row_of(topic, 1).troubles
    assert (trouble.kind, trouble.subscription, trouble.backlog) == ("unsubscribed", "", 10)
    monkeypatch.setattr(overview, "UNSUBSCRIBED_BYTES_MIN", row_of(topic, 1).storage_size + 1)
    assert not row_of(topic, 1).troubles
    monkeypatch.setattr(overview, "UNSUBSCRIBED_BYTES_MIN", 1)
    await client.subscribe()
    assert "unsubscribed" not in {each.kind for each in row_of(topic, 1).troubles}


@pytest.mark.parametrize(
    ("reason", "delivered", "expected"),
    [
        (Reason.NO_CONSUMER, 0.0, True),
        (Reason.CONSUMERS_UNACKED, 5.0, True),
        (Reason.NOTHING_NEW, 5.0, False),
        (Reason.NOTHING_NEW, 0.0, True),
        (Reason.DELAYED, 0.0, False),
        (Reason.NOTHING_LEFT, 0.0, False),
    ],
)
def test_what_keeps_messages_for_a_moment_or_until_they_are_due_needs_nobody(
    reason: Reason, delivered: float, expected: bool
) -> None:
    assert is_stuck(reason, backlog=1, delivered=delivered) is expected
    assert not is_stuck(reason, backlog=0, delivered=0.0)


def test_the_largest_come_first_and_there_are_no_more_than_fit() -> None:
    rows = [_row(f"t{number}", number, _stuck(number)) for number in range(ITEMS_MAX + 2)]
    largest = largest_backlogs(rows)
    assert [each["msgBacklog"] for each in largest] == list(range(ITEMS_MAX + 1, 1, -1))
    stuck = troubles_in(rows)["stuck"]
    assert len(stuck) == ITEMS_MAX
    assert stuck[0]["topic"] == f"t{ITEMS_MAX + 1}"
    assert largest_backlogs([_row("empty", 0)]) == []


def _answer(rows: list[Row]) -> dict[str, Any]:
    return {**troubles_in(rows), "largest": largest_backlogs(rows), "topics": len(rows)}


def test_what_brokers_say_becomes_one_list() -> None:
    one = _answer([_row("a", 1, _stuck(1)), _row("b", 5, _stuck(5))])
    other = _answer([_row("c", 3, _stuck(3))])
    found = merged([one, other])
    assert [each["topic"] for each in found["stuck"]] == ["b", "c", "a"]
    assert [each["topic"] for each in found["largest"]] == ["b", "c", "a"]
    assert (found["topics"], found["hoarding"], found["quota"]) == (3, [], [])
    former = {name: each for name, each in one.items() if name != "unsubscribed"}
    assert merged([former])["unsubscribed"] == []
    many = _answer([_row(f"t{number}", 1, _stuck(1)) for number in range(ITEMS_MAX)])
    assert len(merged([many, many])["stuck"]) == ITEMS_MAX


def test_a_walk_that_takes_long_is_not_repeated_soon() -> None:
    assert kept_s(0.0) == KEPT_MS / 1000
    assert kept_s(1.0) == SHARE_OF_TIME


def test_the_quorum_that_confirms_a_message_is_told() -> None:
    settings = BrokerSettings(ensemble_size=3, write_quorum=3, ack_quorum=1)
    assert quorum_of(settings) == {"ensemble": 3, "write": 3, "ack": 1}


async def test_requests_at_once_cause_one_pass_over_all_topics() -> None:
    topics = SimpleNamespace(loaded=[])
    context = SimpleNamespace(clock=ManualClock(), topics=topics)
    routes = _Attention(cast(HttpContext, context), lambda: 0, cast(Members, None))
    passes = 0

    async def rows(_: Sequence[Any]) -> list[Row]:
        nonlocal passes
        passes += 1
        await asyncio.sleep(0)
        return []

    vars(routes)["_rows"] = rows
    answers = await asyncio.gather(*(routes.attention(own=True) for _ in range(3)))
    assert (passes, answers[1:]) == (1, answers[:2])
