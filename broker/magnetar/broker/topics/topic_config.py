"""Configuration of a topic's ledgers and cursors, by settings and policies."""

from collections.abc import Mapping

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import Feature, TopicPort
from magnetar.cursors import CursorSettings
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.settings import LogConfig


def log_config(
    settings: BrokerSettings,
    policies: Policies,
    *,
    properties: Mapping[str, str] | None = None,
) -> LogConfig:
    """Return the configuration of a topic's log. `properties`: those of a log that does not exist
    yet."""
    return LogConfig(
        properties=dict(properties or {}),
        ensemble_size=policies.persistence.ensemble,
        write_quorum=policies.persistence.write_quorum,
        ack_quorum=policies.persistence.ack_quorum,
        ledger_entries_max=settings.ledger_entries_max,
        ledger_bytes_max=settings.ledger_bytes_max,
        ledger_age_min_s=settings.ledger_age_min_s,
        ledger_age_max_s=settings.ledger_age_max_s,
        # Most topics of a broker are idle: they take no ledger, and moving one costs one write.
        opens_without_ledger=True,
        # A takeover of a deduplicated topic must find a prefix of its appends. Transactions, and
        # copies from other clusters, need that from their first message on (`opening.py`).
        overlaps_ledgers=not policies.deduplication,
    )


def cursor_settings(settings: BrokerSettings, policies: Policies) -> CursorSettings:
    """Return the settings of a durable cursor; an open cursor keeps its quorums."""
    return CursorSettings(
        ensemble_size=policies.persistence.ensemble,
        write_quorum=policies.persistence.write_quorum,
        ack_quorum=policies.persistence.ack_quorum,
        ack_persist_interval_ms=settings.ack_persist_interval_ms,
    )


class FollowsQuorums(Feature):
    """Applies changed quorums to the next ledger of a topic."""

    def __init__(self, topic: TopicPort, log: ManagedLog) -> None:
        self._topic = topic
        self._log = log

    follows = frozenset({"persistence"})

    def policies_changed(self, before: Policies) -> None:
        policies = self._topic.policies
        self._log.set_quorums(
            ensemble_size=policies.persistence.ensemble,
            write_quorum=policies.persistence.write_quorum,
            ack_quorum=policies.persistence.ack_quorum,
        )
