"""Metrics of a broker as a whole, and of its transactions: tables ready for the page.

Names and labels are Pulsar's where it has the metric. Metrics with Pulsar's names have the label
`cluster`, and the label `broker` where Pulsar's has it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from magnetar.broker.cluster.balance.balancer import Balancer
from magnetar.broker.cluster.balance.load_report import BundleLoad, LoadReport
from magnetar.broker.cluster.composition import Cluster
from magnetar.broker.features.offloading.offload import OffloadSurroundings
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.features.retention.trimming import waits_for_subscription
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.features.transactions.topic_transactions import state_of
from magnetar.broker.http.metrics.sampler import Sampler
from magnetar.broker.http.metrics.text import (
    Column,
    Named,
    Table,
    counter,
    gauge,
    labels_of,
    one_row,
)
from magnetar.broker.http.metrics.topic_values import TOPIC, TopicLook
from magnetar.broker.http.view import BrokerView
from magnetar.broker.topic.tail_cache import TailCachePool
from magnetar.broker.topics.services import Services
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.metric_fields import Kind
from magnetar.ledger.position import EARLIEST

COORDINATOR: Sequence[Column[Coordinator]] = (
    gauge(
        "pulsar_txn_active_count",
        "Transactions whose end is not applied everywhere yet.",
        lambda c: len(c.state.transactions),
    ),
    counter(
        "pulsar_txn_committed_total", "Transactions committed.", lambda c: c.counters.committed
    ),
    counter("pulsar_txn_aborted_total", "Transactions aborted.", lambda c: c.counters.aborted),
    counter("pulsar_txn_created_total", "Transactions begun.", lambda c: c.counters.created),
    counter(
        "pulsar_txn_timeout_total",
        "Transactions that timed out.",
        lambda c: c.counters.timed_out,
    ),
    counter(
        "pulsar_txn_append_log_total",
        "Records written to the coordinator's log.",
        lambda c: c.counters.appended,
    ),
)
"""Metrics of each coordinator of this broker, by its number."""


class OnTopics(NamedTuple):
    """Transactions on the topics of a broker."""

    open: int
    committed: int
    aborted: int


BUFFERS: Sequence[Column[OnTopics]] = (
    gauge(
        "pulsar_txn_tb_active_total",
        "Open transactions with messages on topics of this broker.",
        lambda each: each.open,
    ),
    counter(
        "pulsar_txn_tb_committed_total",
        "Committed transactions with messages on topics of this broker, counted while it owned "
        "them.",
        lambda each: each.committed,
    ),
    counter(
        "pulsar_txn_tb_aborted_total",
        "Aborted transactions with messages on topics of this broker, counted while it owned them.",
        lambda each: each.aborted,
    ),
)
"""Metrics of all topics of the broker together."""


class EndsHere:
    """Numbers of transactions that were committed and aborted on topics while they were here.

    A topic brings its counts from former owners, and takes away its counts from here. A sum over
    topics would leap when a topic comes and fall when one goes; Prometheus would take a fall for a
    restart and count again. Transactions that end after the last look at a topic that leaves are
    not counted.
    """

    def __init__(self) -> None:
        self._committed = self._aborted = 0
        self._before: dict[BufferState, tuple[int, int]] = {}

    def look(self, buffers: Iterable[BufferState]) -> tuple[int, int]:
        """Return the counts up to now. `buffers`: those of the topics that are here."""
        now: dict[BufferState, tuple[int, int]] = {}
        for each in buffers:
            committed, aborted = self._before.get(each, each.ended_before)
            self._committed += each.committed_count - committed
            self._aborted += each.aborted_count - aborted
            now[each] = (each.committed_count, each.aborted_count)
        self._before = now
        return self._committed, self._aborted


def transaction_tables(
    services: Services, ends: EndsHere, cluster: Mapping[str, str]
) -> Iterator[Table[Any]]:
    """Yield the tables of transactions; none while no client has used transactions."""
    coordinators = services.coordinators.served
    if coordinators:
        table = Table(COORDINATOR)
        for each in coordinators:
            table.add(labels_of({**cluster, "coordinator_id": str(each.number)}), each)
        yield table
    states = map(state_of, services.topics.loaded)
    buffers = [each for each in states if each is not None]
    counts = ends.look(buffers)
    if buffers:
        found = OnTopics(sum(len(each.open) for each in buffers), *counts)
        yield one_row(BUFFERS, found, labels_of(cluster))


Read = Callable[[BrokerView], float]


def _of_offloading(read: Callable[[OffloadSurroundings], float]) -> Read:
    def read_or_zero(broker: BrokerView) -> float:
        offloading = broker.services.topics.offloading
        return read(offloading) if offloading is not None else 0

    return read_or_zero


def _of_copies(read: Callable[[Sending], float]) -> Read:
    def total(broker: BrokerView) -> float:
        return sum(map(read, broker.services.topics.replicating_senders))

    return total


def _unsubscribed_bytes(broker: BrokerView) -> int:
    waiting = filter(waits_for_subscription, broker.services.topics.loaded)
    return sum(bytes_behind(topic.log.ledgers, EARLIEST) for topic in waiting)


PLAIN: Sequence[Column[BrokerView]] = (
    gauge("magnetar_broker_connections", "Client connections.", lambda b: b.connections()),
    gauge("magnetar_broker_topics", "Topics loaded.", lambda b: len(b.services.topics.loaded)),
    gauge(
        "magnetar_broker_unsubscribed_bytes",
        "Bytes that loaded topics keep because they have no subscription.",
        _unsubscribed_bytes,
    ),
    gauge(
        "magnetar_broker_websocket_sessions",
        "WebSocket sessions.",
        lambda b: b.websocket_sessions(),
    ),
    gauge(
        "magnetar_broker_pending_publish_bytes",
        "Bytes received and not yet durable.",
        lambda b: b.services.budget.pending_bytes,
    ),
    gauge(
        "magnetar_broker_tail_cache_bytes",
        "Bytes in the tail cache.",
        lambda b: b.services.topics.cache.size_bytes,
    ),
    counter(
        "magnetar_broker_connections_opened_total",
        "Connections accepted.",
        lambda b: b.services.counters.connections_opened,
    ),
    counter(
        "magnetar_broker_connections_refused_total",
        "Connections refused because of a limit on connections.",
        lambda b: b.services.counters.connections_refused,
    ),
    counter(
        "magnetar_broker_protocol_violations_total",
        "Connections dropped because the client broke the protocol.",
        lambda b: b.services.counters.protocol_violations,
    ),
    counter(
        "magnetar_broker_connections_timed_out_total",
        "Connections dropped because the client sent no handshake, or no answer, in time, or did "
        "not read the last answers.",
        lambda b: b.services.counters.connections_timed_out,
    ),
    counter(
        "magnetar_broker_authentications_failed_total",
        "Clients whose authentication failed.",
        lambda b: b.services.counters.authentications_failed,
    ),
    counter(
        "magnetar_broker_requests_failed_total",
        "Requests answered with an error.",
        lambda b: b.services.counters.requests_failed,
    ),
    counter(
        "magnetar_broker_checksum_errors_total",
        "Messages that arrived with a wrong checksum.",
        lambda b: b.services.counters.checksum_errors,
    ),
    counter(
        "magnetar_broker_publish_pauses_total",
        "Times the broker stopped reading from a publisher's connection.",
        lambda b: b.services.counters.publish_pauses,
    ),
    counter(
        "magnetar_broker_topic_loads_total",
        "Topics loaded since the start.",
        lambda b: b.services.topics.loads,
    ),
    counter(
        "magnetar_broker_topic_load_failures_total",
        "Topics that could not be loaded.",
        lambda b: b.services.topics.failed_loads,
    ),
    counter(
        "magnetar_broker_topics_fenced_total",
        "Topics taken over by another owner.",
        lambda b: b.services.topics.fenced,
    ),
    counter(
        "magnetar_broker_upkeep_failures_total",
        "Trimming, expiry and other upkeep of topics that failed; the broker retries it.",
        lambda b: b.upkeep.failures,
    ),
    counter(
        "magnetar_broker_topics_at_rest_looks_total",
        "Reads of the stored state of topics that no client uses.",
        lambda b: b.at_rest.looks,
    ),
    counter(
        "magnetar_broker_topics_at_rest_loads_total",
        "Loads of topics that no client uses, for upkeep that was due.",
        lambda b: b.at_rest.loads,
    ),
    counter(
        "magnetar_broker_topics_at_rest_failures_total",
        "Failed reads and loads of topics that no client uses; the broker retries them.",
        lambda b: b.at_rest.failures,
    ),
    gauge(
        "magnetar_broker_replicators",
        "Topics that are replicated to other clusters, once for each cluster.",
        _of_copies(lambda _: 1),
    ),
    gauge(
        "magnetar_broker_replicators_failing",
        "Topics, once for each cluster, whose replication an error stops at present.",
        _of_copies(lambda sender: bool(sender.problem)),
    ),
    gauge(
        "magnetar_broker_replication_backlog",
        "Entries that other clusters have not received yet.",
        _of_copies(lambda sender: sender.cursor.backlog_entries),
    ),
    gauge(
        "magnetar_broker_subscription_snapshots_pending",
        "Snapshots for replicated subscriptions that other clusters have not answered yet.",
        lambda b: b.services.topics.subscription_counts.snapshots_pending,
    ),
    counter(
        "magnetar_broker_subscription_snapshots_total",
        "Snapshots for replicated subscriptions that all other clusters have answered.",
        lambda b: b.services.topics.subscription_counts.snapshots_taken,
    ),
    counter(
        "magnetar_broker_subscription_snapshots_timed_out_total",
        "Snapshots for replicated subscriptions that were abandoned because a cluster did not "
        "answer in time.",
        lambda b: b.services.topics.subscription_counts.snapshots_timed_out,
    ),
    counter(
        "magnetar_broker_subscription_snapshots_interrupted_total",
        "Snapshots for replicated subscriptions that were abandoned because a connection to a "
        "cluster was lost.",
        lambda b: b.services.topics.subscription_counts.snapshots_interrupted,
    ),
    counter(
        "magnetar_broker_subscription_updates_sent_total",
        "Updates of replicated subscriptions that were written for other clusters.",
        lambda b: b.services.topics.subscription_counts.updates_sent,
    ),
    counter(
        "magnetar_broker_subscription_updates_applied_total",
        "Updates from other clusters that moved a replicated subscription here.",
        lambda b: b.services.topics.subscription_counts.updates_applied,
    ),
    counter(
        "magnetar_broker_subscription_updates_refused_total",
        "Updates of replicated subscriptions from other clusters that could not be applied, or "
        "not yet.",
        lambda b: b.services.topics.subscription_counts.updates_refused,
    ),
    counter(
        "magnetar_broker_subscription_markers_malformed_total",
        "Malformed markers from other clusters; the broker ignores them.",
        lambda b: b.services.topics.subscription_counts.markers_malformed,
    ),
    counter(
        "magnetar_broker_subscription_markers_unknown_total",
        "Markers from other clusters of an unknown type; the broker ignores them.",
        lambda b: b.services.topics.subscription_counts.markers_unknown,
    ),
    counter(
        "magnetar_broker_subscription_acks_told_total",
        "Single acknowledgements of replicated subscriptions written for other clusters: entries "
        "after an unacknowledged one, or partly acknowledged batches.",
        lambda b: b.services.topics.subscription_counts.acks_told,
    ),
    counter(
        "magnetar_broker_subscription_acks_applied_total",
        "Entries acknowledged here by single acknowledgements from other clusters.",
        lambda b: b.services.topics.subscription_counts.acks_applied,
    ),
    gauge(
        "magnetar_broker_subscription_acks_waiting",
        "Entries with a single acknowledgement from another cluster that may still arrive here.",
        lambda b: b.services.topics.subscription_counts.acks_waiting,
    ),
    counter(
        "magnetar_broker_subscription_acks_absent_total",
        "Entries with a single acknowledgement from another cluster that are not here.",
        lambda b: b.services.topics.subscription_counts.acks_absent,
    ),
    counter(
        "magnetar_broker_subscription_acks_dropped_total",
        "Entries whose single acknowledgement from another cluster was dropped: too many wait, or "
        "the subscription is not replicated here.",
        lambda b: b.services.topics.subscription_counts.acks_dropped,
    ),
    counter(
        "magnetar_broker_offloaded_ledgers_total",
        "Ledgers copied to an object store.",
        _of_offloading(lambda o: o.offloader.counts.ledgers_copied),
    ),
    counter(
        "magnetar_broker_offloaded_bytes_total",
        "Bytes of objects written to object stores.",
        _of_offloading(lambda o: o.offloader.counts.bytes_copied),
    ),
    counter(
        "magnetar_broker_offload_released_ledgers_total",
        "Ledgers that bookies may delete, because their objects were read back in full.",
        _of_offloading(lambda o: o.offloader.counts.ledgers_forgotten),
    ),
    counter(
        "magnetar_broker_offload_failures_total",
        "Failed attempts to offload the ledgers of a topic; the broker retries them.",
        _of_offloading(lambda o: o.offloader.counts.failures),
    ),
    counter(
        "magnetar_broker_objects_replaced_total",
        "Damaged objects that were written again, because bookies still had the ledger.",
        _of_offloading(lambda o: o.offloader.counts.objects_replaced),
    ),
    counter(
        "magnetar_broker_manifests_written_total",
        "Manifests of topics written to object stores.",
        _of_offloading(lambda o: o.manifests.counts.written if o.manifests else 0),
    ),
    counter(
        "magnetar_broker_manifest_failures_total",
        "Failed attempts to write a manifest of a topic; the broker retries them.",
        _of_offloading(lambda o: o.manifests.counts.failures if o.manifests else 0),
    ),
    counter(
        "magnetar_broker_objects_scrubbed_total",
        "Objects that the scrub read back in full and found intact.",
        _of_offloading(lambda o: o.scrubber.counts.whole),
    ),
    counter(
        "magnetar_broker_objects_damaged_total",
        "Objects that the scrub found damaged. The broker replaces those whose ledgers bookies "
        "still have.",
        _of_offloading(lambda o: o.scrubber.counts.damaged),
    ),
    counter(
        "magnetar_broker_objects_gone_total",
        "Objects that the scrub found missing in the store although topics refer to them.",
        _of_offloading(lambda o: o.scrubber.counts.gone),
    ),
    counter(
        "magnetar_broker_objects_unreachable_total",
        "Failed attempts of the scrub to read an object; the broker retries them.",
        _of_offloading(lambda o: o.scrubber.counts.unreachable),
    ),
    counter(
        "magnetar_broker_object_scrub_bytes_total",
        "Bytes of objects that the scrub has read.",
        _of_offloading(lambda o: o.scrubber.counts.bytes_read),
    ),
    gauge(
        "magnetar_broker_ledgers_lost",
        "Ledgers of loaded topics whose only copy is an object that is damaged or missing. Data "
        "loss: raise an alarm.",
        _of_offloading(lambda o: sum(o.scrubber.lost.values())),
    ),
    counter(
        "magnetar_broker_segment_splits_total",
        "Splits of segments of scalable topics that this broker finished.",
        lambda b: b.services.topics.scalable.counts.splits,
    ),
    counter(
        "magnetar_broker_segment_merges_total",
        "Merges of segments of scalable topics that this broker finished.",
        lambda b: b.services.topics.scalable.counts.merges,
    ),
    counter(
        "magnetar_broker_segments_pruned_total",
        "Sealed segments that this broker deleted because they were not needed any more.",
        lambda b: b.services.topics.scalable.counts.pruned,
    ),
    counter(
        "magnetar_broker_topic_migrations_total",
        "Plain and partitioned topics that this broker converted to scalable topics.",
        lambda b: b.services.topics.scalable.counts.migrations,
    ),
    counter(
        "magnetar_broker_segment_change_failures_total",
        "Failed attempts to finish a split, merge or migration; the broker retries them.",
        lambda b: b.services.topics.scalable.counts.failures,
    ),
    counter(
        "magnetar_broker_segment_change_seconds_total",
        "Time that splits and merges of segments took, from begin to commit.",
        lambda b: b.services.topics.scalable.counts.seconds,
    ),
    gauge(
        "magnetar_broker_segment_stall_seconds_max",
        "Longest time, since the broker started, that a split or merge blocked publishing of its "
        "keys.",
        lambda b: b.services.topics.scalable.counts.stall_s_max,
    ),
    gauge(
        "magnetar_broker_segment_change_age_seconds",
        "Age of the oldest unfinished split or merge that this broker knows of; 0: none.",
        lambda b: b.services.topics.scalable.counts.oldest_s(wall_ms=b.services.clock.wall_ms()),
    ),
    gauge(
        "magnetar_broker_scalable_topics_full",
        "Scalable topics whose load requires a split, but that may have no more segments.",
        lambda b: b.auto_scaling.full,
    ),
    counter(
        "magnetar_broker_auto_scaling_failures_total",
        "Failed attempts to check, split or merge a scalable topic for its load.",
        lambda b: b.auto_scaling.failures,
    ),
)
"""Metrics of the broker alone, without labels."""

SEGMENTS: Sequence[Column[int]] = (
    gauge("magnetar_broker_segments", "Loaded segments of scalable topics, by state.", lambda n: n),
)
"""Label: `state`, active or sealed."""

PUBLISH_LATENCY = Named(
    "magnetar_broker_publish_latency_seconds",
    Kind.HISTOGRAM,
    "Time from the arrival of an entry until it is durable.",
)

CONNECTIONS: Sequence[Column[BrokerView]] = (
    gauge("pulsar_active_connections", "Connections now.", lambda b: b.connections()),
    gauge(
        "pulsar_connection_created_total_count",
        "Connections that clients requested.",
        lambda b: b.services.counters.connections_opened + b.services.counters.connections_refused,
    ),
    gauge(
        "pulsar_connection_create_success_count",
        "Connections that were accepted.",
        lambda b: b.services.counters.connections_opened,
    ),
    gauge(
        "pulsar_connection_create_fail_count",
        "Connections that were refused.",
        lambda b: b.services.counters.connections_refused,
    ),
    gauge(
        "pulsar_connection_closed_total_count",
        "Connections that have ended.",
        lambda b: b.services.counters.connections_opened - b.connections(),
    ),
)
"""Labels: cluster, broker."""

TOTALS = {
    "pulsar_broker_subscriptions_count": "pulsar_subscriptions_count",
    "pulsar_broker_producers_count": "pulsar_producers_count",
    "pulsar_broker_consumers_count": "pulsar_consumers_count",
    "pulsar_broker_rate_in": "pulsar_rate_in",
    "pulsar_broker_rate_out": "pulsar_rate_out",
    "pulsar_broker_throughput_in": "pulsar_throughput_in",
    "pulsar_broker_throughput_out": "pulsar_throughput_out",
    "pulsar_broker_storage_size": "pulsar_storage_size",
    "pulsar_broker_storage_logical_size": "pulsar_storage_logical_size",
    "pulsar_broker_storage_write_rate": "pulsar_storage_write_rate",
    "pulsar_broker_msg_backlog": "pulsar_msg_backlog",
}
"""Sums over all topics, shown or not: the name of the sum, and the topic metric that it sums.
Label: cluster."""

TOPICS_COUNT: Sequence[Column[int]] = (
    gauge("pulsar_broker_topics_count", "Topics of this broker.", lambda count: count),
)


class LeftOut(NamedTuple):
    """Numbers of subjects without series, because of limits."""

    topics: int
    subscriptions: int
    namespaces: int


LEFT_OUT: Sequence[Column[LeftOut]] = (
    gauge(
        "magnetar_metrics_topics_left_out",
        "Topics without their own series, because of metrics_topics_max.",
        lambda left: left.topics,
    ),
    gauge(
        "magnetar_metrics_subscriptions_left_out",
        "Subscriptions without their own series, because of metrics_subscriptions_max.",
        lambda left: left.subscriptions,
    ),
    gauge(
        "magnetar_metrics_namespaces_left_out",
        "Namespaces without their own series, because of metrics_topics_max.",
        lambda left: left.namespaces,
    ),
)


class CacheLook(NamedTuple):
    """The tail cache of all topics."""

    topics: int
    pool: TailCachePool
    hits_rate: float
    misses_rate: float


CACHE: Sequence[Column[CacheLook]] = (
    gauge("pulsar_ml_count", "Loaded topics, each a managed log.", lambda c: c.topics),
    gauge("pulsar_ml_cache_used_size", "Bytes in the tail cache.", lambda c: c.pool.size_bytes),
    gauge(
        "pulsar_ml_cache_entries",
        "Entries in the tail cache.",
        lambda c: c.pool.inserted_entries - c.pool.evicted_entries,
    ),
    counter(
        "pulsar_ml_cache_inserted_entries_total",
        "Entries inserted into the tail cache.",
        lambda c: c.pool.inserted_entries,
    ),
    counter(
        "pulsar_ml_cache_evicted_entries_total",
        "Entries evicted from the tail cache.",
        lambda c: c.pool.evicted_entries,
    ),
    gauge(
        "pulsar_ml_cache_hits_rate",
        "Lookups in the tail cache per second that found the entry.",
        lambda c: c.hits_rate,
    ),
    gauge(
        "pulsar_ml_cache_misses_rate",
        "Lookups in the tail cache per second that did not find the entry.",
        lambda c: c.misses_rate,
    ),
)
"""Label: cluster."""

LATENCY_STEPS_MS = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000", "overflow")
SIZE_STEPS = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
_LATENCY_BUCKETS = (2, 3, 5, 6, 7, 8, 9, 10, 12, 15)
"""Number of buckets of `LatencyHistogram` that end at or below each step, in ascending order."""


def _step(at: int) -> Callable[[Sequence[int]], float]:
    return lambda counts: counts[at]


WRITE_LATENCY: Sequence[Column[Sequence[int]]] = (
    *(
        gauge(
            f"pulsar_storage_write_latency_le_{step}",
            "Entries of the last interval that were durable within this many ms, but not "
            "within the next lower step.",
            _step(at),
        )
        for at, step in enumerate(LATENCY_STEPS_MS)
    ),
    gauge("pulsar_storage_write_latency_count", "Entries of the last interval.", _step(-1)),
)
"""Values: those of `latency_steps`. Label: cluster."""

ENTRY_SIZE: Sequence[Column[Sequence[int]]] = (
    *(
        gauge(
            f"pulsar_entry_size_le_{step}",
            "Entries of the last interval with up to this many bytes, but more than the next lower "
            "step. Entries of one read count with their mean size.",
            _step(at),
        )
        for at, step in enumerate(SIZE_STEPS)
    ),
    gauge("pulsar_entry_size_count", "Entries of the last interval.", _step(-1)),
)
"""Values: those of `size_steps`. Label: cluster."""

OWNERSHIP: Sequence[Column[Cluster]] = (
    gauge(
        "magnetar_broker_serving",
        "1 while the broker may serve, by its own clock; else 0.",
        lambda c: c.guard.is_valid,
    ),
    gauge(
        "magnetar_broker_lease_left_seconds",
        "Time until the broker stops serving, unless the metadata store answers before.",
        lambda c: c.guard.left_s,
    ),
    gauge(
        "magnetar_broker_bundles_owned",
        "Bundles of topics that the broker owns.",
        lambda c: len(c.ownership.owned()),
    ),
    gauge(
        "magnetar_broker_leader",
        "1 if the broker is the leader, which chooses the owners of bundles; else 0.",
        lambda c: c.is_leader,
    ),
    counter(
        "magnetar_broker_leases_run_out_total",
        "Times that the broker stopped serving because it did not reach the metadata store.",
        lambda c: c.guard.runs_out,
    ),
    counter(
        "magnetar_broker_leases_taken_total",
        "Bundles that the broker acquired.",
        lambda c: c.ownership.leases_taken,
    ),
    counter(
        "magnetar_broker_unloads_total",
        "Bundles that the broker unloaded.",
        lambda c: c.ownership.unloads,
    ),
    counter(
        "magnetar_broker_unload_failures_total",
        "Failed attempts to unload a bundle.",
        lambda c: c.ownership.unload_failures,
    ),
)
"""Metrics of a broker that is one of several."""

BALANCE: Sequence[Column[Balancer]] = (
    gauge(
        "magnetar_broker_load_usage_ratio",
        "Usage of the processor or the network, whichever is nearer to its limit.",
        lambda b: b.reporter.latest.usage_percent / 100,
    ),
    gauge(
        "magnetar_broker_load_cost",
        "Cost of the broker's bundles; 1 is one bundle at its limit of topics, sessions or "
        "traffic.",
        lambda b: b.reporter.cost,
    ),
    counter(
        "magnetar_broker_load_reports_sent_total",
        "Load reports sent to the other brokers.",
        lambda b: b.reporter.reports_sent,
    ),
    counter(
        "magnetar_broker_bundle_splits_total",
        "Bundles split because they were over a limit.",
        lambda b: b.reporter.splits,
    ),
    counter(
        "magnetar_broker_bundles_shed_total",
        "Bundles moved for balance, as the leader.",
        lambda b: b.shedder.moves,
    ),
    counter(
        "magnetar_broker_bundle_shed_failures_total",
        "Moves that failed, as the leader.",
        lambda b: b.shedder.failed_moves,
    ),
    counter(
        "magnetar_broker_bundle_splits_for_balance_total",
        "Bundles split because no move could even out the load, as the leader.",
        lambda b: b.shedder.splits,
    ),
)

LOAD: Sequence[Column[LoadReport]] = (
    gauge(
        "pulsar_lb_cpu_usage",
        "Usage of the processors that the broker may use, in percent.",
        lambda r: r.cpu_percent,
    ),
    gauge(
        "pulsar_lb_bandwidth_in_usage",
        "Usage of the incoming bandwidth that the broker may use, in percent.",
        lambda r: r.network_in_percent,
    ),
    gauge(
        "pulsar_lb_bandwidth_out_usage",
        "Usage of the outgoing bandwidth that the broker may use, in percent.",
        lambda r: r.network_out_percent,
    ),
)
"""Labels: cluster, broker, metric="loadBalancing". Values are those of the last sample for
balance."""

UNLOADS: Sequence[Column[Balancer]] = (
    counter(
        "pulsar_lb_unload_bundle_total",
        "Bundles moved for balance, as the leader.",
        lambda b: b.shedder.moves,
    ),
)
"""Labels: cluster, metric="bundleUnloading"."""

SPLITS: Sequence[Column[Balancer]] = (
    counter(
        "pulsar_lb_bundles_split_total",
        "Bundles split.",
        lambda b: b.reporter.splits + b.shedder.splits,
    ),
)
"""Labels: cluster, metric="bundlesSplit"."""

BUNDLE: Sequence[Column[BundleLoad]] = (
    gauge("pulsar_bundle_topics_count", "Topics.", lambda b: b.topics),
    gauge("pulsar_bundle_producer_count", "Connected producers.", lambda b: b.producers),
    gauge("pulsar_bundle_consumer_count", "Connected consumers.", lambda b: b.consumers),
    gauge("pulsar_bundle_msg_rate_in", "Messages stored per second.", lambda b: b.msg_rate_in),
    gauge("pulsar_bundle_msg_rate_out", "Messages sent per second.", lambda b: b.msg_rate_out),
    gauge("pulsar_bundle_msg_throughput_in", "Bytes stored per second.", lambda b: b.bytes_rate_in),
    gauge("pulsar_bundle_msg_throughput_out", "Bytes sent per second.", lambda b: b.bytes_rate_out),
)
"""Labels: cluster, broker, bundle, metric="bundle"."""


def latency_steps(counts: Sequence[int]) -> list[int]:
    """Return the counts of a `LatencyHistogram` by Pulsar's steps, and their sum."""
    ends = [0, *_LATENCY_BUCKETS]
    steps = [sum(counts[ends[at] : ends[at + 1]]) for at in range(len(_LATENCY_BUCKETS))]
    return [*steps, sum(steps)]


def size_steps(counts: Sequence[int]) -> list[int]:
    """Return the counts of a `SizeHistogram`, whose bounds are Pulsar's, and their sum."""
    return [*counts, sum(counts)]


def total_metrics() -> list[Column[TopicLook]]:
    """Return the metrics of `TOTALS`, in its order."""
    by_name = {metric.name: metric for metric in TOPIC}
    return [replace(by_name[of_topics], name=name) for name, of_topics in TOTALS.items()]


def totals(cluster: str, sums: Sequence[float], topics: int) -> list[Table[Any]]:
    """Return the tables of sums over all topics; `sums` are in the order of `TOPIC`."""
    labels = labels_of({"cluster": cluster})
    by_name = {metric.name: value for metric, value in zip(TOPIC, sums, strict=True)}
    values = [by_name[of_topics] for of_topics in TOTALS.values()]
    return [one_row(TOPICS_COUNT, topics, labels), Table(total_metrics(), [(labels, values)])]


def broker_tables(broker: BrokerView, sampler: Sampler, ends: EndsHere) -> Iterator[Table[Any]]:
    """Yield the tables of the broker itself."""
    settings, topics = broker.services.settings, broker.services.topics
    cluster = {"cluster": settings.cluster_name}
    of_broker = cluster | {"broker": broker.name}
    yield one_row(PLAIN, broker)
    yield one_row(CONNECTIONS, broker, labels_of(of_broker))
    of_cluster = labels_of(cluster)
    yield one_row(CACHE, CacheLook(len(topics.loaded), topics.cache, *sampler.cache), of_cluster)
    yield one_row(WRITE_LATENCY, latency_steps(sampler.write_latency), of_cluster)
    yield one_row(ENTRY_SIZE, size_steps(sampler.entry_sizes), of_cluster)
    yield from transaction_tables(broker.services, ends, cluster)
    yield from _segment_tables(broker.services)
    if broker.cluster is None:
        return
    yield one_row(OWNERSHIP, broker.cluster)
    balancer = broker.cluster.balancer
    if balancer is None:
        return
    yield from _balance_tables(balancer, of_broker)
    if settings.expose_bundles_metrics:
        bundles = Table(BUNDLE)
        for name, load in balancer.reporter.latest.bundles.items():
            bundles.add(labels_of({**of_broker, "bundle": name, "metric": "bundle"}), load)
        yield bundles


def _balance_tables(balancer: Balancer, labels: Mapping[str, str]) -> Iterator[Table[Any]]:
    yield one_row(BALANCE, balancer)
    of_load = labels_of({**labels, "metric": "loadBalancing"})
    yield one_row(LOAD, balancer.reporter.latest, of_load)
    cluster = labels["cluster"]
    of_unloads = labels_of({"cluster": cluster, "metric": "bundleUnloading"})
    yield one_row(UNLOADS, balancer, of_unloads)
    of_splits = labels_of({"cluster": cluster, "metric": "bundlesSplit"})
    yield one_row(SPLITS, balancer, of_splits)


def _segment_tables(services: Services) -> Iterator[Table[int]]:
    """Yield the table of segments, if this broker has loaded any."""
    ends = [
        topic.log.terminated is not None
        for topic in services.topics.loaded
        if topic.name.is_segment
    ]
    if ends:
        sealed, table = sum(ends), Table(SEGMENTS)
        table.add(labels_of({"state": "active"}), len(ends) - sealed)
        table.add(labels_of({"state": "sealed"}), sealed)
        yield table
