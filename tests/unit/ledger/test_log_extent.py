"""How far a log reaches while its ledgers change."""

from magnetar.ledger.managed_log.log_extent import LogExtent
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import EARLIEST, Position


def closed(ledger_id: int, entries: int) -> LogLedger:
    return LogLedger(ledger_id, entries, entries * 10, 1)


def extent_of(*listed: LogLedger, growing: int) -> LogExtent:
    extent = LogExtent()
    extent.grow_in(growing)
    extent.reshape([*listed, LogLedger(growing)])
    return extent


def test_what_is_confirmed_moves_on_in_the_growing_ledger() -> None:
    extent = extent_of(closed(3, 5), growing=7)
    extent.confirm(7, 2)
    assert extent.last_confirmed == Position(7, 2)
    assert extent.entries(7) == 3
    assert extent.shape.entries_between(EARLIEST, extent.last_confirmed) == 8


def test_the_next_ledger_counts_for_nothing_until_it_grows() -> None:
    extent = extent_of(growing=7)
    extent.confirm(7, 2)
    extent.reshape([LogLedger(7), LogLedger(9)])
    assert extent.entries(9) == 0
    assert 9 not in extent.shape
    assert extent.shape.next_position(Position(7, 2)) == Position(7, 3)
    extent.grow_in(9)
    assert extent.shape.next_position(Position(7, 2)) == Position(9, 0)
    extent.confirm(9, 0)
    assert extent.entries(7) == 3
    assert extent.shape.entries_between(EARLIEST, extent.last_confirmed) == 4


def test_a_shrunk_list_takes_ledgers_away_and_leaves_the_growing_one_as_it_is() -> None:
    extent = extent_of(closed(3, 5), closed(5, 1), growing=7)
    extent.confirm(7, 4)
    extent.reshape([closed(5, 1), LogLedger(7)])
    assert extent.shape.first_at_or_after(EARLIEST) == Position(5, 0)
    assert extent.entries(7) == 5
    assert extent.last_confirmed == Position(7, 4)


def test_at_the_end_all_that_closed_ledgers_hold_is_confirmed() -> None:
    extent = extent_of(closed(3, 5), growing=7)
    extent.confirm(7, 1)
    extent.reach_end([closed(3, 5), closed(7, 4)])
    assert extent.last_confirmed == Position(7, 3)
    assert extent.growing_id == -1


def test_the_end_of_a_log_that_holds_nothing() -> None:
    extent = extent_of(growing=7)
    extent.reach_end([])
    assert extent.shape.first_at_or_after(EARLIEST) == Position(-1, 0)
    assert extent.shape.entries_between(EARLIEST, Position(9, 9)) == 0
