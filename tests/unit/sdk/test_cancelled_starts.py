"""Producers and consumers whose start is cancelled, at each turn of the loop: nothing is left."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest

from magnetar.sdk import Checkpoint, Client, MessageId, ProducerSettings
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from magnetar.sdk.scalable.stream_consumer import StreamConsumer
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.sdk.memory_broker import URL, MemoryBroker
from tests.waiting import settle

SCALABLE = "topic://public/default/t"

Make = Callable[[Client], Coroutine[Any, Any, object]]

PLAIN: dict[str, Make] = {
    "consumer": lambda client: client.consumer("t", "s"),
    "reader": lambda client: client.reader("t"),
    "reader of the newest": lambda client: client.reader("t", MessageId.LATEST),
    "producer": lambda client: client.producer("t", ProducerSettings(name="n")),
    "lazy producer": lambda client: client.producer("t", ProducerSettings(lazy_partitions=True)),
    "table view": lambda client: client.table_view("t"),
}
OF_SEGMENTS: dict[str, Make] = {
    "producer": lambda client: client.producer(SCALABLE),
    "stream consumer": lambda client: client.stream_consumer(SCALABLE, "s"),
    "queue consumer": lambda client: client.queue_consumer(SCALABLE, "s"),
    "checkpoint consumer": lambda client: client.checkpoint_consumer(SCALABLE, Checkpoint.LATEST),
}


async def cancelled(task: "asyncio.Future[Any]", turns: int) -> bool:
    """Cancel a task after some turns; return whether it had ended before."""
    for _ in range(turns):
        await asyncio.sleep(0)
    has_ended = task.done()
    task.cancel()
    return has_ended


async def check_each_turn(make: Make, partitions: int) -> None:
    """Cancel the making after each number of turns, and once more after each number."""
    for turns in count():
        for more in count(1):
            broker = MemoryBroker(partitions)
            async with Client(URL, network=broker) as client:
                await client.partitions("another")  # The connection is there.
                task = asyncio.ensure_future(make(client))
                has_ended = await cancelled(task, turns)
                had_ended_again = await cancelled(task, more)
                await asyncio.gather(task, return_exceptions=True)
                await settle()
                left = dict(broker.live)
            if has_ended:
                assert left, "what was made is there until the client closes"
                return
            assert not left, f"cancelled after {turns} turns, and again after {more} more"
            if had_ended_again:
                break


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("what", PLAIN)
async def test_a_cancelled_start_leaves_nothing_at_the_broker(what: str, partitions: int) -> None:
    await check_each_turn(PLAIN[what], partitions)


@pytest.mark.parametrize("what", OF_SEGMENTS)
async def test_a_cancelled_start_on_a_scalable_topic_leaves_nothing_at_the_broker(
    what: str,
) -> None:
    await check_each_turn(OF_SEGMENTS[what], 0)


async def test_a_consumer_that_closes_while_topics_go_leaves_none_of_them() -> None:
    for turns in range(12):
        broker = MemoryBroker()
        async with Client(URL, network=broker) as client:
            consumer = await client.consumer(["t", "u"], "s")
            assert isinstance(consumer, TopicsConsumer)
            task = asyncio.ensure_future(consumer._apply([]))
            await cancelled(task, turns)  # As the close of the consumer does.
            await consumer.close()
            await settle()
            assert not broker.live, f"closed after {turns} turns"


class SlowBroker(MemoryBroker):
    """Answers the end of a registration only once `answer_all` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[BaseCommand] | None = []

    def answer_all(self) -> None:
        held, self._held = self._held or [], None
        for each in held:
            self.tell(each)

    def _closed(self, kind: BaseCommand.Type, command: BaseCommand) -> BaseCommand | None:
        answer = super()._closed(kind, command)
        if kind != BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE or self._held is None:
            return answer
        assert answer is not None
        self._held.append(answer)
        return None


def unusable_assignment(consumer_id: int) -> BaseCommand:
    """Return an assignment that a consumer refuses; its session then registers again."""
    segment = pb.ScalableAssignedSegment(segment_id=1, segment_topic="nope://a/b/c/d/e")
    assignment = pb.ScalableConsumerAssignment(layout_epoch=2, segments=[segment])
    update = pb.CommandScalableTopicAssignmentUpdate(consumer_id=consumer_id, assignment=assignment)
    return BaseCommand(
        type=BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, scalableTopicAssignmentUpdate=update
    )


async def test_a_registration_that_closes_while_it_registers_again_is_not_left_behind() -> None:
    for turns in range(14):
        broker = SlowBroker()
        async with Client(URL, network=broker) as client:
            consumer = await client.stream_consumer(SCALABLE, "s")
            assert isinstance(consumer, StreamConsumer)
            (consumer_id,) = [each for kind, each in broker.live if kind == "registration"]
            broker.tell(unusable_assignment(consumer_id))
            await settle(turns)
            closing = asyncio.ensure_future(consumer._session.close())
            await settle()
            broker.answer_all()
            await closing
            await settle()
            assert ("registration", consumer_id) not in broker.live, f"closed after {turns} turns"
