"""Choose a broker for a bundle that nobody owns: the least loaded one. Pure.

Least loaded by cost (`load_report.py`), which is exact and steady, and not by the use of the
processor: two idle brokers differ in that by chance, and all bundles would follow the chance. A
broker that is overloaded by what its machine says is passed over as long as there is another one;
one that has as many topics as it may have, or is about to stop, gets nothing.

Reports are seconds old, and after the death of a broker all its bundles ask for an owner within
milliseconds. So the chooser remembers what it has just given away and counts it in, until the
bundle shows up in the report of the broker that got it. Its clients come back one after the other:
for as long as a choice is remembered, the bundle counts for no less than it cost before.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.load_report import BundleCosts, BundleLoad, LoadReport

_COST_UNKNOWN = 0.01
"""Of a bundle that was never reported, when no other was either."""
_HISTORY_MIN = 1_000
"""Loads of bundles that are in no report any more; beyond as many as there are in reports."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered broker, as the chooser sees it."""

    name: str
    report: LoadReport | None
    """None: it has joined just now."""
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """A bundle that was given away."""

    broker: str
    given_at_s: float
    """Monotonic."""
    load: BundleLoad | None
    """The last reported load of the bundle at that time; None: no broker has reported it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What counts of a candidate, worked out once per report."""

    name: str
    cost: float
    usage_percent: float
    topics: int
    topics_max: float


class Placing:
    """Chooses brokers and remembers what it chose."""

    def __init__(
        self, costs: BundleCosts, *, usage_percent_max: float, remembered_s: float
    ) -> None:
        """`usage_percent_max`: above it a broker gets nothing, if there is another. `remembered_s`:
        how long a choice that no report shows is believed in; it should outlast the taking of a
        lease and one sample.
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
        """Return the bundles that were given away within `remembered_s`, and are in no report yet.
        One that is in none after that time has not moved."""
        self._expire(now_s)
        return self._assigned

    def learn(self, candidates: Iterable[Candidate]) -> None:
        """Take in the brokers that there are, and their reports.

        What reports show need not be remembered any more. What a bundle costs stays known when its
        owner is gone: that is when it matters.
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
        for bundle, assignment in list(self._assigned.items()):
            if (assignment.broker, str(bundle)) in shown:
                del self._assigned[bundle]
                if assignment.load is not None:
                    self._settling[bundle] = assignment
        for bundle, assignment in list(self._settling.items()):
            if (assignment.broker, str(bundle)) not in shown:
                del self._settling[bundle]

    def choose(
        self, bundle: BundleId, *, now_s: float, excluding: Collection[str] = ()
    ) -> str | None:
        """The broker that shall own the bundle; None if there is none that may.

        Asked again soon, the answer is the same, unless that broker is gone: two clients that ask
        at the same time must be sent to one place.
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
        """A bundle is given to a broker, perhaps by other means, as by a move."""
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
        """Cost and topics that each broker was given, and does not report, or not in full, yet."""
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
