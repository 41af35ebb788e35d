"""Key_Shared dispatch against its promises, whatever consumers do.

A random story of joins, leaves, credit, publishes of batches with keys, acknowledgements, requests
for redelivery and evictions of the tail cache, told to the broker and to a plain model of who holds
what. All the while: a key is at one consumer at a time, nothing of a key comes before what is lower
and not acknowledged, nobody gets more than its credit but for the rest of one batch, the books
agree with each other, and everything that was passed is acknowledged, pending or waiting. In the
end one consumer is left, and everything comes. With entry buckets, what is said of keys here holds
of buckets: entries that a producer has stamped, and others, in turns.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.key_hashes import murmur3_hash
from tests.unit.broker.harness import Client, Harness, entry
from tests.waiting import settle

_BATCH_MAX = 3
_HASHES = 65_536

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["join", "leave", "flow", "flow", "publish", "ack", "ack", "redeliver", "redeliver_all"]
        ),
        st.integers(0, 7),
        st.integers(1, 12),
    ),
    min_size=30,
    max_size=70,
)


@dataclass
class _Member:
    client: Client
    credit: int = 0
    held: list[Position] = field(default_factory=list)


class _Story:
    def __init__(
        self,
        *,
        is_unordered: bool = False,
        kept_bytes: int = 100,
        has_ring: bool = True,
        buckets: int = 0,
    ) -> None:
        """`buckets`: of equal width, which all consumers name; 0: keys are divided."""
        self.is_unordered = is_unordered
        self.buckets = buckets
        self.harness = Harness(
            unacked_per_consumer_max=20,
            look_ahead_per_consumer_max=6,
            look_ahead_per_subscription_max=15,
            look_ahead_bytes_max=kept_bytes,
            key_shared_consistent_hashing=has_ring,
        )
        self.members: list[_Member] = []
        self.acked: set[Position] = set()
        self.key_of: list[int] = []
        self.size_of: list[int] = []

    async def run(self, steps: list[tuple[str, int, int]]) -> None:
        await self._join(0)
        for kind, which, amount in steps:
            await self._step(kind, which, amount)
            await self._receive()
            self._check()
        await self._finish()

    async def _step(self, kind: str, which: int, amount: int) -> None:
        if kind == "join":
            await self._join(which)
            return
        if kind == "publish":
            self._publish(which, amount)
            return
        member = self.members[which % len(self.members)]
        if kind == "leave" and len(self.members) > 1:
            member.client.connection.lost()
            self.members.remove(member)
        elif kind == "flow":
            member.credit += amount
            member.client.flow(amount)
        elif kind == "ack" and member.held:
            taken, member.held = member.held[-amount:], member.held[:-amount]
            self.acked.update(taken)
            member.client.ack(*taken)
        elif kind == "redeliver" and member.held:
            taken, member.held = member.held[:amount], member.held[amount:]
            member.client.redeliver(*taken)
        elif kind == "redeliver_all":
            member.held.clear()
            member.client.redeliver()

    async def _join(self, which: int) -> None:
        client = await self.harness.connected()
        answer = await client.subscribe(
            subType=pb.CommandSubscribe.Key_Shared,
            consumer_name=f"c{which % 3}",
            keySharedMeta=self._mode(),
        )
        assert answer.type == BaseCommand.SUCCESS
        self.members.append(_Member(client))

    def _mode(self) -> pb.KeySharedMeta:
        if not self.buckets:
            return pb.KeySharedMeta(
                keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=self.is_unordered
            )
        width = _HASHES // self.buckets
        starts = range(0, _HASHES, width)
        return pb.KeySharedMeta(
            keySharedMode=pb.STICKY,
            hashRanges=[pb.IntRange(start=each, end=each + width - 1) for each in starts],
            entryBucketDispatch=True,
        )

    def _stamp(self, key: int, number: int) -> dict[str, Any]:
        """What a producer that knows the buckets says of an entry, and the model, of its key."""
        if not self.buckets:
            self.key_of.append(key)
            return {}
        width = _HASHES // self.buckets
        if number % 2:
            self.key_of.append(murmur3_hash(b"key-%d" % key) % _HASHES // width)
            return {}
        bucket = key % self.buckets
        self.key_of.append(bucket)
        return {
            "entry_hash_min": bucket * width + number % width,
            "entry_hash_max": (bucket + 1) * width - 1,
        }

    def _publish(self, which: int, count: int) -> None:
        """Straight into the log: what a producer's batch does, without its receipts."""
        for number in range(count):
            key, size = (which + number) % 5, number % _BATCH_MAX + 1
            self.size_of.append(size)
            self.harness.log.store(
                entry(
                    partition_key=f"key-{key}",
                    num_messages_in_batch=size if size > 1 else None,
                    **self._stamp(key, number),
                )
            )
        self.harness.topic.subscriptions["s"].wake()

    async def _receive(self) -> None:
        await settle()
        for member in self.members:
            for command, _ in member.client.received():
                assert command.type == BaseCommand.MESSAGE
                self._delivered(member, Position(7, command.message.message_id.entryId))

    def _delivered(self, member: _Member, position: Position) -> None:
        assert position not in self.acked
        assert not any(position in each.held for each in self.members)
        assert member.credit > 0
        member.credit -= self.size_of[position.entry_id]
        key = self.key_of[position.entry_id]
        if not self.is_unordered:
            for other in self.members:
                if other is not member:
                    assert key not in {self.key_of[each.entry_id] for each in other.held}
            for lower in range(position.entry_id):
                before = Position(7, lower)
                if self.key_of[lower] == key and before not in self.acked:
                    assert before in member.held, f"{position} came before {before}"
        member.held.append(position)

    def _check(self) -> None:
        subscription = self.harness.topic.subscriptions["s"]
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        subscription.check()
        held = {position for member in self.members for position in member.held}
        passed = {Position(7, each) for each in range(dispatcher.read_after.entry_id + 1)}
        waiting = dispatcher.book.waiting.keys()
        assert passed == {each for each in self.acked if each in passed} | held | waiting
        assert not held & waiting
        for consumer in subscription.consumers:
            assert consumer.permits > -_BATCH_MAX

    async def _finish(self) -> None:
        survivor = self.members[0]
        for member in self.members[1:]:
            member.client.connection.lost()
        self.members = [survivor]
        survivor.client.flow(10_000)
        survivor.credit += 10_000
        async with asyncio.timeout(10):
            while len(self.acked) < len(self.key_of):
                await self._receive()
                self.acked.update(survivor.held)
                survivor.client.ack(*survivor.held)
                survivor.held.clear()
        self._check()
        subscription = self.harness.topic.subscriptions["s"]
        assert subscription.cursor.backlog_entries == 0
        assert subscription.unacked_messages == 0
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        assert not dispatcher.book.keys
        assert not dispatcher.left._kept
        assert dispatcher.left._kept_bytes == 0


@pytest.mark.parametrize(
    ("kept_bytes", "has_ring"), [(0, True), (100, True), (100, False), (1 << 20, True)]
)
@settings(max_examples=40, deadline=None)
@given(steps=_STEPS)
def test_a_key_is_at_one_consumer_and_in_order(
    kept_bytes: int, has_ring: bool, steps: list[tuple[str, int, int]]
) -> None:
    story = _Story(is_unordered=False, kept_bytes=kept_bytes, has_ring=has_ring)
    asyncio.run(story.run(steps))


@settings(max_examples=40, deadline=None)
@given(steps=_STEPS)
def test_without_order_nothing_is_lost_either(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(_Story(is_unordered=True, kept_bytes=100, has_ring=True).run(steps))


@pytest.mark.parametrize("buckets", [1, 2, 4, 64])
@settings(max_examples=20, deadline=None)
@given(steps=_STEPS)
def test_an_entry_bucket_is_at_one_consumer_and_in_order(
    buckets: int, steps: list[tuple[str, int, int]]
) -> None:
    asyncio.run(_Story(buckets=buckets).run(steps))
