"""Backlog quotas: by size and by age of what the slowest durable subscription has not acknowledged.

Above a quota, its policy says what happens. *Hold* and *exception*: producers are disconnected and
refused, each with an error of its own, until the backlog is below again. *Eviction*: the oldest
messages leave the backlogs, down to nine tenths of a quota by size, or down to the age.

A new producer asks at once; for those that are connected the ticker asks.

Source: protocol sheet section 8 (backlog quota); managed ledger, section 6.
"""

from collections.abc import Coroutine
from dataclasses import dataclass

import structlog

from magnetar.broker.base.errors import (
    BacklogQuotaExceptionError,
    BacklogQuotaHoldError,
    BrokerPersistenceError,
    RequestError,
)
from magnetar.broker.features.retention.advancing import advance
from magnetar.broker.features.retention.backlog import age_s, slowest, topic_backlog_bytes
from magnetar.broker.features.retention.expiry import Expiry
from magnetar.broker.policies.model import BacklogPolicy
from magnetar.broker.topic import Topic
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_retention import position_with_bytes_behind
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

_EVICTED_DOWN_TO = 0.9
"""Of a quota by size: so that not every publish is followed by an eviction."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A backlog that is above a quota."""

    policy: BacklogPolicy
    is_age: bool
    text: str
    """What was found and what is allowed."""

    def refusal(self, topic: str) -> RequestError | None:
        """What a producer is told; None: it is let in."""
        advice = f"{topic}: {self.text}; producers are refused until consumers catch up"
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

    async def check_producer(self, topic: Topic) -> None:
        """Refuse a new producer where the policy wants that.

        Raises:
            BacklogQuotaHoldError, BacklogQuotaExceptionError: the backlog is above a quota.
            BrokerPersistenceError: the oldest message cannot be read now.
        """
        policies = topic.policies
        if policies.backlog_quota_bytes <= 0 and policies.backlog_quota_s <= 0:
            return
        try:
            excesses = await self.excesses(topic)
        except LedgerError as error:
            raise BrokerPersistenceError(
                f"{topic.name}: whether its backlog is above the quota cannot be told: {error}"
            ) from error
        for excess in excesses:
            refusal = excess.refusal(str(topic.name))
            if refusal is not None:
                raise refusal

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """For the ticker: the work, if the topic has a quota and a backlog."""
        policies = topic.policies
        if policies.backlog_quota_bytes <= 0 and policies.backlog_quota_s <= 0:
            return None
        return self.enforce(topic) if slowest(topic) is not None else None

    async def enforce(self, topic: Topic) -> None:
        """Do what the policies say about each excess.

        Raises:
            LedgerError: the oldest message cannot be read now.
        """
        for excess in await self.excesses(topic):
            if topic.is_closed or not topic.tenure.holds():
                return
            if excess.policy is BacklogPolicy.EVICT:
                await self._evict(topic, excess)
            elif topic.producers:
                _log.warning(
                    "producers_blocked_by_quota",
                    topic=str(topic.name),
                    producers=len(topic.producers),
                    reason=excess.text,
                )
                for producer in list(topic.producers.values()):
                    producer.close_by_broker()

    async def excesses(self, topic: Topic) -> list[Excess]:
        """The quotas that the topic is above, size before age.

        Raises:
            LedgerError: the oldest message cannot be read now.
        """
        policies = topic.policies
        found: list[Excess] = []
        limit = policies.backlog_quota_bytes
        if limit > 0 and (size := topic_backlog_bytes(topic)) >= limit:
            text = f"its backlog has {size} bytes, and the quota is {limit}"
            found.append(Excess(policies.backlog_quota_bytes_policy, False, text))
        limit_s = policies.backlog_quota_s
        if limit_s > 0 and (old_s := await self._age_s(topic)) > limit_s:
            text = f"its oldest unacknowledged message is {old_s:.0f} s old; the quota is {limit_s}"
            found.append(Excess(policies.backlog_quota_s_policy, True, text))
        return found

    async def _age_s(self, topic: Topic) -> float:
        furthest_back = slowest(topic)
        if furthest_back is None:
            return 0.0
        return await age_s(topic, furthest_back, self._clock.wall_ms()) or 0.0

    async def _evict(self, topic: Topic, excess: Excess) -> None:
        durable = [each for each in topic.subscriptions.values() if each.is_durable]
        if excess.is_age:
            quota_s = topic.policies.backlog_quota_s
            dropped = await self._expiry.expire(topic, durable, age_s=quota_s)
        else:
            target = int(topic.policies.backlog_quota_bytes * _EVICTED_DOWN_TO)
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
