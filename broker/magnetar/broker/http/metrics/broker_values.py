"""What is shown of a broker as a whole, and of transactions on it. Tables ready for the page.

Names and labels are Pulsar's where it has the metric. Each has the label `cluster`, and the label
`broker` where Pulsar's has it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from magnetar.broker.cluster.balance.load_report import BundleLoad
from magnetar.broker.cluster.composition import Cluster
from magnetar.broker.features.offloading.manifests import ManifestCounts
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.topic_transactions import state_of
from magnetar.broker.http.metrics.sampler import Sampler
from magnetar.broker.http.metrics.text import (
    Named,
    Table,
    Value,
    counter,
    gauge,
    labels_of,
    single,
)
from magnetar.broker.http.metrics.topic_values import TOPIC
from magnetar.broker.http.view import BrokerView
from magnetar.broker.topics.services import Services
from magnetar.ledger.metric_fields import Kind
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.offloader import OffloadCounts

COORDINATOR = (
    gauge("pulsar_txn_active_count", "Transactions that have not ended everywhere."),
    counter("pulsar_txn_committed_total", "Transactions committed."),
    counter("pulsar_txn_aborted_total", "Transactions aborted."),
    counter("pulsar_txn_created_total", "Transactions begun."),
    counter("pulsar_txn_timeout_total", "Transactions whose time was over."),
    counter("pulsar_txn_append_log_total", "Records written to the coordinator's log."),
)
"""Of each coordinator that the broker is, by its number."""

BUFFERS = (
    gauge("pulsar_txn_tb_active_total", "Transactions with messages on topics here, not ended."),
    counter("pulsar_txn_tb_committed_total", "Those that were committed, on topics while here."),
    counter("pulsar_txn_tb_aborted_total", "Those that were aborted, on topics while here."),
)
"""Of all topics of the broker together."""


class EndsHere:
    """How many transactions were committed, and aborted, on topics while they were here.

    A topic brings along what it counted at former owners, and takes away what it counted here: a
    sum over topics would leap when one comes and fall when one goes, which Prometheus would take
    for a restart and count again. What ends after the last look at a topic that goes is not seen.
    """

    def __init__(self) -> None:
        self._committed = self._aborted = 0
        self._before: dict[BufferState, tuple[int, int]] = {}

    def look(self, buffers: Iterable[BufferState]) -> tuple[int, int]:
        """The counts by now; `buffers`: of the topics that are here."""
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
) -> Iterator[Table]:
    """Nothing while nobody has used transactions."""
    coordinators = services.coordinators.served
    if coordinators:
        rows = Table(COORDINATOR)
        for each in coordinators:
            counters = each.counters
            values = (
                len(each.state.transactions),
                counters.committed,
                counters.aborted,
                counters.created,
                counters.timed_out,
                counters.appended,
            )
            labels = labels_of({**cluster, "coordinator_id": str(each.number)})
            rows.rows.append((labels, values))
        yield rows
    states = map(state_of, services.topics.loaded)
    buffers = [each for each in states if each is not None]
    counts = ends.look(buffers)
    if buffers:
        sums = (sum(len(each.open) for each in buffers), *counts)
        yield Table(BUFFERS, [(labels_of(cluster), sums)])


Read = Callable[[BrokerView], float]


def _of_offloads(read: Callable[[OffloadCounts], float]) -> Read:
    def read_or_zero(broker: BrokerView) -> float:
        offloading = broker.services.topics.offloading
        return read(offloading.offloader.counts) if offloading is not None else 0

    return read_or_zero


def _of_manifests(read: Callable[[ManifestCounts], float]) -> Read:
    def read_or_zero(broker: BrokerView) -> float:
        offloading = broker.services.topics.offloading
        if offloading is None or offloading.manifests is None:
            return 0
        return read(offloading.manifests.counts)

    return read_or_zero


def _of_scrubs(read: Callable[[ObjectScrubber], float]) -> Read:
    def read_or_zero(broker: BrokerView) -> float:
        offloading = broker.services.topics.offloading
        return read(offloading.scrubber) if offloading is not None else 0

    return read_or_zero


def _of_copies(read: Callable[[Sending], float]) -> Read:
    def total(broker: BrokerView) -> float:
        return sum(map(read, broker.services.topics.replicating_senders))

    return total


PLAIN: Sequence[tuple[Named, Read]] = (
    (gauge("magnetar_broker_connections", "Client connections."), lambda b: b.connections()),
    (gauge("magnetar_broker_topics", "Topics loaded."), lambda b: len(b.services.topics.loaded)),
    (
        gauge("magnetar_broker_websocket_sessions", "WebSocket sessions."),
        lambda b: b.websocket_sessions(),
    ),
    (
        gauge("magnetar_broker_pending_publish_bytes", "Bytes received and not yet durable."),
        lambda b: b.services.budget.pending_bytes,
    ),
    (
        gauge("magnetar_broker_tail_cache_bytes", "Bytes in the tail cache."),
        lambda b: b.services.topics.cache.size_bytes,
    ),
    (
        counter("magnetar_broker_connections_opened_total", "Connections accepted."),
        lambda b: b.services.counters.connections_opened,
    ),
    (
        counter("magnetar_broker_connections_refused_total", "Connections over the limit."),
        lambda b: b.services.counters.connections_refused,
    ),
    (
        counter(
            "magnetar_broker_protocol_violations_total",
            "Connections dropped for what they sent, or did not send.",
        ),
        lambda b: b.services.counters.protocol_violations,
    ),
    (
        counter("magnetar_broker_authentications_failed_total", "Clients that proved nothing."),
        lambda b: b.services.counters.authentications_failed,
    ),
    (
        counter("magnetar_broker_requests_failed_total", "Requests answered with an error."),
        lambda b: b.services.counters.requests_failed,
    ),
    (
        counter("magnetar_broker_checksum_errors_total", "Messages that arrived damaged."),
        lambda b: b.services.counters.checksum_errors,
    ),
    (
        counter("magnetar_broker_publish_pauses_total", "Times a connection was not read."),
        lambda b: b.services.counters.publish_pauses,
    ),
    (
        counter("magnetar_broker_topic_loads_total", "Topics loaded since the start."),
        lambda b: b.services.topics.loads,
    ),
    (
        counter("magnetar_broker_topic_load_failures_total", "Topics that could not be loaded."),
        lambda b: b.services.topics.failed_loads,
    ),
    (
        counter("magnetar_broker_topics_fenced_total", "Topics taken over by another owner."),
        lambda b: b.services.topics.fenced,
    ),
    (
        counter(
            "magnetar_broker_upkeep_failures_total",
            "Trimmings, expirations and the like that failed; they are tried again.",
        ),
        lambda b: b.upkeep.failures,
    ),
    (
        counter(
            "magnetar_broker_topics_at_rest_looks_total",
            "Topics that nobody uses of which the stored state was read.",
        ),
        lambda b: b.at_rest.looks,
    ),
    (
        counter(
            "magnetar_broker_topics_at_rest_loads_total",
            "Topics that nobody uses that were loaded, because something was due in them.",
        ),
        lambda b: b.at_rest.loads,
    ),
    (
        counter(
            "magnetar_broker_topics_at_rest_failures_total",
            "Topics that nobody uses that could not be looked at, or not be loaded.",
        ),
        lambda b: b.at_rest.failures,
    ),
    (
        gauge(
            "magnetar_broker_replicators",
            "Topics that are copied to other clusters, once for each cluster.",
        ),
        _of_copies(lambda _: 1),
    ),
    (
        gauge(
            "magnetar_broker_replicators_failing",
            "Those that copy nothing just now because something is wrong.",
        ),
        _of_copies(lambda sender: bool(sender.problem)),
    ),
    (
        gauge(
            "magnetar_broker_replication_backlog",
            "Entries that are not at the other clusters yet.",
        ),
        _of_copies(lambda sender: sender.cursor.backlog_entries),
    ),
    (
        gauge(
            "magnetar_broker_subscription_snapshots_pending",
            "Snapshots for replicated subscriptions that other clusters have not answered yet.",
        ),
        lambda b: b.services.topics.subscription_counts.snapshots_pending,
    ),
    (
        counter(
            "magnetar_broker_subscription_snapshots_total",
            "Snapshots for replicated subscriptions that all other clusters have answered.",
        ),
        lambda b: b.services.topics.subscription_counts.snapshots_taken,
    ),
    (
        counter(
            "magnetar_broker_subscription_snapshots_timed_out_total",
            "Snapshots that were given up because a cluster did not answer in time.",
        ),
        lambda b: b.services.topics.subscription_counts.snapshots_timed_out,
    ),
    (
        counter(
            "magnetar_broker_subscription_snapshots_interrupted_total",
            "Snapshots that were given up because a connection to a cluster was lost.",
        ),
        lambda b: b.services.topics.subscription_counts.snapshots_interrupted,
    ),
    (
        counter(
            "magnetar_broker_subscription_updates_sent_total",
            "Updates of replicated subscriptions that were written for other clusters.",
        ),
        lambda b: b.services.topics.subscription_counts.updates_sent,
    ),
    (
        counter(
            "magnetar_broker_subscription_updates_applied_total",
            "Updates of other clusters that have moved a replicated subscription here.",
        ),
        lambda b: b.services.topics.subscription_counts.updates_applied,
    ),
    (
        counter(
            "magnetar_broker_subscription_updates_refused_total",
            "Updates of other clusters that could not be carried out, or not yet.",
        ),
        lambda b: b.services.topics.subscription_counts.updates_refused,
    ),
    (
        counter(
            "magnetar_broker_subscription_acks_told_total",
            "Entries behind holes of replicated subscriptions, or batches acknowledged in part, "
            "whose acknowledgement was written for other clusters.",
        ),
        lambda b: b.services.topics.subscription_counts.acks_told,
    ),
    (
        counter(
            "magnetar_broker_subscription_acks_applied_total",
            "Entries that are acknowledged here because another cluster told so one by one.",
        ),
        lambda b: b.services.topics.subscription_counts.acks_applied,
    ),
    (
        gauge(
            "magnetar_broker_subscription_acks_waiting",
            "Entries that other clusters have acknowledged one by one, and that may still come.",
        ),
        lambda b: b.services.topics.subscription_counts.acks_waiting,
    ),
    (
        counter(
            "magnetar_broker_subscription_acks_absent_total",
            "Entries that other clusters have acknowledged one by one, and that are not here.",
        ),
        lambda b: b.services.topics.subscription_counts.acks_absent,
    ),
    (
        counter(
            "magnetar_broker_subscription_acks_dropped_total",
            "Entries whose acknowledgement by another cluster was not carried out: too many wait, "
            "or the subscription is not replicated here.",
        ),
        lambda b: b.services.topics.subscription_counts.acks_dropped,
    ),
    (
        counter(
            "magnetar_broker_subscription_markers_malformed_total",
            "Markers of other clusters that make no sense here; they are ignored.",
        ),
        lambda b: b.services.topics.subscription_counts.markers_malformed,
    ),
    (
        counter(
            "magnetar_broker_subscription_markers_unknown_total",
            "Markers of other clusters of a type that is not known here; they are ignored.",
        ),
        lambda b: b.services.topics.subscription_counts.markers_unknown,
    ),
    (
        counter(
            "magnetar_broker_offloaded_ledgers_total", "Ledgers copied to an object store by now."
        ),
        _of_offloads(lambda counts: counts.ledgers_copied),
    ),
    (
        counter("magnetar_broker_offloaded_bytes_total", "Bytes of objects that were written."),
        _of_offloads(lambda counts: counts.bytes_copied),
    ),
    (
        counter(
            "magnetar_broker_offload_released_ledgers_total",
            "Ledgers that bookies may forget, because their objects were read back in full.",
        ),
        _of_offloads(lambda counts: counts.ledgers_forgotten),
    ),
    (
        counter(
            "magnetar_broker_offload_failures_total",
            "Times that moving the ledgers of a topic failed; it is tried again.",
        ),
        _of_offloads(lambda counts: counts.failures),
    ),
    (
        counter(
            "magnetar_broker_objects_replaced_total",
            "Objects that were found damaged while bookies had the ledger, and written again.",
        ),
        _of_offloads(lambda counts: counts.objects_replaced),
    ),
    (
        counter(
            "magnetar_broker_manifests_written_total",
            "Manifests of topics that were written beside their objects.",
        ),
        _of_manifests(lambda counts: counts.written),
    ),
    (
        counter(
            "magnetar_broker_manifest_failures_total",
            "Times that a manifest of a topic could not be written; it is tried again.",
        ),
        _of_manifests(lambda counts: counts.failures),
    ),
    (
        counter(
            "magnetar_broker_objects_scrubbed_total",
            "Objects that were read back in full by the scrub, and found whole.",
        ),
        _of_scrubs(lambda scrubber: scrubber.counts.whole),
    ),
    (
        counter(
            "magnetar_broker_objects_damaged_total",
            "Objects that the scrub found damaged. Those of ledgers on bookies are replaced.",
        ),
        _of_scrubs(lambda scrubber: scrubber.counts.damaged),
    ),
    (
        counter(
            "magnetar_broker_objects_gone_total",
            "Objects that topics name and the store does not have, as the scrub found.",
        ),
        _of_scrubs(lambda scrubber: scrubber.counts.gone),
    ),
    (
        counter(
            "magnetar_broker_objects_unreachable_total",
            "Times that the scrub could not read an object; it is tried again.",
        ),
        _of_scrubs(lambda scrubber: scrubber.counts.unreachable),
    ),
    (
        counter(
            "magnetar_broker_object_scrub_bytes_total", "Bytes of objects that the scrub has read."
        ),
        _of_scrubs(lambda scrubber: scrubber.counts.bytes_read),
    ),
    (
        gauge(
            "magnetar_broker_ledgers_lost",
            "Ledgers of loaded topics that lie in an object only which is damaged or gone: alarm.",
        ),
        _of_scrubs(lambda scrubber: sum(scrubber.lost.values())),
    ),
)
"""Of the broker alone, without labels."""

PUBLISH_LATENCY = Named(
    "magnetar_broker_publish_latency_seconds",
    Kind.HISTOGRAM,
    "From the arrival of an entry to its durability.",
)

CONNECTIONS: Sequence[tuple[Named, Read]] = (
    (gauge("pulsar_active_connections", "Connections now."), lambda b: b.connections()),
    (
        gauge("pulsar_connection_created_total_count", "Connections that were asked for."),
        lambda b: b.services.counters.connections_opened + b.services.counters.connections_refused,
    ),
    (
        gauge("pulsar_connection_create_success_count", "Connections that were taken."),
        lambda b: b.services.counters.connections_opened,
    ),
    (
        gauge("pulsar_connection_create_fail_count", "Connections that were refused."),
        lambda b: b.services.counters.connections_refused,
    ),
    (
        gauge("pulsar_connection_closed_total_count", "Connections that have ended."),
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
"""Sums over all topics, shown or not, by the metric of topics that they add up. Label: cluster."""

TOPICS_COUNT = gauge("pulsar_broker_topics_count", "Topics of this broker.")

LEFT_OUT = (
    gauge(
        "magnetar_metrics_topics_left_out",
        "Topics without series of their own, for want of room: metrics_topics_max.",
    ),
    gauge(
        "magnetar_metrics_subscriptions_left_out",
        "Subscriptions without series of their own: metrics_subscriptions_max.",
    ),
    gauge(
        "magnetar_metrics_namespaces_left_out",
        "Namespaces of such topics that have no series either.",
    ),
)

CACHE = (
    gauge("pulsar_ml_count", "Topics loaded, each a managed log."),
    gauge("pulsar_ml_cache_used_size", "Bytes in the tail cache."),
    gauge("pulsar_ml_cache_entries", "Entries in the tail cache."),
    counter("pulsar_ml_cache_inserted_entries_total", "Entries that came into it."),
    counter("pulsar_ml_cache_evicted_entries_total", "Entries that left it."),
    gauge("pulsar_ml_cache_hits_rate", "Looks into it per second that found the entry."),
    gauge("pulsar_ml_cache_misses_rate", "Looks into it per second that did not."),
)
"""Label: cluster."""

LATENCY_STEPS_MS = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000", "overflow")
SIZE_STEPS = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
_LATENCY_BUCKETS = (2, 3, 5, 6, 7, 8, 9, 10, 12, 15)
"""How many of the buckets of `LatencyHistogram` end at or below each step, from the smallest on."""

WRITE_LATENCY = (
    *(
        gauge(
            f"pulsar_storage_write_latency_le_{step}",
            "Entries of the last interval that were durable within so many ms, and not within the "
            "step below.",
        )
        for step in LATENCY_STEPS_MS
    ),
    gauge("pulsar_storage_write_latency_count", "Entries of the last interval."),
)
"""Label: cluster."""

ENTRY_SIZE = (
    *(
        gauge(
            f"pulsar_entry_size_le_{step}",
            "Entries of the last interval of so many bytes, and more than the step below; those of "
            "one read count with their mean.",
        )
        for step in SIZE_STEPS
    ),
    gauge("pulsar_entry_size_count", "Entries of the last interval."),
)
"""Label: cluster."""

OWNERSHIP: Sequence[tuple[Named, Callable[[Cluster], float]]] = (
    (
        gauge("magnetar_broker_serving", "1 while it may serve, by its own clock; else 0."),
        lambda c: c.guard.is_valid,
    ),
    (
        gauge(
            "magnetar_broker_lease_left_seconds",
            "Time until it stops serving, unless the metadata store answers before.",
        ),
        lambda c: c.guard.left_s,
    ),
    (
        gauge("magnetar_broker_bundles_owned", "Bundles of topics that it owns."),
        lambda c: len(c.ownership.owned()),
    ),
    (
        gauge("magnetar_broker_leader", "1 if it chooses the owners of bundles; else 0."),
        lambda c: c.is_leader,
    ),
    (
        counter(
            "magnetar_broker_leases_run_out_total",
            "Times that it stopped serving for want of contact.",
        ),
        lambda c: c.guard.runs_out,
    ),
    (
        counter("magnetar_broker_leases_taken_total", "Bundles that it took."),
        lambda c: c.ownership.leases_taken,
    ),
    (
        counter("magnetar_broker_unloads_total", "Bundles that it gave up on purpose."),
        lambda c: c.ownership.unloads,
    ),
    (
        counter("magnetar_broker_unload_failures_total", "Bundles that it could not give up."),
        lambda c: c.ownership.unload_failures,
    ),
)
"""Of a broker that is one of several."""

BALANCE = (
    gauge(
        "magnetar_broker_load_usage_ratio",
        "Use of the processor or the network, whichever is nearer to its limit.",
    ),
    gauge(
        "magnetar_broker_load_cost",
        "What its bundles are worth; 1 is one bundle at its limit of topics, sessions or traffic.",
    ),
    counter("magnetar_broker_load_reports_sent_total", "Load reports sent to the others."),
    counter("magnetar_broker_bundle_splits_total", "Bundles split because they were over a limit."),
    counter("magnetar_broker_bundles_shed_total", "Bundles moved for balance, as the leader."),
    counter("magnetar_broker_bundle_shed_failures_total", "Moves that failed, as the leader."),
    counter(
        "magnetar_broker_bundle_splits_for_balance_total",
        "Bundles split because no move could even out the load, as the leader.",
    ),
)

LOAD = (
    gauge("pulsar_lb_cpu_usage", "Percent of the processors it may use."),
    gauge("pulsar_lb_bandwidth_in_usage", "Percent of the bandwidth it may use."),
    gauge("pulsar_lb_bandwidth_out_usage", "Percent of the bandwidth it may use."),
)
"""Labels: cluster, broker, metric="loadBalancing". Of the last sample for balance."""

UNLOADS = (counter("pulsar_lb_unload_bundle_total", "Bundles moved for balance, as the leader."),)
"""Labels: cluster, metric="bundleUnloading"."""

SPLITS = (counter("pulsar_lb_bundles_split_total", "Bundles split."),)
"""Labels: cluster, metric="bundlesSplit"."""

BUNDLE = (
    gauge("pulsar_bundle_topics_count", "Topics."),
    gauge("pulsar_bundle_producer_count", "Connected producers."),
    gauge("pulsar_bundle_consumer_count", "Connected consumers."),
    gauge("pulsar_bundle_msg_rate_in", "Messages stored per second."),
    gauge("pulsar_bundle_msg_rate_out", "Messages sent per second."),
    gauge("pulsar_bundle_msg_throughput_in", "Bytes stored per second."),
    gauge("pulsar_bundle_msg_throughput_out", "Bytes sent per second."),
)
"""Labels: cluster, broker, bundle, metric="bundle"."""


def latency_steps(counts: Sequence[int]) -> list[int]:
    """The counts of a `LatencyHistogram` by Pulsar's steps, and their sum."""
    ends = [0, *_LATENCY_BUCKETS]
    steps = [sum(counts[ends[at] : ends[at + 1]]) for at in range(len(_LATENCY_BUCKETS))]
    return [*steps, sum(steps)]


def size_steps(counts: Sequence[int]) -> list[int]:
    """Return the counts of a `SizeHistogram`, whose bounds are Pulsar's, and their sum."""
    return [*counts, sum(counts)]


def total_metrics() -> list[Named]:
    """In the order of `TOTALS`."""
    by_name = {metric.name: metric for metric in TOPIC}
    return [by_name[of_topics]._replace(name=name) for name, of_topics in TOTALS.items()]


def totals(cluster: str, sums: Sequence[float], topics: int) -> list[Table]:
    """Sums over all topics, `sums` in the order of `TOPIC`."""
    labels = labels_of({"cluster": cluster})
    by_name = {metric.name: value for metric, value in zip(TOPIC, sums, strict=True)}
    values = [by_name[of_topics] for of_topics in TOTALS.values()]
    return [
        single(TOPICS_COUNT, topics, labels),
        Table(total_metrics(), [(labels, values)]),
    ]


def broker_tables(broker: BrokerView, sampler: Sampler, ends: EndsHere) -> Iterator[Table]:
    """Everything else of the broker."""
    settings = broker.services.settings
    cluster = {"cluster": settings.cluster_name}
    of_broker = cluster | {"broker": broker.name}
    for metric, read in PLAIN:
        yield single(metric, read(broker))
    for metric, read in CONNECTIONS:
        yield single(metric, read(broker), labels_of(of_broker))
    of_cluster = labels_of(cluster)
    cache = broker.services.topics.cache
    in_cache = (
        len(broker.services.topics.loaded),
        cache.size_bytes,
        cache.inserted_entries - cache.evicted_entries,
        cache.inserted_entries,
        cache.evicted_entries,
        *sampler.cache,
    )
    yield Table(CACHE, [(of_cluster, in_cache)])
    yield Table(WRITE_LATENCY, [(of_cluster, latency_steps(sampler.write_latency))])
    yield Table(ENTRY_SIZE, [(of_cluster, size_steps(sampler.entry_sizes))])
    yield from transaction_tables(broker.services, ends, cluster)
    if broker.cluster is None:
        return
    for of_ownership, ask in OWNERSHIP:
        yield single(of_ownership, ask(broker.cluster))
    if broker.cluster.balancer is not None:
        yield from _balance_tables(broker.cluster, of_broker)
        if settings.expose_bundles_metrics:
            load = broker.cluster.balancer.reporter.latest
            yield _bundle_table(load.bundles, of_broker)


def _bundle_table(bundles: Mapping[str, BundleLoad], labels: Mapping[str, str]) -> Table:
    rows: list[tuple[str, Sequence[Value]]] = []
    for name, load in bundles.items():
        values = (
            load.topics,
            load.producers,
            load.consumers,
            load.msg_rate_in,
            load.msg_rate_out,
            load.bytes_rate_in,
            load.bytes_rate_out,
        )
        rows.append((labels_of({**labels, "bundle": name, "metric": "bundle"}), values))
    return Table(BUNDLE, rows)


def _balance_tables(cluster: Cluster, labels: Mapping[str, str]) -> Iterator[Table]:
    balancer = cluster.balancer
    assert balancer is not None
    reporter, shedder = balancer.reporter, balancer.shedder
    load = reporter.latest
    values = (
        load.usage_percent / 100,
        reporter.cost,
        reporter.reports_sent,
        reporter.splits,
        shedder.moves,
        shedder.failed_moves,
        shedder.splits,
    )
    yield Table(BALANCE, [("", values)])
    usage = (load.cpu_percent, load.network_in_percent, load.network_out_percent)
    yield Table(LOAD, [(labels_of({**labels, "metric": "loadBalancing"}), usage)])
    of_cluster = {"cluster": labels["cluster"]}
    yield Table(
        UNLOADS, [(labels_of({**of_cluster, "metric": "bundleUnloading"}), [shedder.moves])]
    )
    splits = reporter.splits + shedder.splits
    yield Table(SPLITS, [(labels_of({**of_cluster, "metric": "bundlesSplit"}), [splits])])
