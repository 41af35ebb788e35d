"""A broker and the model of it, compared after every step; `story.py` composes the steps."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from magnetar.broker.topic import Topic
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.shared import SharedDispatcher
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.property.broker.against_model.model import (
    LogModel,
    Member,
    SubscriptionModel,
    words_of,
)
from tests.property.broker.against_model.world import World

CLIENTS = 3
TOPICS = [parse_topic_name(f"persistent://public/default/{name}") for name in ("left", "right")]


class Checked(RuleBasedStateMachine):
    """A broker and a model side by side: what arrives, and whether both agree."""

    steps = 0
    """Of all stories of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.logs = [LogModel() for _ in TOPICS]
        self.members: dict[tuple[int, int], Member] = {}
        self.producers: dict[tuple[int, int], int] = {}
        """Producer id by client and topic."""
        self.closing: set[tuple[int, int]] = set()
        """Consumers that the broker must have closed by the end of this step."""
        self.ids = 0
        self.time_ms = 0
        self.world = self.run(self._make())

    async def _make(self) -> World:
        world = World(CLIENTS)
        world.on_message = self._on_message
        world.on_active = self._on_active
        world.on_end = self._on_end
        return world

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def teardown(self) -> None:
        try:
            self.run(self.finish())
        finally:
            pending = asyncio.all_tasks(self.loop)
            for task in pending:
                task.cancel()
            if pending:
                self.loop.run_until_complete(asyncio.wait(pending))
            self.loop.close()

    async def finish(self) -> None:
        """The end of the story."""

    # What arrives

    def _on_message(self, client: int, message: pb.CommandMessage) -> None:
        key = client, message.consumer_id
        if key in self.closing:
            # Its subscription is being deleted: it may get what the one who asked for that had.
            assert key not in self.world.closed, "a message after the end"
            return
        at = Position(message.message_id.ledgerId, message.message_id.entryId)
        member = self.members[key]
        member.subscription.delivered(member, at, message.ack_set, message.redelivery_count)

    def _on_active(self, client: int, consumer_id: int, is_active: bool) -> None:
        member = self.members.get((client, consumer_id))
        if member is None:
            return  # it was closed in the same step
        subscription = member.subscription
        if is_active:
            subscription.activate(member)
        elif subscription.active is member:
            subscription.active = None

    def _on_end(self, client: int, consumer_id: int) -> None:
        member = self.members[client, consumer_id]
        assert member.subscription.log.is_terminated
        assert not member.subscription.open, "the end, with messages left"
        assert not member.is_told_end, "the end, twice"
        member.is_told_end = True

    # Steps

    def step(self, work: Coroutine[Any, Any, None]) -> None:
        Checked.steps += 1
        self.run(self._step(work))

    async def _step(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        await self.world.rest()
        assert self.world.closed == self.closing, "consumers that the broker closed"
        self.world.closed.clear()
        self.closing.clear()
        assert not self.world.answers, "answers to nothing"
        assert not self.world.receipts, "receipts for nothing"
        for topic, log in zip(TOPICS, self.logs, strict=True):
            self._compare(self.world.loaded(topic), log)

    def _compare(self, topic: Topic | None, log: LogModel) -> None:
        for name, model in log.subscriptions.items():
            real = topic.subscriptions.get(name) if topic is not None else None
            model.come_to_rest(is_blocked=real is not None and is_blocked(real))
        if topic is None:
            return
        assert set(topic.subscriptions) == set(log.subscriptions)
        for name, model in log.subscriptions.items():
            self._compare_subscription(topic.subscriptions[name], model)

    def _compare_subscription(self, real: Subscription, model: SubscriptionModel) -> None:
        real.check()
        cursor, members = real.cursor, {each.name: each for each in model.members}
        assert {each.name for each in real.consumers} == members.keys()
        for consumer in real.consumers:
            member = members[consumer.name]
            assert consumer.permits == member.permits, f"credit of {member.name}"
            if not model.is_single:
                assert consumer.pending.keys() == member.pending, f"pending at {member.name}"
                assert consumer.unacked_messages == member.unacked
                assert consumer.is_blocked == member.is_blocked
            if model.log.is_terminated and not model.open:
                assert member.is_told_end, f"{member.name} does not know the end"
        assert cursor.backlog_entries == len(model.open)
        assert cursor.is_caught_up == (not model.open)
        for position, each in model.log.entries.items():
            bits = model.open.get(position, 0)
            assert cursor.is_acked(position) == (not bits), f"{position}: {bits:b}"
            words = words_of(bits) if bits != each.bits else []
            assert list(cursor.remaining_words(position)) == words
        assert real.why_idle() is not None, "something is about to be sent, and is not"

    async def ask(self, client: int, kind: Any, **fields: Any) -> BaseCommand:
        """A request, and its answer; the fields' command gets the request id."""
        self.ids += 1
        (command,) = fields.values()
        command.request_id = self.ids
        self.world.clients[client].send(kind, **fields)
        await self.world.rest()
        answer: BaseCommand | None = self.world.answers.pop(self.ids, None)
        assert answer is not None, f"no answer to {command}"
        return answer

    def pick(self, which: int, topic: int | None = None) -> Member | None:
        """A consumer that is connected."""
        found = [
            each
            for log in (self.logs if topic is None else [self.logs[topic]])
            for subscription in log.subscriptions.values()
            for each in subscription.members
        ]
        return found[which % len(found)] if found else None

    def drop(self, member: Member) -> None:
        """The model loses a consumer; a reader's subscription goes with it."""
        del self.members[member.client, member.consumer_id]
        subscription = member.subscription
        subscription.leave(member)
        if not subscription.is_durable and not subscription.members:
            del subscription.log.subscriptions[subscription.name]


def has_consumers(story: Checked) -> bool:
    return bool(story.members)


def is_blocked(subscription: Subscription) -> bool:
    """Whether it has too many unacknowledged messages, in the broker's eyes."""
    dispatcher = subscription.dispatcher
    return (
        isinstance(dispatcher, SharedDispatcher | KeySharedDispatcher)
        and dispatcher.accounts.is_blocked
    )
