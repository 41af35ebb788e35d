"""Chooses the least loaded broker for a bundle without an owner. Pure.

Load is measured by cost (`load_report.py`), which is exact and steady, and not by the use of the
processor. Two idle brokers differ in that by chance, and all bundles would follow the chance. A
broker whose machine is overloaded is skipped as long as there is another one. A broker that has the
maximum of topics, or is about to stop, gets nothing.

Reports are seconds old, and after the death of a broker all its bundles need an owner within
milliseconds. So recent assignments are remembered and counted in, until the bundle is in the report
of its new broker. Its clients come back one after the other: for as long as a choice is remembered,
the bundle counts for no less than it cost before.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.load_report import BundleCosts, BundleLoad, LoadReport

_COST_UNKNOWN = 0.01
"""Cost of a bundle that was never reported, when no other was either."""
_HISTORY_MIN = 1_000
"""Loads kept of bundles that are in no report any more, beyond as many as there are in reports."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered broker, as an input of the choice."""

    name: str
    report: LoadReport | None
    """None if it has just joined."""
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """A bundle that was assigned to a broker."""

    broker: str
    given_at_s: float
    """Time of the assignment by the monotonic clock."""
    load: BundleLoad | None
    """Last reported load of the bundle at that time; None if no broker has reported it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Properties of a candidate that count, computed once per report."""

    name: str
    cost: float
    usage_percent: float
    topics: int
    topics_max: float


class Placing:
    """Chooses brokers, and remembers the choices."""

    def __init__(
        self, costs: BundleCosts, *, usage_percent_max: float, remembered_s: float
    ) -> None:
        """`usage_percent_max`: a broker above it gets nothing, if there is another. `remembered_s`:
        how long a choice counts that no report shows; it should exceed the time to take a lease
        plus one sample.
        """
        self._costs = costs
        self._usage_percent_max = usage_percent_max
        self._remembered_s = remembered_s
        self._able: dict[str, _Known] = {}
        self._assigned: dict[BundleId, Assignment] = {}  # the oldest first
        self._settling: dict[BundleId, Assignment] = {}
        """Bundles that the new broker reports, perhaps without all their clients; oldest first."""
        self._loads: dict[str, BundleLoad] = {}

    def assigned(self, *, now_s: float) -> Mapping[BundleId, Assignment]:
        """Return the bundles assigned within `remembered_s` that are in no report yet. A bundle
        that is in none after that time has not moved."""
        self._expire(now_s)
        return self._assigned

    def learn(self, candidates: Iterable[Candidate]) -> None:
        """Take in the current brokers and their reports.

        Assignments that reports show are forgotten. The cost of a bundle stays known when its owner
        is gone: that is when it matters.
        """
        self._able = {}
        reported: dict[str, BundleLoad] = {}
        shown: set[tuple[str, str]] = set()
        for candidate in candidates:
            bundles = candidate.report.bundles if candidate.report is not None else {}
            reported.update(bundles)
            shown.update((candidate.name, bundle) for bundle in bundles)
            if not candidate.is_draining:
                self._able[candidate.name] = self._known(candidate)
        if len(self._loads) > 2 * len(reported) + _HISTORY_MIN:
            self._loads = {}
        self._loads.update(reported)
        arrived = [
            bundle
            for bundle, assignment in self._assigned.items()
            if (assignment.broker, str(bundle)) in shown
        ]
        for bundle in arrived:
            assignment = self._assigned.pop(bundle)
            if assignment.load is not None:
                self._settling[bundle] = assignment
        if arrived:  # Reports come in another order than the assignments.
            oldest_first = sorted(self._settling.items(), key=lambda each: each[1].given_at_s)
            self._settling = dict(oldest_first)
        for bundle, assignment in list(self._settling.items()):
            if (assignment.broker, str(bundle)) not in shown:
                del self._settling[bundle]

    def choose(
        self, bundle: BundleId, *, now_s: float, excluding: Collection[str] = ()
    ) -> str | None:
        """Return the broker that is to own the bundle; None if none may.

        A repeated call soon after gives the same answer, unless that broker is gone: two clients
        that look up at the same time must be sent to one place.
        """
        self._expire(now_s)
        given = self._assigned.get(bundle)
        if given is not None and given.broker in self._able and given.broker not in excluding:
            return given.broker
        costs, topics = self._pending()
        with_room = [
            each
            for each in self._able.values()
            if each.name not in excluding
            and each.topics + topics.get(each.name, 0.0) < each.topics_max
        ]
        calm = [each for each in with_room if each.usage_percent <= self._usage_percent_max]
        if not with_room:
            return None
        chosen = min(
            calm or with_room,
            key=lambda each: (
                each.cost + costs.get(each.name, 0.0),
                each.usage_percent,
                each.name,
            ),
        )
        self.note(bundle, chosen.name, now_s=now_s)
        return chosen.name

    def note(self, bundle: BundleId, broker: str, *, now_s: float) -> None:
        """Note that a bundle is given to a broker, perhaps by other means, such as a move."""
        self._assigned.pop(bundle, None)
        former = self._settling.pop(bundle, None)
        load = former.load if former is not None else self._loads.get(str(bundle))
        self._assigned[bundle] = Assignment(broker, now_s, load)

    def _known(self, candidate: Candidate) -> _Known:
        report = candidate.report
        if report is None:
            return _Known(candidate.name, 0.0, 0.0, 0, float("inf"))
        return _Known(
            name=candidate.name,
            cost=sum(map(self._costs.cost_of, report.bundles.values())),
            usage_percent=report.usage_percent,
            topics=report.topics,
            topics_max=report.topics_max,
        )

    def _expire(self, now_s: float) -> None:
        for remembered in (self._assigned, self._settling):
            while remembered:
                oldest = next(iter(remembered))
                if now_s - remembered[oldest].given_at_s < self._remembered_s:
                    break
                del remembered[oldest]

    def _pending(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return cost and topics that each broker was assigned, but does not report, or not in
        full, yet."""
        known = len(self._loads)
        average_cost, average_topics = _COST_UNKNOWN, 0.0
        if known:
            average_cost = sum(map(self._costs.cost_of, self._loads.values())) / known
            average_topics = sum(load.topics for load in self._loads.values()) / known
        costs: dict[str, float] = {}
        topics: dict[str, float] = {}
        for bundle, assignment in self._assigned.items():
            load = self._loads.get(str(bundle))
            name = assignment.broker
            cost = self._costs.cost_of(load) if load is not None else average_cost
            costs[name] = costs.get(name, 0.0) + cost
            share = float(load.topics) if load is not None else average_topics
            topics[name] = topics.get(name, 0.0) + share
        for bundle, assignment in self._settling.items():
            load, before = self._loads.get(str(bundle)), assignment.load
            if load is not None and before is not None:
                missing = max(0.0, self._costs.cost_of(before) - self._costs.cost_of(load))
                costs[assignment.broker] = costs.get(assignment.broker, 0.0) + missing
        return costs, topics
