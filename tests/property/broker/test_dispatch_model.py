"""Shared dispatch against its promises, whatever consumers do.

A random story of joins, leaves, credit, publishes, acknowledgements and redelivery requests; at the
end one consumer with plenty of credit is left. Then: nobody ever got more than its credit, no
acknowledged message was sent again, and every message was acknowledged in the end.
"""

import asyncio
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry
from tests.waiting import settle

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
            self.harness.topic.subscriptions["s"].check()
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
        client = await self.harness.connected()
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


_CHUNKS = st.lists(
    st.tuples(
        st.sampled_from(["join", "flow", "flow", "chunk", "chunk", "chunk", "ack"]),
        st.integers(0, 4),
        st.integers(1, 6),
    ),
    min_size=15,
    max_size=50,
)


class _ChunkStory(_Story):
    """Chunks of several messages, published turn by turn; each message has four."""

    _OF = 4

    def __init__(self) -> None:
        super().__init__()
        self.message_of: dict[int, str] = {}
        self.member_of: dict[str, _Member] = {}
        self.open: dict[int, tuple[str, int]] = {}

    async def _step(self, kind: str, which: int, amount: int) -> None:
        if kind != "chunk":
            await super()._step(kind, which, amount)
            return
        uuid, number = self.open.get(which, (f"{which}-{self.published}", 0))
        self.message_of[self.published] = uuid
        self.harness.log.store(
            entry(uuid=uuid, chunk_id=number, num_chunks_from_msg=self._OF, total_chunk_msg_size=1)
        )
        self.published += 1
        self.harness.topic.subscriptions["s"].wake()
        if number + 1 == self._OF:
            self.open.pop(which, None)
        else:
            self.open[which] = uuid, number + 1

    async def _receive(self) -> None:
        before = {id(member): len(member.held) for member in self.members}
        await super()._receive()
        for member in self.members:
            got = [each.entry_id for each in member.held[before.get(id(member), 0) :]]
            for entry_id in got:
                uuid = self.message_of.get(entry_id)
                if uuid is not None:
                    assert self.member_of.setdefault(uuid, member) is member

    async def _finish(self) -> None:
        """Nobody leaves: each gets what it needs."""
        async with asyncio.timeout(10):
            while len(self.acked) < self.published:
                for member in self.members:
                    member.client.flow(20)
                    member.credit += 20
                await self._receive()
                for member in self.members:
                    self.acked.update(member.held)
                    member.client.ack(*member.held)
                    member.held.clear()


# What its consumer could not take waits; some of that is cached, and some has to be read first.
_PARKED = [
    *[("join", 0, 1)] * 3,
    *[("chunk", which, 1) for which in (0, 0, 3, 0, 0, 0, 3)],
    ("flow", 1, 4),
    *[("chunk", which, 1) for which in (0, 3, 3)],
    ("flow", 0, 2),
]


@settings(max_examples=100, deadline=None)
@example(_PARKED)
@given(_CHUNKS)
def test_the_chunks_of_a_message_reach_one_consumer(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(_ChunkStory().run(steps))


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_shared_dispatch_loses_and_repeats_nothing(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(_Story().run(steps))
