"""Shared dispatch against its promises, whatever consumers do.

A random story of joins, leaves, credit, publishes, acknowledgements and redelivery requests; at the
end one consumer with plenty of credit is left. Then: nobody ever got more than its credit, no
acknowledged message was sent again, and every message was acknowledged in the end.
"""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, settle

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "flow", "publish", "ack", "redeliver", "redeliver_all"]),
        st.integers(0, 5),
        st.integers(1, 12),
    ),
    max_size=40,
)


@dataclass
class _Member:
    client: Client
    credit: int = 0
    held: list[Position] = field(default_factory=list)


class _Story:
    def __init__(self) -> None:
        self.harness = Harness(round_robin_messages_max=3, unacked_per_consumer_max=8)
        self.members: list[_Member] = []
        self.acked: set[Position] = set()
        self.published = 0

    async def run(self, steps: list[tuple[str, int, int]]) -> None:
        self.harness.log.store(entry())
        self.published = 1
        await self._join()
        for kind, which, amount in steps:
            await self._step(kind, which, amount)
            await self._receive()
        await self._finish()

    async def _step(self, kind: str, which: int, amount: int) -> None:
        if kind == "join":
            await self._join()
            return
        if kind == "publish":
            self._publish(amount)
            return
        member = self.members[which % len(self.members)]
        if kind == "leave" and len(self.members) > 1:
            member.client.connection.lost()
            self.members.remove(member)
        elif kind == "flow":
            member.credit += amount
            member.client.flow(amount)
        elif kind == "ack" and member.held:
            taken, member.held = member.held[:amount], member.held[amount:]
            self.acked.update(taken)
            member.client.ack(*taken)
        elif kind == "redeliver" and member.held:
            taken, member.held = member.held[:amount], member.held[amount:]
            member.client.redeliver(*taken)
        elif kind == "redeliver_all":
            member.held.clear()
            member.client.redeliver()

    async def _join(self) -> None:
        client = self.harness.client()
        answer = await client.subscribe(subType=pb.CommandSubscribe.Shared)
        assert answer.type == BaseCommand.SUCCESS
        self.members.append(_Member(client))

    def _publish(self, count: int) -> None:
        """Straight into the log: what a producer's batch does, without its receipts."""
        self.harness.log.store(*(entry() for _ in range(count)))
        self.published += count
        self.harness.topic.subscriptions["s"].wake()

    async def _receive(self) -> None:
        await settle()
        for member in self.members:
            for command, _ in member.client.received():
                assert command.type == BaseCommand.MESSAGE
                message_id = command.message.message_id
                position = Position(message_id.ledgerId, message_id.entryId)
                assert position not in self.acked
                assert position not in member.held
                member.held.append(position)
                member.credit -= 1
                assert member.credit >= 0

    async def _finish(self) -> None:
        survivor = self.members[0]
        for member in self.members[1:]:
            member.client.connection.lost()
        self.members = [survivor]
        survivor.client.flow(10_000)
        survivor.credit += 10_000
        async with asyncio.timeout(10):
            while len(self.acked) < self.published:
                await self._receive()
                self.acked.update(survivor.held)
                survivor.client.ack(*survivor.held)
                survivor.held.clear()
        cursor = self.harness.topics.cursors["s"]
        assert cursor.backlog_entries == 0
        assert self.harness.topic.subscriptions["s"].unacked_messages == 0


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_shared_dispatch_loses_and_repeats_nothing(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(_Story().run(steps))
