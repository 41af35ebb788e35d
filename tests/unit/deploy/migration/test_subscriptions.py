from typing import Any

import pytest

from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration.positions import EntryRange, Interval, PositionMap
from magnetar.deploy.migration.subscriptions import (
    HOLD,
    PartOfBatch,
    Seen,
    SubscriptionState,
    expected_open,
    is_told_by_statistics,
    moved,
    ranges_in,
    told_by,
)
from magnetar.ledger.position import EARLIEST, Position


def copied(count: int, *, messages: int = 1) -> PositionMap:
    """Entries of ledger 5 of the source, at ledger 90 of the target."""
    found = PositionMap()
    for entry_id in range(count):
        found.add(Position(5, entry_id), Position(90, entry_id), messages)
    return found


def test_ranges_are_read_as_pulsar_writes_them() -> None:
    assert ranges_in("[]") == []
    assert ranges_in("[(1:2..1:5],(1:7..1:9]]") == [
        Interval(Position(1, 2), Position(1, 5)),
        Interval(Position(1, 7), Position(1, 9)),
    ]
    assert ranges_in("[(3:-1..3:0], [4:2..4:5)]") == [
        Interval(Position(3, -1), Position(3, 0)),
        Interval(Position(4, 1), Position(4, 4)),
    ]


def test_statistics_tell_of_the_subscriptions_of_applications_only() -> None:
    names = {"s": {"msgBacklog": 3}, HOLD: {}, "__compaction": {}, "pulsar.repl.west": {}}
    names["reader"] = {"isDurable": False}
    cursors: dict[str, dict[str, object]] = {
        name: {"markDeletePosition": "5:1", "individuallyDeletedMessages": "[(5:2..5:4]]"}
        for name in names
    }
    cursors["s"]["totalNonContiguousDeletedMessagesRange"] = 2
    (found,) = told_by({"subscriptions": names}, {"cursors": cursors})
    assert found.state.name == "s"
    assert (found.state.mark, found.state.backlog) == (Position(5, 1), 3)
    assert found.state.acked == (Interval(Position(5, 2), Position(5, 4)),)
    assert not found.is_complete


def told(names: list[str], cursors: dict[str, str]) -> dict[str, Position]:
    """Return the marks of subscriptions that are in the statistics. `cursors`: marks in the
    internal statistics."""
    stats: dict[str, Any] = {"subscriptions": {name: {} for name in names}}
    internal = {"cursors": {key: {"markDeletePosition": mark} for key, mark in cursors.items()}}
    return {each.state.name: each.state.mark for each in told_by(stats, internal)}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("app:worker", "app%3Aworker"),
        ("a:b/c ü", "a%3Ab%2Fc+%C3%BC"),
        ("a+b%3Ac*~", "a%2Bb%253Ac*%7E"),
        ("plain-name_1.0", "plain-name_1.0"),
    ],
)
def test_a_cursor_is_found_under_the_name_of_its_node_in_pulsar(name: str, key: str) -> None:
    assert told([name, "plain"], {key: "5:1", "plain": "5:2"}) == {
        name: Position(5, 1),
        "plain": Position(5, 2),
    }


def test_names_that_look_encoded_are_not_mixed_up() -> None:
    expected = {"a:b": Position(5, 1), "a%3Ab": Position(5, 2)}
    assert told(["a:b", "a%3Ab"], {"a%3Ab": "5:1", "a%253Ab": "5:2"}) == expected
    assert told(["a:b", "a%3Ab"], {"a:b": "5:1", "a%3Ab": "5:2"}) == expected
    assert told(["a%3Ab"], {"a%3Ab": "5:2"}) == {"a%3Ab": Position(5, 2)}, "of a Magnetar"


@pytest.mark.parametrize("cursors", [{}, {"other": "5:1"}, {"a%253Ab": "5:1"}])
def test_a_subscription_whose_cursor_is_not_told_is_not_passed_over(
    cursors: dict[str, str],
) -> None:
    with pytest.raises(BrokerUnreachableError, match="subscription a:b"):
        told(["a:b"], cursors)


def test_a_backlog_is_looked_at_where_batches_may_be_acknowledged_in_part() -> None:
    (told,) = told_by(
        {"subscriptions": {"s": {"msgBacklog": 3}}},
        {"cursors": {"s": {"markDeletePosition": "5:1"}}},
    )
    assert is_told_by_statistics(told, copied(9), keeps_parts=True)
    assert not is_told_by_statistics(told, copied(9, messages=2), keeps_parts=True)
    assert is_told_by_statistics(told, copied(9, messages=2), keeps_parts=False)


def test_what_a_consumer_does_not_see_is_acknowledged() -> None:
    seen = Seen(Position(5, 1))
    for entry_id in (2, 3, 6, 6, 8):
        seen.saw(Position(5, entry_id), (2,) if entry_id == 8 else (), 2)
    assert seen.entries == 4
    assert seen.parts == {Position(5, 8): PartOfBatch((2,), 2)}
    assert seen.acked(Position(5, 9)) == (
        Interval(Position(5, 3), Position(5, 5)),
        Interval(Position(5, 6), Position(5, 7)),
        Interval(Position(5, 8), Position(5, 9)),
    )
    assert Seen(Position(5, 1)).acked(Position(5, 1)) == ()


def test_a_subscription_has_the_same_entries_open_at_the_target() -> None:
    state = SubscriptionState(
        "s",
        Position(5, 1),
        (Interval(Position(5, 2), Position(5, 4)), Interval(Position(5, 6), Position(5, 7))),
        {Position(5, 8): PartOfBatch((1,), 2), Position(4, 0): PartOfBatch((1,), 2)},
    )
    wanted = moved(state, copied(10))
    assert wanted.mark == Position(90, 1)
    assert wanted.acked == (EntryRange(90, 3, 4), EntryRange(90, 7, 7))
    assert wanted.parts == {Position(90, 8): PartOfBatch((1,), 2)}
    assert expected_open(wanted, copied(10)) == [
        EntryRange(90, 2, 2),
        EntryRange(90, 5, 6),
        EntryRange(90, 8, 9),
    ]


def test_a_subscription_at_the_start_begins_at_the_start() -> None:
    wanted = moved(SubscriptionState("s", EARLIEST), copied(3))
    assert wanted.mark is None
    assert expected_open(wanted, copied(3)) == [EntryRange(90, 0, 2)]
