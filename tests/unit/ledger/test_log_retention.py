"""Ledgers of a log that retention deletes, and how large parts of it are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_retention import (
    Retention,
    bytes_behind,
    position_with_bytes_behind,
    trim_point,
)
from magnetar.ledger.position import Position

NOW_MS = 1_000_000
CLOSED = [LogLedger(each, 10, 1000, NOW_MS - 60_000 + each * 1000) for each in (1, 2, 3)]
CURRENT = LogLedger(4, 5, 500)
LEDGERS = [*CLOSED, CURRENT]
KEEP_NOTHING = Retention()


def _point(
    consumed: tuple[int, int] | None,
    retention: Retention = KEEP_NOTHING,
    *,
    ledgers: list[LogLedger] | None = None,
    truncates: bool = False,
) -> Position | None:
    at = Position(*consumed) if consumed is not None else None
    return trim_point(ledgers or LEDGERS, at, retention, now_ms=NOW_MS, truncates=truncates)


@pytest.mark.parametrize(
    ("consumed", "begin"),
    [
        ((1, 8), None),
        ((1, 9), (2, 0)),  # the last entry of a closed ledger: all of it
        ((2, -1), (2, 0)),  # which is the same place
        ((2, 8), (2, 0)),
        ((3, 9), (4, 0)),
        ((4, 4), (4, 0)),  # never the current one
        (None, (4, 0)),  # nobody wants anything
        ((-1, -1), None),
        ((0, 7), None),  # a ledger that is gone already
    ],
)
def test_without_retention_what_is_consumed_goes(
    consumed: tuple[int, int] | None, begin: tuple[int, int] | None
) -> None:
    assert _point(consumed) == begin


def test_retention_by_time_counts_from_the_close_of_each_ledger() -> None:
    # Closed 59, 58 and 57 s ago.
    assert _point((4, 4), Retention(59, -1)) is None
    assert _point((4, 4), Retention(58, -1)) == (2, 0)
    assert _point((4, 4), Retention(57.5, -1)) == (3, 0)
    assert _point((4, 4), Retention(0, -1)) == (4, 0)


def test_retention_by_size_keeps_at_least_that_much() -> None:
    # 3500 bytes; without the first ledger 2500.
    assert _point((4, 4), Retention(-1, 2501)) is None
    assert _point((4, 4), Retention(-1, 2500)) == (2, 0)
    assert _point((4, 4), Retention(-1, 1500)) == (3, 0)
    assert _point((4, 4), Retention(-1, 0)) == (4, 0)


def test_data_goes_when_either_limit_is_exceeded() -> None:
    assert _point((4, 4), Retention(1000, 1500)) == (3, 0)
    assert _point((4, 4), Retention(57.5, 10_000)) == (3, 0)
    assert _point((4, 4), Retention(1000, 10_000)) is None


def test_infinite_retention_keeps_everything_but_for_a_truncation() -> None:
    assert _point((4, 4), Retention(-1, -1)) is None
    assert _point((2, 9), Retention(-1, -1), truncates=True) == (3, 0)


def test_retention_never_takes_what_a_cursor_needs() -> None:
    assert _point((1, 3), KEEP_NOTHING) is None
    assert _point((1, 3), KEEP_NOTHING, truncates=True) is None


def test_the_last_entries_stay_until_others_follow() -> None:
    empty = [*CLOSED, LogLedger(4)]
    assert _point((4, -1), ledgers=empty) == (3, 0)
    assert _point((3, 9), ledgers=empty) == (3, 0)
    assert _point((3, 9), ledgers=empty, truncates=True) == (4, 0)
    assert _point((3, 9), ledgers=CLOSED) == (3, 0), "all are closed: the last one stays"


def test_nothing_goes_past_an_open_ledger() -> None:
    draining = [CLOSED[0], LogLedger(2, 3, 300), LogLedger(3, 1, 100)]
    assert _point((3, 0), ledgers=draining) == (2, 0)
    assert _point((3, 0), ledgers=draining[1:], truncates=True) is None


def test_a_clock_that_went_back_expires_nothing() -> None:
    future = [LogLedger(1, 10, 1000, NOW_MS + 5000), CURRENT]
    assert _point((4, 4), Retention(0, -1), ledgers=future) is None


def test_bytes_behind_a_position_are_estimated_by_the_share_of_entries() -> None:
    assert bytes_behind(LEDGERS, Position(-1, -1)) == 3500
    assert bytes_behind(LEDGERS, Position(1, -1)) == 3500
    assert bytes_behind(LEDGERS, Position(1, 4)) == 3000
    assert bytes_behind(LEDGERS, Position(1, 9)) == bytes_behind(LEDGERS, Position(2, -1)) == 2500
    assert bytes_behind(LEDGERS, Position(4, 4)) == 0
    assert bytes_behind(LEDGERS, Position(9, 9)) == 0
    assert bytes_behind([], Position(-1, -1)) == 0


_LEDGERS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 5000)), min_size=1, max_size=6
).map(
    lambda sizes: [
        LogLedger(at + 1, entries, size if entries else 0, closed_ms=1)
        for at, (entries, size) in enumerate(sizes)
    ]
)


@given(_LEDGERS, st.integers(0, 12_000))
def test_no_more_than_asked_for_lies_behind_the_position_found(
    ledgers: list[LogLedger], size: int
) -> None:
    found = position_with_bytes_behind(ledgers, size)
    if found is None:
        assert bytes_behind(ledgers, Position(-1, -1)) <= size
    else:
        assert bytes_behind(ledgers, found) <= size
        assert bytes_behind(ledgers, Position(found.ledger_id, found.entry_id - 1)) > size


@given(
    _LEDGERS,
    st.tuples(st.integers(-1, 8), st.integers(-1, 25)),
    st.integers(-1, 3000),
    st.booleans(),
)
def test_whatever_is_asked_nothing_that_is_needed_goes(
    ledgers: list[LogLedger], consumed: tuple[int, int], size: int, truncates: bool
) -> None:
    point = trim_point(
        ledgers, Position(*consumed), Retention(-1, size), now_ms=NOW_MS, truncates=truncates
    )
    if point is None:
        return
    gone = [ledger for ledger in ledgers if ledger.ledger_id < point.ledger_id]
    assert gone
    assert all((each.ledger_id, each.entries - 1) <= consumed for each in gone)
    left = sum(each.bytes for each in ledgers) - sum(each.bytes for each in gone)
    if not truncates:
        assert left >= size
        assert any(each.entries for each in ledgers if each.ledger_id >= point.ledger_id)
