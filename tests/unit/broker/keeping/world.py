"""A topic with subscriptions on a log in memory, and a clock that stands still."""

from collections.abc import Iterable
from dataclasses import replace

from magnetar.broker.base.naming import REPLICATOR_PREFIX
from magnetar.broker.topic import Feature, FeatureBacklog, Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics.upkeep import Keeping
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import parse_topic_name
from tests.unit.broker.harness import Client, Harness, entry
from tests.unit.broker.memory_log import MemoryLog
from tests.unit.broker.memory_parts import TOPIC

NOW_MS = 1_800_000_000_000


class StoppedClock:
    """The wall clock says `now_ms`."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def boot_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms


class World:
    """Build it with `await World.make(...)`."""

    def __init__(self, harness: Harness, topic: Topic, clock: StoppedClock) -> None:
        self.harness = harness
        self.topic = topic
        self.clock = clock
        self.keeping = Keeping(clock)
        harness.services = replace(harness.services, keeping=self.keeping)

    @classmethod
    async def make(cls, **policies: object) -> "World":
        harness = Harness()
        topic = await harness.topics.get(parse_topic_name(TOPIC))
        world = cls(harness, topic, StoppedClock())
        world.set(**policies)
        return world

    def set(self, **policies: object) -> None:
        """Change what counts for the topic."""
        self.topic.apply_policies(self.topic.policies.with_values(**policies))

    @property
    def log(self) -> MemoryLog:
        return self.harness.log

    def client(self) -> Client:
        return self.harness.client()

    def store(self, *ages_s: float, body: bytes = b"body") -> None:
        """Entries that were published so long ago."""
        for age_s in ages_s:
            self.log.store(entry(body, publish_time=self.clock.now_ms - int(age_s * 1000)))

    def close_ledger(self, age_s: float) -> None:
        """Close the ledger, as of so long ago, and go on in the next one."""
        ledger_id = next(reversed(self.log.entries))
        self.log.closed_ms[ledger_id] = self.clock.now_ms - int(age_s * 1000)
        self.log.roll(ledger_id + 1)

    async def subscription(self, name: str = "s", after: Position = EARLIEST) -> Subscription:
        """A subscription without consumers that begins there."""

        async def open_cursor() -> NonDurableCursor:
            return NonDurableCursor(self.log, name, initial=after)

        await self.topic.subscriptions.ensure(name, open_cursor)
        return self.topic.subscriptions[name]


class Copies(Feature):
    """A feature that copies a topic to another cluster, which takes nothing just now."""

    def __init__(self, world: World, *, expires: bool = False) -> None:
        self.cursor = PersistedCursor(world.log, f"{REPLICATOR_PREFIX}west", initial=EARLIEST)
        self.name, self.what = self.cursor.name, "copies to cluster west"
        self.expires = expires
        self.is_open = True
        world.topic.host(*world.topic.features, self)

    def backlogs(self) -> Iterable[FeatureBacklog]:
        return [self]

    def drop_through(self, through: Position) -> int:
        before = self.cursor.backlog_entries
        self.cursor.ack_cumulative(through)
        return before - self.cursor.backlog_entries


class PersistedCursor(NonDurableCursor):
    """A cursor that counts how often it was to be stored."""

    persists = 0

    async def persist(self) -> None:
        self.persists += 1


def backlog(subscription: Subscription) -> int:
    return subscription.cursor.backlog_entries
