"""Decides from stored state whether upkeep is due in a topic that is not loaded. Pure.

A look costs only reads of the metadata store. Loading a topic and closing it again costs three
writes there, and two for each subscription. So a topic is loaded only if upkeep would find
something to do.

The stored state can be behind what a load would find, in two ways:

- A ledger that a crash left open has no end and no time of closing. It counts as closed long ago:
  if that makes anything due, one load closes it, and the next look sees the true state.
- The position in a cursor's node is a lower bound while the rest of its state lies in a ledger.
  After a crash that state counts as everything being consumed, for that one load. A cursor with
  more holes than fit in its node can hold ledgers here that no subscription needs any more.

The rules are those of `features/retention/` and `features/compaction/`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from magnetar.broker.base import naming
from magnetar.broker.features import compaction, deduplication
from magnetar.broker.features.offloading.rules import offload_rules
from magnetar.broker.policies.model import BacklogPolicy, DeleteMode, Policies
from magnetar.cursors import StoredCursor
from magnetar.ledger.managed_log.log_deletion import is_marked
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_retention import Retention, bytes_behind, trim_point
from magnetar.ledger.offloading.offload_choice import OffloadRules, to_copy, to_forget
from magnetar.ledger.offloading.scrub_plan import is_scrub_due, mark_in
from magnetar.ledger.position import Position

_LONG_AGO_MS = 1
_ENTRY_ID_MAX = (1 << 63) - 1
_USUAL = OffloadRules()


@dataclass(frozen=True, slots=True)
class ObjectUpkeep:
    """The broker's settings for ledgers that move to an object store, or are in one."""

    scrub_period_s: float = 0.0
    """Each object is read back once in this period, in seconds; 0: never."""
    small_bytes: int = _USUAL.small_bytes
    """A ledger below this size, in bytes, waits before it is copied."""
    small_wait_s: float = _USUAL.small_wait_s
    """Seconds after its close until a small ledger is copied."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """The stored state of a topic that is not loaded."""

    log: LogMetadata
    cursors: Mapping[str, StoredCursor]
    rested_s: float
    """How long the topic has been unused, in seconds, as far as this broker knows."""
    unused_s: Mapping[str, float] = field(default_factory=dict)
    """How long each subscription has been unused, in seconds; if missing, as long as the topic."""

    @property
    def was_left_open(self) -> bool:
        """Whether the last owner did not close the topic."""
        return any(not ledger.is_closed for ledger in self.log.ledgers)

    @property
    def ledgers(self) -> tuple[LogLedger, ...]:
        """The ledger list; a ledger that was left open counts as closed long ago, and as not
        empty."""
        return tuple(
            ledger if ledger.is_closed else replace(ledger, entries=1, closed_ms=_LONG_AGO_MS)
            for ledger in self.log.ledgers
        )

    @property
    def subscriptions(self) -> Mapping[str, StoredCursor]:
        """Cursors that are subscriptions."""
        return {
            name: cursor
            for name, cursor in self.cursors.items()
            if not naming.is_internal_cursor(name)
        }

    @property
    def slowest(self) -> Position | None:
        """Mark-delete position of the slowest subscription; None if there is no subscription."""
        return min((each.mark_delete for each in self.subscriptions.values()), default=None)


def _is_expired(topic: StoredTopic, age_s: float, now_ms: int) -> bool:
    """Whether a backlog holds a ledger that was closed longer ago than the age."""
    slowest = topic.slowest
    if age_s <= 0 or slowest is None:
        return False
    for ledger in topic.log.ledgers:
        # The size of a ledger that was left open is unknown.
        last_entry_id = ledger.entries - 1 if ledger.is_closed else _ENTRY_ID_MAX
        if ledger.is_closed and ledger.closed_ms + age_s * 1000 >= now_ms:
            continue
        if Position(ledger.ledger_id, last_entry_id) > slowest:
            return True
    return False


def _has_expired(topic: StoredTopic, policies: Policies, now_ms: int) -> bool:
    return _is_expired(topic, policies.message_ttl_s, now_ms)


def _has_unused_subscriptions(topic: StoredTopic, policies: Policies, _now_ms: int) -> bool:
    if policies.subscription_expiration_s <= 0:
        return False
    unused_s = [topic.unused_s.get(name, topic.rested_s) for name in topic.subscriptions]
    return max(unused_s, default=0.0) > policies.subscription_expiration_s


def _is_over_quota(topic: StoredTopic, policies: Policies, now_ms: int) -> bool:
    """Whether a quota that evicts messages is exceeded.

    Other quotas only refuse producers, and no producer is connected.
    """
    evicts, slowest = BacklogPolicy.EVICT, topic.slowest
    if slowest is None:
        return False
    size, age = policies.size_quota, policies.age_quota
    evicts_by_size = size.bytes > 0 and size.policy is evicts
    if evicts_by_size and bytes_behind(topic.log.ledgers, slowest) >= size.bytes:
        return True
    return age.policy is evicts and _is_expired(topic, age.seconds, now_ms)


def _is_unused(topic: StoredTopic, policies: Policies, _now_ms: int) -> bool:
    retention_s, inactive = policies.retention.time_s, policies.inactive_topic
    if not inactive.is_on or topic.rested_s < inactive.max_s:
        return False
    if retention_s < 0 or topic.rested_s < retention_s:
        return False
    subscriptions = topic.subscriptions
    if not subscriptions:
        is_empty = not any(each.entries for each in topic.ledgers)
        return is_empty or not _waits_for_subscription(topic, policies)
    if inactive.mode is DeleteMode.NO_SUBSCRIPTIONS:
        return False
    last = topic.log.last_listed
    return topic.was_left_open or all(each.mark_delete >= last for each in subscriptions.values())


def _is_to_be_compacted(topic: StoredTopic, policies: Policies, _now_ms: int) -> bool:
    threshold = policies.compaction_threshold_bytes
    if threshold <= 0:
        return False
    cursor = topic.cursors.get(compaction.CURSOR)
    mark = cursor.mark_delete if cursor is not None else Position(-1, -1)
    return bytes_behind(topic.log.ledgers, mark) >= threshold


def _is_to_be_offloaded(
    topic: StoredTopic, policies: Policies, now_ms: int, objects: ObjectUpkeep
) -> bool:
    # A load closes a ledger that was left open; its age counts from then.
    rules = offload_rules(
        policies, small_bytes=objects.small_bytes, small_wait_s=objects.small_wait_s
    )
    ledgers = topic.log.ledgers
    return bool(to_forget(ledgers, rules, now_ms=now_ms) or to_copy(ledgers, rules, now_ms=now_ms))


def _is_to_be_copied(topic: StoredTopic, policies: Policies, _now_ms: int) -> bool:
    """Whether another cluster lacks entries, or has a cursor although it is no longer copied to."""
    last = topic.log.last_listed
    for name, cursor in topic.cursors.items():
        if not name.startswith(naming.REPLICATOR_PREFIX):
            continue
        if name.removeprefix(naming.REPLICATOR_PREFIX) not in policies.replicated_to:
            return True
        if topic.was_left_open or cursor.mark_delete < last:
            return True
    return False


def _waits_for_subscription(topic: StoredTopic, policies: Policies) -> bool:
    """Whether messages are kept for a first subscription; see `features/retention/trimming.py`."""
    is_kept = policies.unsubscribed_retention and not policies.retention.is_set
    return is_kept and not topic.subscriptions


def _can_be_trimmed(topic: StoredTopic, policies: Policies, now_ms: int) -> bool:
    if _waits_for_subscription(topic, policies):
        return False
    # The cursor of deduplication holds nothing: a load moves it to the end.
    holding = [each for name, each in topic.cursors.items() if name != deduplication.CURSOR]
    if topic.was_left_open:
        holding = [each for each in holding if not each.has_ledger]
    consumed = min((each.mark_delete for each in holding), default=None)
    retention = Retention(policies.retention.time_s, policies.retention.size_bytes)
    return trim_point(topic.ledgers, consumed, retention, now_ms=now_ms) is not None


_Check = Callable[[StoredTopic, Policies, int], bool]

_CHECKS: Mapping[str, _Check] = {
    "expiry": _has_expired,
    "quotas": _is_over_quota,
    "inactive-subscriptions": _has_unused_subscriptions,
    "inactive-topics": _is_unused,
    "compaction": _is_to_be_compacted,
    "replication": _is_to_be_copied,
    "trimming": _can_be_trimmed,
}
"""Checks by the names of the ticker's jobs."""


def what_is_due(
    topic: StoredTopic,
    policies: Policies,
    now_ms: int,
    jobs: Collection[str] = (*_CHECKS, "offloading"),
    *,
    objects: ObjectUpkeep,
) -> str | None:
    """Return the upkeep that a load of the topic would do; None if none is due.

    Args:
        now_ms: wall clock, as in the times of closing.
        jobs: jobs of the ticker that are not turned off, and could begin something.
        objects: when ledgers move to an object store, and are read back there.
    """
    if is_marked(topic.log.properties):
        return "deletion"
    for job, is_due in _CHECKS.items():
        if job in jobs and is_due(topic, policies, now_ms):
            return job
    if "offloading" in jobs and _is_to_be_offloaded(topic, policies, now_ms, objects):
        return "offloading"
    mark = mark_in(topic.log.properties)
    if "scrubbing" in jobs and is_scrub_due(
        topic.log.ledgers, mark, period_s=objects.scrub_period_s, now_ms=now_ms
    ):
        return "scrubbing"
    return None
