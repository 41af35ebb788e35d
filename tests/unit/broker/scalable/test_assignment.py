"""Segments divided among the consumers of a subscription: joins, leaves, returns, growth."""

from magnetar.broker.features.scalable.assignment import Assignment, SegmentAssignment
from magnetar.broker.features.scalable.layout import Layout, Segment, synthetic_layout
from magnetar.sdk.wire import TopicName

_TOPIC = TopicName.parse("persistent://public/default/t")


def _assignment(partitions: int) -> SegmentAssignment[str]:
    return SegmentAssignment(synthetic_layout(_TOPIC, partitions), grace_s=60)


def _ids(assignment: Assignment) -> list[int]:
    return [each.id for each in assignment.segments]


def _news(news: list[tuple[str, Assignment]]) -> dict[str, list[int]]:
    assert len(dict(news)) == len(news)
    return {member: _ids(each) for member, each in news}


def test_one_consumer_has_all_segments() -> None:
    assigned, news = _assignment(3).register("a", "A")
    assert (assigned.epoch, _ids(assigned), news) == (3, [0, 1, 2], [])


def test_segments_go_round_the_consumers_in_the_order_of_their_names() -> None:
    assignment = _assignment(5)
    assignment.register("b", "B")
    assigned, news = assignment.register("a", "A")
    assert _ids(assigned) == [0, 2, 4]
    assert _news(news) == {"B": [1, 3]}


def test_consumers_beyond_the_segments_have_none_until_others_leave() -> None:
    assignment = _assignment(1)
    assignment.register("a", "A")
    assigned, news = assignment.register("b", "B")
    assert (_ids(assigned), news) == ([], [])
    assert _news(assignment.unregister("a", "A")) == {"B": [0]}


def test_a_consumer_that_comes_back_in_time_moves_nobody() -> None:
    assignment = _assignment(4)
    first, _ = assignment.register("a", "A")
    assignment.register("b", "B")
    assignment.detach("a", "A", now_s=0)
    assert assignment.next_expiry_s == 60
    assert assignment.expire(now_s=59.9) == []
    back, news = assignment.register("a", "A2")
    assert (_ids(back), news) == ([0, 2], [])
    assert _ids(first) == [0, 1, 2, 3]
    assert assignment.next_expiry_s is None


def test_a_consumer_that_stays_away_loses_its_segments_when_its_time_is_over() -> None:
    assignment = _assignment(4)
    assignment.register("a", "A")
    assignment.register("b", "B")
    assignment.detach("a", "A", now_s=0)
    assert _news(assignment.expire(now_s=60)) == {"B": [0, 1, 2, 3]}
    assert (len(assignment), assignment.next_expiry_s) == (1, None)


def test_the_end_of_a_former_connection_does_not_touch_the_new_one() -> None:
    assignment = _assignment(2)
    assignment.register("a", "A")
    assignment.register("a", "A2")
    assignment.detach("a", "A", now_s=0)
    assert assignment.unregister("a", "A") == []
    assert (assignment.attached, assignment.next_expiry_s) == (["A2"], None)


def test_growth_gives_the_new_segments_out_under_the_new_epoch() -> None:
    assignment = _assignment(2)
    assignment.register("a", "A")
    assignment.register("b", "B")
    news = assignment.change(synthetic_layout(_TOPIC, 4))
    assert _news(news) == {"A": [0, 2], "B": [1, 3]}
    assert {each.epoch for _, each in news} == {4}


def test_the_epoch_never_falls_though_the_topic_be_created_again_smaller() -> None:
    assignment = _assignment(4)
    assignment.register("a", "A")
    ((_, assigned),) = assignment.change(synthetic_layout(_TOPIC, 2))
    assert (assigned.epoch, _ids(assigned)) == (4, [0, 1])


def test_a_detached_consumer_is_told_nothing_and_finds_what_is_new_when_it_returns() -> None:
    assignment = _assignment(1)
    assignment.register("a", "A")
    assignment.detach("a", "A", now_s=0)
    assert assignment.change(synthetic_layout(_TOPIC, 3)) == []
    assert _ids(assignment.register("a", "A2")[0]) == [0, 1, 2]


def test_nobody_has_a_segment_of_a_topic_that_is_gone() -> None:
    assignment = _assignment(2)
    assignment.register("a", "A")
    assert _news(assignment.empty()) == {"A": []}


def test_a_coordinator_that_begins_anew_finds_the_same_assignment() -> None:
    before, after = _assignment(7), _assignment(7)
    names = ["c", "a", "d", "b"]
    for name in names:
        before.register(name, name)
    for name in sorted(names):
        after.register(name, name)
    assert [before.register(each, each)[0] for each in names] == [
        after.register(each, each)[0] for each in names
    ]


def _segment(number: int, *parents: int, children: tuple[int, ...] = ()) -> Segment:
    return Segment(
        number,
        number,
        number,
        f"segment://public/default/t/{number:04x}-{number:04x}-{number}",
        is_legacy=False,
        parents=parents,
        children=children,
        created_epoch=1,
        sealed_epoch=2 if children else None,
    )


_FAMILY = Layout(
    3,
    (
        _segment(0, children=(1, 2)),
        _segment(1, 0, children=(3, 4)),
        _segment(2, 0),
        _segment(3, 1),
        _segment(4, 1),
    ),
    born_ms=1,
)
"""0 was split into 1 and 2, and 1 into 3 and 4."""


def _of(layout: Layout, *, is_ordered: bool = True) -> SegmentAssignment[str]:
    return SegmentAssignment(layout, grace_s=60, is_ordered=is_ordered)


def test_children_are_given_out_once_their_parents_are_drained() -> None:
    assignment = _of(_FAMILY)
    assigned, _ = assignment.register("a", "A")
    assert _ids(assigned) == [0]
    assert [each.id for each in assignment.undrained] == [0]
    assert _news(assignment.drained([0])) == {"A": [1, 2]}
    assert [each.id for each in assignment.undrained] == [1]
    assert _news(assignment.drained([1])) == {"A": [2, 3, 4]}
    assert assignment.undrained == []


def test_a_merged_segment_waits_for_both_parents() -> None:
    layout = Layout(
        2, (_segment(0, children=(2,)), _segment(1, children=(2,)), _segment(2, 0, 1)), born_ms=1
    )
    assignment = _of(layout)
    assignment.register("a", "A")
    assert _news(assignment.drained([1])) == {"A": [0]}
    assert _news(assignment.drained([0])) == {"A": [2]}


def test_a_split_takes_no_segment_from_those_who_read_its_parent() -> None:
    before = Layout(1, (_segment(0),), born_ms=1)
    assignment = _of(before)
    assignment.register("a", "A")
    after = Layout(2, (_segment(0, children=(1, 2)), _segment(1, 0), _segment(2, 0)), born_ms=1)
    assert _news(assignment.change(after)) == {"A": [0]}
    assert _news(assignment.drained([0])) == {"A": [1, 2]}


def test_segments_whose_parents_are_not_there_any_more_are_given_out() -> None:
    assignment = _of(Layout(5, (_segment(3, 1), _segment(4, 1)), born_ms=1))
    assert _ids(assignment.register("a", "A")[0]) == [3, 4]


def test_where_order_is_the_clients_matter_all_segments_are_given_out() -> None:
    assignment = _of(_FAMILY, is_ordered=False)
    assert _ids(assignment.register("a", "A")[0]) == [0, 1, 2, 3, 4]
    assert assignment.undrained == ()


def test_a_parent_on_which_the_subscription_goes_back_holds_all_that_came_of_it_back() -> None:
    """Over generations: 1 is drained, and its children wait for 0 all the same."""
    assignment = _of(_FAMILY)
    assignment.register("a", "A")
    assignment.drained([0])
    assignment.drained([1])
    assert _news(assignment.change(_FAMILY, {7: 0})) == {"A": [0]}
    assert assignment.undrained == [], "nobody is asked about it while it moves"
    assert _news(assignment.drained([0])) == {}
    assignment.change(_FAMILY)
    assert [each.id for each in assignment.undrained] == [0]
    assert sorted(_news(assignment.drained([0]))["A"]) == [2, 3, 4]


def test_a_subscription_that_goes_back_on_all_segments_holds_back_all_that_came_of_any() -> None:
    assignment = _of(_FAMILY)
    assignment.register("a", "A")
    assignment.drained([0])
    assignment.drained([1])
    assert _news(assignment.change(_FAMILY, {7: None})) == {"A": [0]}
    assert assignment.undrained == []
    assert _news(assignment.drained([0, 1])) == {}
    assignment.change(_FAMILY)
    assert _news(assignment.drained([0])) == {"A": [1, 2]}, "1 is looked at anew, too"


def test_a_coordinator_that_begins_while_the_subscription_goes_back_drains_nothing() -> None:
    assignment = SegmentAssignment[str](_FAMILY, grace_s=10, held={7: None})
    assignment.drained([0, 1])
    assert _ids(assignment.register("a", "A")[0]) == [0]
    assert assignment.undrained == []


def test_of_two_that_move_a_subscription_the_last_releases_what_is_held_back() -> None:
    assignment = _of(_FAMILY)
    assignment.register("a", "A")
    assignment.change(_FAMILY, {7: 0})
    assignment.change(_FAMILY, {7: 0, 8: 0})
    assignment.change(_FAMILY, {8: 0})
    assert assignment.undrained == []
    assert _news(assignment.drained([0])) == {}
    assignment.change(_FAMILY)
    assert [each.id for each in assignment.undrained] == [0]


def test_a_look_learns_that_the_subscription_has_gone_back_meanwhile() -> None:
    assignment = _of(_FAMILY)
    moves = [assignment.moves]
    for held in ({7: 0}, {7: 0}, {}):
        assignment.change(_FAMILY, held)
        moves.append(assignment.moves)
    assert moves[0] != moves[1] == moves[2] != moves[3]


def test_a_segment_that_is_sealed_while_the_subscription_goes_back_keeps_its_children() -> None:
    before = Layout(1, (_segment(0),), born_ms=1)
    assignment = _of(before)
    assignment.register("a", "A")
    assignment.change(before, {7: None})
    after = Layout(2, (_segment(0, children=(1, 2)), _segment(1, 0), _segment(2, 0)), born_ms=1)
    assert _news(assignment.change(after, {7: None})) == {"A": [0]}
    assert _news(assignment.drained([0])) == {}


def test_what_was_drained_says_nothing_of_a_later_topic_of_the_name() -> None:
    assignment = _of(_FAMILY)
    assignment.register("a", "A")
    assignment.drained([0])
    again = Layout(3, _FAMILY.segments, born_ms=2)
    assert _news(assignment.change(again)) == {"A": [0]}


def _bucketed(*buckets: int) -> Layout:
    segments = (Segment(each, each, each, f"t-{each}", buckets=n) for each, n in enumerate(buckets))
    return Layout(1, tuple(segments), born_ms=1)


def _shares(assignment: SegmentAssignment[str], names: str) -> dict[str, str]:
    """What each consumer has when all have registered; + behind a segment: it is shared."""
    for name in names:
        assignment.register(name, name.upper())
    found: dict[str, str] = {}
    for name in names:
        told, _ = assignment.register(name, name.upper())
        mark = "+" if told.is_shared else ""
        found[name] = " ".join(f"{each.id}{mark}" for each in told.segments)
    return found


def test_consumers_beyond_the_segments_share_those_that_have_entry_buckets() -> None:
    expected = {"a": "0+", "b": "1", "c": "0+", "d": "0+", "e": ""}
    assert _shares(_of(_bucketed(3, 1)), "abcde") == expected


def test_the_surplus_is_spread_over_the_segments() -> None:
    assert _shares(_of(_bucketed(4, 4)), "abcd") == {"a": "0+", "b": "1+", "c": "0+", "d": "1+"}
    assert _shares(_of(_bucketed(4, 4)), "abc") == {"a": "0+", "b": "1", "c": "0+"}


def test_as_many_consumers_as_segments_share_nothing() -> None:
    assert _shares(_of(_bucketed(4, 4)), "ab") == {"a": "0", "b": "1"}


def test_a_consumer_is_told_when_sharing_begins_and_ends() -> None:
    assignment = _of(_bucketed(2))
    assignment.register("a", "A")
    _, news = assignment.register("b", "B")
    assert [(member, told.is_shared) for member, told in news] == [("A", True)]
    news = assignment.unregister("b", "B")
    assert [(member, told.is_shared) for member, told in news] == [("A", False)]


def test_groups_without_order_have_whole_segments() -> None:
    shares = _shares(_of(_bucketed(4), is_ordered=False), "ab")
    assert shares == {"a": "0", "b": ""}
