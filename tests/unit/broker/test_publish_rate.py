"""Publish rates: who is over is not read until it has been paid for; others go on."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.policies import model
from magnetar.broker.topic.publish_limits import PublishRate
from magnetar.sdk.wire import BaseCommand
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.waiting import settle, until

_RECEIPT = BaseCommand.SEND_RECEIPT


class _Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class _Connection:
    """Somebody who waits."""

    def __init__(self) -> None:
        self.resumed = 0

    def resume_publishing(self) -> None:
        self.resumed += 1


async def _producing(harness: Harness, topic: str = "", **fields: Any) -> Client:
    client = harness.client()
    if topic:
        fields["topic"] = topic
    assert (await client.produce(**fields)).type == BaseCommand.PRODUCER_SUCCESS
    return client


def _limit(harness: Harness, **rate: Any) -> _Time:
    """Limit the topic, with a clock that stands still."""
    time = _Time()
    harness.topic.line.rate._now_s = time
    harness.topic.apply_policies(model.DEFAULTS.with_values(publish_rate=model.PublishRate(**rate)))
    return time


@pytest.mark.parametrize(("messages", "is_paused"), [(9, False), (10, True), (11, True)])
async def test_at_the_rate_a_connection_is_not_read(messages: int, is_paused: bool) -> None:
    harness = Harness()
    client = await _producing(harness)
    _limit(harness, messages=10)
    client.publish(*range(messages))
    await settle()
    assert len(client.received()) == messages  # what has arrived is stored
    assert client.io.is_paused is is_paused
    assert harness.topic.line.rate.limited_times == is_paused


async def test_it_is_read_again_when_time_has_paid() -> None:
    harness = Harness(turn_bytes_max=1 << 30)  # one read is one turn
    client = await _producing(harness)
    time = _limit(harness, messages=1000)
    rate = harness.topic.line.rate
    client.publish(*range(1004))
    assert client.io.is_paused
    assert rate.wait_s() == pytest.approx(0.005)
    time.now_s += 0.004
    assert rate.wait_s() == pytest.approx(0.001)
    time.now_s += 0.002
    await until(lambda: not client.io.is_paused)
    client.publish(1004, 1005)
    assert client.io.is_paused
    assert rate.limited_times == 2  # one message is all there is


async def test_bytes_have_a_rate_of_their_own() -> None:
    harness = Harness()
    client = await _producing(harness)
    _limit(harness, bytes=10_000)
    client.send_bytes(send_frame(0, 0, payload=entry(b"x" * 9_000)))
    assert not client.io.is_paused
    client.send_bytes(send_frame(0, 1, payload=entry(b"x" * 2_000)))
    assert client.io.is_paused


async def test_a_batch_counts_with_its_messages() -> None:
    harness = Harness()
    client = await _producing(harness)
    _limit(harness, messages=10)
    client.send_bytes(send_frame(0, 0, payload=entry(num_messages_in_batch=10)))
    assert client.io.is_paused


async def test_other_topics_and_consumers_on_other_connections_are_not_affected() -> None:
    harness = Harness()
    client = await _producing(harness)
    other = await _producing(harness, "persistent://public/default/other")
    consumer = harness.client()
    await consumer.subscribe()
    consumer.flow(100)
    _limit(harness, messages=1)
    client.publish(0, 1)
    assert client.io.is_paused
    other.publish(0, 1)
    await settle()
    assert not other.io.is_paused
    assert not consumer.io.is_paused
    assert consumer.commands() == [BaseCommand.MESSAGE] * 2


async def test_all_connections_of_the_topic_wait_for_one_rate() -> None:
    harness = Harness()
    one, two = await _producing(harness), await _producing(harness)
    _limit(harness, messages=10)
    one.publish(*range(10))
    two.publish(0)
    assert one.io.is_paused
    assert two.io.is_paused


async def test_a_rate_that_is_lifted_lets_everybody_go_on() -> None:
    harness = Harness()
    client = await _producing(harness)
    _limit(harness, messages=1)
    client.publish(0, 1, 2)
    assert client.io.is_paused
    harness.topic.apply_policies(model.DEFAULTS)
    assert not client.io.is_paused
    client.publish(3, 4, 5)
    assert not client.io.is_paused


async def test_a_topic_that_is_closed_holds_up_nobody() -> None:
    harness = Harness()
    client = await _producing(harness)
    _limit(harness, messages=1)
    client.publish(0, 1, 2)
    harness.topic.disconnect_all()
    assert not client.io.is_paused


async def test_a_connection_that_is_lost_is_forgotten() -> None:
    harness = Harness()
    client = await _producing(harness)
    _limit(harness, messages=1)
    client.publish(0, 1, 2)
    client.connection.lost()
    assert not harness.topic.line.rate._waiting


async def test_a_connection_that_waits_is_alive() -> None:
    """The waiting producer's name is not given to another; and the broker's own pings go on."""
    harness = Harness()
    client = await _producing(harness, producer_name="p")
    _limit(harness, messages=1)
    client.publish(0, 1)
    assert await client.connection.link.is_alive()
    client.received()
    client.connection.on_tick()
    client.connection.on_tick()
    assert client.commands() == [BaseCommand.PING] * 2
    assert not client.io.is_closed


async def test_a_timer_that_is_early_waits_on() -> None:
    time = _Time()
    rate = PublishRate(model.PublishRate(messages=1000), time)
    waiting = _Connection()
    rate.spend(1000, 0)
    rate.wait(waiting)
    await asyncio.sleep(0.005)
    assert waiting.resumed == 0
    assert rate.limited_times == 1
    time.now_s += 1.0
    await until(lambda: waiting.resumed > 0)
