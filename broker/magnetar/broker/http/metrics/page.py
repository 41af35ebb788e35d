"""The page of `/metrics`: gathered in slices, written in portions; and a catalogue of its metrics.

Gathering passes over all topics of the broker, a bounded number at a time, and keeps one tuple of
numbers for each topic that is shown. Topics that are not shown, by a setting or because there are
too many, are summed by namespace: a series without the label `topic`. So sums over series are
always correct. Writing begins when everything is gathered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.http.members import MembersWatch
from magnetar.broker.http.metrics import topic_values as of
from magnetar.broker.http.metrics.broker_values import (
    BALANCE,
    BUFFERS,
    BUNDLE,
    CACHE,
    CONNECTIONS,
    COORDINATOR,
    ENTRY_SIZE,
    LEFT_OUT,
    LOAD,
    OWNERSHIP,
    PLAIN,
    PUBLISH_LATENCY,
    SEGMENTS,
    SPLITS,
    TOPICS_COUNT,
    UNLOADS,
    WRITE_LATENCY,
    EndsHere,
    LeftOut,
    broker_tables,
    total_metrics,
    totals,
)
from magnetar.broker.http.metrics.sampler import Sampler
from magnetar.broker.http.metrics.text import (
    Column,
    Named,
    Table,
    gauge,
    histogram,
    labels_of,
    one_row,
    portions,
    values_of,
)
from magnetar.broker.http.metrics.topic_values import (
    COMPACTION,
    CONSUMER,
    INDEXED,
    REPLICATION,
    SUBSCRIPTION,
    TOPIC,
)
from magnetar.broker.http.topic_stats import copiers_of
from magnetar.broker.http.view import BrokerView
from magnetar.broker.topic import Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.metric_fields import Kind
from magnetar.sdk.wire import TopicName

STEPS_AT_ONCE = 200
"""Topics and subscriptions gathered before other work gets its turn: some milliseconds."""


class _Namespace:
    """Sums of the topics of a namespace that have no series of their own."""

    __slots__ = ("delayed", "has_unshown", "replication", "sums", "topics")

    def __init__(self) -> None:
        self.topics = 0
        """Number of all topics of the namespace, those with series included."""
        self.has_unshown = False
        self.sums = [0.0] * len(of.TOPIC)
        self.delayed = 0
        self.replication: dict[str, tuple[float, ...]] = {}
        """Values by remote cluster."""


NAMESPACE: Sequence[Column[_Namespace]] = (
    gauge(
        "pulsar_topics_count",
        "Topics of a namespace that this broker owns.",
        lambda namespace: namespace.topics,
    ),
)


class SumsOfCounters:
    """Sums of the counters of changing sets of topics, adjusted to behave as counters.

    When a topic leaves, the sum of the others is smaller. Prometheus would take that for a restart
    and count again. So the lost amount is added to the sum from then on.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[list[float], list[float]]] = {}

    def adjusted(self, sums: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        """Return the values to show for each namespace; namespaces that are not given are
        forgotten."""
        now: dict[str, tuple[list[float], list[float]]] = {}
        shown: dict[str, list[float]] = {}
        for name, values in sums.items():
            last, lost = self._before.get(name, (list(values), [0.0] * len(values)))
            lost = [
                gone + max(0.0, was - value) if kind is Kind.COUNTER else 0.0
                for gone, was, value, kind in zip(lost, last, values, _KINDS, strict=True)
            ]
            now[name] = (list(values), lost)
            shown[name] = [value + gone for value, gone in zip(values, lost, strict=True)]
        self._before = now
        return shown


_KINDS = tuple(metric.kind for metric in of.TOPIC)


class Gathering:
    """One pass over all topics, topic by topic."""

    def __init__(
        self,
        settings: BrokerSettings,
        sampler: Sampler,
        senders: Iterable[Sending] = (),
        *,
        cluster: str,
    ) -> None:
        """`senders`: senders that copy topics to other clusters."""
        self._sampler = sampler
        self._cluster = cluster
        self._senders: dict[TopicName, list[Sending]] = {}
        for each in senders:
            self._senders.setdefault(each.topic, []).append(each)
        self._topics_max = settings.metrics_topics_max
        self._topics_left = (
            settings.metrics_topics_max if settings.expose_topic_level_metrics else 0
        )
        self._subscriptions_left = settings.metrics_subscriptions_max
        self._consumers_left = (
            settings.metrics_subscriptions_max if settings.expose_consumer_level_metrics else 0
        )
        self._counts_left_out = settings.expose_topic_level_metrics
        self.topics = 0
        self.sums = [0.0] * len(of.TOPIC)
        """Sums over all topics, in the order of `TOPIC`."""
        self.topics_left_out = 0
        self.subscriptions_left_out = 0
        self._topics = Table(of.TOPIC)
        self._compactions = Table(of.COMPACTION)
        self._replications = Table(of.REPLICATION)
        self._subscriptions = Table(of.SUBSCRIPTION)
        self._indexed = Table(of.INDEXED)
        self._consumers = Table(of.CONSUMER)
        self._namespaces: dict[str, _Namespace] = {}

    def add(self, topic: Topic) -> int:
        """Gather a topic; return the number of steps that it took."""
        within = of.in_subscriptions(topic)
        look = of.look_at_topic(topic, self._sampler.topics.of(topic), within)
        values = values_of(of.TOPIC, look)
        self.topics += 1
        self.sums = [total + value for total, value in zip(self.sums, values, strict=True)]
        name = topic.name.namespace_name
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = _Namespace()
        namespace.topics += 1
        if self._topics_left <= 0:
            namespace.has_unshown = True
            namespace.sums = [a + b for a, b in zip(namespace.sums, values, strict=True)]
            namespace.delayed += within.delayed
            for remote, row in self._replication_of(topic):
                known = namespace.replication.get(remote)
                namespace.replication[remote] = (
                    row if known is None else of.with_replication(known, row)
                )
            if self._counts_left_out:
                self.topics_left_out += 1
                self.subscriptions_left_out += within.subscriptions
            return 1 + within.subscriptions
        self._topics_left -= 1
        labels = {"cluster": self._cluster, "namespace": name, "topic": str(topic.name)}
        text = labels_of(labels)
        self._topics.rows.append((text, values))
        for remote, row in self._replication_of(topic):
            own = labels_of({**labels, "remote_cluster": remote})
            self._replications.rows.append((own, row))
        compacted = of.compactions_of(topic)
        if compacted is not None:
            self._compactions.add(text, compacted)
        return 1 + self._add_subscriptions(topic, labels)

    def _replication_of(self, topic: Topic) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield the rows of the replication table, by remote cluster."""
        senders = self._senders.get(topic.name)
        if senders is None:
            return
        copiers, now_ms = copiers_of(topic), topic.clock.wall_ms()
        for each in senders:
            look = of.look_at_copies(each, copiers.get(each.remote), now_ms)
            yield each.remote, values_of(of.REPLICATION, look)

    def _add_subscriptions(self, topic: Topic, labels: dict[str, str]) -> int:
        steps = 0
        for each in topic.subscriptions.values():
            if not each.is_open:
                continue
            steps += 1
            if self._subscriptions_left <= 0:
                self.subscriptions_left_out += 1
                continue
            self._subscriptions_left -= 1
            own = {**labels, "subscription": each.name}
            look = of.look_at_subscription(each, self._sampler.subscriptions.of(each))
            self._subscriptions.add(labels_of(own), look)
            messages = of.messages_in_backlog(topic, look)
            if messages is not None:
                self._indexed.add(labels_of(own), messages)
            if self._consumers_left > 0:
                self._add_consumers(each, own)
        return steps

    def _add_consumers(self, subscription: Subscription, labels: dict[str, str]) -> None:
        for each in subscription.consumers[: self._consumers_left]:
            self._consumers_left -= 1
            own = {**labels, "consumer_name": each.name, "consumer_id": str(each.consumer_id)}
            look = of.ConsumerLook(each, *self._sampler.consumers.of(each))
            self._consumers.add(labels_of(own), look)

    def tables(self, counters: SumsOfCounters) -> list[Table[Any]]:
        """Return what was gathered; no other call may follow."""
        counts = Table(NAMESPACE)
        shown = list(self._namespaces.items())[: self._topics_max]
        sums = counters.adjusted({name: each.sums for name, each in shown if each.has_unshown})
        for name, namespace in shown:
            labels = labels_of({"cluster": self._cluster, "namespace": name})
            counts.add(labels, namespace)
            if namespace.has_unshown:
                self._topics.rows.append((labels, sums[name]))
                delayed = of.namespace_subscription_values(namespace.delayed)
                self._subscriptions.rows.append((labels, delayed))
            for remote, row in namespace.replication.items():
                own = {"cluster": self._cluster, "namespace": name, "remote_cluster": remote}
                self._replications.rows.append((labels_of(own), row))
        left_out = LeftOut(
            self.topics_left_out,
            self.subscriptions_left_out,
            len(self._namespaces) - len(shown),
        )
        return [
            *totals(self._cluster, self.sums, self.topics),
            counts,
            one_row(LEFT_OUT, left_out),
            self._topics,
            self._compactions,
            self._replications,
            self._subscriptions,
            self._indexed,
            self._consumers,
        ]


class MetricsPage:
    """The page of a broker's `/metrics`."""

    def __init__(self, broker: BrokerView) -> None:
        services = broker.services
        settings = services.settings
        self._broker = broker
        self._topics: Callable[[], Sequence[Topic]] = lambda: services.topics.loaded
        self.sampler = Sampler(
            self._topics,
            services.topics.cache,
            services.counters,
            clock=services.clock,
            interval_s=settings.metrics_rate_interval_ms / 1000,
            with_consumers=settings.expose_consumer_level_metrics,
            history_bytes_max=settings.history_bytes_max,
        )
        self.watch = MembersWatch(broker)
        self._sums = SumsOfCounters()
        self._ends = EndsHere()
        self._others = CollectorRegistry()
        for collector in broker.collectors:
            self._others.register(collector)

    def start(self) -> None:
        """Start to sample, and to watch which servers come and go."""
        self.sampler.start()
        self.watch.start()

    async def stop(self) -> None:
        """Stop sampling and watching."""
        await self.sampler.stop()
        await self.watch.stop()

    async def gather(self) -> list[Table[Any]]:
        """Gather the current values of the broker and its topics."""
        settings = self._broker.services.settings
        senders = list(self._broker.services.topics.replicating_senders)
        gathering = Gathering(settings, self.sampler, senders, cluster=settings.cluster_name)
        steps = 0
        for topic in self._topics():
            steps += gathering.add(topic)
            if steps >= STEPS_AT_ONCE:
                steps = 0
                await asyncio.sleep(0)
        return [
            *broker_tables(self._broker, self.sampler, self._ends),
            *gathering.tables(self._sums),
        ]

    async def written(self) -> AsyncIterator[str]:
        """Yield the page in portions; other work gets its turn in between."""
        for table in await self.gather():
            for portion in portions(table):
                yield portion
                await asyncio.sleep(0)
        latency = self._broker.services.counters.publish_latency
        yield histogram(PUBLISH_LATENCY, latency.cumulative(), latency.total)
        yield generate_latest(self._others).decode()


CATALOGUE: Mapping[str, Sequence[Named]] = {
    "broker": (
        *PLAIN,
        *SEGMENTS,
        PUBLISH_LATENCY,
        *LEFT_OUT,
    ),
    "cluster": (*TOPICS_COUNT, *total_metrics(), *CACHE, *WRITE_LATENCY, *ENTRY_SIZE),
    "connection": CONNECTIONS,
    "ownership": (*OWNERSHIP, *BALANCE),
    "load": (*LOAD, *UNLOADS, *SPLITS),
    "bundle": BUNDLE,
    "transaction": (*COORDINATOR, *BUFFERS),
    "namespace": NAMESPACE,
    "topic": (*TOPIC, *COMPACTION),
    "replication": REPLICATION,
    "subscription": (*SUBSCRIPTION, *INDEXED),
    "consumer": CONSUMER,
}
"""All metrics, by the name of their table in docs/metrics.md."""
