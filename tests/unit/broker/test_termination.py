"""A terminated topic: who publishes is sent away, and hears when it comes again."""

import asyncio

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.topic import publish_line
from magnetar.broker.topic.termination import terminate
from magnetar.ledger.errors import LogFencedError, LogTerminatedError, UnknownOutcomeError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness
from tests.waiting import settle


async def test_producers_are_sent_away_and_refused_from_then_on() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    client.publish(0)
    assert (await client.next()).type == BaseCommand.SEND_RECEIPT
    last = await terminate(harness.topic)
    assert last == harness.log.last_confirmed
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
    refused = await client.produce(1)
    assert refused.error.error == pb.ServerError.TopicTerminatedError
    exclusive = await client.produce(2, producer_access_mode=pb.ProducerAccessMode.Exclusive)
    assert exclusive.error.error == pb.ServerError.TopicTerminatedError


async def test_a_producer_that_waits_for_its_turn_is_refused_too() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce(producer_access_mode=pb.ProducerAccessMode.Exclusive)
    client.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(
            topic="persistent://public/default/topic",
            producer_id=1,
            request_id=9,
            producer_access_mode=pb.ProducerAccessMode.WaitForExclusive,
        ),
    )
    assert not (await client.next()).producer_success.producer_ready
    await terminate(harness.topic)
    answers = [await client.next(), await client.next()]
    refused = next(each for each in answers if each.type == BaseCommand.ERROR)
    assert refused.error.error == pb.ServerError.TopicTerminatedError


async def test_a_message_that_comes_too_late_is_answered_by_the_close_of_its_producer() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    await harness.log.terminate()
    client.publish(0)
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
    refused = await client.produce(1)
    assert refused.error.error == pb.ServerError.TopicTerminatedError


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_producer_that_comes_while_a_topic_is_being_terminated_waits_for_the_end(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that it comes too early would have it wait for a while, and publish nothing. If the
    end takes too long, it is to come again."""
    if is_slow:
        monkeypatch.setattr(publish_line, "_END_S_MAX", 0.0)
    harness = Harness()
    sending, idle = harness.client(), harness.client()
    await sending.produce()
    await idle.produce(producer_name="idle")
    ending = asyncio.Event()
    is_ended = harness.log.terminate

    async def end_slowly() -> Position:
        await ending.wait()
        return await is_ended()

    def refuse(batch: AppendBatch) -> None:
        batch.on_failed(LogTerminatedError("no more"))

    monkeypatch.setattr(harness.log, "terminate", end_slowly)
    terminating = asyncio.ensure_future(terminate(harness.topic))
    await settle()
    monkeypatch.setattr(harness.log, "append", refuse)
    sending.publish(0, 1)
    assert (await sending.next()).type == BaseCommand.CLOSE_PRODUCER
    again = asyncio.ensure_future(sending.produce(1))
    await settle()
    assert again.done() == is_slow
    if is_slow:
        assert (await again).error.error == pb.ServerError.ServiceNotReady
    ending.set()
    await terminating
    assert (await idle.next()).type == BaseCommand.CLOSE_PRODUCER
    if not is_slow:
        assert (await again).error.error == pb.ServerError.TopicTerminatedError
    assert (await sending.produce(2)).error.error == pb.ServerError.TopicTerminatedError
    assert sending.commands() == []


async def test_consumers_that_have_everything_are_told_but_no_cpp_client() -> None:
    harness = Harness()
    java, cpp = harness.client(connect=False), harness.client(connect=False)
    java.connect(client_version="Pulsar-Java-v4.0.0")
    cpp.connect(client_version="Pulsar-CPP-v4.2.0")
    await java.subscribe(subscription="java")
    await cpp.subscribe(subscription="cpp")
    java.flow(10)
    cpp.flow(10)
    await terminate(harness.topic)
    await settle()
    assert java.commands() == [BaseCommand.REACHED_END_OF_TOPIC]
    assert cpp.commands() == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LogFencedError("another owner"), ServiceNotReadyError),
        (UnknownOutcomeError("no answer"), BrokerMetadataError),
    ],
)
async def test_an_unknown_outcome_is_told(
    error: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness()
    await harness.client().produce()

    async def fail() -> None:
        raise error

    monkeypatch.setattr(harness.log, "terminate", fail)
    with pytest.raises(told):
        await terminate(harness.topic)
