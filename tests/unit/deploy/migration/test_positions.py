import random
from collections.abc import Sequence

import pytest

from magnetar.deploy.migration.positions import Copied, EntryRange, Interval, PositionMap
from magnetar.ledger.position import EARLIEST, LATEST, Position


def copied(*runs: tuple[int, int, int, int, int]) -> PositionMap:
    """A map of runs: source ledger and first entry, target ledger and first entry, count."""
    found = PositionMap()
    for source_ledger, source_first, target_ledger, target_first, count in runs:
        for ahead in range(count):
            found.add(
                Position(source_ledger, source_first + ahead),
                Position(target_ledger, target_first + ahead),
                1,
            )
    return found


def test_entries_that_follow_each_other_on_both_sides_are_one_run() -> None:
    found = copied((5, 0, 90, 0, 100))
    assert (len(found), found.entries, found.messages) == (1, 100, 100)
    assert found.last == Copied(Position(5, 99), Position(90, 99))


@pytest.mark.parametrize("second", [(6, 0, 90, 100, 5), (5, 100, 91, 0, 5), (5, 101, 90, 100, 5)])
def test_a_new_ledger_of_either_side_and_a_gap_begin_a_run(
    second: tuple[int, int, int, int, int],
) -> None:
    assert len(copied((5, 0, 90, 0, 100), second)) == 2


def test_a_million_entries_make_as_many_runs_as_there_are_ledgers() -> None:
    found = copied(*((ledger, 0, 1, ledger * 50_000, 50_000) for ledger in range(20)))
    assert (len(found), found.entries) == (20, 1_000_000)


def test_a_position_between_copies_means_the_copy_before_it() -> None:
    found = copied((5, 2, 90, 0, 3), (5, 8, 90, 3, 2), (7, 0, 91, 0, 1))
    assert found.floor(Position(5, 1)) is None
    assert found.floor(Position(5, 3)) == Position(90, 1)
    assert found.floor(Position(5, 6)) == Position(90, 2)
    assert found.floor(Position(5, 9)) == Position(90, 4)
    assert found.floor(Position(6, 40)) == Position(90, 4)
    assert found.floor(Position(7, -1)) == Position(90, 4)
    assert found.floor(LATEST) == Position(91, 0)
    assert PositionMap().floor(LATEST) is None


def test_only_an_entry_that_was_copied_has_an_exact_place() -> None:
    found = copied((5, 2, 90, 0, 3))
    assert found.exact(Position(5, 4)) == Position(90, 2)
    assert [found.exact(Position(*each)) for each in ((5, 1), (5, 5), (6, 2))] == [None] * 3


def test_an_interval_is_translated_over_runs_and_gaps() -> None:
    found = copied((5, 0, 90, 0, 10), (5, 12, 90, 10, 3), (7, 0, 91, 0, 4))
    everything = [EntryRange(90, 0, 9), EntryRange(90, 10, 12), EntryRange(91, 0, 3)]
    assert list(found.translate(Interval(EARLIEST, LATEST))) == everything
    assert list(found.translate(Interval(Position(5, 9), Position(5, 11)))) == []
    assert list(found.translate(Interval(Position(5, 7), Position(7, 0)))) == [
        EntryRange(90, 8, 9),
        EntryRange(90, 10, 12),
        EntryRange(91, 0, 0),
    ]
    assert list(found.translate(Interval(Position(6, -1), LATEST))) == [EntryRange(91, 0, 3)]


def test_what_is_open_has_one_form_however_it_is_said() -> None:
    found = copied((5, 0, 90, 0, 10), (6, 0, 90, 10, 10), (7, 0, 91, 0, 5))
    whole = [EntryRange(90, 0, 19), EntryRange(91, 0, 4)]
    assert found.open_ranges(EARLIEST, []) == whole
    by_mark = found.open_ranges(Position(90, 3), [])
    by_interval = found.open_ranges(EARLIEST, [Interval(EARLIEST, Position(90, 3))])
    assert by_mark == by_interval == [EntryRange(90, 4, 19), EntryRange(91, 0, 4)]
    assert found.open_ranges(Position(91, 4), []) == []


@pytest.mark.parametrize("seed", range(30))
def test_open_entries_are_those_that_a_set_would_hold(seed: int) -> None:
    rng = random.Random(seed)
    found, places = PositionMap(), []
    source, target = Position(1, 0), Position(1, 0)
    for _ in range(60):
        found.add(source, target, 1)
        places.append(target)
        source = _next(rng, source, (1, 1, 2))
        target = _next(rng, target, (1,))
    mark = rng.choice([EARLIEST, *places])
    intervals = []
    for _ in range(rng.randrange(8)):
        one, other = sorted(rng.choices([EARLIEST, *places], k=2))
        intervals.append(Interval(one, other))
    left = [
        each
        for each in places
        if each > mark and not any(one < each <= other for one, other in intervals)
    ]
    assert _entries(found.open_ranges(mark, intervals)) == left


def _next(rng: random.Random, at: Position, steps: Sequence[int]) -> Position:
    if rng.random() < 0.1:
        return Position(at.ledger_id + 1, 0)
    return Position(at.ledger_id, at.entry_id + rng.choice(steps))


def _entries(ranges: Sequence[EntryRange]) -> list[Position]:
    return [
        Position(each.ledger_id, entry_id)
        for each in ranges
        for entry_id in range(each.first, each.last + 1)
    ]


def test_a_map_says_whether_batches_lie_behind_a_position() -> None:
    found = PositionMap()
    found.add(Position(5, 0), Position(9, 0), 10)
    found.add(Position(6, 0), Position(9, 1), 1)
    assert found.has_batches_behind(EARLIEST)
    assert not found.has_batches_behind(Position(6, 0))
    assert found.messages == 11


def test_a_map_is_saved_by_appending_what_has_changed() -> None:
    found = copied((5, 0, 90, 0, 10))
    file = found.unsaved_lines()
    assert file == "5 0 90 0 10 10\n"
    assert found.unsaved_lines() == file, "until it is saved"
    found.all_is_saved()
    assert found.unsaved_lines() == ""
    found.add(Position(5, 10), Position(90, 10), 7)
    found.add(Position(6, 0), Position(90, 11), 1)
    file += found.unsaved_lines()
    assert file == "5 0 90 0 10 10\n5 0 90 0 11 17\n6 0 90 11 1 1\n"
    again = PositionMap.of_lines(file)
    assert (again.last, again.entries, again.messages) == (found.last, 12, 18)
    assert again.unsaved_lines() == ""
    assert again.floor(Position(5, 10)) == Position(90, 10)


@pytest.mark.parametrize(
    "torn",
    ["6 0 90", "6 0 90 10 1 1", "6 0 90 10 0 0\n", "4 0 95 0 1 1\n", "6 0 89 0 1 1\n", "x\n", "\0"],
)
def test_what_is_behind_a_torn_or_impossible_line_is_left_out(torn: str) -> None:
    again = PositionMap.of_lines("5 0 90 0 10 10\n" + torn)
    assert again.last == Copied(Position(5, 9), Position(90, 9))


def test_a_map_that_is_begun_anew_is_empty() -> None:
    found = copied((5, 0, 90, 0, 10))
    found.clear()
    assert (found.last, found.entries, found.unsaved_lines()) == (None, 0, "")
