"""Owners and operators: unload, kill -9, trimming, expiry, skipping, the end of a topic."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from magnetar.broker.features.retention.expiry import Expiry
from magnetar.broker.topics import operating
from tests.property.broker.against_model import drawn
from tests.property.broker.against_model.checked import TOPICS, Checked
from tests.property.broker.against_model.model import LogModel, Member, SubscriptionModel

NOW_MS = 10**9


class FixedClock:
    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0

    def boot_s(self) -> float:
        return 0.0


class Operating(Checked):
    """What happens to a topic without its clients."""

    @rule(topic=drawn.TOPIC, is_sure=drawn.RARELY)
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
        """Start a new ledger: the next broker that loads the topic writes to one of its own."""
        if not self.logs[topic].is_terminated:
            self.world.log(TOPICS[topic]).roll(self.logs[topic].roll())

    @rule(is_sure=drawn.RARELY)
    def kill(self, is_sure: bool) -> None:
        if is_sure:
            self.step(self.do_kill())

    async def do_kill(self) -> None:
        self.producers.clear()
        await self.world.crash()
        for topic, log in enumerate(self.logs):
            self._gone(log)
            for subscription in log.subscriptions.values():
                subscription.restore()
            self._next_owner(topic)
        await self.world.rest()
        for name in TOPICS:
            await self.world.load(name)

    @rule(topic=drawn.TOPIC)
    def save(self, topic: int) -> None:
        self.step(self._save(topic))

    async def _save(self, topic: int) -> None:
        self.world.save(await self.world.load(TOPICS[topic]))
        for subscription in self.logs[topic].subscriptions.values():
            subscription.save()

    @rule(topic=drawn.TOPIC)
    def roll(self, topic: int) -> None:
        if not self.logs[topic].is_terminated:
            self._next_owner(topic)

    @rule(topic=drawn.TOPIC)
    def trim(self, topic: int) -> None:
        if self.logs[topic].may_trim():
            self.logs[topic].trim()
            self.world.log(TOPICS[topic]).trim()
            self.step(self._nothing())

    async def _nothing(self) -> None:
        return

    @rule(topic=drawn.TOPIC, ago=st.integers(0, 20))
    def expire(self, topic: int, ago: int) -> None:
        self.step(self._expire(topic, self.time_ms - ago * 1000))

    async def _expire(self, topic: int, time_ms: int) -> None:
        through = self.logs[topic].newest_before(time_ms)
        if through is not None:
            for model in self.logs[topic].subscriptions.values():
                model.expire_through(through)
        log = self.world.log(TOPICS[topic])
        # Closed by a clock that was ahead, which says nothing: publish times alone count.
        log.wall_ms = NOW_MS
        log.closed_ms = dict.fromkeys(log.entries, NOW_MS + 1)
        loaded = await self.world.load(TOPICS[topic])
        await Expiry(FixedClock()).expire(
            loaded, list(loaded.subscriptions.values()), age_s=(NOW_MS - time_ms) / 1000
        )

    @rule(topic=drawn.TOPIC, name=drawn.NAME, entries=st.integers(1, 6))
    def skip(self, topic: int, name: str, entries: int) -> None:
        model = self.logs[topic].subscriptions.get(name)
        if model is not None and model.is_durable:
            self.step(self._skip(topic, model, entries))

    async def _skip(self, topic: int, model: SubscriptionModel, entries: int) -> None:
        skipped = list(model.open)[:entries]
        if skipped:  # or else nothing is stored
            model.expire_through(skipped[-1])
            model.save()
        loaded = await self.world.load(TOPICS[topic])
        work = operating.skip(loaded, loaded.subscriptions[model.name], entries)
        assert await self.world.call(work) is None

    @precondition(lambda self: self.time_ms > 30_000)
    @rule(topic=drawn.TOPIC, is_sure=drawn.RARELY)
    def terminate(self, topic: int, is_sure: bool) -> None:
        if is_sure and not self.logs[topic].is_terminated:
            self.step(self._terminate(topic))

    async def _terminate(self, topic: int) -> None:
        loaded = await self.world.load(TOPICS[topic])
        self.logs[topic].is_terminated = True
        log = self.world.log(TOPICS[topic])
        log.terminated = log.last_confirmed
        loaded.log_ended()
