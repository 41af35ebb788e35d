"""What is due in a topic that is not loaded: what a load would find to do, and nothing else."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.features.offloading.rules import THRESHOLD_S
from magnetar.broker.policies.model import (
    DEFAULTS,
    BacklogPolicy,
    BacklogQuota,
    DeleteMode,
    InactiveTopic,
    Policies,
    QuotaType,
    Retention,
)
from magnetar.broker.topics.at_rest.due import ObjectUpkeep, StoredTopic, what_is_due
from magnetar.cursors import StoredCursor
from magnetar.ledger.managed_log.log_deletion import DELETED
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.offloading.scrub_plan import PROPERTY, ScrubMark
from magnetar.ledger.position import Position

NOW_MS = 2_000_000_000_000
HOUR_MS = 3_600_000

MIB = 1 << 20

OBJECTS = ObjectUpkeep()
FOR_EVER = Retention(minutes=-1, mib=-1)
NOT_AT_ALL = Retention(minutes=0, mib=-1)
KEPT = DEFAULTS.with_values(inactive_topic=InactiveTopic(is_on=False), retention=FOR_EVER)
"""Policies by which nothing ever goes."""

CLOSED = (
    LogLedger(1, entries=10, bytes=MIB, closed_ms=NOW_MS - 3 * HOUR_MS),
    LogLedger(2, entries=10, bytes=MIB, closed_ms=NOW_MS - 2 * HOUR_MS),
    LogLedger(3, entries=10, bytes=MIB, closed_ms=NOW_MS - 1 * HOUR_MS),
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


def due(topic: StoredTopic, policies: Policies = KEPT, **changes: Any) -> str | None:
    return what_is_due(topic, policies.with_values(**changes), NOW_MS, objects=OBJECTS)


@pytest.mark.parametrize("ledgers", [(), CLOSED[:1], CLOSED, LEFT_OPEN])
def test_nothing_is_due_where_policies_keep_everything(ledgers: tuple[LogLedger, ...]) -> None:
    assert due(stored({"s": BEGIN}, ledgers, rested_s=1e9)) is None


def test_a_deletion_that_was_interrupted_is_due() -> None:
    assert due(stored(properties={DELETED: "true"})) == "deletion"


def test_consumed_ledgers_beyond_their_retention_are_due() -> None:
    hour: dict[str, Any] = {"retention": Retention(minutes=60, mib=-1)}
    four_hours = Retention(minutes=4 * 60, mib=-1)
    assert due(stored({"s": END}), **hour) == "trimming"
    assert due(stored({"s": END}), retention=four_hours) is None
    assert due(stored({"s": BEGIN}), **hour) is None  # a backlog
    assert due(stored({"s": END, "other": BEGIN}), **hour) is None
    assert due(stored(), **hour) == "trimming"  # nobody is to consume it
    assert due(stored({"s": END}), retention=Retention(minutes=-1, mib=1)) == "trimming"
    assert due(stored({"s": END}), retention=Retention(minutes=-1, mib=5)) is None


def test_the_last_ledger_with_entries_stays() -> None:
    assert due(stored({"s": END}, CLOSED[2:]), retention=NOT_AT_ALL) is None


def test_the_cursor_of_deduplication_holds_nothing_and_that_of_compaction_does() -> None:
    assert due(stored({"s": END, "pulsar.dedup": BEGIN}), retention=NOT_AT_ALL) == "trimming"
    assert due(stored({"s": END, "__compaction": BEGIN}), retention=NOT_AT_ALL) is None


def test_messages_above_their_ttl_are_due_while_somebody_is_to_consume_them() -> None:
    assert due(stored({"s": BEGIN}), message_ttl_s=3600) == "expiry"
    assert due(stored({"s": BEGIN}), message_ttl_s=4 * 3600) is None
    assert due(stored({"s": Position(2, 9)}), message_ttl_s=2 * 3600) is None
    assert due(stored({"s": END}), message_ttl_s=3600) is None
    assert due(stored(), message_ttl_s=3600) is None
    assert due(stored({"pulsar.dedup": BEGIN}), message_ttl_s=3600) is None


def test_backlogs_above_a_quota_are_due_only_where_messages_are_evicted() -> None:
    def due_by(kind: QuotaType, policy: BacklogPolicy, **limit: int) -> str | None:
        quota = BacklogQuota(policy=policy, **limit)
        return due(stored({"s": MIDDLE}), backlog_quotas={kind: quota})

    size, age = QuotaType.SIZE, QuotaType.AGE
    evicts, holds = BacklogPolicy.EVICT, BacklogPolicy.HOLD
    half = MIB * 3 // 2
    assert due_by(size, evicts, bytes=half) == "quotas"
    assert due_by(size, evicts, bytes=half + 1) is None
    assert due_by(size, holds, bytes=half) is None
    assert due_by(age, evicts, seconds=3600) == "quotas"
    assert due_by(age, evicts, seconds=3 * 3600) is None
    assert due_by(age, holds, seconds=3600) is None


def test_unused_subscriptions_are_due_when_the_topic_has_rested_for_their_time() -> None:
    day_s = 86_400
    day: dict[str, Any] = {"subscription_expiration_minutes": 24 * 60}
    subscription = {"s": BEGIN}
    assert due(stored(subscription, rested_s=day_s), **day) is None
    found = due(stored(subscription, rested_s=day_s + 1), **day)
    assert found == "inactive-subscriptions"
    assert due(stored(rested_s=day_s + 1), **day) is None
    assert due(stored(subscription, rested_s=1e9), subscription_expiration_minutes=0) is None


def test_a_subscription_that_is_younger_than_its_topic_is_due_after_its_own_time() -> None:
    day_s = 86_400
    day: dict[str, Any] = {"subscription_expiration_minutes": 24 * 60}
    topic = stored({"old": BEGIN, "young": BEGIN}, rested_s=9 * day_s)
    younger = replace(topic, unused_s={"old": day_s, "young": 60.0})
    assert due(younger, **day) is None
    assert due(replace(younger, unused_s={"old": 60.0}), **day) == "inactive-subscriptions"


def test_an_unused_topic_is_due_after_its_time_and_that_of_retention() -> None:
    on: dict[str, Any] = {"inactive_topic": InactiveTopic(is_on=True, max_s=60)}
    short: dict[str, Any] = {**on, "retention": Retention(minutes=5, mib=-1)}
    assert due(stored(rested_s=1e9), **on) is None  # retained for ever
    assert due(stored({}, CLOSED[:1], rested_s=299), **short) is None
    assert due(stored({}, CLOSED[:1], rested_s=300), **short) == "inactive-topics"
    assert due(stored({"s": END}, CLOSED[:1], rested_s=300), **short) is None
    on_when_read = InactiveTopic(is_on=True, max_s=60, mode=DeleteMode.CAUGHT_UP)
    caught_up: dict[str, Any] = {**short, "inactive_topic": on_when_read}
    assert (
        due(stored({"s": Position(1, 9)}, CLOSED[:1], rested_s=300), **caught_up)
        == "inactive-topics"
    )
    assert due(stored({"s": Position(1, 8)}, CLOSED[:1], rested_s=300), **caught_up) is None


def test_what_nobody_has_subscribed_to_is_kept_if_the_broker_is_told_so() -> None:
    on: dict[str, Any] = {
        "inactive_topic": InactiveTopic(is_on=True, max_s=60),
        "retention": NOT_AT_ALL,
        "unsubscribed_retention": True,
    }
    assert due(stored({}, rested_s=1e9), **on) is None
    assert due(stored({}, LEFT_OPEN, rested_s=1e9), **on) is None
    empty = (LogLedger(1, entries=0, closed_ms=1),)
    assert due(stored({}, empty, rested_s=1e9), **on) == "inactive-topics"
    assert due(stored({"s": END}, rested_s=1e9), **on) == "trimming"
    bounded = {**on, "retention": Retention(minutes=5, mib=-1)}
    assert due(stored({}, rested_s=1e9), **bounded) == "inactive-topics"


def test_a_backlog_of_compaction_above_its_threshold_is_due() -> None:
    assert due(stored(), compaction_threshold_bytes=3 * MIB) == "compaction"
    assert due(stored(), compaction_threshold_bytes=3 * MIB + 1) is None
    assert due(stored({"__compaction": END}), compaction_threshold_bytes=1) is None


def test_what_a_crash_left_open_is_due_once_and_then_counts_by_its_close() -> None:
    in_ledger = StoredCursor(BEGIN, has_ledger=True)
    assert due(stored({"s": in_ledger}, LEFT_OPEN), retention=NOT_AT_ALL) == "trimming"
    assert due(stored({"s": in_ledger}), retention=NOT_AT_ALL) is None
    assert due(stored({"s": Position(3, 4)}, LEFT_OPEN), message_ttl_s=9 * 3600) == "expiry"
    assert due(stored({"s": Position(3, 4)}), message_ttl_s=9 * 3600) is None


def test_what_is_turned_off_is_never_due() -> None:
    policies = KEPT.with_values(message_ttl_s=3600, retention=NOT_AT_ALL)
    for jobs, expected in ((["expiry", "trimming"], "expiry"), (["trimming"], None)):
        assert (
            what_is_due(stored({"s": BEGIN}), policies, NOW_MS, jobs, objects=OBJECTS) == expected
        )
    assert (
        what_is_due(stored({"s": END}), policies, NOW_MS, ["trimming"], objects=OBJECTS)
        == "trimming"
    )
    assert what_is_due(stored({"s": END}), policies, NOW_MS, ["expiry"], objects=OBJECTS) is None


def test_the_last_ledger_of_a_terminated_topic_stays() -> None:
    ended = stored({"s": END}, CLOSED[2:], terminated=END)
    assert due(ended, retention=NOT_AT_ALL) is None
    assert due(stored({"s": END}, terminated=END), retention=NOT_AT_ALL) == "trimming"


def test_objects_that_were_not_read_back_for_a_period_are_due_once_in_it() -> None:
    copied = LedgerObject(ObjectState.ONLY, "ab" * 16, 0, 1, 1, NOW_MS - HOUR_MS)
    ledgers = (replace(CLOSED[0], object=copied), *CLOSED[1:])
    read = {PROPERTY: ScrubMark(NOW_MS - HOUR_MS // 2, 3).to_property()}
    hour_s = HOUR_MS / 1000

    def job(period_s: float, properties: dict[str, str], jobs: tuple[str, ...]) -> str | None:
        topic = stored(ledgers=ledgers, properties=properties)
        return what_is_due(topic, KEPT, NOW_MS, jobs, objects=ObjectUpkeep(period_s))

    assert job(hour_s, {}, ("scrubbing",)) == "scrubbing"
    assert job(hour_s, {}, ()) is None
    assert job(hour_s + 1, {}, ("scrubbing",)) is None
    assert job(0, {}, ("scrubbing",)) is None
    assert job(hour_s, read, ("scrubbing",)) is None
    assert job(hour_s / 2, read, ("scrubbing",)) == "scrubbing"


def test_small_ledgers_are_moved_when_the_settings_of_the_broker_say_so() -> None:
    small = stored(ledgers=tuple(replace(each, bytes=MIB - 1) for each in CLOSED))
    policies = KEPT.with_values(offload={THRESHOLD_S: 0})

    def job(objects: ObjectUpkeep) -> str | None:
        return what_is_due(small, policies, NOW_MS, ("offloading",), objects=objects)

    assert job(ObjectUpkeep()) is None
    assert job(ObjectUpkeep(small_bytes=MIB - 1)) == "offloading"
    assert job(ObjectUpkeep(small_wait_s=3 * HOUR_MS / 1000)) == "offloading"
    assert job(ObjectUpkeep(small_wait_s=3 * HOUR_MS / 1000 + 1)) is None


def test_what_other_clusters_lack_is_copied() -> None:
    copied = KEPT.with_values(replicated_to=("east", "west"))
    assert due(stored({"pulsar.repl.west": END}), copied) is None
    assert due(stored({"pulsar.repl.west": MIDDLE}), copied) == "replication"
    assert due(stored({"pulsar.repl.west": END}, LEFT_OPEN), copied) == "replication"
    assert due(stored({"pulsar.repl.west": END}), KEPT) == "replication", "its cursor is to go"
    assert due(stored({"s": END}), copied) is None
