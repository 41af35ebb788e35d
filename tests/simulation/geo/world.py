"""Clusters that copy topics to each other, in one run on one clock.

Each has bookies, brokers and a metadata store of its own. All that they share is the network of
brokers and clients, on which the ways between clusters are long, and can be cut.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from magnetar.broker.base.errors import RequestError
from magnetar.broker.features.replication import Replication
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.policies.model import (
    ClusterRecord,
    NamespaceRecord,
    Policies,
    TopicPolicyRecord,
    cluster_path,
    namespace_path,
    topic_policies_path,
)
from magnetar.broker.policies.records import change_record
from magnetar.broker.topic import Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError, NoSuchLogError
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.position import Position
from magnetar.sdk.wire import parse_topic_name, split_payload
from tests.simulation.clients import SimClient
from tests.simulation.cluster.broker import PORT, SimBroker
from tests.simulation.cluster.cluster import Cluster, messages_of
from tests.simulation.cluster.events import Unreadable
from tests.simulation.cluster.front import Front
from tests.simulation.geo.events import Copying, Listed, Place, Stored
from tests.simulation.geo.plan import GeoPlan, cluster_of, topic_name
from tests.simulation.history import Event, History
from tests.simulation.loop import ProcessState, SimLoop

T = TypeVar("T")

SUBSCRIPTION = "s"
NAMESPACE = "public/default"
SECONDS_MAX = 900.0
STEPS_MAX = 250_000

GEO_SETTINGS: dict[str, object] = {
    "replication_retry_s": 0.02,
    "replication_retry_s_max": 0.5,
    "replication_timeout_ms": 1_500,
    "replication_receipt_timeout_s": 3.0,
    "replication_check_interval_s": 0.5,
    "replicated_subscriptions_snapshot_interval_ms": 100,
    "replicated_subscriptions_snapshot_timeout_s": 2.0,
}
"""Times so short that a run stays short."""

_RETRY_S = 0.1
_BEGUN_LOOKS = 5
"""Looks in a row, `_RETRY_S` apart, that find a cluster being copied to: what a broker had read of
the list before is forgotten by then."""


class WideFront(Front):
    """The network of all brokers and clients."""

    def __init__(self, loop: SimLoop, history: History, *, seed: str, far_s: float) -> None:
        super().__init__(loop, history, seed=seed)
        self.far_s = far_s
        """Time of a frame to another cluster, at least; it may take three times as long."""
        self._far_seed = f"{seed}/far"
        self._far: dict[tuple[str, str], Random] = {}

    def arrival_s(self, link: tuple[str, str]) -> float:
        arrives_s = super().arrival_s(link)
        if cluster_of(link[0]) != cluster_of(link[1]):
            found = self._far.get(link)
            if found is None:
                found = self._far[link] = Random(f"{self._far_seed}/{link[0]}/{link[1]}")
            arrives_s += self.far_s * (1 + 2 * found.random())
        return arrives_s


class GeoCluster(Cluster):
    """One of the clusters: bookies `east-b1`, brokers `east-br1`, clients `east-...`."""

    def __init__(self, name: str, plan: GeoPlan, *, beside: "GeoCluster | None") -> None:
        super().__init__(
            bookies=1,
            brokers=2,
            quorum=(1, 1, 1),
            seed=f"geo/{plan.seed}/{name}",
            seconds_max=SECONDS_MAX,
            steps_max=STEPS_MAX,
            broker_settings={
                **GEO_SETTINGS,
                "cluster_name": name,
                "ledger_entries_max": plan.ledger_entries,
                "ack_persist_interval_ms": plan.ack_persist_ms,
                "replication_entries_max": plan.entries_max,
                "replication_start_at": "earliest" if plan.starts_at_earliest else "latest",
                "retention_check_interval_s": 0.5 if plan.is_trimmed(name) else 0.0,
            },
            prefix=f"{name}-",
            beside=beside,
        )
        self.name = name
        if beside is None:
            seed = f"geo/{plan.seed}/front"
            self.front = WideFront(self.loop, self.history, seed=seed, far_s=plan.far_s)
        else:
            self.front = beside.front
        self.net.jitter_s = plan.net_jitter_s
        self.store.jitter_s = plan.store_jitter_s
        self.net.keeps_frames = plan.keeps_frames
        self.listed: tuple[str, ...] = ()

    def record(self, event: Event) -> None:
        """Add to the history."""
        self.history.add(self.loop.time(), self.name, event)

    # Administration

    @property
    def url(self) -> str:
        """Where its brokers are."""
        return "pulsar://" + ",".join(f"{each}:{PORT}" for each in self.brokers)

    async def register(self, others: Sequence["GeoCluster"]) -> None:
        """Tell the cluster where others are."""
        admin = await self.client(f"{self.name}-a")
        for other in others:
            record = ClusterRecord(data={"brokerServiceUrl": other.url})
            path = cluster_path(other.name)
            made = partial(_replaced_by, record)
            await admin.run(change_record(admin.store, ClusterRecord, path, made))

    async def set_list(self, clusters: tuple[str, ...]) -> None:
        """Have topics copied to these clusters."""
        self.record(Listed(clusters))
        self.listed = clusters
        admin = self.clients[f"{self.name}-a"]

        def change(record: NamespaceRecord | None) -> NamespaceRecord:
            before = record or NamespaceRecord()
            return before.model_copy(update={"replication_clusters": clusters})

        while True:
            try:
                path = namespace_path(NAMESPACE)
                await admin.run(change_record(admin.store, NamespaceRecord, path, change))
                return
            except RequestError:
                await asyncio.sleep(_RETRY_S)

    async def limit_size(self, topics: Sequence[str], bytes_max: int | None) -> None:
        """Have topics refuse messages that are larger; None: refuse none."""
        record = None
        if bytes_max is not None:
            record = TopicPolicyRecord(policies=Policies(max_message_bytes=bytes_max))
        admin = self.clients[f"{self.name}-a"]
        for topic in topics:
            path = topic_policies_path(parse_topic_name(topic))
            await admin.run(change_record(admin.store, TopicPolicyRecord, path, lambda _: record))

    async def begun(self, topics: Sequence[str]) -> None:
        """Return when the owners of all topics copy to all clusters of the list."""
        wanted = self.listed
        looks = 0
        while looks < _BEGUN_LOOKS:
            await asyncio.sleep(_RETRY_S)
            if self.listed != wanted:
                return  # it has changed again
            looks = looks + 1 if all(map(self._copies, topics)) else 0
        for remote in wanted:
            if remote != self.name:
                self.record(Copying(remote))

    def _copies(self, topic: str) -> bool:
        held = self.held(topic)
        if held is None or held.policies.replicated_to != self.listed:
            return False
        return {each.remote for each in senders_of(held)} == {*self.listed} - {self.name}

    # Owners

    def holder(self, topic: str) -> SimBroker | None:
        """Return the broker that runs and serves a topic; None: nobody does just now."""
        for broker in self.brokers.values():
            process = broker.process
            if process is None or process.state is not ProcessState.RUNNING:
                continue
            found = broker.topic(topic)
            if found is not None and not found.is_closed and found.tenure.holds():
                return broker
        return None

    def held(self, topic: str) -> Topic | None:
        """Return a topic as its owner has it; None: nobody has it just now."""
        broker = self.holder(topic)
        return broker.topic(topic) if broker is not None else None

    def subscription(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic at its owner; None: there is none just now."""
        held = self.held(topic)
        found = held.subscriptions.get(SUBSCRIPTION) if held is not None else None
        return found if found is not None and found.is_open else None

    async def replicate_subscription(self, topic: str) -> bool:
        """Have the subscription kept in step, as an administrator does; returns whether it is."""
        subscription, broker = self.subscription(topic), self.holder(topic)
        if subscription is None or broker is None:
            return False
        if subscription.is_replicated:
            return True
        running = broker.process
        assert running is not None
        task = running.spawn(_tried(_set_replicated(subscription)), "set-replicated")
        # A process that dies leaves the task where it is.
        await asyncio.wait([task], timeout=1.0)
        return task.done() and not task.cancelled() and task.result() is not None

    async def entries_of(self, topic: str) -> list[Stored] | None:
        """Return what is in a topic now, as its owner reads it; None: that cannot be read now."""
        held, broker = self.held(topic), self.holder(topic)
        if held is None or broker is None or broker.process is None:
            return None
        reading = broker.process.spawn(_tried(_read_all(held)), "read-all")
        await asyncio.wait([reading], timeout=5.0)
        found = reading.result() if reading.done() and not reading.cancelled() else None
        if found is None:
            return None
        return [_look(topic, position, entry) for position, entry in found]

    # The end

    async def _read(self, client: SimClient, topic: str) -> None:
        try:
            path = self.log_path(topic)
            reader = await LogReader.open(client.ledgers, client.store, path, clock=client.clock)
        except NoSuchLogError:
            return
        try:
            while entries := await reader.read():
                for entry in entries:
                    self.record(_look(topic, entry.position, entry.payload))
        except LedgerError as error:
            self.record(Unreadable(topic, f"{type(error).__name__}: {error}"))
        finally:
            await reader.close()


def _replaced_by(record: ClusterRecord, _before: ClusterRecord | None) -> ClusterRecord:
    return record


def senders_of(topic: Topic) -> list[Sending]:
    """Return what copies a topic."""
    feature = topic.find(Replication)
    return list(feature._senders.values()) if feature is not None else []


async def _tried(work: Coroutine[object, object, T]) -> T | None:
    """Return what it returns; None: it could not be done just now."""
    try:
        return await work
    except (RequestError, CursorError, LedgerError):
        return None


async def _set_replicated(subscription: Subscription) -> bool:
    await subscription.set_replicated(True)
    return True


async def _read_all(topic: Topic) -> list[tuple[Position, bytes]]:
    """
    Raises:
        LedgerError
    """
    log, found = topic.log, list[tuple[Position, bytes]]()
    position = log.first_position()
    while position <= log.last_confirmed:
        first, entries = await log.read_range(position, entries_max=1000, bytes_max=1 << 20)
        if not entries:
            break
        found += [
            (Position(first.ledger_id, first.entry_id + at), entry)
            for at, entry in enumerate(entries)
        ]
        position = log.next_position(found[-1][0])
    return found


def _look(topic: str, position: Position, entry: bytes) -> Stored:
    metadata, _ = split_payload(entry)
    is_marker = metadata.HasField("marker_type")
    source: Place = (-1, -1)
    if metadata.HasField("magnetar_source"):
        source = metadata.magnetar_source.ledger_id, metadata.magnetar_source.entry_id
    return Stored(
        topic,
        (position.ledger_id, position.entry_id),
        metadata.replicated_from,
        source,
        tuple(metadata.replicate_to),
        is_marker,
        () if is_marker else messages_of(topic, entry, *position),
    )


class World:
    """All clusters of a run."""

    def __init__(self, plan: GeoPlan) -> None:
        self.plan = plan
        self.clusters: dict[str, GeoCluster] = {}
        first: GeoCluster | None = None
        for name in plan.clusters:
            made = self.clusters[name] = GeoCluster(name, plan, beside=first)
            first = first or made
        assert first is not None
        self.first = first
        self.loop = first.loop
        self.history = first.history
        assert isinstance(first.front, WideFront)
        self.front = first.front
        self.front.jitter_s = plan.front_jitter_s
        self.front.keeps_frames = plan.keeps_frames
        self.topics = [topic_name(number) for number in range(1, plan.topics + 1)]

    async def start(self) -> None:
        """Start all clusters, and have each know the others."""
        for cluster in self.clusters.values():
            await cluster.start()
        for name, cluster in self.clusters.items():
            await cluster.register([each for each in self.clusters.values() if each is not cluster])
            await cluster.set_list(self.plan.lists[name])
        await asyncio.sleep(_RETRY_S)
        for name, listed in self.plan.lists.items():
            for remote in listed:
                if remote != name:
                    # No topic is there yet: each begins with a cursor for all of its list.
                    self.clusters[name].record(Copying(remote))

    def links(self, one: str, other: str) -> Iterator[tuple[str, str]]:
        """Return the ways from each broker of one cluster to each of another one."""
        for source in self.clusters[one].brokers:
            for target in self.clusters[other].brokers:
                yield source, target
