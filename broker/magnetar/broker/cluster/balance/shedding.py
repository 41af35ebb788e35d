"""Chooses bundles to move from one broker to another, so that the load is even. Pure.

Each move costs its clients a failover, so there are few of them:

- Nothing happens while the cluster is balanced: no broker costs more than `spread_percent` above or
  below the average, and no machine is in trouble (`usage_percent_max`, or
  `usage_over_average_percent` above the average and above `usage_percent_min`).
- A move must pay: the two brokers are closer to each other afterwards. So the sum of the squares
  of the costs falls with each move, and with a steady load the moves come to an end. A bundle that
  would only carry the trouble to the other side stays.
- A bundle that was moved stays where it is for the grace period. So do the halves of one that was
  moved and then split.
- There are at most `moves_max` at a time; then the brokers report again.
- If no move can narrow a gap because its bundles are too large, the largest is split, which
  interrupts no client. A half moves in a later round at the earliest, by its own lease
  (RULE 11.1).

How much each bundle contributes to its broker's use of the processor is not known. Each is taken to
have the share that it has in the cost.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from magnetar.broker.cluster.balance.bundles import BundleId

_SIZE_MAX = 0.875
"""Largest bundle, as a share of the gap that it is to narrow. A larger one would leave nearly the
same gap, the other way round."""
_SIZE_MIN = 0.1
"""Smallest bundle worth its failover, as a share of its broker's average bundle."""


@dataclass(frozen=True, slots=True)
class SheddingPolicy:
    """Bounds of shedding; see `BrokerSettings`."""

    spread_percent: float
    usage_percent_max: float
    usage_over_average_percent: float
    usage_percent_min: float
    cost_min: float
    """Smallest gap that is worth a move: the costs of a few topics."""
    moves_max: int


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Usage of one broker's machine, and the cost of each of its bundles."""

    usage_percent: float
    costs: Mapping[BundleId, float]
    divisible: Collection[BundleId] = ()
    """Bundles that can be split: of several topics, in a namespace with room for more."""


@dataclass(frozen=True, slots=True)
class Move:
    """Unload of a bundle by one broker, so that another takes it."""

    bundle: BundleId
    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves and the split that the leader should order now; usually none."""

    moves: Sequence[Move] = ()
    split: tuple[str, BundleId] | None = None
    """A broker, and its bundle that is too large to be moved."""


@dataclass(slots=True)
class _Side:
    """A broker while a plan is made: its state after the moves planned so far."""

    name: str
    usage_percent: float
    cost: float
    costs: dict[BundleId, float]
    divisible: Collection[BundleId]

    def usage_of(self, bundle: BundleId) -> float:
        """Return the part of the broker's usage that a bundle contributes."""
        return self.usage_percent * self.costs[bundle] / self.cost if self.cost else 0.0


def plan_moves(
    brokers: Mapping[str, BrokerLoad],
    policy: SheddingPolicy,
    *,
    staying: Collection[BundleId] = (),
    under_way: Mapping[BundleId, str] = MappingProxyType({}),
) -> Plan:
    """Return what to move now.

    `brokers`: those that may own bundles, by name, without draining ones. `staying`: bundles in
    their grace period. `under_way`: bundles given to a broker whose report does not show them yet.
    They count for that broker; otherwise they would be moved again.
    """
    if len(brokers) < 2:
        return Plan()
    sides = [
        _Side(name, load.usage_percent, sum(load.costs.values()), dict(load.costs), load.divisible)
        for name, load in sorted(brokers.items())
    ]
    # A bundle that two brokers report is moving: its cost counts, but it is not moved.
    reported: dict[BundleId, int] = {}
    for side in sides:
        for bundle in side.costs:
            reported[bundle] = reported.get(bundle, 0) + 1
    fixed = {bundle for bundle, times in reported.items() if times > 1} | {*staying, *under_way}
    for bundle, destination in under_way.items():
        source = next((side for side in sides if bundle in side.costs), None)
        if source is not None and source.name != destination and destination in brokers:
            _apply(Move(bundle, source.name, destination), sides)
    moves: list[Move] = []
    while len(moves) < policy.moves_max:
        move = _relief(sides, policy, fixed) or _evening(sides, policy, fixed)
        if move is None:
            break
        _apply(move, sides)
        fixed.add(move.bundle)
        moves.append(move)
    if moves:
        return Plan(moves)
    return Plan(split=_too_large(sides, policy, fixed, unsettled={*staying, *under_way}))


def is_balanced(brokers: Mapping[str, BrokerLoad], policy: SheddingPolicy) -> bool:
    """Whether the costs are so even that shedding moves nothing for them."""
    costs = [sum(load.costs.values()) for load in brokers.values()]
    return not costs or not _is_uneven(max(costs), min(costs), sum(costs) / len(costs), policy)


def _relief(sides: list[_Side], policy: SheddingPolicy, fixed: Collection[BundleId]) -> Move | None:
    """Return a move off a broker whose machine is in trouble, to the one that has most room."""
    average = sum(side.usage_percent for side in sides) / len(sides)
    source = max(sides, key=lambda side: side.usage_percent)
    destination = min(sides, key=lambda side: (side.usage_percent, side.cost))
    above = source.usage_percent - average
    in_trouble = source.usage_percent > policy.usage_percent_max or (
        above > policy.usage_over_average_percent
        and source.usage_percent > policy.usage_percent_min
    )
    gap = source.usage_percent - destination.usage_percent
    # A move between two overloaded brokers helps neither.
    if not in_trouble or gap < policy.usage_over_average_percent:
        return None
    shares = {bundle: source.usage_of(bundle) for bundle in source.costs if bundle not in fixed}
    bundle = _best(shares, gap)
    return Move(bundle, source.name, destination.name) if bundle is not None else None


def _evening(
    sides: list[_Side], policy: SheddingPolicy, fixed: Collection[BundleId]
) -> Move | None:
    """Return a move from the broker with the highest cost to the one with the lowest."""
    source, destination, gap = _widest(sides, policy)
    if gap == 0.0:
        return None
    # Well below where relief begins, so that the two do not move bundles back and forth for ever.
    average = sum(side.usage_percent for side in sides) / len(sides)
    bearable = min(
        policy.usage_percent_max,
        max(policy.usage_percent_min, average + policy.usage_over_average_percent / 2),
    )
    movable = {
        bundle: cost
        for bundle, cost in source.costs.items()
        if bundle not in fixed and destination.usage_percent + source.usage_of(bundle) <= bearable
    }
    bundle = _best(movable, gap)
    return Move(bundle, source.name, destination.name) if bundle is not None else None


def _too_large(
    sides: list[_Side],
    policy: SheddingPolicy,
    fixed: Collection[BundleId],
    *,
    unsettled: Collection[BundleId],
) -> tuple[str, BundleId] | None:
    """Return a bundle whose size keeps the costs uneven, with its broker.

    None while either of the two brokers has a bundle that was moved recently: the cost of that
    bundle is not known yet, and a split cannot be undone.
    """
    source, destination, gap = _widest(sides, policy)
    if gap == 0.0:
        return None
    if any(bundle in unsettled for side in (source, destination) for bundle in side.costs):
        return None
    too_large = [
        bundle
        for bundle, cost in source.costs.items()
        if bundle in source.divisible and bundle not in fixed and cost > _SIZE_MAX * gap
    ]
    if not too_large:
        return None
    return source.name, max(too_large, key=lambda bundle: (source.costs[bundle], str(bundle)))


def _widest(sides: list[_Side], policy: SheddingPolicy) -> tuple[_Side, _Side, float]:
    """Return the brokers with the highest and the lowest cost, and the gap; 0 if it is narrow
    enough."""
    source = max(sides, key=lambda side: side.cost)
    destination = min(sides, key=lambda side: side.cost)
    average = sum(side.cost for side in sides) / len(sides)
    if not _is_uneven(source.cost, destination.cost, average, policy):
        return source, destination, 0.0
    return source, destination, source.cost - destination.cost


def _is_uneven(highest: float, lowest: float, average: float, policy: SheddingPolicy) -> bool:
    tolerated = average * policy.spread_percent / 100
    return highest - lowest > policy.cost_min and (
        highest - average > tolerated or average - lowest > tolerated
    )


def _best(sizes: Mapping[BundleId, float], gap: float) -> BundleId | None:
    """Return the bundle whose move leaves the smallest gap, if the move pays; else None."""
    worth = _SIZE_MIN * sum(sizes.values()) / len(sizes) if sizes else 0.0
    paying = [bundle for bundle, size in sizes.items() if 0 < size <= _SIZE_MAX * gap]
    return min(
        (bundle for bundle in paying if sizes[bundle] >= worth),
        key=lambda bundle: (abs(gap - 2 * sizes[bundle]), str(bundle)),
        default=None,
    )


def _apply(move: Move, sides: list[_Side]) -> None:
    """Change both brokers to their state after the move."""
    source = next(side for side in sides if side.name == move.source)
    destination = next(side for side in sides if side.name == move.destination)
    usage = source.usage_of(move.bundle)
    cost = source.costs.pop(move.bundle)
    source.usage_percent -= usage
    source.cost -= cost
    destination.usage_percent += usage
    destination.cost += cost
    destination.costs[move.bundle] = cost
