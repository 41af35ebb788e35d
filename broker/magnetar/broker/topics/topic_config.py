"""What the settings say about each topic, as plain values; and its policies about its ledgers."""

from collections.abc import Mapping

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.compaction.passes import CompactionLimits
from magnetar.broker.features.deduplication import DeduplicationLimits
from magnetar.broker.features.delayed.delayed_delivery import DelayedLimits
from magnetar.broker.features.transactions.topic_transactions import TopicTransactionLimits
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.topic import Feature, TopicLimits, TopicPort
from magnetar.broker.topic.dispatch.base import DispatchLimits
from magnetar.broker.topic.dispatch.range_reads import ReadLimits
from magnetar.cursors import CursorSettings
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.settings import LogConfig


def topic_limits(settings: BrokerSettings) -> TopicLimits:
    """The bounds of each topic, as plain values."""
    return TopicLimits(
        seek_return_timeout_ms=settings.seek_return_timeout_ms,
        producers_waiting_max=settings.producers_waiting_per_topic_max,
        dispatch=DispatchLimits(
            dispatch_bytes_max=settings.dispatch_bytes_max,
            round_robin_messages_max=settings.round_robin_messages_max,
            failover_delay_ms=settings.failover_delay_ms,
            chunked_messages_max=settings.chunked_messages_max,
            key_shared_splits_ranges=not settings.key_shared_consistent_hashing,
            look_ahead_per_consumer_max=settings.look_ahead_per_consumer_max,
            look_ahead_per_subscription_max=settings.look_ahead_per_subscription_max,
            look_ahead_bytes_max=settings.look_ahead_bytes_max,
            look_ahead_patience_ms=settings.look_ahead_patience_ms,
            reads=ReadLimits(
                bytes_max=settings.read_ahead_bytes,
                entries_max=settings.read_ahead_entries,
                retry_ms=settings.read_retry_ms,
                retry_ms_max=settings.read_retry_ms_max,
            ),
        ),
    )


def deduplication_limits(settings: BrokerSettings) -> DeduplicationLimits:
    """The bounds of each topic's deduplication."""
    return DeduplicationLimits(
        names_max=settings.dedup_names_max,
        snapshot_bytes_max=settings.dedup_snapshot_bytes_max,
        names_unused_s=settings.dedup_names_unused_s,
        read_entries_max=settings.read_ahead_entries,
        read_bytes_max=settings.read_ahead_bytes,
    )


def delayed_limits(settings: BrokerSettings) -> DelayedLimits:
    """The bounds of each topic's index of delayed messages."""
    return DelayedLimits(
        bucket_records=settings.delayed_bucket_records,
        segment_records=settings.delayed_segment_records,
        segments_loaded_max=settings.delayed_segments_loaded_max,
        due_entries_max=settings.delayed_due_entries_max,
        retry_ms=settings.delayed_retry_ms,
    )


def compaction_limits(settings: BrokerSettings) -> CompactionLimits:
    """The bounds of each compaction."""
    return CompactionLimits(
        keys_bytes_max=settings.compaction_keys_bytes_max,
        batch_bytes_max=settings.compaction_batch_bytes_max,
        portion_entries=settings.read_ahead_entries,
        portion_bytes=settings.read_ahead_bytes,
        bytes_per_s=settings.compaction_bytes_per_s,
        keeps_keyless=settings.compaction_retains_keyless,
    )


def transaction_limits(settings: BrokerSettings) -> TopicTransactionLimits:
    """The bounds of each topic's transactions."""
    return TopicTransactionLimits(
        is_allowed=settings.transaction_coordinator_enabled,
        log_records=settings.transaction_log_records,
        snapshot_entries=settings.transaction_snapshot_entries,
        pending_acks_max=settings.transaction_pending_acks_max,
        read_entries_max=settings.read_ahead_entries,
        read_bytes_max=settings.read_ahead_bytes,
    )


def log_config(
    settings: BrokerSettings,
    policies: EffectivePolicies,
    *,
    properties: Mapping[str, str] | None = None,
) -> LogConfig:
    """Return how a topic's log is kept. `properties`: those of a log that is not there yet."""
    return LogConfig(
        properties=dict(properties or {}),
        ensemble_size=policies.ensemble_size,
        write_quorum=policies.write_quorum,
        ack_quorum=policies.ack_quorum,
        ledger_entries_max=settings.ledger_entries_max,
        ledger_bytes_max=settings.ledger_bytes_max,
        ledger_age_min_s=settings.ledger_age_min_s,
        ledger_age_max_s=settings.ledger_age_max_s,
        # Most topics of a broker are idle: they cost no ledger, and a move of theirs one write.
        opens_without_ledger=True,
        # What a takeover finds of a topic that deduplicates must be a prefix of its appends.
        overlaps_ledgers=not policies.deduplication,
    )


def cursor_settings(settings: BrokerSettings, policies: EffectivePolicies) -> CursorSettings:
    """How a durable cursor is kept; one that is open keeps its quorums."""
    return CursorSettings(
        ensemble_size=policies.ensemble_size,
        write_quorum=policies.write_quorum,
        ack_quorum=policies.ack_quorum,
        ack_persist_interval_ms=settings.ack_persist_interval_ms,
    )


class FollowsQuorums(Feature):
    """Has the next ledger of a topic follow its policies."""

    def __init__(self, topic: TopicPort, log: ManagedLog) -> None:
        self._topic = topic
        self._log = log

    def policies_changed(self, before: EffectivePolicies) -> None:
        policies = self._topic.policies
        self._log.set_quorums(
            ensemble_size=policies.ensemble_size,
            write_quorum=policies.write_quorum,
            ack_quorum=policies.ack_quorum,
        )
