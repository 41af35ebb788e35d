"""What is due in a topic that is not loaded: what a load would find to do, and nothing else."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.policies.effective import DEFAULTS, EffectivePolicies
from magnetar.broker.policies.model import BacklogPolicy, DeleteMode
from magnetar.broker.topics.at_rest.due import StoredTopic, what_is_due
from magnetar.cursors import StoredCursor
from magnetar.ledger.managed_log.log_deletion import DELETED
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.position import Position

NOW_MS = 2_000_000_000_000
HOUR_MS = 3_600_000

KEPT = replace(DEFAULTS, inactive_topic_is_on=False, retention_time_s=-1, retention_bytes=-1)
"""Policies by which nothing ever goes."""

CLOSED = (
    LogLedger(1, entries=10, bytes=1000, closed_ms=NOW_MS - 3 * HOUR_MS),
    LogLedger(2, entries=10, bytes=1000, closed_ms=NOW_MS - 2 * HOUR_MS),
    LogLedger(3, entries=10, bytes=1000, closed_ms=NOW_MS - 1 * HOUR_MS),
)
LEFT_OPEN = (*CLOSED[:2], LogLedger(3))
BEGIN, MIDDLE, END = Position(1, -1), Position(2, 4), Position(3, 9)


def stored(
    cursors: Mapping[str, Position | StoredCursor] | None = None,
    ledgers: tuple[LogLedger, ...] = CLOSED,
    *,
    rested_s: float = 0.0,
    **fields: Any,
) -> StoredTopic:
    of = {
        name: each if isinstance(each, StoredCursor) else StoredCursor(each)
        for name, each in (cursors or {}).items()
    }
    return StoredTopic(replace(LogMetadata(ledgers), **fields), of, rested_s)


def due(topic: StoredTopic, policies: EffectivePolicies = KEPT, **changes: Any) -> str | None:
    return what_is_due(topic, replace(policies, **changes), NOW_MS)


@pytest.mark.parametrize("ledgers", [(), CLOSED[:1], CLOSED, LEFT_OPEN])
def test_nothing_is_due_where_policies_keep_everything(ledgers: tuple[LogLedger, ...]) -> None:
    assert due(stored({"s": BEGIN}, ledgers, rested_s=1e9)) is None


def test_a_deletion_that_was_interrupted_is_due() -> None:
    assert due(stored(properties={DELETED: "true"})) == "deletion"


def test_consumed_ledgers_beyond_their_retention_are_due() -> None:
    hour: dict[str, Any] = {"retention_time_s": 3600}
    assert due(stored({"s": END}), **hour) == "trimming"
    assert due(stored({"s": END}), retention_time_s=4 * 3600) is None
    assert due(stored({"s": BEGIN}), **hour) is None  # a backlog
    assert due(stored({"s": END, "other": BEGIN}), **hour) is None
    assert due(stored(), **hour) == "trimming"  # nobody is to consume it
    assert due(stored({"s": END}), retention_bytes=1500) == "trimming"
    assert due(stored({"s": END}), retention_bytes=5000) is None


def test_the_last_ledger_with_entries_stays() -> None:
    assert due(stored({"s": END}, CLOSED[2:]), retention_time_s=0) is None


def test_the_cursor_of_deduplication_holds_nothing_and_that_of_compaction_does() -> None:
    assert due(stored({"s": END, "pulsar.dedup": BEGIN}), retention_time_s=0) == "trimming"
    assert due(stored({"s": END, "__compaction": BEGIN}), retention_time_s=0) is None


def test_messages_above_their_ttl_are_due_while_somebody_is_to_consume_them() -> None:
    assert due(stored({"s": BEGIN}), ttl_s=3600) == "expiry"
    assert due(stored({"s": BEGIN}), ttl_s=4 * 3600) is None
    assert due(stored({"s": Position(2, 9)}), ttl_s=2 * 3600) is None
    assert due(stored({"s": END}), ttl_s=3600) is None
    assert due(stored(), ttl_s=3600) is None
    assert due(stored({"pulsar.dedup": BEGIN}), ttl_s=3600) is None


def test_backlogs_above_a_quota_are_due_only_where_messages_are_evicted() -> None:
    evicted: dict[str, Any] = {"backlog_quota_bytes_policy": BacklogPolicy.EVICT}
    assert due(stored({"s": MIDDLE}), backlog_quota_bytes=1500, **evicted) == "quotas"
    assert due(stored({"s": MIDDLE}), backlog_quota_bytes=1501, **evicted) is None
    assert due(stored({"s": MIDDLE}), backlog_quota_bytes=1500) is None
    by_age: dict[str, Any] = {"backlog_quota_s_policy": BacklogPolicy.EVICT}
    assert due(stored({"s": MIDDLE}), backlog_quota_s=3600, **by_age) == "quotas"
    assert due(stored({"s": MIDDLE}), backlog_quota_s=3 * 3600, **by_age) is None
    assert due(stored({"s": MIDDLE}), backlog_quota_s=3600) is None


def test_unused_subscriptions_are_due_when_the_topic_has_rested_for_their_time() -> None:
    day_s = 86_400
    subscription = {"s": BEGIN}
    assert due(stored(subscription, rested_s=day_s), subscription_expiration_s=day_s) is None
    found = due(stored(subscription, rested_s=day_s + 1), subscription_expiration_s=day_s)
    assert found == "inactive-subscriptions"
    assert due(stored(rested_s=day_s + 1), subscription_expiration_s=day_s) is None
    assert due(stored(subscription, rested_s=1e9), subscription_expiration_s=0) is None


def test_an_unused_topic_is_due_after_its_time_and_that_of_retention() -> None:
    on: dict[str, Any] = {"inactive_topic_is_on": True, "inactive_topic_max_s": 60}
    short: dict[str, Any] = {**on, "retention_time_s": 300, "retention_bytes": -1}
    assert due(stored(rested_s=1e9), **on) is None  # retained for ever
    assert due(stored({}, CLOSED[:1], rested_s=299), **short) is None
    assert due(stored({}, CLOSED[:1], rested_s=300), **short) == "inactive-topics"
    assert due(stored({"s": END}, CLOSED[:1], rested_s=300), **short) is None
    caught_up: dict[str, Any] = {**short, "inactive_topic_mode": DeleteMode.CAUGHT_UP}
    assert (
        due(stored({"s": Position(1, 9)}, CLOSED[:1], rested_s=300), **caught_up)
        == "inactive-topics"
    )
    assert due(stored({"s": Position(1, 8)}, CLOSED[:1], rested_s=300), **caught_up) is None


def test_a_backlog_of_compaction_above_its_threshold_is_due() -> None:
    assert due(stored(), compaction_threshold_bytes=3000) == "compaction"
    assert due(stored(), compaction_threshold_bytes=3001) is None
    assert due(stored({"__compaction": END}), compaction_threshold_bytes=1) is None


def test_what_a_crash_left_open_is_due_once_and_then_counts_by_its_close() -> None:
    in_ledger = StoredCursor(BEGIN, has_ledger=True)
    assert due(stored({"s": in_ledger}, LEFT_OPEN), retention_time_s=0) == "trimming"
    assert due(stored({"s": in_ledger}), retention_time_s=0) is None
    assert due(stored({"s": Position(3, 4)}, LEFT_OPEN), ttl_s=9 * 3600) == "expiry"
    assert due(stored({"s": Position(3, 4)}), ttl_s=9 * 3600) is None


def test_what_is_turned_off_is_never_due() -> None:
    policies = replace(KEPT, ttl_s=3600, retention_time_s=0)
    for jobs, expected in ((["expiry", "trimming"], "expiry"), (["trimming"], None)):
        assert what_is_due(stored({"s": BEGIN}), policies, NOW_MS, jobs) == expected
    assert what_is_due(stored({"s": END}), policies, NOW_MS, ["trimming"]) == "trimming"
    assert what_is_due(stored({"s": END}), policies, NOW_MS, ["expiry"]) is None


def test_the_last_ledger_of_a_terminated_topic_stays() -> None:
    ended = stored({"s": END}, CLOSED[2:], terminated=END)
    assert due(ended, retention_time_s=0) is None
    assert due(stored({"s": END}, terminated=END), retention_time_s=0) == "trimming"
