"""Copies of one topic to one cluster: what is sent, and what statistics say of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from magnetar.broker.base.replies import TAKES_ACKS
from magnetar.broker.features.replication.acks import Acks, OriginAcks
from magnetar.broker.features.replication.markers import encode_marker
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.policies.model import DispatchRate
from magnetar.ledger.position import Position
from tests.unit.broker.harness import batch, entry
from tests.unit.broker.replication.sending_parts import CopiedTopic
from tests.waiting import settle, until


@pytest.fixture
async def copied() -> AsyncIterator[CopiedTopic]:
    found = CopiedTopic()
    await found.begin()
    yield found
    await found.end()


def message(world: CopiedTopic, *, age_ms: int = 0) -> bytes:
    return entry(publish_time=world.clock.now_ms - age_ms)


async def test_entries_are_sent_in_order_and_the_mark_follows_the_receipts(
    copied: CopiedTopic,
) -> None:
    copied.store(*(message(copied) for _ in range(3)))
    await settle()
    assert copied.there.places == [0, 1, 2]
    copied.there.receipt(0, 1)
    assert copied.cursor.mark_delete == Position(7, 1)
    copied.there.receipt(2)
    assert copied.cursor.mark_delete == Position(7, 2)


async def test_what_is_published_while_copies_keep_up_is_not_read_back(
    copied: CopiedTopic,
) -> None:
    await copied.publish(message(copied), message(copied))
    assert copied.there.places == [0, 1]
    assert not copied.log.reads
    assert not len(copied.topic.tail.cache), "nothing is kept that was sent"


async def test_what_was_published_while_the_other_cluster_was_away_is_read(
    copied: CopiedTopic,
) -> None:
    copied.there.is_away = True
    copied.there.lose()
    await copied.publish(message(copied), message(copied))
    assert not len(copied.topic.tail.cache), "nobody could take it soon"
    copied.there.is_away = False
    await until(lambda: copied.there.places == [0, 1])
    assert copied.log.reads == [Position(7, 0)]


async def test_a_sender_that_is_further_behind_than_its_window_keeps_nothing() -> None:
    world = CopiedTopic(replication_entries_max=2)
    await world.begin()
    await world.publish(message(world), message(world))
    await world.publish(message(world), message(world))
    assert len(world.topic.tail.cache), "it takes that next"
    await world.publish(message(world))
    assert not len(world.topic.tail.cache)
    assert world.there.places == [0, 1]
    world.there.receipt(0, 1)
    await until(lambda: world.there.places == [0, 1, 2, 3])
    world.there.receipt(2, 3)
    await until(lambda: world.there.places == [0, 1, 2, 3, 4])
    await world.end()


async def test_a_sender_that_has_ended_keeps_nothing(copied: CopiedTopic) -> None:
    await copied.end()
    assert not copied.topic.tail.readers
    await copied.publish(message(copied))
    assert not len(copied.topic.tail.cache)


async def test_statistics_count_messages_and_say_whether_it_is_connected(
    copied: CopiedTopic,
) -> None:
    copied.store(batch(3), message(copied))
    await settle()
    shown = copied.sender.shown()
    assert (shown["msgOutCount"], shown["replicationBacklog"], shown["connected"]) == (4, 2, True)
    assert shown["outboundConnectedSince"] == copied.clock.now_ms
    copied.clock.advance(2_000)
    assert copied.sender.shown()["msgRateOut"] == 2.0
    copied.there.is_away = True
    copied.there.lose()
    await until(lambda: bool(copied.sender.problem))
    shown = copied.sender.shown()
    assert (shown["connected"], shown["outboundConnectedSince"]) == (False, None)


async def test_the_delay_is_the_age_of_the_oldest_message_that_is_not_receipted(
    copied: CopiedTopic,
) -> None:
    def delay() -> int:
        return int(copied.sender.shown()["replicationDelayInSeconds"])

    await settle()
    assert delay() == 0
    copied.store(message(copied))
    await settle()
    copied.clock.advance(4_000)
    copied.store(message(copied))
    await settle()
    assert delay() == 4
    copied.there.receipt(0)
    await settle()
    copied.clock.advance(3_000)
    assert delay() == 3
    copied.there.receipt(1)
    await settle()
    copied.clock.advance(60_000)
    assert delay() == 0


async def test_the_delay_grows_while_the_other_side_is_away() -> None:
    world = CopiedTopic()
    world.there.is_away = True
    await world.begin()
    world.store(message(world))
    await until(lambda: bool(world.sender.problem))
    world.clock.advance(90_000)
    assert world.sender.shown()["replicationDelayInSeconds"] == 90
    world.there.is_away = False
    await until(lambda: world.there.places == [0])
    assert world.sender.shown()["replicationDelayInSeconds"] == 90
    world.there.receipt(0)
    await settle()
    assert world.sender.shown()["replicationDelayInSeconds"] == 0
    await world.end()


async def test_no_more_than_the_rate_is_sent_and_the_rest_follows_when_it_is_lifted() -> None:
    world = CopiedTopic(replicator_dispatch_rate_messages=3)
    await world.begin()
    world.store(*(message(world) for _ in range(10)))
    await until(lambda: len(world.there.places) >= 3)
    await settle()
    assert world.there.places == [0, 1, 2]
    world.there.receipt(0, 1, 2)
    assert world.cursor.mark_delete == Position(7, 2)
    assert world.sender.shown()["replicationBacklog"] == 7
    world.set(replicator_dispatch_rate=DispatchRate())
    await settle()
    assert world.there.places == list(range(10))
    await world.end()


async def test_a_batch_counts_with_its_messages_and_bytes_are_bounded_as_well() -> None:
    for rate in (DispatchRate(messages=5), DispatchRate(bytes=1)):
        world = CopiedTopic()
        await world.begin()
        world.set(replicator_dispatch_rate=rate)
        world.store(batch(5), batch(5))
        await settle()
        assert world.there.places == [0]
        await world.end()


async def test_tokens_come_back_with_time_and_wake_the_copying() -> None:
    world = CopiedTopic()
    await world.begin()
    world.set(replicator_dispatch_rate=DispatchRate(messages=200))
    world.store(*(message(world) for _ in range(210)))
    await until(lambda: len(world.there.places) == 210)
    assert world.there.places == list(range(210))
    await world.end()


async def test_a_session_that_is_lost_while_the_rate_is_used_up_is_noticed_at_once() -> None:
    world = CopiedTopic()
    await world.begin()
    world.set(replicator_dispatch_rate=DispatchRate(messages=1, period_s=3600))
    world.store(message(world), message(world))
    await settle()
    assert world.there.places == [0]
    world.there.is_away = True
    world.there.lose()
    await until(lambda: "away" in world.sender.problem)
    await world.end()


async def test_what_does_not_go_there_needs_no_tokens(copied: CopiedTopic) -> None:
    copied.set(replicator_dispatch_rate=DispatchRate(messages=1, period_s=3600))
    copied.store(message(copied))
    await settle()
    copied.there.receipt(0)
    copied.store(*(entry(replicated_from="west") for _ in range(3)))
    await settle()
    assert (copied.there.places, copied.sender.figures.skipped) == ([0], 3)
    assert copied.sender.shown()["replicationBacklog"] == 0


async def test_what_is_dropped_is_not_sent_and_copying_goes_on_behind_it() -> None:
    world = CopiedTopic(replicator_dispatch_rate_messages=1)
    await world.begin()
    world.store(*(message(world) for _ in range(6)))
    await settle()
    assert world.there.places == [0]
    assert world.sender.drop_through(Position(7, 3)) == 4
    assert world.cursor.mark_delete == Position(7, 3)
    world.set(replicator_dispatch_rate=DispatchRate())
    await settle()
    assert [place for place in world.there.places if place > 1] == [4, 5]
    world.there.receipt(*world.there.places)
    assert world.cursor.mark_delete == Position(7, 5)
    assert world.sender.shown()["msgExpiredCount"] == 4
    await world.end()


async def test_the_cursor_keeps_what_was_dropped_through_later_copies() -> None:
    world = CopiedTopic(replicator_dispatch_rate_messages=1)
    await world.begin()
    world.store(*(message(world) for _ in range(6)))
    await settle()
    assert world.sender.drop_through(Position(7, 3)) == 4
    world.set(replicator_dispatch_rate=DispatchRate())
    await settle()
    world.there.receipt(*world.there.places)
    assert world.cursor.mark_delete == Position(7, 5)
    dropped = world.sender.dropped
    assert dropped is not None
    assert [at for at in range(6) if Position(7, at) in dropped] == [0, 1, 2, 3]
    await world.end()


async def test_what_is_dropped_while_the_other_side_is_away_is_gone_at_once() -> None:
    world = CopiedTopic()
    world.there.is_away = True
    await world.begin()
    world.store(message(world), message(world))
    world.clock.advance(9_000)
    assert world.sender.shown()["replicationDelayInSeconds"] == 9
    assert world.sender.drop_through(Position(7, 9)) == 2
    shown = world.sender.shown()
    assert (shown["replicationBacklog"], shown["replicationDelayInSeconds"]) == (0, 0)
    world.there.is_away = False
    world.store(message(world))
    await until(lambda: world.there.places == [2])
    assert world.there.copies[0].magnetar_source.HasField("previous_ledger_id") is False
    await world.end()


async def test_an_operator_skips_the_one_message_that_the_other_side_cannot_take() -> None:
    world = CopiedTopic(replication_retry_s_max=3600.0)
    world.there.message_bytes_max = 100
    await world.begin()
    world.store(message(world), entry(b"x" * 200), message(world))
    await until(lambda: "raise its maxMessageSize" in world.sender.problem)
    world.there.receipt(0)
    assert world.sender.drop_through(Position(7, 1)) in (1, 2)
    await until(lambda: 2 in world.there.places)
    assert 1 not in world.there.places
    assert world.sender.problem == ""
    await world.end()


async def test_a_sender_that_is_closed_drops_nothing(copied: CopiedTopic) -> None:
    copied.there.is_away = True
    copied.store(message(copied))
    copied.sender.close()
    await copied.sender.settle()
    assert copied.sender.drop_through(Position(7, 0)) == 0
    assert copied.cursor.backlog_entries == 1


async def test_a_broker_there_that_hangs_is_left_and_the_reason_is_said() -> None:
    world = CopiedTopic(replication_receipt_timeout_s=30)
    await world.begin()
    world.store(message(world), message(world))
    await settle()
    world.sender.look()
    world.clock.advance(29_000)
    world.there.receipt(0)
    world.sender.look()  # something came
    world.clock.advance(29_000)
    world.sender.look()
    await settle()
    assert (world.sender.problem, world.there.places) == ("", [0, 1])
    world.clock.advance(1_000)
    with capture_logs() as lines:
        world.sender.look()
        await until(lambda: world.there.places == [0, 1, 1])
    (reason,) = [each["reason"] for each in lines if each["event"] == "replication_stands_still"]
    assert reason.endswith("has not receipted the message at 7:1 for 30 s")
    await world.end()


async def test_a_topic_that_has_nothing_to_copy_is_not_taken_for_one_that_hangs(
    copied: CopiedTopic,
) -> None:
    await settle()
    for _ in range(3):
        copied.clock.advance(3_600_000)
        copied.sender.look()
    await settle()
    assert (copied.sender.is_connected, copied.sender.problem) == (True, "")


@pytest.mark.parametrize("takes_acks", [True, False])
async def test_single_acknowledgements_go_only_where_they_are_understood(takes_acks: bool) -> None:
    world = CopiedTopic()
    if takes_acks:
        world.there.server_version += TAKES_ACKS
    await world.begin()
    marker = encode_marker(Acks("s", {Source("east", 1): OriginAcks()}), now_ms=1)
    world.store(marker, message(world))
    expected = [0, 1] if takes_acks else [1]
    await until(lambda: world.there.places == expected)
    assert world.sender.takes_acks is takes_acks
    await world.end()


async def test_a_defect_that_stops_the_copies_is_shown_and_nobody_waits_for_them() -> None:
    world = CopiedTopic()
    world.there.defect = ValueError("a defect")
    await world.begin()
    world.store(message(world))
    with capture_logs():
        await asyncio.wait_for(world.sender.settle(), 10)
    assert "a defect" in str(world.sender.shown())
    await world.end()
