"""Backlogs of topics: their size, their age, and the enforcement of quotas.

Amounts are estimates from the ledger list, without a read. Entries are counted. Bytes are whole
ledgers, plus a share of each ledger that a position divides. No amount is negative: a position in a
deleted ledger counts as the border where that ledger was.

A quota limits the size or the age of what the slowest durable subscription has not acknowledged. A
quota that blocks producers also counts backlogs of features, such as copies to another cluster;
these are never evicted. As in Pulsar, a backlog exceeds a size quota when it reaches the limit, and
an age quota when its oldest message is older than the limit. Then the quota's policy applies.
*Hold* and *exception*: producers are disconnected and refused, each policy with its own error, as
long as the quota is exceeded. *Eviction*: the oldest messages leave the backlogs, down to nine
tenths of a size quota, or down to the age. A new producer is checked at once; for connected ones,
the ticker checks.

Source: protocol sheet section 8 (backlog quota); managed ledger, section 6.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

import structlog

from magnetar.broker.base.entry import publish_time_ms_of
from magnetar.broker.base.errors import (
    BacklogQuotaExceptionError,
    BacklogQuotaHoldError,
    BrokerPersistenceError,
    RequestError,
)
from magnetar.broker.base.naming import is_replicator
from magnetar.broker.features.retention.expiry import (
    Expirable,
    Expiry,
    advance,
    closings,
    is_credible,
)
from magnetar.broker.policies.model import BacklogPolicy
from magnetar.broker.topic import Backlog, OldestEntry, Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_retention import bytes_behind, position_with_bytes_behind
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BacklogAge:
    """Age of the oldest message that a durable subscription of a topic has not acknowledged."""

    subscription: str
    age_s: int


_LOOK_S_MAX = 1.0
"""Longest wait of statistics, in seconds, for a bookie to deliver the oldest message."""


def storage_bytes(topic: Topic) -> int:
    """Return the size of the topic's ledgers, counting one copy of each."""
    return sum(ledger.bytes for ledger in topic.log.ledgers)


def backlog_bytes(topic: Topic, subscription: Backlog) -> int:
    """Return about how many bytes lie behind the subscription's mark-delete position."""
    if not subscription.is_open or subscription.cursor.is_caught_up:
        return 0
    return bytes_behind(topic.log.ledgers, subscription.cursor.mark_delete)


def slowest(topic: Topic) -> Subscription | None:
    """Return the durable subscription that is furthest back; None if none has a backlog."""
    found: Subscription | None = None
    for each in topic.subscriptions.values():
        if not each.is_durable or not each.is_open or each.cursor.is_caught_up:
            continue
        if found is None or each.cursor.mark_delete < found.cursor.mark_delete:
            found = each
    return found


def furthest_back(topic: Topic, *, counts_features: bool) -> Expirable | None:
    """Return the subscription or feature backlog that is furthest back; None if there is no
    backlog."""
    found: Expirable | None = slowest(topic)
    if not counts_features:
        return found
    for each in topic.feature_backlogs().values():
        if not each.is_open or each.cursor.is_caught_up:
            continue
        if found is None or each.cursor.mark_delete < found.cursor.mark_delete:
            found = each
    return found


def topic_backlog_bytes(topic: Topic) -> int:
    """Return the largest backlog of a durable subscription, which a quota counts."""
    found = slowest(topic)
    return backlog_bytes(topic, found) if found is not None else 0


async def oldest_publish_ms(topic: Topic, subscription: Subscription) -> int | None:
    """Return when the oldest unacknowledged entry was published, in ms since the epoch, or None.

    None if there is no such entry, or it has no publish time. One read at most.

    Raises:
        LedgerError: it cannot be read now.
    """
    oldest = await oldest_entry(topic, subscription)
    return oldest.published_ms if oldest is not None else None


async def oldest_entry(topic: Topic, subscription: Backlog) -> OldestEntry | None:
    """Return the oldest unacknowledged entry; None if there is none. One read at most.

    Raises:
        LedgerError: it cannot be read now.
    """
    if not subscription.is_open or subscription.cursor.is_caught_up:
        return None
    position = subscription.cursor.next_unacked(subscription.cursor.mark_delete)
    if position > topic.log.last_confirmed:
        return None
    run = topic.tail.cache.find(position)
    if run is not None:
        return OldestEntry(position, publish_time_ms_of(run.entries[run.index_of(position)]))
    position, found = await topic.log.read_range(position, entries_max=1, bytes_max=1)
    return OldestEntry(position, publish_time_ms_of(found[0])) if found else None


async def age_s(topic: Topic, subscription: Backlog, now_ms: int) -> float | None:
    """Return the age of the oldest unacknowledged entry; None if there is none. One read at most.

    If the publish time is in the future, the time since its ledger was closed counts, and 0 while
    the ledger is open. No entry counts as older than its earliest possible storing time.

    Raises:
        LedgerError: it cannot be read now.
    """
    oldest = await oldest_entry(topic, subscription)
    return _age_s(topic, oldest, now_ms) if oldest is not None else None


async def backlog_age(topic: Topic, now_ms: int, *, reads: bool = True) -> BacklogAge | None:
    """Return the age of the oldest message in the backlogs of durable subscriptions, for
    statistics.

    The message is read once and remembered until it is acknowledged.

    Args:
        reads: whether it may be read from bookies now.

    Returns:
        None if there is no backlog, or the message cannot be read now.
    """
    found = slowest(topic)
    if found is None:
        return None
    position = found.cursor.next_unacked(found.cursor.mark_delete)
    oldest = topic.use.oldest_seen
    if oldest is None or oldest.position != position:
        if not reads and topic.tail.cache.find(position) is None:
            return None
        try:
            async with asyncio.timeout(_LOOK_S_MAX):
                oldest = await oldest_entry(topic, found)
        except (LedgerError, TimeoutError):
            return None
        topic.use.oldest_seen = oldest
        if oldest is None:
            return None
    return BacklogAge(found.name, int(_age_s(topic, oldest, now_ms)))


def _age_s(topic: Topic, oldest: OldestEntry, now_ms: int) -> float:
    if is_credible(oldest.published_ms, now_ms):
        stored_ms = topic.log.stored_since_ms(oldest.position)
        return (now_ms - max(oldest.published_ms, stored_ms)) / 1000
    for ledger, closed_ms in closings(topic.log.ledgers, now_ms):
        if ledger.ledger_id == oldest.position.ledger_id:
            # The producer's clock is ahead. The message was stored when its ledger was closed.
            return (now_ms - closed_ms) / 1000
    return 0.0


_EVICTED_DOWN_TO = 0.9
"""Share of a size quota down to which eviction goes, so that not every publish evicts."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A backlog that exceeds a quota."""

    policy: BacklogPolicy
    is_age: bool
    text: str
    """The measured value and the limit."""
    feature: str = ""
    """Description of the feature whose backlog it is; empty for a subscription's."""

    def refusal(self, topic: str) -> RequestError | None:
        """Return the error that refuses a producer; None if the policy accepts it."""
        who = f"{self.feature} catch up" if self.feature else "consumers catch up"
        advice = f"{topic}: {self.text}; producers are refused until {who}"
        match self.policy:
            case BacklogPolicy.HOLD:
                return BacklogQuotaHoldError(advice)
            case BacklogPolicy.EXCEPTION:
                return BacklogQuotaExceptionError(advice)
        return None


class Quotas:
    """Checks topics against their backlog quotas."""

    def __init__(self, clock: Clock, expiry: Expiry) -> None:
        self._clock = clock
        self._expiry = expiry

    async def check_producer(self, topic: Topic, producer_name: str) -> None:
        """Refuse a new producer if a quota's policy demands it.

        Raises:
            BacklogQuotaHoldError, BacklogQuotaExceptionError: the backlog exceeds a quota.
            BrokerPersistenceError: the oldest message cannot be read now.
        """
        policies = topic.policies
        if policies.size_quota.bytes <= 0 and policies.age_quota.seconds <= 0:
            return
        try:
            excesses = await self.excesses(topic, counts_features=not is_replicator(producer_name))
        except LedgerError as error:
            raise BrokerPersistenceError(
                f"{topic.name}: whether its backlog is above the quota cannot be told: {error}"
            ) from error
        for excess in excesses:
            refusal = excess.refusal(str(topic.name))
            if refusal is not None:
                raise refusal

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """Return the ticker's work; None unless the topic has a quota and a backlog."""
        policies = topic.policies
        if policies.size_quota.bytes <= 0 and policies.age_quota.seconds <= 0:
            return None
        has_backlog = slowest(topic) is not None or topic.feature_backlogs()
        return self.enforce(topic) if has_backlog else None

    async def enforce(self, topic: Topic) -> None:
        """Apply the quota's policy to each excess.

        Raises:
            LedgerError: the oldest message cannot be read now.
        """
        excesses = await self.excesses(topic)
        for excess in excesses:
            if topic.is_closed or not topic.tenure.holds():
                return
            if excess.policy is BacklogPolicy.EVICT:
                await self._evict(topic, excess)
            else:
                _block(topic, excess, spares_copiers=bool(excess.feature))
        if any(each.feature for each in excesses) and topic.producers:
            for excess in await self.excesses(topic, counts_features=False):
                if excess.policy is not BacklogPolicy.EVICT and not topic.is_closed:
                    _block(topic, excess, spares_copiers=False)

    async def excesses(self, topic: Topic, *, counts_features: bool = True) -> list[Excess]:
        """Return the excess of each quota that the topic exceeds, size before age.

        Args:
            counts_features: whether backlogs of features count. Against a quota that evicts, they
                never do. They do not count for copies that come from another cluster, which add
                nothing to the copies that go there. Else two clusters could block each other for
                ever.

        Raises:
            LedgerError: the oldest message cannot be read now.
        """
        policies = topic.policies
        found: list[Excess] = []
        limit, policy = policies.size_quota.bytes, policies.size_quota.policy
        counts = counts_features and policy is not BacklogPolicy.EVICT
        behind = furthest_back(topic, counts_features=counts) if limit > 0 else None
        if behind is not None and (size := backlog_bytes(topic, behind)) >= limit:
            text = f"its backlog{_of(behind)} has {size} bytes, and the quota is {limit}"
            found.append(Excess(policy, False, text, _feature_in(behind)))
        limit_s, policy = policies.age_quota.seconds, policies.age_quota.policy
        counts = counts_features and policy is not BacklogPolicy.EVICT
        behind = furthest_back(topic, counts_features=counts) if limit_s > 0 else None
        now_ms = self._clock.wall_ms()
        if behind is not None and (old_s := await age_s(topic, behind, now_ms) or 0.0) > limit_s:
            text = (
                f"the oldest message in its backlog{_of(behind)} is {old_s:.0f} s old; the quota "
                f"is {limit_s}"
            )
            found.append(Excess(policy, True, text, _feature_in(behind)))
        return found

    async def _evict(self, topic: Topic, excess: Excess) -> None:
        durable = [each for each in topic.subscriptions.values() if each.is_durable]
        if excess.is_age:
            quota_s = topic.policies.age_quota.seconds
            dropped = await self._expiry.expire(topic, durable, age_s=quota_s)
        else:
            target = int(topic.policies.size_quota.bytes * _EVICTED_DOWN_TO)
            through = position_with_bytes_behind(topic.log.ledgers, target)
            if through is None:
                return
            through = min(through, topic.log.last_confirmed)
            dropped = sum(advance(each, through) for each in durable)
        topic.use.evicted_entries += dropped
        if dropped:
            _log.warning(
                "backlog_evicted", topic=str(topic.name), entries=dropped, reason=excess.text
            )


def _block(topic: Topic, excess: Excess, *, spares_copiers: bool) -> None:
    """Disconnect the producers of a topic; `spares_copiers` excepts those of replicators."""
    blocked = [
        each
        for each in topic.producers.values()
        if not (spares_copiers and is_replicator(each.name))
    ]
    if blocked:
        _log.warning(
            "producers_blocked_by_quota",
            topic=str(topic.name),
            producers=len(blocked),
            reason=excess.text,
        )
        for producer in blocked:
            producer.close_by_broker()


def _feature_in(backlog: Expirable) -> str:
    """Return the description of the feature that has the backlog; empty for a subscription's."""
    return "" if isinstance(backlog, Subscription) else backlog.what


def _of(backlog: Expirable) -> str:
    what = _feature_in(backlog)
    return f" of {what}" if what else ""
