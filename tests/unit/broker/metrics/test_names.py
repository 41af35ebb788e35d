"""Metrics that begin with `pulsar_` are Pulsar's, with its types; every metric has one meaning."""

from magnetar.broker.base.latency import (
    BOUNDS_S,
    SIZE_BOUNDS_BYTES,
    LatencyHistogram,
    SizeHistogram,
)
from magnetar.broker.http.metrics.broker_values import (
    LATENCY_STEPS_MS,
    SIZE_STEPS,
    latency_steps,
    size_steps,
)
from magnetar.broker.http.metrics.page import CATALOGUE
from magnetar.ledger.metric_fields import Kind

PULSAR_COUNTERS = {
    "pulsar_in_messages_total",
    "pulsar_in_bytes_total",
    "pulsar_out_messages_total",
    "pulsar_out_bytes_total",
    "pulsar_ml_cache_inserted_entries_total",
    "pulsar_ml_cache_evicted_entries_total",
    "pulsar_lb_unload_bundle_total",
    "pulsar_lb_bundles_split_total",
    "pulsar_txn_committed_total",
    "pulsar_txn_aborted_total",
    "pulsar_txn_created_total",
    "pulsar_txn_timeout_total",
    "pulsar_txn_append_log_total",
    "pulsar_txn_tb_committed_total",
    "pulsar_txn_tb_aborted_total",
}
_GAUGES = """
    pulsar_txn_active_count pulsar_txn_tb_active_total
    pulsar_topics_count pulsar_subscriptions_count pulsar_producers_count pulsar_consumers_count
    pulsar_rate_in pulsar_rate_out pulsar_throughput_in pulsar_throughput_out
    pulsar_storage_size pulsar_storage_logical_size pulsar_storage_offloaded_size
    pulsar_storage_backlog_size
    pulsar_storage_backlog_quota_limit pulsar_storage_write_rate pulsar_msg_backlog
    pulsar_publish_rate_limit_times pulsar_delayed_message_index_size_bytes
    pulsar_compaction_removed_event_count pulsar_compaction_succeed_count
    pulsar_compaction_failed_count pulsar_compaction_duration_time_in_mills
    pulsar_compaction_compacted_entries_count
    pulsar_replication_rate_in pulsar_replication_rate_out pulsar_replication_throughput_in
    pulsar_replication_throughput_out pulsar_replication_backlog pulsar_replication_rate_expired
    pulsar_replication_connected_count pulsar_replication_disconnected_count
    pulsar_replication_delay_in_seconds
    pulsar_subscription_back_log pulsar_subscription_back_log_no_delayed pulsar_subscription_delayed
    pulsar_subscription_unacked_messages pulsar_subscription_blocked_on_unacked_messages
    pulsar_subscription_msg_rate_out pulsar_subscription_msg_throughput_out
    pulsar_subscription_msg_rate_redeliver pulsar_subscription_msg_rate_expired
    pulsar_subscription_total_msg_expired pulsar_subscription_last_expire_timestamp
    pulsar_subscription_consumers_count
    pulsar_consumer_msg_rate_out pulsar_consumer_msg_throughput_out
    pulsar_consumer_msg_rate_redeliver pulsar_consumer_unacked_messages
    pulsar_consumer_blocked_on_unacked_messages pulsar_consumer_available_permits
    pulsar_broker_topics_count pulsar_broker_subscriptions_count pulsar_broker_producers_count
    pulsar_broker_consumers_count pulsar_broker_rate_in pulsar_broker_rate_out
    pulsar_broker_throughput_in pulsar_broker_throughput_out pulsar_broker_storage_size
    pulsar_broker_storage_logical_size pulsar_broker_storage_write_rate pulsar_broker_msg_backlog
    pulsar_ml_count pulsar_ml_cache_used_size pulsar_ml_cache_entries pulsar_ml_cache_hits_rate
    pulsar_ml_cache_misses_rate
    pulsar_active_connections pulsar_connection_created_total_count
    pulsar_connection_create_success_count pulsar_connection_create_fail_count
    pulsar_connection_closed_total_count
    pulsar_lb_cpu_usage pulsar_lb_bandwidth_in_usage pulsar_lb_bandwidth_out_usage
    pulsar_bundle_topics_count pulsar_bundle_producer_count pulsar_bundle_consumer_count
    pulsar_bundle_msg_rate_in pulsar_bundle_msg_rate_out pulsar_bundle_msg_throughput_in
    pulsar_bundle_msg_throughput_out
    pulsar_storage_write_latency_le_0_5 pulsar_storage_write_latency_le_1
    pulsar_storage_write_latency_le_5 pulsar_storage_write_latency_le_10
    pulsar_storage_write_latency_le_20 pulsar_storage_write_latency_le_50
    pulsar_storage_write_latency_le_100 pulsar_storage_write_latency_le_200
    pulsar_storage_write_latency_le_1000 pulsar_storage_write_latency_le_overflow
    pulsar_storage_write_latency_count
    pulsar_entry_size_le_128 pulsar_entry_size_le_512 pulsar_entry_size_le_1_kb
    pulsar_entry_size_le_2_kb pulsar_entry_size_le_4_kb pulsar_entry_size_le_16_kb
    pulsar_entry_size_le_100_kb pulsar_entry_size_le_1_mb pulsar_entry_size_le_overflow
    pulsar_entry_size_count
"""
PULSAR_GAUGES = set(_GAUGES.split())
"""By Pulsar's reference of metrics; `pulsar_msg_backlog` and the two `_count` by its brokers."""

_SHOWN = [metric for metrics in CATALOGUE.values() for metric in metrics]


def test_what_is_pulsars_has_its_name_and_type() -> None:
    shown = {each.name: each.kind for each in _SHOWN if each.name.startswith("pulsar_")}
    assert {name for name, kind in shown.items() if kind is Kind.COUNTER} == PULSAR_COUNTERS
    assert {name for name, kind in shown.items() if kind is Kind.GAUGE} == PULSAR_GAUGES


def test_names_are_used_once_and_say_what_they_are() -> None:
    names = [each.name for each in _SHOWN]
    assert len(names) == len(set(names))
    for each in _SHOWN:
        assert each.name.startswith(("pulsar_", "magnetar_"))
        if each.name != "pulsar_txn_tb_active_total":  # Pulsar's own name of a gauge
            assert each.name.endswith("_total") == (each.kind is Kind.COUNTER), each.name
        assert each.text.endswith("."), each.name


def test_every_latency_is_in_the_step_that_its_bucket_ends_in() -> None:
    for bound_s, step in (
        (0.0002, "0_5"),
        (0.001, "1"),
        (0.02, "20"),
        (1.0, "1000"),
        (9, "overflow"),
    ):
        latency = LatencyHistogram()
        latency.observe(bound_s, 3)
        steps = dict(zip((*LATENCY_STEPS_MS, "count"), latency_steps(latency.counts), strict=True))
        assert {name: count for name, count in steps.items() if count} == {step: 3, "count": 3}
    every = LatencyHistogram()
    for bound_s in (*BOUNDS_S, 60.0):
        every.observe(bound_s)
    assert sum(latency_steps(every.counts)[:-1]) == len(BOUNDS_S) + 1


def test_every_size_is_in_its_step() -> None:
    sizes = SizeHistogram()
    for bound in SIZE_BOUNDS_BYTES:
        sizes.observe(bound)
    sizes.observe(SIZE_BOUNDS_BYTES[-1] + 1)
    assert size_steps(sizes.counts) == [1] * len(SIZE_STEPS) + [len(SIZE_STEPS)]
