"""The state machine: commands drawn by Hypothesis go to the broker and to the model."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.property.broker.against_model import drawn
from tests.property.broker.against_model.acknowledging import Acknowledging
from tests.property.broker.against_model.checked import TOPICS
from tests.property.broker.against_model.model import EXCLUSIVE
from tests.property.broker.against_model.operating import Operating
from tests.unit.broker.harness import entry, send_frame


class Story(Acknowledging, Operating):
    """Every rule: tell the model, send the command, run to rest, compare everything."""

    @initialize(
        topic=drawn.TOPIC,
        sub_type=st.integers(0, 3),
        others=st.lists(drawn.CLIENT, max_size=3),
        permits=drawn.PERMITS,
        batches=drawn.BATCHES,
    )
    def begin(
        self, topic: int, sub_type: int, others: list[int], permits: int, batches: list[int]
    ) -> None:
        """A subscription with consumers, and messages for them: most stories need that."""
        for client in [0, *others] if sub_type != EXCLUSIVE else [0]:
            self.step(self.do_subscribe(topic, client, "a", sub_type, True, True, False, permits))
        self.step(self.do_produce(topic, 0, batches * 2, drawn.KEYS[0]))

    # Producing

    @rule(
        topic=drawn.TOPIC,
        client=drawn.CLIENT,
        batches=drawn.BATCHES,
        key=drawn.KEY,
    )
    def produce(self, topic: int, client: int, batches: list[int], key: str) -> None:
        if not self.logs[topic].is_terminated:
            self.step(self.do_produce(topic, client, batches, key))

    async def do_produce(self, topic: int, client: int, batches: list[int], key: str) -> None:
        await self.world.load(TOPICS[topic])
        if (client, topic) not in self.producers:
            self.ids += 1
            self.producers[client, topic] = self.ids
            request = pb.CommandProducer(topic=str(TOPICS[topic]), producer_id=self.ids)
            answer = await self.ask(client, BaseCommand.PRODUCER, producer=request)
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
        producer_id = self.producers[client, topic]
        frames, expected = [], []
        for at, messages in enumerate(batches):
            self.ids += 1
            self.time_ms += 1000
            each_key = drawn.KEYS[(drawn.KEYS.index(key) + at) % len(drawn.KEYS)]
            batch: dict[str, Any] = {"num_messages_in_batch": messages} if messages > 1 else {}
            payload = entry(
                sequence_id=self.ids, publish_time=self.time_ms, partition_key=each_key, **batch
            )
            frames.append(send_frame(producer_id, self.ids, payload=payload, num_messages=messages))
            made = self.logs[topic].append(messages, self.time_ms, each_key)
            expected.append((producer_id, self.ids, made.position))
        self.world.clients[client].send_bytes(b"".join(frames))
        await self.world.rest()
        assert list(self.world.receipts) == expected
        self.world.receipts.clear()

    async def finish(self) -> None:
        """What is open reaches one consumer of each subscription, and is acknowledged."""
        await self._step(self.do_kill())
        for topic, log in enumerate(self.logs):
            for name in list(log.subscriptions):
                model = log.subscriptions[name]
                await self._step(
                    self.do_subscribe(topic, 0, name, model.type, True, True, False, 1 << 20)
                )
                (member,) = model.members
                while model.open:
                    seen = [each for each in dict.fromkeys(member.seen) if each in model.open]
                    assert seen, f"{name} has more, and gets nothing"
                    await self._step(self.do_acknowledge(member, seen))
