"""A broker's load report: the model that is stored in its registration. Pure.

A broker samples its counters every few seconds (`reporter.py`). It sends a report when something
changed by a tenth, when its bundles changed, or after a long time without one. The report has the
usage of its machine (`usage_percent`: whether it may get another bundle at all) and the cost of
each of its bundles. The *cost* is one number: topics, sessions, messages and bytes as shares of the
most that one bundle should have (the limits at which it is split), added up. Costs add up over
bundles, so the cost of a move is known before it is made. Use of the processor is noisy and belongs
to no bundle; it only shows that a broker is in trouble.

Segments of scalable topics are reported one by one, as well: the owner of such a topic uses them to
decide about splits and merges (`features/scalable/auto_scaling.py`).

Source: managed-ledger sheet, section 11.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.scaling import RATES

BUNDLES_REPORTED_MAX = 2_000
"""Most bundles reported one by one, about 100 bytes each: a node holds 1 MB. Further bundles of a
broker are only in its totals, and are not moved."""

CHANGE_SHARE = 0.1
"""Least change of the cost, as a share, that makes a report worth sending: all brokers follow all
registrations."""

USAGE_CHANGE_POINTS = 5.0
"""Least change of the machine's usage, in percentage points, that makes a report worth sending:
half of what shedding looks for."""

SEGMENTS_REPORTED_MAX = 1_000
"""Most segments reported one by one, up to 400 bytes each, beside the bundles in one node."""

SEGMENT_CHANGE_SHARE = 0.25
"""Least change of a segment's rate, as a share, that makes a report worth sending. Pulsar's
value."""

_SEGMENT_FLOOR_SHARE = 0.1
"""Share of the threshold of merges. Smaller changes of a rate affect no decision."""

_COST_OF_A_BUNDLE = 0.001
"""Cost of the mere existence of a bundle: empty bundles are spread, and never worth a move."""


class BundleLoad(BaseModel):
    """Contents and traffic of one bundle, averaged since the sample before."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    topics: int = Field(default=0, ge=0)
    producers: int = Field(default=0, ge=0)
    consumers: int = Field(default=0, ge=0)
    msg_rate_in: float = Field(default=0.0, ge=0)
    msg_rate_out: float = Field(default=0.0, ge=0)
    bytes_rate_in: float = Field(default=0.0, ge=0)
    bytes_rate_out: float = Field(default=0.0, ge=0)

    @property
    def sessions(self) -> int:
        """Number of connected producers and consumers."""
        return self.producers + self.consumers

    @property
    def msg_rate(self) -> float:
        return self.msg_rate_in + self.msg_rate_out

    @property
    def bytes_rate(self) -> float:
        return self.bytes_rate_in + self.bytes_rate_out


class SegmentLoad(BaseModel):
    """Published and delivered messages and bytes per second of one segment of a scalable topic."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    msg_rate_in: float = Field(default=0.0, ge=0)
    msg_rate_out: float = Field(default=0.0, ge=0)
    bytes_rate_in: float = Field(default=0.0, ge=0)
    bytes_rate_out: float = Field(default=0.0, ge=0)


class LoadReport(BaseModel):
    """A broker's report."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sent_ms: int = Field(default=0, description="Wall clock of the broker, for people only.")
    cpu_percent: float = Field(
        default=0.0, ge=0, description="Use of the processors that the broker may use."
    )
    network_in_percent: float = Field(
        default=0.0, ge=0, description="Use of the bandwidth that the broker may use."
    )
    network_out_percent: float = Field(default=0.0, ge=0)
    memory_bytes: int = Field(
        default=0, ge=0, description="Resident memory. Unloading topics does not reduce it."
    )
    topics: int = Field(default=0, ge=0)
    connections: int = Field(default=0, ge=0)
    topics_max: int = Field(default=100_000, ge=1, description="Most topics that the broker loads.")
    bundles: dict[str, BundleLoad] = Field(
        default_factory=dict,
        description="Bundles by tenant/namespace/bundle; only the heaviest, if there are too many.",
    )
    segments: dict[str, SegmentLoad] = Field(
        default_factory=dict,
        description="Loaded segments by name; only the heaviest, if there are too many.",
    )
    segments_left_off: int = Field(
        default=0, ge=0, description="Loaded segments that are not listed."
    )

    @property
    def usage_percent(self) -> float:
        """Usage of the resource that is nearest to its limit."""
        return max(self.cpu_percent, self.network_in_percent, self.network_out_percent)


class BundleCosts:
    """The cost of bundles, as shares of the limits above which a bundle is split."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def cost_of(self, load: BundleLoad) -> float:
        """Return the cost of a bundle: 1 for one that is full in one respect and empty
        otherwise."""
        limits = self._settings
        return (
            _COST_OF_A_BUNDLE
            + load.topics / limits.bundle_topics_max
            + load.sessions / limits.bundle_sessions_max
            + load.msg_rate / limits.bundle_msg_rate_max
            + load.bytes_rate / limits.bundle_bytes_rate_max
        )

    def cost_of_topic(self, *, sessions: int, msg_rate: float, bytes_rate: float) -> float:
        """Return the share of one topic in the cost of its bundle."""
        limits = self._settings
        return (
            1 / limits.bundle_topics_max
            + sessions / limits.bundle_sessions_max
            + msg_rate / limits.bundle_msg_rate_max
            + bytes_rate / limits.bundle_bytes_rate_max
        )

    def cost_of_segment(self, load: SegmentLoad) -> float:
        """Return the cost of a segment's traffic."""
        return self.cost_of_topic(
            sessions=0,
            msg_rate=load.msg_rate_in + load.msg_rate_out,
            bytes_rate=load.bytes_rate_in + load.bytes_rate_out,
        )

    def is_segment_change(self, before: SegmentLoad, now: SegmentLoad) -> bool:
        """Whether the load of a segment has changed so much that it may affect a split or merge."""
        for rate in RATES:
            was, is_ = getattr(before, rate), getattr(now, rate)
            floor = _SEGMENT_FLOOR_SHARE * getattr(self._settings, f"scalable_merge_{rate}")
            change = abs(is_ - was)
            if change >= SEGMENT_CHANGE_SHARE * max(was, is_) and change > floor:
                return True
        return False

    def exceeded_by(self, load: BundleLoad) -> str:
        """Return the name of the limit that a bundle exceeds, or "" if it exceeds none."""
        limits = self._settings
        if load.topics > limits.bundle_topics_max:
            return "topics"
        if load.sessions > limits.bundle_sessions_max:
            return "sessions"
        if load.msg_rate > limits.bundle_msg_rate_max:
            return "msg_rate"
        if load.bytes_rate > limits.bundle_bytes_rate_max:
            return "bytes_rate"
        return ""

    def of_report(self, report: LoadReport | None) -> Mapping[str, float]:
        """Return the cost of each bundle of a report."""
        if report is None:
            return {}
        return {name: self.cost_of(load) for name, load in report.bundles.items()}


def is_worth_sending(
    before: LoadReport | None,
    now: LoadReport,
    costs: BundleCosts,
    *,
    age_s: float,
    age_max_s: float,
) -> bool:
    """Whether a report differs enough from the one that was sent `age_s` ago."""
    if before is None or age_s >= age_max_s:
        return True
    if before.bundles.keys() != now.bundles.keys():
        return True
    if before.segments.keys() != now.segments.keys():
        return True
    segments = ((before.segments[name], each) for name, each in now.segments.items())
    if any(costs.is_segment_change(was, is_) for was, is_ in segments):
        return True
    if abs(before.usage_percent - now.usage_percent) >= USAGE_CHANGE_POINTS:
        return True
    costs_was, costs_is = costs.of_report(before), costs.of_report(now)
    total_was, total_is = sum(costs_was.values()), sum(costs_is.values())
    # If load moves from one bundle to another, no total changes, but it matters.
    changes = [abs(costs_is[name] - costs_was[name]) for name in costs_is]
    change = max([abs(total_is - total_was), *changes])
    return change >= CHANGE_SHARE * max(total_was, total_is) and change >= _COST_OF_A_BUNDLE


def heaviest(
    bundles: Mapping[str, BundleLoad], costs: BundleCosts, *, count: int = BUNDLES_REPORTED_MAX
) -> dict[str, BundleLoad]:
    """Return the `count` bundles with the highest cost, which usually are all."""
    if len(bundles) <= count:
        return dict(bundles)
    order = sorted(bundles, key=lambda name: (-costs.cost_of(bundles[name]), name))
    return {name: bundles[name] for name in order[:count]}


def heaviest_segments(
    segments: Mapping[str, SegmentLoad], costs: BundleCosts, *, count: int = SEGMENTS_REPORTED_MAX
) -> dict[str, SegmentLoad]:
    """Return the `count` segments with the most traffic, which usually are all."""
    if len(segments) <= count:
        return dict(segments)
    order = sorted(segments, key=lambda name: (-costs.cost_of_segment(segments[name]), name))
    return {name: segments[name] for name in order[:count]}
