"""Shedding under generated loads: it comes to an end, makes nothing worse, and keeps its bounds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.cluster.balance.bundles import BundleId, Layout
from magnetar.broker.cluster.balance.shedding import (
    BrokerLoad,
    Move,
    SheddingPolicy,
    is_balanced,
    plan_moves,
)

POLICY = SheddingPolicy(
    spread_percent=10.0,
    usage_percent_max=85.0,
    usage_over_average_percent=10.0,
    usage_percent_min=25.0,
    cost_min=0.05,
    moves_max=4,
)
BUNDLES = [BundleId("public/default", bundle) for bundle in Layout.even(64).bundles]
ROUNDS_MAX = 200

Where = dict[BundleId, str]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Where, dict[BundleId, float], list[str]]:
    """Where each bundle is, what it costs, and the brokers."""
    names = [f"broker-{i}" for i in range(draw(st.integers(2, 6)))]
    count = draw(st.integers(0, 24))
    cost = st.floats(0.0, 2.0, allow_nan=False)
    costs = {bundle: draw(cost) for bundle in BUNDLES[:count]}
    where = {bundle: draw(st.sampled_from(names)) for bundle in costs}
    return where, costs, names


def loads(
    where: Where, costs: dict[BundleId, float], names: list[str], use: dict[BundleId, float]
) -> dict[str, BrokerLoad]:
    return {
        name: BrokerLoad(
            usage_percent=sum(use.get(bundle, 0.0) for bundle, at in where.items() if at == name),
            costs={bundle: costs[bundle] for bundle, at in where.items() if at == name},
        )
        for name in names
    }


def square_sum(brokers: dict[str, BrokerLoad]) -> float:
    return sum(sum(load.costs.values()) ** 2 for load in brokers.values())


def carry_out(where: Where, moves: list[Move]) -> None:
    for move in moves:
        assert where[move.bundle] == move.source != move.destination
        where[move.bundle] = move.destination


@given(clusters())
def test_with_a_steady_load_the_moves_come_to_an_end_and_each_round_helps(
    cluster: tuple[Where, dict[BundleId, float], list[str]],
) -> None:
    where, costs, names = cluster
    for _ in range(ROUNDS_MAX):
        before = loads(where, costs, names, {})
        moves = list(plan_moves(before, POLICY).moves)
        assert len(moves) <= POLICY.moves_max
        if not moves:
            return
        assert not is_balanced(before, POLICY)
        carry_out(where, moves)
        assert square_sum(loads(where, costs, names, {})) < square_sum(before)
    raise AssertionError("still moving")


@given(clusters())
def test_a_balanced_cluster_is_never_touched(
    cluster: tuple[Where, dict[BundleId, float], list[str]],
) -> None:
    where, costs, names = cluster
    brokers = loads(where, costs, names, {})
    if is_balanced(brokers, POLICY):
        plan = plan_moves(brokers, POLICY)
        assert not plan.moves
        assert plan.split is None


@given(clusters(), st.floats(1.0, 60.0))
def test_use_that_goes_with_cost_comes_to_rest_as_well(
    cluster: tuple[Where, dict[BundleId, float], list[str]], points: float
) -> None:
    where, costs, names = cluster
    use = {bundle: cost * points for bundle, cost in costs.items()}
    for _ in range(ROUNDS_MAX):
        moves = list(plan_moves(loads(where, costs, names, use), POLICY).moves)
        if not moves:
            return
        carry_out(where, moves)
    raise AssertionError("still moving")


@settings(max_examples=50)
@given(clusters(), st.data())
def test_within_the_grace_period_no_bundle_moves_twice_whatever_the_load_does(
    cluster: tuple[Where, dict[BundleId, float], list[str]], data: st.DataObject
) -> None:
    where, costs, names = cluster
    moved: set[BundleId] = set()
    for _ in range(6):
        use = {bundle: data.draw(st.floats(0.0, 60.0)) for bundle in costs}
        moves = list(plan_moves(loads(where, costs, names, use), POLICY, staying=moved).moves)
        assert not moved & {move.bundle for move in moves}
        carry_out(where, moves)
        moved |= {move.bundle for move in moves}


@given(st.integers(2, 8), st.integers(1, 4))
def test_equal_bundles_end_up_as_even_as_they_can_be(brokers: int, each: int) -> None:
    names = [f"broker-{i}" for i in range(brokers)]
    costs = dict.fromkeys(BUNDLES[: brokers * each], 1.0)
    where = dict.fromkeys(costs, names[0])
    for _ in range(ROUNDS_MAX):
        moves = list(plan_moves(loads(where, costs, names, {}), POLICY).moves)
        if not moves:
            break
        carry_out(where, moves)
    counts = [list(where.values()).count(name) for name in names]
    assert counts == [each] * brokers


@given(clusters())
def test_orders_that_no_report_shows_yet_are_not_given_twice(
    cluster: tuple[Where, dict[BundleId, float], list[str]],
) -> None:
    where, costs, names = cluster
    reported = loads(where, costs, names, {})
    ordered: dict[BundleId, str] = {}
    for _ in range(ROUNDS_MAX):
        moves = list(plan_moves(reported, POLICY, under_way=ordered).moves)
        assert not ordered.keys() & {move.bundle for move in moves}
        carry_out(where, moves)
        ordered |= {move.bundle: move.destination for move in moves}
        if not moves:
            break
    # As even as reports in between would have made it, or at least no worse than before.
    assert square_sum(loads(where, costs, names, {})) <= square_sum(reported) + 1e-9
