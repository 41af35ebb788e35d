"""How far copies of each source have come (`source_marks.py`)."""

from magnetar.broker.features.replication.source_marks import (
    START,
    CopyPlace,
    Source,
    SourceMarks,
    Verdict,
)
from magnetar.ledger.position import Position

EAST, WEST = Source("east", 7), Source("west", 7)


def at(entry: int, *, after: int | None = None, ledger: int = 1) -> CopyPlace:
    """The place of an entry; `after`: of which other one, -1: of none."""
    if after is None:
        return CopyPlace(Position(ledger, entry))
    return CopyPlace(Position(ledger, entry), START if after < 0 else Position(ledger, after))


def test_what_is_not_above_the_mark_is_stored() -> None:
    marks = SourceMarks()
    assert marks.accept(EAST, at(3, after=-1)) is Verdict.NEW
    assert marks.accept(EAST, at(3, after=-1)) is Verdict.UNDECIDED
    marks.on_stored(EAST, Position(1, 3))
    assert marks.accept(EAST, at(3, after=-1)) is Verdict.DUPLICATE
    assert marks.accept(EAST, at(2)) is Verdict.DUPLICATE


def test_a_copy_whose_predecessor_is_missing_is_a_gap() -> None:
    marks = SourceMarks()
    marks.replayed(EAST, Position(1, 3))
    assert marks.accept(EAST, at(5, after=4)) is Verdict.GAP
    assert marks.accept(EAST, at(5, after=3)) is Verdict.NEW
    assert SourceMarks().accept(EAST, at(5, after=4)) is Verdict.GAP


def test_skipped_entries_between_copies_are_no_gap() -> None:
    marks = SourceMarks()
    marks.replayed(EAST, Position(1, 3))
    assert marks.accept(EAST, CopyPlace(Position(4, 0), Position(1, 3))) is Verdict.NEW


def test_a_chain_that_begins_anew_goes_on_behind_the_mark() -> None:
    marks = SourceMarks()
    marks.replayed(EAST, Position(1, 3))
    assert marks.accept(EAST, at(9, after=-1)) is Verdict.NEW


def test_a_source_that_says_no_predecessor_has_no_gaps() -> None:
    marks = SourceMarks()
    assert marks.accept(EAST, at(5)) is Verdict.NEW
    assert marks.accept(EAST, at(9)) is Verdict.NEW


def test_clusters_and_lives_of_a_log_do_not_disturb_each_other() -> None:
    marks = SourceMarks()
    marks.replayed(EAST, Position(9, 9))
    assert marks.accept(WEST, at(0, after=-1)) is Verdict.NEW
    assert marks.accept(Source("east", 8), at(0, after=-1)) is Verdict.NEW


def test_a_cluster_is_settled_when_all_that_was_accepted_is_stored() -> None:
    marks = SourceMarks()
    marks.accept(EAST, at(0, after=-1))
    assert marks.is_settled("west")
    assert not marks.is_settled("east")
    marks.on_stored(EAST, Position(1, 0))
    assert marks.is_settled("east")


def test_a_snapshot_holds_what_is_stored() -> None:
    marks = SourceMarks()
    dotted = Source("eu.west-1", 1 << 62)
    marks.replayed(dotted, Position(4, 2))
    marks.accept(EAST, at(0, after=-1))
    assert marks.snapshot() == {
        f"eu.west-1.{1 << 62}.ledger": 4,
        f"eu.west-1.{1 << 62}.entry": 2,
    }
    again = SourceMarks(marks.snapshot())
    assert again.mark_of(dotted) == Position(4, 2)
    assert again.accept(dotted, CopyPlace(Position(4, 2))) is Verdict.DUPLICATE
