"""The shell around a broker's own load: samples it, reports it, and splits bundles that are too
large.

A split involves no other broker: the owner takes the leases of both halves, changes the layout and
continues to serve, so that no client notices. A half can then move later.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
from pydantic import JsonValue

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleError, BundleId, hash_of, middle_of_range
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.load_report import BundleCosts, LoadReport, is_worth_sending
from magnetar.broker.cluster.balance.sampler import (
    Capacity,
    LoadSampler,
    ProcessUsage,
    Sampling,
    TopicCounts,
    split_point,
)
from magnetar.broker.topic import Topic
from magnetar.ledger.errors import MetadataError
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

_TOPICS_AT_ONCE = 1_000
"""Topics that are counted before other tasks get a turn on the loop."""
_SPLITS_PER_SAMPLE = 4


class BundleHolder(Protocol):
    """The part of this broker's ownership that balance needs; `ClusterOwnership` implements it."""

    def owned(self) -> Sequence[BundleId]:
        """Return the bundles that this broker owns now."""
        ...

    async def update_load(self, load: Mapping[str, JsonValue]) -> None:
        """Put a load report into the broker's registration.

        Raises:
            BrokerMetadataError
        """
        ...

    async def split_lease(self, bundle: BundleId, at: int, /) -> object:
        """Split a bundle of this broker in two; it owns both halves.

        Raises:
            BundleError: it has been split already.
            RequestError
        """
        ...


class LoadReporter:
    """Samples, reports and splits, once per sample interval."""

    def __init__(
        self,
        holder: BundleHolder,
        layouts: Layouts,
        topics: Callable[[], Sequence[Topic]],
        *,
        settings: BrokerSettings,
        usage: Callable[[], ProcessUsage],
        connections: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._holder = holder
        self._layouts = layouts
        self._topics = topics
        self._usage = usage
        self._connections = connections
        self._clock = clock
        self._costs = BundleCosts(settings)
        self._sampler = _sampler(settings, self._costs)
        self._splits_itself = settings.bundle_auto_split
        self._bundles_max = settings.bundles_per_namespace_max
        self._interval_s = settings.load_sample_interval_ms / 1000
        self._age_max_s = settings.load_report_interval_max_ms / 1000
        self._sent: LoadReport | None = None
        self._sent_at_s = 0.0
        self._running: asyncio.Task[None] | None = None
        self.latest = LoadReport()
        """The last sample, sent or not."""
        self.reports_sent = 0
        self.splits = 0
        """Bundles of this broker that were split because they were over a limit."""

    @property
    def cost(self) -> float:
        """Cost of the bundles of the last sample."""
        return sum(self._costs.of_report(self.latest).values())

    def start(self) -> None:
        """Begin to sample."""
        assert self._running is None, "started twice"
        self._running = asyncio.create_task(self._run(), name="load-reporter")

    async def close(self) -> None:
        """Stop sampling."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def _run(self) -> None:
        while True:
            try:
                report = await self._sample(is_base=True)
                await self._send(report)
                if self._splits_itself:
                    await self._split_large(report)
            except (RequestError, MetadataError) as error:
                _log.info("load_not_reported", error=str(error))  # retried with the next sample
            except Exception:  # noqa: BLE001 - a defect must not end all further samples
                _log.exception("load_not_reported")
            await asyncio.sleep(self._interval_s)

    async def look(self) -> LoadReport:
        """Return the broker's load since the last sample; without samples, since the last call.

        Asking for the load does not reset the sample that balancing uses.
        """
        return await self._sample(is_base=self._running is None)

    async def _sample(self, *, is_base: bool) -> LoadReport:
        sampling = self._sampler.begin(
            self._holder.owned(), now_s=self._clock.monotonic_s(), is_base=is_base
        )
        await _count_in(sampling, self._topics())
        report = sampling.finish(
            self._usage(), wall_ms=self._clock.wall_ms(), connections=self._connections()
        )
        if is_base:
            self.latest = report
        return report

    async def split(self, bundle: BundleId, algorithm: str) -> None:
        """Split a bundle of this broker, by one of `ALGORITHMS`.

        Raises:
            BundleError: it cannot be divided that way.
            RequestError
        """
        await self._holder.split_lease(bundle, self.split_point(bundle, algorithm))

    def split_point(self, bundle: BundleId, algorithm: str) -> int:
        """Return the hash at which an algorithm of `ALGORITHMS` would split.

        Raises:
            BundleError: it cannot be divided that way.
        """
        if algorithm == "range_equally_divide":
            return middle_of_range(bundle.bundle)
        if algorithm == "flow_or_qps_equally_divide":
            weights = self._sampler.weights_of(bundle)
        elif algorithm == "topic_count_equally_divide":
            weights = [(each, 1.0) for each in self._hashes_in(bundle)]
        else:
            raise BundleError(
                f"unknown split algorithm {algorithm!r}: give one of {', '.join(ALGORITHMS)}"
            )
        at = split_point(bundle.bundle, weights)
        if at is None:
            raise BundleError(f"{bundle} cannot be divided: it has less than two topics here")
        return at

    async def _send(self, report: LoadReport) -> None:
        now_s = self._clock.monotonic_s()
        if not is_worth_sending(
            self._sent,
            report,
            self._costs,
            age_s=now_s - self._sent_at_s,
            age_max_s=self._age_max_s,
        ):
            return
        await self._holder.update_load(report.model_dump(mode="json", exclude_defaults=True))
        self._sent, self._sent_at_s = report, now_s
        self.reports_sent += 1

    async def _split_large(self, report: LoadReport) -> None:
        splits = 0
        for name, load in report.bundles.items():
            reason = self._costs.exceeded_by(load)
            if not reason or load.topics < 2 or splits >= _SPLITS_PER_SAMPLE:
                continue
            try:
                splits += await self._split_one(BundleId.parse(name), reason)
            except (RequestError, BundleError, MetadataError) as error:
                _log.info("bundle_not_split", bundle=name, error=str(error))

    async def _split_one(self, bundle: BundleId, reason: str) -> bool:
        layout = await self._layouts.layout_of(bundle.namespace)
        if bundle.bundle not in layout or len(layout) >= self._bundles_max:
            return False
        at = self._large_split_point(bundle, reason)
        if at is None:
            return False
        _log.info("bundle_too_large", bundle=str(bundle), limit=reason)
        await self._holder.split_lease(bundle, at)
        self.splits += 1
        return True

    def _large_split_point(self, bundle: BundleId, reason: str) -> int | None:
        by = "topic_count_equally_divide" if reason == "topics" else "flow_or_qps_equally_divide"
        try:
            return self.split_point(bundle, by)
        except BundleError:
            return None

    def _hashes_in(self, bundle: BundleId) -> list[int]:
        return [hash_of(each.name) for each in self._topics() if bundle.holds(each.name)]


ALGORITHMS = ("range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide")
"""Split algorithms by Pulsar's names; the last one divides by the cost of the topics."""


class LoneLoad:
    """Samples the load of a single broker, which has no bundles and sends no reports."""

    def __init__(
        self, topics: Callable[[], Sequence[Topic]], *, settings: BrokerSettings, clock: Clock
    ) -> None:
        """`topics` returns the loaded ones."""
        self._topics = topics
        self._clock = clock
        self._sampler = _sampler(settings, BundleCosts(settings))

    async def look(self) -> LoadReport:
        """Return the load since the last call."""
        sampling = self._sampler.begin([], now_s=self._clock.monotonic_s(), is_base=True)
        await _count_in(sampling, self._topics())
        return sampling.finish(ProcessUsage(0.0, 0), wall_ms=self._clock.wall_ms(), connections=0)


def _sampler(settings: BrokerSettings, costs: BundleCosts) -> LoadSampler:
    return LoadSampler(
        Capacity(
            cpu_cores=settings.load_cpu_cores,
            bandwidth_bytes_per_s=settings.load_bandwidth_bytes_per_s,
            topics_max=settings.topics_max,
        ),
        costs,
    )


async def _count_in(sampling: Sampling, topics: Sequence[Topic]) -> None:
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        sampling.add(map(_counts_of, topics[start : start + _TOPICS_AT_ONCE]))
        await asyncio.sleep(0)


def _counts_of(topic: Topic) -> TopicCounts:
    messages_out, bytes_out = topic.subscriptions.sent()
    return TopicCounts(
        name=topic.name,
        producers=len(topic.producers),
        consumers=sum(len(each.consumers) for each in topic.subscriptions.values()),
        messages_in=topic.line.messages_in,
        bytes_in=topic.line.bytes_in,
        messages_out=messages_out,
        bytes_out=bytes_out,
    )
