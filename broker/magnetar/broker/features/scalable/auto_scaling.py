"""Splits and merges scalable topics by load, and prunes sealed segments that are no longer needed:
the shell around `scaling.py`.

The brokers report the rates of the segments that they have loaded (`cluster/balance`), so a check
sends no requests. Each broker checks the topics whose names it owns and of which any broker has
loaded a segment. An unused topic stays as it is. A segment that no broker reports has no traffic,
unless a broker has sent no report or has left segments off. Its traffic is unknown then.

For a moment two brokers may both consider themselves the owner. A change begins only on the layout
on which it was decided, so one of two decisions is refused. Any broker finishes a change that has
begun; the check here does so, too, if the change stalls while no client follows the layout.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.scaling import RATES
from magnetar.broker.cluster.balance.load_report import LoadReport
from magnetar.broker.cluster.ownership.protocol import Ownership
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.record import ScalableTopicRecord
from magnetar.broker.features.scalable.scalable_topics import ScalableTopics
from magnetar.broker.features.scalable.scaling import (
    Decision,
    Merge,
    Rates,
    Rebucket,
    ScalePolicy,
    Split,
    TopicScaling,
    Wait,
)
from magnetar.broker.policies.model import AutoScale
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName, TopicNameError

_log = structlog.get_logger()

_LOAD = "load"
"""Name under which this part notes changes that it has seen."""
_TOPICS_AT_ONCE = 8
"""Topics that are checked, split or merged concurrently."""
_CHANGE_S_MAX = 60.0
"""Longest time for one topic, in seconds, before the others get their turn. A change that has begun
continues."""
_GAP_INTERVALS = 3
"""Check intervals that may be late or missing before the load history of a cold segment is
discarded."""

Reports = Callable[[], Awaitable[Sequence[LoadReport | None]]]
"""Returns the load report of each broker; None for a broker without a usable one."""


@dataclass(slots=True)
class SegmentLoads:
    """Rates of all segments that any broker has loaded."""

    by_topic: dict[TopicName, dict[int, Rates]] = field(default_factory=dict)
    """Rates by the `persistent://` name of the topic, and the id of the segment."""
    is_complete: bool = True
    """Whether a segment that is missing here has no traffic."""
    unreadable: int = 0
    """Number of names in reports that are not names of segments."""

    @classmethod
    def of(cls, reports: Iterable[LoadReport | None]) -> "SegmentLoads":
        """Merge reports. A segment that has just moved may be in two reports; the higher rate
        counts."""
        found = cls()
        for report in reports:
            if report is None:
                found.is_complete = False
                continue
            found.is_complete &= not report.segments_left_off
            for name, load in report.segments.items():
                found._add(name, Rates(*(getattr(load, each) for each in RATES)))
        return found

    def _add(self, name: str, rates: Rates) -> None:
        try:
            segment = TopicName.parse(name)
            is_segment = segment.is_segment
        except TopicNameError:
            is_segment = False
        if not is_segment:
            self.unreadable += 1
            self.is_complete = False
            return
        rates_of = self.by_topic.setdefault(segment.partitioned, {})
        before = rates_of.get(segment.segment_id, rates)
        higher = (max(getattr(before, each), getattr(rates, each)) for each in RATES)
        rates_of[segment.segment_id] = Rates(*higher)

    def of_topic(self, topic: TopicName, record: ScalableTopicRecord) -> dict[int, Rates]:
        """Return the known rates of the active segments of a topic."""
        known = self.by_topic.get(topic, {})
        if not self.is_complete:
            return known
        return {each.id: known.get(each.id, Rates()) for each in record.active}


class AutoScaling:
    """Automatic scaling by one broker. `start`, `stop`; one check at a time."""

    def __init__(
        self,
        topics: ScalableTopics,
        ownership: Ownership,
        *,
        reports: Reports,
        override: Callable[[str], Awaitable[AutoScale | None]],
        consumers: Callable[[], Mapping[TopicName, int]],
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        """`override` returns the policy of a namespace; raises RequestError. `consumers` returns,
        for each topic, the largest number of stream consumers that are registered here on one
        subscription."""
        self._topics = topics
        self._ownership = ownership
        self._reports = reports
        self._override = override
        self._consumers = consumers
        self._clock = clock
        self._policy = ScalePolicy.of_broker(settings)
        self._interval_s = settings.scalable_auto_scale_interval_s
        self._patience_ms = settings.scalable_change_patience_ms
        self._scaling: dict[TopicName, TopicScaling] = {}
        self._full: set[TopicName] = set()
        self._known: set[TopicName] = set()
        """Topics of the last check."""
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        """Topics that could not be checked or changed; each was logged."""

    @property
    def full(self) -> int:
        """Number of topics that should be split by their load, but have the maximum of segments."""
        return len(self._full)

    def start(self) -> None:
        """Check once per interval from now on."""
        assert self._task is None, "it looks already"
        self._task = asyncio.get_running_loop().create_task(self._run(), name="auto-scaling")

    async def stop(self) -> None:
        """Begin no further changes. A change that has begun continues, here or at another
        broker."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - a bug with one look is not the end of all
                self.failures += 1
                _log.exception("auto_scaling_broke")

    async def look(self) -> None:
        """Check every topic of this broker once, and make the changes that are due."""
        loads = SegmentLoads.of(await self._reports())
        if loads.unreadable:
            _log.warning("segment_loads_unreadable", count=loads.unreadable)
        for gone in self._known - loads.by_topic.keys():
            self._forget(gone)
        self._known = set(loads.by_topic)
        consumers = self._consumers()
        waiting = iter(sorted(loads.by_topic, key=str))
        async with asyncio.TaskGroup() as workers:
            for _ in range(_TOPICS_AT_ONCE):
                workers.create_task(self._work(waiting, loads, consumers))

    async def _work(
        self,
        waiting: Iterator[TopicName],
        loads: SegmentLoads,
        consumers: Mapping[TopicName, int],
    ) -> None:
        for topic in waiting:
            try:
                async with asyncio.timeout(_CHANGE_S_MAX):
                    await self._look_at(topic, loads, consumers.get(topic, 0))
            except TimeoutError:
                self.failures += 1
                _log.warning("topic_not_scaled_in_time", topic=str(topic))
            except RequestError as error:
                self.failures += 1
                _log.warning("topic_not_scaled", topic=str(topic), error=str(error))
            except Exception:  # noqa: BLE001 - a defect with one topic must not hold up the others
                self.failures += 1
                _log.exception("topic_not_scaled", topic=str(topic))

    async def _look_at(self, topic: TopicName, loads: SegmentLoads, consumers: int) -> None:
        if not (await self._ownership.owner_of(topic)).is_self:
            self._forget(topic)
            return
        record = await self._topics.find(topic)
        if record is None or record.is_deleted:
            self._forget(topic)
            return
        wall_ms = self._clock.wall_ms()
        begun_ms = record.change.begun_ms if record.change is not None else None
        self._topics.counts.note(_LOAD, topic, begun_ms)
        if record.change is not None and wall_ms - record.change.begun_ms >= self._patience_ms:
            await self._topics.finish(topic)
            self._topics.counts.note(_LOAD, topic, None)
            return
        if record.pruned or changes.prunable(record):
            await self._prune(topic, record)
            record = await self._topics.find(topic)
            if record is None or record.is_deleted:
                return
        policy = self._policy.over(await self._override(topic.namespace_name))
        decision = self._scaling.setdefault(topic, TopicScaling()).decide(
            record,
            loads.of_topic(topic, record),
            policy.over(record.auto_scale),
            consumers=consumers,
            wall_ms=wall_ms,
            now_s=self._clock.monotonic_s(),
            gap_s_max=_GAP_INTERVALS * self._interval_s,
        )
        await self._carry_out(topic, record, decision)

    async def _prune(self, topic: TopicName, record: ScalableTopicRecord) -> None:
        try:
            await self._topics.prune(topic, record)
        except RequestError as error:
            self.failures += 1  # A later check prunes the rest; load goes first.
            _log.warning("segments_not_pruned", topic=str(topic), error=str(error))

    async def _carry_out(
        self, topic: TopicName, record: ScalableTopicRecord, decision: Decision
    ) -> None:
        self._full.discard(topic)
        match decision:
            case Split():
                _log.info(
                    "segment_too_hot",
                    topic=str(topic),
                    segment=decision.segment_id,
                    share=round(decision.share, 2),
                )
                await self._topics.split(topic, decision.segment_id, epoch=record.epoch)
            case Merge():
                _log.info(
                    "segments_cold", topic=str(topic), segments=[decision.one, decision.other]
                )
                await self._topics.merge(topic, decision.one, decision.other, epoch=record.epoch)
            case Rebucket():
                _log.info(
                    "segment_gets_entry_buckets",
                    topic=str(topic),
                    segment=decision.segment_id,
                    buckets=decision.buckets,
                )
                await self._topics.rebucket(
                    topic, decision.segment_id, decision.buckets, epoch=record.epoch
                )
            case Wait():
                if decision.is_full:
                    self._full.add(topic)
            case _:
                assert_never(decision)

    def _forget(self, topic: TopicName) -> None:
        self._scaling.pop(topic, None)
        self._full.discard(topic)
        self._topics.counts.note(_LOAD, topic, None)
