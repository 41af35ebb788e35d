"""Delayed delivery against its promises, whatever consumers, the clock and the broker do.

A random story of publishes with delays, time that passes, consumers that leave and come back,
acknowledgements, redelivery requests and restarts, on a Shared and a Key_Shared subscription. Then:
nothing came before its time, nothing that was acknowledged came again, no consumer got an entry
twice that it still had, and in the end everything was acknowledged.
"""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.features.delayed.delayed_delivery import DelayedDelivery
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, position_in
from tests.unit.broker.memory_log import ManualClock
from tests.unit.broker.memory_parts import feature_of
from tests.waiting import settle

_TICK_MS = 1000
_FAR_MS = 1_000_000
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "time", "flow", "leave", "ack", "redo", "restart"]),
        st.integers(0, 1),
        st.integers(0, 12),
    ),
    max_size=40,
)


@dataclass
class _Member:
    """The consumer of one subscription."""

    name: str
    sub_type: int
    client: Client | None = None
    held: list[Position] = field(default_factory=list)
    acked: set[Position] = field(default_factory=set)


class _Story:
    def __init__(self) -> None:
        self.harness = Harness(
            delayed_bucket_records=4,
            delayed_segment_records=2,
            delayed_segments_loaded_max=1,
            delayed_due_entries_max=3,
            read_ahead_entries=3,
        )
        self.clock = ManualClock()
        self.harness.topics.clock = self.clock
        self.members = [
            _Member("shared", pb.CommandSubscribe.Shared),
            _Member("keys", pb.CommandSubscribe.Key_Shared),
        ]
        self.due_ms: dict[Position, int] = {}

    async def run(self, steps: list[tuple[str, int, int]]) -> None:
        self.publish(0)
        for member in self.members:
            await self.join(member)
        await self.receive()
        for kind, which, amount in steps:
            await self.step(kind, self.members[which], amount)
            await self.receive()
        await self.finish()

    async def step(self, kind: str, member: _Member, amount: int) -> None:
        client = member.client
        assert client is not None
        if kind == "publish":
            for at in range(amount):
                self.publish(at * 1000 if at % 3 else 0)
        elif kind == "time":
            await self.pass_time(amount * 700)
        elif kind == "flow":
            client.flow(amount or 1)
        elif kind == "leave":
            client.connection.lost()
            await self.join(member)
        elif kind == "ack":
            self.ack(member, amount)
        elif kind == "redo":
            member.held.clear()
            client.redeliver()
        else:
            self.harness.topic.disconnect_all()
            for each in self.members:
                assert each.client is not None
                each.client.connection.lost()
            for each in self.members:
                await self.join(each)

    def publish(self, delay_ms: int) -> None:
        at = Position(7, len(self.due_ms))
        self.due_ms[at] = self.clock.now_ms + delay_ms
        key = f"k{len(self.due_ms) % 3}"
        due_ms = self.due_ms[at] if delay_ms else None
        self.harness.log.store(entry(partition_key=key, deliver_at_time=due_ms))
        for topic in self.harness.topics.loaded:
            for subscription in topic.subscriptions.values():
                subscription.wake()

    async def join(self, member: _Member) -> None:
        member.held.clear()
        member.client = await self.harness.connected()
        answer = await member.client.subscribe(
            subType=member.sub_type, subscription=member.name, consumer_name="c"
        )
        assert answer.type == BaseCommand.SUCCESS, answer
        member.client.flow(5)

    async def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        delayed = feature_of(self.harness.topic, DelayedDelivery)
        for _ in range(3):
            delayed.release()
            await settle()

    def ack(self, member: _Member, count: int) -> None:
        assert member.client is not None
        taken, member.held = member.held[:count], member.held[count:]
        member.acked.update(taken)
        if taken:
            member.client.ack(*taken)

    async def receive(self) -> None:
        await settle()
        for member in self.members:
            assert member.client is not None
            for command, _ in member.client.received():
                if command.type != BaseCommand.MESSAGE:
                    continue
                position = position_in(command.message)
                assert self.due_ms[position] <= self.clock.now_ms + _TICK_MS, "too early"
                assert position not in member.acked, "acknowledged"
                assert position not in member.held, "twice"
                member.held.append(position)
        for subscription in self.harness.topic.subscriptions.values():
            subscription.check()

    async def finish(self) -> None:
        self.clock.advance(_FAR_MS)
        wanted = set(self.due_ms)
        for _ in range(200):
            await self.pass_time(_TICK_MS)
            await self.receive()
            for member in self.members:
                self.ack(member, len(member.held))
                assert member.client is not None
                member.client.flow(20)
            if all(member.acked == wanted for member in self.members):
                break
        assert all(member.acked == wanted for member in self.members), "lost"
        assert not feature_of(self.harness.topic, DelayedDelivery).withheld


@given(_STEPS)
@settings(deadline=None)
def test_every_message_comes_at_its_time_and_until_it_is_acknowledged(
    steps: list[tuple[str, int, int]],
) -> None:
    asyncio.run(_Story().run(steps))
