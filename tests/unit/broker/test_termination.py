"""A terminated topic: who publishes is refused, with the code that says for good."""

import pytest

from magnetar.broker.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.termination import terminate
from magnetar.ledger.errors import LogFencedError, UnknownOutcomeError
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness, settle


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


async def test_a_message_that_comes_too_late_is_refused_with_the_same_code() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    await harness.log.terminate()
    client.publish(0)
    error = (await client.next()).send_error
    assert (error.sequence_id, error.error) == (0, pb.ServerError.TopicTerminatedError)
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER


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
