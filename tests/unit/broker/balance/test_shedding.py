"""What moves, and above all what does not."""

from magnetar.broker.cluster.balance.bundles import BundleId, Layout
from magnetar.broker.cluster.balance.shedding import BrokerLoad, Move, SheddingPolicy, plan_moves

POLICY = SheddingPolicy(
    spread_percent=10.0,
    usage_percent_max=85.0,
    usage_over_average_percent=10.0,
    usage_percent_min=25.0,
    cost_min=0.05,
    moves_max=4,
)
BUNDLES = [BundleId("public/default", bundle) for bundle in Layout.even(32).bundles]


def load(first: int, *costs: float, usage: float = 0.0, divisible: bool = False) -> BrokerLoad:
    bundles = BUNDLES[first : first + len(costs)]
    return BrokerLoad(usage, dict(zip(bundles, costs, strict=True)), bundles if divisible else ())


def test_a_single_broker_keeps_everything() -> None:
    assert plan_moves({"a": load(0, 5.0, 5.0, usage=99.0)}, POLICY).moves == ()


def test_a_balanced_cluster_is_left_alone() -> None:
    brokers = {"a": load(0, 1.0, 1.05), "b": load(4, 1.0, 0.95), "c": load(8, 2.1)}
    assert plan_moves(brokers, POLICY) == plan_moves({}, POLICY)


def test_a_broker_that_joins_gets_its_part() -> None:
    brokers = {"a": load(0, 1.0, 1.0, 1.0, 1.0), "b": BrokerLoad(0.0, {})}
    moves = plan_moves(brokers, POLICY).moves
    assert len(moves) == 2
    assert {(move.source, move.destination) for move in moves} == {("a", "b")}


def test_few_bundles_move_at_a_time() -> None:
    brokers = {"a": load(0, *[1.0] * 32), "b": BrokerLoad(0.0, {})}
    assert len(plan_moves(brokers, POLICY).moves) == POLICY.moves_max


def test_bundles_in_their_grace_period_stay() -> None:
    brokers = {"a": load(0, 1.0, 1.0), "b": BrokerLoad(0.0, {})}
    assert plan_moves(brokers, POLICY, staying=BUNDLES[:1]).moves == [Move(BUNDLES[1], "a", "b")]
    assert plan_moves(brokers, POLICY, staying=BUNDLES[:2]).moves == ()


def test_a_gap_of_a_few_topics_is_left() -> None:
    assert plan_moves({"a": load(0, 0.04), "b": BrokerLoad(0.0, {})}, POLICY).moves == ()


def test_a_bundle_that_would_only_carry_the_load_to_the_other_side_stays() -> None:
    brokers = {"a": load(0, 3.0), "b": load(1, 0.1)}
    assert plan_moves(brokers, POLICY).moves == ()


def test_a_bundle_that_is_too_large_to_be_moved_is_split_and_not_moved() -> None:
    brokers = {"a": load(0, 3.0, 0.01, divisible=True), "b": load(4, 0.1)}
    plan = plan_moves(brokers, POLICY)
    assert plan.moves == ()
    assert plan.split == ("a", BUNDLES[0])


def test_nothing_is_split_while_the_cost_of_a_moved_bundle_is_not_known_yet() -> None:
    brokers = {"a": load(0, 1.0, divisible=True), "b": load(1, 0.1)}
    assert plan_moves(brokers, POLICY).split == ("a", BUNDLES[0])
    assert plan_moves(brokers, POLICY, staying=[BUNDLES[1]]).split is None
    assert plan_moves(brokers, POLICY, under_way={BUNDLES[1]: "b"}).split is None


def test_a_bundle_of_one_topic_is_not_split() -> None:
    brokers = {"a": load(0, 3.0, divisible=False), "b": load(4, 0.1)}
    assert plan_moves(brokers, POLICY).split is None


def test_a_bundle_that_two_brokers_report_is_on_its_way_and_stays() -> None:
    brokers = {"a": load(0, 1.0, 1.0, 1.0), "b": load(2, 1.0)}
    moves = plan_moves(brokers, POLICY).moves
    assert [move.bundle for move in moves if move.bundle == BUNDLES[2]] == []


def test_a_broker_far_above_the_average_use_sheds_although_its_bundles_cost_the_same() -> None:
    brokers = {"a": load(0, 1.0, 1.0, usage=80.0), "b": load(4, 1.0, 1.0, usage=20.0)}
    assert [move.source for move in plan_moves(brokers, POLICY).moves] == ["a"]


def test_idle_machines_that_differ_by_chance_are_left_alone() -> None:
    brokers = {"a": load(0, 1.0, 1.0, usage=24.0), "b": load(4, 1.0, 1.0, usage=1.0)}
    assert plan_moves(brokers, POLICY).moves == ()


def test_overloaded_brokers_do_not_pass_their_load_to_each_other() -> None:
    brokers = {"a": load(0, 1.0, 1.0, usage=99.0), "b": load(4, 1.0, 1.0, usage=95.0)}
    assert plan_moves(brokers, POLICY).moves == ()


def test_evening_out_topics_does_not_overload_a_machine() -> None:
    brokers = {"a": load(0, *[0.5] * 6, usage=30.0), "b": load(8, 0.5, usage=30.0)}
    moves = plan_moves(brokers, POLICY).moves
    # Each bundle carries 5 points: the second would lift the destination over what is bearable.
    assert len(moves) == 1


def test_what_is_under_way_counts_for_its_new_owner_and_is_not_ordered_again() -> None:
    brokers = {"a": load(0, 1.0, 1.0, 1.0, 1.0), "b": BrokerLoad(0.0, {})}
    moved = {move.bundle: move.destination for move in plan_moves(brokers, POLICY).moves}
    assert len(moved) == 2
    assert plan_moves(brokers, POLICY, under_way=moved).moves == ()


def test_what_was_given_to_a_broker_that_is_gone_counts_where_it_is() -> None:
    brokers = {"a": load(0, 1.0, 1.0), "b": load(4, 1.0, 1.0)}
    assert plan_moves(brokers, POLICY, under_way={BUNDLES[0]: "gone"}).moves == ()


def test_a_machine_that_is_a_little_busy_with_its_new_bundles_gets_the_rest_of_its_part() -> None:
    """What it did while it took them is in its last report, and not worth a newer one."""
    brokers = {"a": load(0, *[1.0] * 12, usage=2.0), "b": load(12, *[1.0] * 4, usage=18.0)}
    assert len(plan_moves(brokers, POLICY).moves) == 4
