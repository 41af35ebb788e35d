"""Transactions with messages in a segment that is split before they end."""

import pytest

from magnetar.sdk import Client, ConsumerSettings, InitialPosition
from magnetar.sdk.scalable.scalable_producer import ScalableProducer
from magnetar.testing import Broker
from tests.integration.sdk.scalable.scene import RECEIVE_S, Layouts

EARLIEST = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
_LOW, _HIGH = "a", "k1"
"""Keys: after a split one goes to the first child, and the other to the second one."""
_NOTHING_S = 0.5


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_over_a_split_is_all_or_nothing(
    broker: Broker, client: Client, topic: str, commits: bool
) -> None:
    """Messages of it are in the parent and in both children. While it is open, a stream consumer
    is given nothing behind them, and no child."""
    async with (
        client.stream_consumer(topic, "s", EARLIEST) as consumer,
        client.producer(topic) as producer,
    ):
        assert isinstance(producer, ScalableProducer)
        (parent,) = producer.segments
        transaction = await client.transaction().begin()
        await producer.send(b"before", key=_LOW)
        async with client.producer(parent) as in_parent:
            await in_parent.send(b"in the parent", key=_LOW, transaction=transaction)
            await in_parent.send(b"beside it", key=_HIGH)
        await Layouts(broker.admin_url, topic).split(0)
        await producer.send(b"after", key=_LOW)  # Now the producer knows the children.
        for key, segment in zip((_LOW, _HIGH), producer.segments, strict=True):
            async with client.producer(segment) as in_child:
                await in_child.send(b"in a child", key=key, transaction=transaction)
        first = await consumer.receive(timeout_s=RECEIVE_S)
        assert first.data == b"before"
        consumer.acknowledge(first)
        assert await consumer.receive_many(9, timeout_s=_NOTHING_S) == []
        await (transaction.commit() if commits else transaction.abort())
        received: list[tuple[str | None, bytes]] = []
        expected = {(_HIGH, b"beside it"), (_LOW, b"after")}
        if commits:
            expected |= {(_LOW, b"in the parent"), (_LOW, b"in a child"), (_HIGH, b"in a child")}
        while len(received) < len(expected):
            message = await consumer.receive(timeout_s=RECEIVE_S)
            received.append((message.key, message.data))
            consumer.acknowledge(message)
        assert set(received) == expected
        in_parent_count = 2 if commits else 1
        assert {data for _, data in received[:in_parent_count]} <= {b"in the parent", b"beside it"}
        assert await consumer.receive_many(9, timeout_s=_NOTHING_S) == []
