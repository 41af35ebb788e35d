"""Turns counters of topics into a load report: rates summed by bundle, and rates of segments. Pure.

A topic counts messages and bytes since it was loaded. The rate is the growth since the sample
before, over the time between. A topic that was loaded in between counts from zero. One that was
loaded again has smaller counters, and counts from zero, too. Topics without traffic need no memory
here.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.broker.cluster.balance.bundles import (
    Bundle,
    BundleError,
    BundleId,
    hash_of,
    middle_of_weights,
)
from magnetar.broker.cluster.balance.load_report import (
    BundleCosts,
    BundleLoad,
    LoadReport,
    SegmentLoad,
    heaviest,
    heaviest_segments,
)
from magnetar.sdk.wire import TopicName

_NOTHING = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Resources that the process has used."""

    cpu_s: float
    """Processor time of all threads since the start, in seconds."""
    memory_bytes: int
    """Resident memory now."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Resources that the process may use."""

    cpu_cores: float
    bandwidth_bytes_per_s: float
    topics_max: int


class TopicCounts(NamedTuple):
    """One loaded topic: its clients, and its counters since it was loaded."""

    name: TopicName
    producers: int
    consumers: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


@dataclass(slots=True)
class _Sum:
    """A bundle while it is summed up."""

    topics: int = 0
    producers: int = 0
    consumers: int = 0
    grown: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    weights: list[tuple[int, float]] = field(default_factory=list)


class LoadSampler:
    """Takes the successive samples of one broker."""

    def __init__(self, capacity: Capacity, costs: BundleCosts) -> None:
        self._capacity = capacity
        self._costs = costs
        self._counters: dict[TopicName, tuple[int, int, int, int]] = {}
        self._usage = ProcessUsage(0.0, 0)
        self._sampled_at_s: float | None = None
        self._weights: dict[BundleId, list[tuple[int, float]]] = {}

    def begin(self, owned: Sequence[BundleId], *, now_s: float, is_base: bool) -> "Sampling":
        """Start a sample; `owned`: the bundles of this broker, including empty ones.

        `is_base`: whether the next sample gives the rates since this one.
        """
        return Sampling(self, owned, now_s=now_s, is_base=is_base)

    def weights_of(self, bundle: BundleId) -> Sequence[tuple[int, float]]:
        """Return hash and cost of each topic of a bundle, as of the last sample of any kind; used
        to split by load."""
        return self._weights.get(bundle, [])


class Sampling:
    """One sample being taken. The topics may be given in pieces, with other work in between."""

    def __init__(
        self, sampler: LoadSampler, owned: Sequence[BundleId], *, now_s: float, is_base: bool
    ) -> None:
        self._sampler = sampler
        self._is_base = is_base
        self._now_s = now_s
        # The values of now, since another sample may be finished before this one.
        self._counters_before = sampler._counters
        self._cpu_before_s = sampler._usage.cpu_s
        before_s = sampler._sampled_at_s
        elapsed_s = 0.0 if before_s is None else now_s - before_s
        self._per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
        self._sums = {bundle: _Sum() for bundle in owned}
        self._ranges = _ranges_of(owned)
        self._counters: dict[TopicName, tuple[int, int, int, int]] = {}
        self._topics = 0
        self._grown = [0, 0, 0, 0]
        self._segments: dict[str, SegmentLoad] = {}

    def add(self, topics: Iterable[TopicCounts]) -> None:
        """Count topics in. A topic whose bundle this broker does not own counts in the totals
        only."""
        before = self._counters_before
        costs, per_s = self._sampler._costs, self._per_s
        for counts in topics:
            self._topics += 1
            counters = (
                counts.messages_in,
                counts.bytes_in,
                counts.messages_out,
                counts.bytes_out,
            )
            grown = _NOTHING
            if counters != _NOTHING:
                self._counters[counts.name] = counters
                grown = _growth(before.get(counts.name, _NOTHING), counters)
                for kind in range(4):
                    self._grown[kind] += grown[kind]
            if counts.name.is_segment:
                self._segments[str(counts.name)] = _segment_load(grown, per_s)
            hashed = hash_of(counts.name)
            bundle = self._bundle_of(counts.name.namespace_name, hashed)
            if bundle is None:
                continue
            summed = self._sums[bundle]
            summed.topics += 1
            summed.producers += counts.producers
            summed.consumers += counts.consumers
            for kind in range(4):
                summed.grown[kind] += grown[kind]
            weight = costs.cost_of_topic(
                sessions=counts.producers + counts.consumers,
                msg_rate=(grown[0] + grown[2]) * per_s,
                bytes_rate=(grown[1] + grown[3]) * per_s,
            )
            summed.weights.append((hashed, weight))

    def finish(self, usage: ProcessUsage, *, wall_ms: int, connections: int) -> LoadReport:
        """Return the report."""
        sampler, capacity = self._sampler, self._sampler._capacity
        per_s = self._per_s
        cpu_s = max(0.0, usage.cpu_s - self._cpu_before_s)
        if self._is_base:
            sampler._sampled_at_s = self._now_s
            sampler._counters = self._counters
            sampler._usage = usage
        sampler._weights = {bundle: summed.weights for bundle, summed in self._sums.items()}
        bundles = {str(bundle): _load(summed, per_s) for bundle, summed in self._sums.items()}
        bandwidth = capacity.bandwidth_bytes_per_s
        segments = heaviest_segments(self._segments, sampler._costs)
        return LoadReport(
            sent_ms=wall_ms,
            cpu_percent=round(100 * cpu_s * per_s / capacity.cpu_cores, 1),
            network_in_percent=round(100 * self._grown[1] * per_s / bandwidth, 1),
            network_out_percent=round(100 * self._grown[3] * per_s / bandwidth, 1),
            memory_bytes=usage.memory_bytes,
            topics=self._topics,
            connections=connections,
            topics_max=capacity.topics_max,
            bundles=heaviest(bundles, sampler._costs),
            segments=segments,
            segments_left_off=len(self._segments) - len(segments),
        )

    def _bundle_of(self, namespace: str, hashed: int) -> BundleId | None:
        ranges = self._ranges.get(namespace)
        if ranges is None:
            return None
        lowers, bundles = ranges
        index = bisect_right(lowers, hashed) - 1
        if index < 0 or hashed not in bundles[index].bundle:
            return None
        return bundles[index]


def _ranges_of(owned: Sequence[BundleId]) -> Mapping[str, tuple[list[int], list[BundleId]]]:
    """Return the owned bundles of each namespace in order, and their lower boundaries.

    While a bundle is being split, both it and its halves are owned: each topic counts for one of
    them.
    """
    by_namespace: dict[str, list[BundleId]] = {}
    for bundle in sorted(owned):
        by_namespace.setdefault(bundle.namespace, []).append(bundle)
    return {
        namespace: ([each.bundle.lower for each in bundles], bundles)
        for namespace, bundles in by_namespace.items()
    }


def _growth(
    before: tuple[int, int, int, int], now: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    if any(is_ < was for is_, was in zip(now, before, strict=True)):
        return now
    return (now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3])


def _load(summed: _Sum, per_s: float) -> BundleLoad:
    return BundleLoad(
        topics=summed.topics,
        producers=summed.producers,
        consumers=summed.consumers,
        msg_rate_in=round(summed.grown[0] * per_s, 1),
        bytes_rate_in=round(summed.grown[1] * per_s, 1),
        msg_rate_out=round(summed.grown[2] * per_s, 1),
        bytes_rate_out=round(summed.grown[3] * per_s, 1),
    )


def _segment_load(grown: tuple[int, int, int, int], per_s: float) -> SegmentLoad:
    messages_in, bytes_in, messages_out, bytes_out = (round(each * per_s, 1) for each in grown)
    return SegmentLoad(
        msg_rate_in=messages_in,
        msg_rate_out=messages_out,
        bytes_rate_in=bytes_in,
        bytes_rate_out=bytes_out,
    )


def split_point(bundle: Bundle, weights: Sequence[tuple[int, float]]) -> int | None:
    """Return where to split a bundle into halves of equal cost; None if it cannot be divided."""
    try:
        return middle_of_weights(bundle, weights)
    except BundleError:
        return None
