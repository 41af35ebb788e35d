"""The real core under a story: connections, topics, subscriptions, dispatchers, acknowledgements.

Logs are in memory; a cursor is the real state, stored when the story says so, so that a restart has
something to restore. `World.rest` runs everything that can run, and takes the frames that arrive.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from magnetar.broker.base.errors import RequestError
from magnetar.broker.topic import Topic
from magnetar.cursors import NonDurableCursor, SubscriptionCursor
from magnetar.cursors.ack_state import AckSnapshot, AckState
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire import PONG_FRAME, BaseCommand, TopicName
from tests.property.broker.against_model.model import (
    UNACKED_PER_CONSUMER_MAX,
    UNACKED_PER_SUBSCRIPTION_MAX,
)
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.memory_log import MemoryLog

_TURNS_MAX = 5000

CursorKey = tuple[str, str]
"""Topic and subscription."""


class StoredCursor(NonDurableCursor):
    """A durable cursor whose store is a dict."""

    def __init__(
        self, log: MemoryLog, key: CursorKey, store: dict[CursorKey, AckSnapshot], initial: Position
    ) -> None:
        super().__init__(log, key[1], initial=initial)
        self._key = key
        self._store = store
        if key in store:
            self._state = AckState.restore(log, store[key])
        else:
            self.save()

    @property
    def is_durable(self) -> bool:
        return True

    def save(self) -> None:
        self._store[self._key] = self._state.snapshot()

    async def persist(self) -> None:
        self.save()

    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        await super().reset(position, words)
        self.save()

    async def delete(self) -> None:
        del self._store[self._key]


class World:
    """A broker that can be killed, its topics, and the clients of them."""

    def __init__(self, clients: int) -> None:
        self.harness = Harness(
            round_robin_messages_max=3,
            unacked_per_consumer_max=UNACKED_PER_CONSUMER_MAX,
            unacked_per_subscription_max=UNACKED_PER_SUBSCRIPTION_MAX,
            failover_delay_ms=0,
            liveness_probe_timeout_ms=60_000,  # nobody is dead; a slow machine is no difference
            read_ahead_entries=4,
        )
        self.stored: dict[CursorKey, AckSnapshot] = {}
        self.answers: dict[int, BaseCommand] = {}
        self.closed: set[tuple[int, int]] = set()
        """Client and consumer id of consumers that the broker has closed since it was looked at."""
        self.receipts: deque[tuple[int, int, Position]] = deque()
        """Producer id, sequence id, position."""
        self.on_message: Callable[[int, Any], None] = lambda client, message: None
        self.on_active: Callable[[int, int, bool], None] = lambda client, consumer, is_active: None
        self.on_end: Callable[[int, int], None] = lambda client, consumer: None
        self.clients = [self.harness.client() for _ in range(clients)]
        self.harness.topics.open_cursor = self._open_cursor  # type: ignore[method-assign, assignment]

    async def _open_cursor(
        self, topic: Topic, log: MemoryLog, name: str, initial: Position, _: dict[str, str]
    ) -> SubscriptionCursor:
        return StoredCursor(log, (str(topic.name), name), self.stored, initial)

    # Topics

    def loaded(self, topic: TopicName) -> Topic | None:
        return next((each for each in self.harness.topics.loaded if each.name == topic), None)

    def log(self, topic: TopicName) -> MemoryLog:
        return self.harness.topics.logs.setdefault(str(topic), MemoryLog())

    async def load(self, topic: TopicName) -> Topic:
        """The topic; if it was not loaded, with the subscriptions that are stored."""
        loaded = self.loaded(topic)
        if loaded is not None:
            return loaded
        found = await self.harness.topics.get(topic)
        for name in [name for of, name in self.stored if of == str(topic)]:

            async def open_cursor(name: str = name) -> SubscriptionCursor:
                log = self.harness.topics.log_of(found)
                return await self._open_cursor(found, log, name, LATEST, {})

            await found.subscriptions.ensure(name, open_cursor)
        return found

    def unload(self, topic: TopicName) -> None:
        """Closed in order: what was acknowledged is stored."""
        loaded = self.loaded(topic)
        if loaded is not None:
            loaded.disconnect_all()
            self.save(loaded)
            self._forget(loaded)

    async def crash(self) -> None:
        """kill -9."""
        clients = self.clients
        self.clients = []
        for client in clients:
            client.connection.lost()
        for topic in self.harness.topics.loaded:
            topic.disconnect_all()
            self._forget(topic)
        self.clients = [await self.harness.connected() for _ in clients]

    async def reconnect(self, index: int) -> None:
        """The connection breaks, and the client makes another one."""
        self.clients[index].connection.lost()
        self.clients[index] = await self.harness.connected()

    def _forget(self, topic: Topic) -> None:
        del self.harness.topics._topics[topic.name]

    def save(self, topic: Topic) -> None:
        """What the background does some time: store the acknowledgements."""
        for subscription in topic.subscriptions.values():
            if subscription.is_open and isinstance(subscription.cursor, StoredCursor):
                subscription.cursor.save()

    # Running

    async def call(self, work: Any) -> RequestError | None:
        """Something an operator asks for."""
        try:
            await work
        except RequestError as error:
            return error
        return None

    async def rest(self) -> None:
        """Run until nothing is left to do."""
        loop = cast(Any, asyncio.get_running_loop())
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
            timers = loop._scheduled
            if loop._ready or (timers and timers[0]._when <= loop.time() + 1e-4):
                continue
            if not sum(map(self._take, range(len(self.clients)))):
                return
        raise AssertionError("the broker does not come to rest")

    def _take(self, index: int) -> int:
        """Take what a client was sent; returns how many frames."""
        client: Client = self.clients[index]
        received = client.received()
        for command, _ in received:
            match command.type:
                case BaseCommand.MESSAGE:
                    self.on_message(index, command.message)
                case BaseCommand.PING:
                    client.send_bytes(PONG_FRAME)
                case BaseCommand.SEND_RECEIPT:
                    receipt = command.send_receipt
                    at = Position(receipt.message_id.ledgerId, receipt.message_id.entryId)
                    self.receipts.append((receipt.producer_id, receipt.sequence_id, at))
                case BaseCommand.CLOSE_CONSUMER:
                    self.closed.add((index, command.close_consumer.consumer_id))
                case BaseCommand.ACTIVE_CONSUMER_CHANGE:
                    change = command.active_consumer_change
                    self.on_active(index, change.consumer_id, change.is_active)
                case BaseCommand.REACHED_END_OF_TOPIC:
                    self.on_end(index, command.reachedEndOfTopic.consumer_id)
                case BaseCommand.CLOSE_PRODUCER:
                    pass
                case BaseCommand.SUCCESS:
                    self.answers[command.success.request_id] = command
                case BaseCommand.ERROR:
                    self.answers[command.error.request_id] = command
                case BaseCommand.ACK_RESPONSE:
                    self.answers[command.ackResponse.request_id] = command
                case BaseCommand.PRODUCER_SUCCESS:
                    self.answers[command.producer_success.request_id] = command
                case _:
                    raise AssertionError(f"unexpected: {command}")
        return len(received)
