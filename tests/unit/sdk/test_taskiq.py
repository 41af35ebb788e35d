"""The Taskiq broker when its consumer is lost, over a broker in memory."""

import asyncio

import pytest

from magnetar.sdk import Client
from magnetar.sdk.taskiq import TopicBroker
from magnetar.sdk.wire.errors import TopicTerminatedError
from magnetar.sdk.wire.pulsar_pb2 import ServerError
from tests.unit.sdk.memory_broker import URL, MemoryBroker
from tests.waiting import settle

FIRST = "persistent://public/default/jobs-partition-0"


async def test_a_consumer_that_lost_a_partition_holds_no_tasks_of_the_others() -> None:
    memory = MemoryBroker(partitions=3)
    broker = TopicBroker(URL, "jobs")
    broker._client = Client(URL, network=memory)
    await broker.startup()
    listening = asyncio.ensure_future(anext(broker.listen()))
    await settle(100)
    assert broker._consumer is not None
    assert len(memory.live) == 3
    memory.refused[FIRST] = ServerError.TopicTerminatedError
    memory.close_consumers(FIRST)
    with pytest.raises(TopicTerminatedError):
        await listening
    assert memory.live == {}, "no partition gives tasks to a consumer that nobody reads"
    await broker.shutdown()
