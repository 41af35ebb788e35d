"""A cluster with a scalable topic: real brokers, which ask each other about segments as well."""

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import unquote_plus

from magnetar.broker.base import naming
from magnetar.broker.base.errors import RequestError
from magnetar.broker.topics.segment_owners import SegmentOwnersAnywhere
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.cluster.broker import SimBroker, SimBrokerProcess
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.scalable.asks import SimAsks
from tests.simulation.scalable.plan import TOPIC, ScalablePlan
from tests.simulation.scalable.stored import RECORD_PATH, StoredRecord

SECONDS_MAX = 400.0
STEPS_MAX = 900_000
NAME = parse_topic_name(TOPIC)
_NAMESPACE = NAME.namespace_name
_ASK_S = 2.0
_RETRY_S = 0.1


class ScalableCluster(Cluster):
    """One bookie, some brokers, and the topic."""

    def __init__(self, plan: ScalablePlan) -> None:
        super().__init__(
            bookies=1,
            brokers=plan.brokers,
            quorum=(1, 1, 1),
            seed=f"scalable/{plan.seed}",
            seconds_max=SECONDS_MAX,
            steps_max=STEPS_MAX,
            broker_settings={
                "scalable_topics": True,
                "scalable_auto_scale": False,
                "scalable_change_patience_ms": plan.patience_ms,
                "scalable_consumer_grace_ms": plan.grace_ms,
                "scalable_entry_buckets": plan.entry_buckets,
                "ledger_entries_max": plan.ledger_entries,
                "ack_persist_interval_ms": plan.ack_persist_ms,
                "retention_minutes": plan.keeps_min,
                "retention_mib": -1 if plan.keeps_min else 0,
            },
        )
        self.net.jitter_s = plan.net_jitter_s
        self.net.keeps_frames = plan.keeps_frames
        self.front.jitter_s = plan.front_jitter_s
        self.front.keeps_frames = plan.keeps_frames
        self.store.jitter_s = plan.store_jitter_s
        self.store.watch_jitter_s = plan.watch_jitter_s

    def make_broker(self, name: str) -> SimBroker:
        broker = super().make_broker(name)
        broker.on_made = lambda made: self._connect(name, made)
        return broker

    def _connect(self, name: str, broker: SimBrokerProcess) -> None:
        owners = broker.services.topics.scalable.owners
        assert isinstance(owners, SegmentOwnersAnywhere)
        owners._others = SimAsks(self, name, timeout_s=_ASK_S)

    # The topic

    async def create(self, segments: int, subscriptions: Sequence[str]) -> None:
        """Have the topic, with these subscriptions."""
        broker = next(iter(self.brokers.values()))

        async def create() -> None:
            assert broker.broker is not None
            topics = broker.broker.services.topics

            async def is_taken() -> bool:
                return await topics.creation.is_taken(NAME)

            await topics.scalable.create(NAME, segments, is_taken=is_taken)
            for each in subscriptions:
                while True:
                    try:
                        await topics.whole_subscriptions.subscribe(NAME, each)
                    except RequestError:
                        await asyncio.sleep(_RETRY_S)  # nobody owns the bundle yet
                    else:
                        break

        await broker.run(create())

    @property
    def record(self) -> StoredRecord | None:
        """As it is in the store just now."""
        if self.store.tree.version(RECORD_PATH) is None:
            return None
        return StoredRecord.of(self.store.tree.get(RECORD_PATH).value)

    def active(self) -> Sequence[str]:
        """Names of the active segments, in the order of their ranges."""
        return [each.name for each in self.record.active] if self.record is not None else []

    def segments(self) -> list[str]:
        """Names of all segments that have a log."""
        root = naming.segments_path(_NAMESPACE)
        if self.store.tree.version(root) is None:
            return []
        children = self.store.tree.children(root)
        return [f"segment://{_NAMESPACE}/{unquote_plus(each)}" for each in children]

    def topics(self) -> list[str]:
        return self.segments()

    def holder(self, segment: str) -> SimBroker | None:
        """The broker that serves a segment just now; None: nobody does."""
        for broker in self.brokers.values():
            found = broker.topic(segment)
            if found is not None and not found.is_closed and broker.process is not None:
                return broker
        return None

    def coordinator(self) -> SimBroker | None:
        """The broker that divides the segments among stream consumers just now."""
        for broker in self.brokers.values():
            if broker.broker is not None and len(broker.broker.services.segment_coordinators):
                return broker
        return None


def hosts_of(brokers: Mapping[str, SimBroker], first: int) -> list[str]:
    """The brokers that a client knows, one of them first."""
    names = list(brokers)
    at = first % len(names)
    return names[at:] + names[:at]
