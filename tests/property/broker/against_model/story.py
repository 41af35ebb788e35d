"""The state machine: commands drawn by Hypothesis go to the broker and to the model."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from magnetar.broker.keeping import operating
from magnetar.broker.keeping.expiry import Expiry
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.property.broker.against_model.checked import CLIENTS, TOPICS, Checked
from tests.property.broker.against_model.model import (
    BATCH_MAX,
    EXCLUSIVE,
    KEY_SHARED,
    LogModel,
    Member,
    SubscriptionModel,
    words_of,
)
from tests.unit.broker.harness import entry, id_of, send_frame

NOW_MS = 10**9
KEYS = ["red", "green", "blue", "grey"]
NOBODY = Position(999, 3)
"""An entry that never existed."""

_small = st.integers(0, 11)
_topics = st.integers(0, len(TOPICS) - 1)
_clients = st.integers(0, CLIENTS - 1)
_names = st.sampled_from(["a", "b", "c"])
_batches = st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, BATCH_MAX]), min_size=1, max_size=5)
_picks: st.SearchStrategy[list[int]] = st.one_of(
    st.lists(_small, min_size=1, max_size=6), st.just([])
)
_permits = st.sampled_from([10, 1000, 3, 1])
_rarely = st.integers(0, 7).map(lambda drawn: drawn == 5)
"""For what takes everything away from everybody, and would keep every story short."""


def has_consumers(story: "Story") -> bool:
    return bool(story.members)


class FixedClock:
    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0

    def boot_s(self) -> float:
        return 0.0


class Story(Checked):
    """Every rule: tell the model, send the command, run to rest, compare everything."""

    @initialize(
        topic=_topics,
        sub_type=st.integers(0, 3),
        others=st.lists(_clients, max_size=3),
        permits=_permits,
        batches=_batches,
    )
    def begin(
        self, topic: int, sub_type: int, others: list[int], permits: int, batches: list[int]
    ) -> None:
        """A subscription with consumers, and messages for them: most stories need that."""
        for client in [0, *others] if sub_type != EXCLUSIVE else [0]:
            self.step(self._subscribe(topic, client, "a", sub_type, True, True, False, permits))
        self.step(self._produce(topic, 0, batches * 2, KEYS[0]))

    # Producing

    @rule(topic=_topics, client=_clients, batches=_batches, key=st.sampled_from(KEYS))
    def produce(self, topic: int, client: int, batches: list[int], key: str) -> None:
        if not self.logs[topic].is_terminated:
            self.step(self._produce(topic, client, batches, key))

    async def _produce(self, topic: int, client: int, batches: list[int], key: str) -> None:
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
            each_key = KEYS[(KEYS.index(key) + at) % len(KEYS)]
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

    # Consumers come and go

    @rule(
        topic=_topics,
        client=_clients,
        name=_names,
        sub_type=st.integers(0, 3),
        is_durable=st.sampled_from([True, True, True, False]),
        is_earliest=st.sampled_from([True, True, False]),
        is_unordered=st.sampled_from([False, False, True]),
        permits=st.one_of(_permits, st.just(0)),
    )
    def subscribe(
        self,
        topic: int,
        client: int,
        name: str,
        sub_type: int,
        is_durable: bool,
        is_earliest: bool,
        is_unordered: bool,
        permits: int,
    ) -> None:
        subscription = self.logs[topic].subscriptions.get(name)
        if subscription is not None and subscription.members and is_earliest:
            sub_type, is_unordered = subscription.type, subscription.is_unordered
            is_durable = subscription.is_durable
        if not is_durable:
            sub_type = EXCLUSIVE  # a reader
        work = self._subscribe(
            topic, client, name, sub_type, is_durable, is_earliest, is_unordered, permits
        )
        self.step(work)

    async def _subscribe(
        self,
        topic: int,
        client: int,
        name: str,
        sub_type: int,
        is_durable: bool,
        is_earliest: bool,
        is_unordered: bool,
        permits: int,
    ) -> None:
        await self.world.load(TOPICS[topic])
        log = self.logs[topic]
        self.ids += 1
        request = pb.CommandSubscribe(
            topic=str(TOPICS[topic]),
            subscription=name,
            subType=sub_type,  # type: ignore[arg-type]
            consumer_id=self.ids,
            consumer_name=f"consumer-{self.ids}",
            durable=is_durable,
            initialPosition=(
                pb.CommandSubscribe.Earliest if is_earliest else pb.CommandSubscribe.Latest
            ),
        )
        if sub_type == KEY_SHARED:
            request.keySharedMeta.keySharedMode = pb.AUTO_SPLIT
            request.keySharedMeta.allowOutOfOrderDelivery = is_unordered
        if not is_durable:
            request.start_message_id.CopyFrom(id_of(EARLIEST if is_earliest else LATEST))
        refusal = self._refusal(log.subscriptions.get(name), sub_type, is_durable, is_unordered)
        if refusal is None:
            if name not in log.subscriptions:
                opened = log.from_position(EARLIEST) if is_earliest else {}
                log.subscriptions[name] = SubscriptionModel(
                    log, name, is_durable=is_durable, opened=opened
                )
            member = Member(client, self.ids, request.consumer_name, log.subscriptions[name])
            self.members[client, self.ids] = member
            member.subscription.join(member, sub_type, is_unordered=is_unordered)
        answer = await self.ask(client, BaseCommand.SUBSCRIBE, subscribe=request)
        if refusal is None:
            assert answer.type == BaseCommand.SUCCESS, answer
            if permits:
                await self._flow(member, permits)
        else:
            assert answer.error.error == refusal, answer

    def _refusal(
        self,
        subscription: SubscriptionModel | None,
        sub_type: int,
        is_durable: bool,
        is_unordered: bool,
    ) -> int | None:
        if subscription is None:
            return None
        if subscription.is_durable != is_durable:
            return pb.NotAllowedError
        if not subscription.members:
            return None
        is_other = sub_type != subscription.type or sub_type == EXCLUSIVE
        if sub_type == KEY_SHARED and is_unordered != subscription.is_unordered:
            is_other = True
        return pb.ConsumerBusy if is_other else None

    @precondition(has_consumers)
    @rule(which=_small)
    def close_consumer(self, which: int) -> None:
        member = self.pick(which)
        if member is not None:
            self.step(self._close_consumer(member))

    async def _close_consumer(self, member: Member) -> None:
        self.drop(member)
        request = pb.CommandCloseConsumer(consumer_id=member.consumer_id)
        answer = await self.ask(member.client, BaseCommand.CLOSE_CONSUMER, close_consumer=request)
        assert answer.type == BaseCommand.SUCCESS

    @precondition(has_consumers)
    @rule(which=_small, is_forced=st.booleans(), is_sure=_rarely)
    def unsubscribe(self, which: int, is_forced: bool, is_sure: bool) -> None:
        member = self.pick(which)
        if member is not None and is_sure:
            self.step(self._unsubscribe(member, is_forced))

    async def _unsubscribe(self, member: Member, is_forced: bool) -> None:
        subscription = member.subscription
        is_allowed = is_forced or len(subscription.members) == 1
        if is_allowed:
            for each in list(subscription.members):
                self.drop(each)
                if each is not member:
                    self.closing.add((each.client, each.consumer_id))
            subscription.log.subscriptions.pop(subscription.name, None)
        request = pb.CommandUnsubscribe(consumer_id=member.consumer_id, force=is_forced)
        answer = await self.ask(member.client, BaseCommand.UNSUBSCRIBE, unsubscribe=request)
        if is_allowed:
            assert answer.type == BaseCommand.SUCCESS, answer
        else:
            assert answer.error.error == pb.MetadataError

    @rule(client=_clients, is_sure=_rarely)
    def disconnect(self, client: int, is_sure: bool) -> None:
        if is_sure:
            self.step(self._disconnect(client))

    async def _disconnect(self, client: int) -> None:
        for member in [each for each in self.members.values() if each.client == client]:
            self.drop(member)
        for key in [each for each in self.producers if each[0] == client]:
            del self.producers[key]
        self.world.reconnect(client)

    # Credit and acknowledgements

    @precondition(has_consumers)
    @rule(which=_small, permits=_permits)
    def flow(self, which: int, permits: int) -> None:
        member = self.pick(which)
        if member is not None:
            self.step(self._flow(member, permits))

    async def _flow(self, member: Member, permits: int) -> None:
        member.permits += permits
        self.world.clients[member.client].flow(permits, member.consumer_id)

    def _positions(self, member: Member, picks: Sequence[int]) -> list[Position]:
        """What it has seen, counted from the newest; mostly that is still open."""
        seen = [each for each in member.seen if each in member.subscription.open]
        found = [seen[-1 - pick % len(seen)] for pick in picks] if seen else []
        if 11 in picks:
            found += [NOBODY, *member.seen[:1]]
        return found

    @precondition(has_consumers)
    @rule(which=_small, picks=_picks, first=_small, count=st.integers(0, 9))
    def acknowledge(self, which: int, picks: list[int], first: int, count: int) -> None:
        """Single entries, and a run of them as clients collect it."""
        member = self.pick(which)
        if member is not None:
            seen = [each for each in member.seen if each in member.subscription.open]
            run = sorted(dict.fromkeys(seen))[first % 4 :][:count]
            self.step(self._acknowledge(member, self._positions(member, picks) + run))

    async def _acknowledge(self, member: Member, positions: list[Position]) -> None:
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
    @rule(which=_small, pick=_small, bits=st.integers(1, 1 << 70), is_told=st.booleans())
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

    @rule(which=_small, pick=_small, bits=st.one_of(st.none(), st.integers(1, 1 << 70)))
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
    @rule(which=_small, picks=_picks)
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
    @rule(which=_small, pick=st.integers(0, 60), inside=st.integers(0, 6))
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
    @rule(which=_small, ago=st.integers(0, 40))
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

    # Owners and operators

    @rule(topic=_topics, is_sure=_rarely)
    def unload(self, topic: int, is_sure: bool) -> None:
        if is_sure:
            self.step(self._unload(topic))

    async def _unload(self, topic: int) -> None:
        for member in self._gone(self.logs[topic]):
            self.closing.add((member.client, member.consumer_id))
        for subscription in self.logs[topic].subscriptions.values():
            subscription.save()
        for key in [each for each in self.producers if each[1] == topic]:
            del self.producers[key]
        self.world.unload(TOPICS[topic])
        self._next_owner(topic)
        await self.world.rest()
        await self.world.load(TOPICS[topic])

    def _gone(self, log: LogModel) -> list[Member]:
        """All consumers leave, and readers' subscriptions with them."""
        members = [each for sub in log.subscriptions.values() for each in sub.members]
        for member in members:
            self.drop(member)
        for name in [each.name for each in log.subscriptions.values() if not each.is_durable]:
            del log.subscriptions[name]
        return members

    def _next_owner(self, topic: int) -> None:
        """Whoever loads the topic next writes to a ledger of its own."""
        if not self.logs[topic].is_terminated:
            self.world.log(TOPICS[topic]).roll(self.logs[topic].roll())

    @rule(is_sure=_rarely)
    def kill(self, is_sure: bool) -> None:
        if is_sure:
            self.step(self._kill())

    async def _kill(self) -> None:
        self.producers.clear()
        self.world.crash()
        for topic, log in enumerate(self.logs):
            self._gone(log)
            for subscription in log.subscriptions.values():
                subscription.restore()
            self._next_owner(topic)
        await self.world.rest()
        for name in TOPICS:
            await self.world.load(name)

    @rule(topic=_topics)
    def save(self, topic: int) -> None:
        self.step(self._save(topic))

    async def _save(self, topic: int) -> None:
        self.world.save(await self.world.load(TOPICS[topic]))
        for subscription in self.logs[topic].subscriptions.values():
            subscription.save()

    @rule(topic=_topics)
    def roll(self, topic: int) -> None:
        if not self.logs[topic].is_terminated:
            self._next_owner(topic)

    @rule(topic=_topics)
    def trim(self, topic: int) -> None:
        if self.logs[topic].may_trim():
            self.logs[topic].trim()
            self.world.log(TOPICS[topic]).trim()
            self.step(self._nothing())

    async def _nothing(self) -> None:
        return

    @rule(topic=_topics, ago=st.integers(0, 20))
    def expire(self, topic: int, ago: int) -> None:
        self.step(self._expire(topic, self.time_ms - ago * 1000))

    async def _expire(self, topic: int, time_ms: int) -> None:
        through = self.logs[topic].newest_before(time_ms)
        if through is not None:
            for model in self.logs[topic].subscriptions.values():
                model.expire_through(through)
        loaded = await self.world.load(TOPICS[topic])
        await Expiry(FixedClock()).expire(
            loaded, list(loaded.subscriptions.values()), age_s=(NOW_MS - time_ms) / 1000
        )

    @rule(topic=_topics, name=_names, entries=st.integers(1, 6))
    def skip(self, topic: int, name: str, entries: int) -> None:
        model = self.logs[topic].subscriptions.get(name)
        if model is not None and model.is_durable:
            self.step(self._skip(topic, model, entries))

    async def _skip(self, topic: int, model: SubscriptionModel, entries: int) -> None:
        skipped = list(model.open)[:entries]
        if skipped:
            model.expire_through(skipped[-1])
        model.save()
        loaded = await self.world.load(TOPICS[topic])
        work = operating.skip(loaded, loaded.subscriptions[model.name], entries)
        assert await self.world.call(work) is None

    @precondition(lambda self: self.time_ms > 30_000)
    @rule(topic=_topics, is_sure=_rarely)
    def terminate(self, topic: int, is_sure: bool) -> None:
        if is_sure and not self.logs[topic].is_terminated:
            self.step(self._terminate(topic))

    async def _terminate(self, topic: int) -> None:
        loaded = await self.world.load(TOPICS[topic])
        self.logs[topic].is_terminated = True
        log = self.world.log(TOPICS[topic])
        log.terminated = log.last_confirmed
        loaded.log_ended()

    # The end

    async def finish(self) -> None:
        """What is open reaches one consumer of each subscription, and is acknowledged."""
        await self._step(self._kill())
        for topic, log in enumerate(self.logs):
            for name in list(log.subscriptions):
                model = log.subscriptions[name]
                await self._step(
                    self._subscribe(topic, 0, name, model.type, True, True, False, 1 << 20)
                )
                (member,) = model.members
                while model.open:
                    seen = [each for each in dict.fromkeys(member.seen) if each in model.open]
                    assert seen, f"{name} has more, and gets nothing"
                    await self._step(self._acknowledge(member, seen))
