"""The blocking client on scalable topics."""

import asyncio

from magnetar.sdk import Checkpoint, ConsumerSettings, InitialPosition
from magnetar.sdk.blocking import Client
from magnetar.testing import Broker
from tests.integration.sdk.scalable.scene import RECEIVE_S, Layouts


def test_producer_and_three_consumers_through_a_split(broker: Broker, topic: str) -> None:
    earliest = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
    with (
        Client(broker.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s", earliest) as stream,
        client.queue_consumer(topic, "q", earliest) as queue,
    ):
        for number in range(10):
            producer.send(b"%d" % number, key="k")
        with client.checkpoint_consumer(topic) as reader:
            read = [reader.read_next(timeout_s=RECEIVE_S).data for _ in range(4)]
            kept = reader.checkpoint().to_bytes()
        asyncio.run(Layouts(broker.admin_url, topic).split(0))
        for number in range(10, 20):
            producer.send(b"%d" % number, key="k")
        with client.checkpoint_consumer(topic, Checkpoint.from_bytes(kept)) as reader:
            while reader.has_message_available():
                read.append(reader.read_next(timeout_s=RECEIVE_S).data)
        expected = [b"%d" % number for number in range(20)]
        assert read == expected
        streamed = []
        for message in stream:
            stream.acknowledge(message)
            streamed.append(message.data)
            if len(streamed) == 20:
                break
        assert streamed == expected
        queued: list[bytes] = []
        while len(queued) < 20:
            message = queue.receive(timeout_s=RECEIVE_S)
            queue.acknowledge(message)
            queued.append(message.data)
        assert sorted(queued) == sorted(expected)
