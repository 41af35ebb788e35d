"""Credit, acknowledgements, redelivery, seeking."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.property.broker.against_model import drawn
from tests.property.broker.against_model.checked import has_consumers
from tests.property.broker.against_model.joining import Joining
from tests.property.broker.against_model.model import Member, words_of
from tests.unit.broker.harness import id_of

NOBODY = Position(999, 3)
"""An entry that never existed."""


class Acknowledging(Joining):
    """FLOW, ACK in all its forms, REDELIVER_UNACKNOWLEDGED_MESSAGES, SEEK."""

    @precondition(has_consumers)
    @rule(which=drawn.SMALL, permits=drawn.PERMITS)
    def flow(self, which: int, permits: int) -> None:
        member = self.pick(which)
        if member is not None:
            self.step(self.do_flow(member, permits))

    def _positions(self, member: Member, picks: Sequence[int]) -> list[Position]:
        """What it has seen, counted from the newest; mostly that is still open."""
        seen = [each for each in member.seen if each in member.subscription.open]
        found = [seen[-1 - pick % len(seen)] for pick in picks] if seen else []
        if 11 in picks:
            found += [NOBODY, *member.seen[:1]]
        return found

    @precondition(has_consumers)
    @rule(which=drawn.SMALL, picks=drawn.PICKS, first=drawn.SMALL, count=st.integers(0, 9))
    def acknowledge(self, which: int, picks: list[int], first: int, count: int) -> None:
        """Single entries, and a run of them as clients collect it."""
        member = self.pick(which)
        if member is not None:
            seen = [each for each in member.seen if each in member.subscription.open]
            run = sorted(dict.fromkeys(seen))[first % 4 :][:count]
            self.step(self.do_acknowledge(member, self._positions(member, picks) + run))

    async def do_acknowledge(self, member: Member, positions: list[Position]) -> None:
        if not positions:
            return
        member.subscription.ack(positions)
        await self._ack(member, [id_of(each) for each in positions], pb.CommandAck.Individual)

    async def _ack(self, member: Member, ids: list[pb.MessageIdData], ack_type: Any) -> None:
        request = pb.CommandAck(consumer_id=member.consumer_id, ack_type=ack_type, message_id=ids)
        answer = await self.ask(member.client, BaseCommand.ACK, ack=request)
        assert answer.type == BaseCommand.ACK_RESPONSE
        assert not answer.ackResponse.HasField("error"), answer

    @precondition(has_consumers)
    @rule(which=drawn.SMALL, pick=drawn.SMALL, bits=st.integers(1, 1 << 70), is_told=st.booleans())
    def acknowledge_in_batch(self, which: int, pick: int, bits: int, is_told: bool) -> None:
        member = self.pick(which)
        if member is not None:
            entries = member.subscription.log.entries
            batches = [
                each
                for each in dict.fromkeys(member.seen)
                if each in member.subscription.open and entries[each].messages > 1
            ]
            if batches:
                position = batches[pick % len(batches)]
                self.step(self._acknowledge_in_batch(member, position, bits, is_told))

    async def _acknowledge_in_batch(
        self, member: Member, position: Position, bits: int, is_told: bool
    ) -> None:
        each = member.subscription.log.entries[position]
        bits &= each.bits
        if bits in (0, each.bits):
            return  # clients name bits only of what is open in part
        member.subscription.ack_messages(position, bits)
        at = id_of(position)
        at.ack_set.extend(words_of(bits))
        at.batch_size = each.messages if is_told else 0
        await self._ack(member, [at], pb.CommandAck.Individual)

    @rule(which=drawn.SMALL, pick=drawn.SMALL, bits=st.one_of(st.none(), st.integers(1, 1 << 70)))
    def acknowledge_through(self, which: int, pick: int, bits: int | None) -> None:
        member = self.pick(which)
        if member is not None:
            for position in self._positions(member, [pick % 11])[:1]:
                self.step(self._acknowledge_through(member, position, bits))

    async def _acknowledge_through(
        self, member: Member, position: Position, bits: int | None
    ) -> None:
        subscription = member.subscription
        each = subscription.log.entries[position]
        if bits is not None:
            bits &= each.bits
        if bits in (0, each.bits):
            bits = None
        if subscription.is_single:
            subscription.ack_through(position, bits)
        at = id_of(position)
        if bits is not None:
            at.ack_set.extend(words_of(bits))
            at.batch_size = each.messages
        await self._ack(member, [at], pb.CommandAck.Cumulative)

    @precondition(has_consumers)
    @rule(which=drawn.SMALL, picks=drawn.PICKS)
    def nack(self, which: int, picks: list[int]) -> None:
        """No picks: everything that it has."""
        member = self.pick(which)
        if member is not None:
            positions = self._positions(member, picks)
            if positions or not picks:
                self.step(self._nack(member, positions))

    async def _nack(self, member: Member, positions: list[Position]) -> None:
        member.subscription.redeliver(member, positions or None)
        self.world.clients[member.client].redeliver(*positions, consumer_id=member.consumer_id)

    # Seeking

    @precondition(has_consumers)
    @rule(which=drawn.SMALL, pick=st.integers(0, 60), inside=st.integers(0, 6))
    def seek(self, which: int, pick: int, inside: int) -> None:
        """By id: an entry, `inside` a batch, or beyond all of them."""
        member = self.pick(which)
        if member is None:
            return
        known = list(member.subscription.log.entries)
        at = [EARLIEST, LATEST, NOBODY, Position(0, 0), *reversed(known)][pick % (4 + len(known))]
        each = member.subscription.log.entries.get(at)
        target = id_of(at)
        bits = None
        if each is not None and 0 < inside < each.messages:
            bits = each.bits & ~((1 << inside) - 1)
            target.ack_set.extend(words_of(bits))
        self.step(self._seek(member, at, bits, message_id=target))

    @precondition(has_consumers)
    @rule(which=drawn.SMALL, ago=st.integers(0, 40))
    def seek_to_time(self, which: int, ago: int) -> None:
        member = self.pick(which)
        if member is not None:
            time_ms = max(1, self.time_ms - ago * 500)
            at = member.subscription.log.first_at(time_ms)
            self.step(self._seek(member, at, None, message_publish_time=time_ms))

    async def _seek(self, member: Member, at: Position, bits: int | None, **target: Any) -> None:
        for closed in member.subscription.seek(member, at, bits):
            del self.members[closed.client, closed.consumer_id]
            self.closing.add((closed.client, closed.consumer_id))
        request = pb.CommandSeek(consumer_id=member.consumer_id, **target)
        answer = await self.ask(member.client, BaseCommand.SEEK, seek=request)
        assert answer.type == BaseCommand.SUCCESS, answer
