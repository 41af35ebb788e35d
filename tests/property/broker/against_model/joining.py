"""Consumers come and go."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from magnetar.ledger.position import EARLIEST, LATEST
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.property.broker.against_model import drawn
from tests.property.broker.against_model.checked import TOPICS, Checked, has_consumers
from tests.property.broker.against_model.model import (
    EXCLUSIVE,
    KEY_SHARED,
    Member,
    SubscriptionModel,
)
from tests.unit.broker.harness import id_of


class Joining(Checked):
    """SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, lost connections."""

    @rule(
        topic=drawn.TOPIC,
        client=drawn.CLIENT,
        name=drawn.NAME,
        sub_type=st.integers(0, 3),
        is_durable=st.sampled_from([True, True, True, False]),
        is_earliest=st.sampled_from([True, True, False]),
        is_unordered=st.sampled_from([False, False, True]),
        permits=st.one_of(drawn.PERMITS, st.just(0)),
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
        work = self.do_subscribe(
            topic, client, name, sub_type, is_durable, is_earliest, is_unordered, permits
        )
        self.step(work)

    async def do_subscribe(
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
                await self.do_flow(member, permits)
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
    @rule(which=drawn.SMALL)
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
    @rule(which=drawn.SMALL, is_forced=st.booleans(), is_sure=drawn.RARELY)
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

    @rule(client=drawn.CLIENT, is_sure=drawn.RARELY)
    def disconnect(self, client: int, is_sure: bool) -> None:
        if is_sure:
            self.step(self._disconnect(client))

    async def _disconnect(self, client: int) -> None:
        leaving = [each for each in self.members.values() if each.client == client]
        for member in leaving:
            others = [each for each in leaving if each.subscription is member.subscription]
            member.subscription.left_together = len(others) > 1
        for member in leaving:
            self.drop(member)
        for key in [each for each in self.producers if each[0] == client]:
            del self.producers[key]
        await self.world.reconnect(client)

    async def do_flow(self, member: Member, permits: int) -> None:
        member.permits += permits
        self.world.clients[member.client].flow(permits, member.consumer_id)
