"""The choice of ledgers that move to the object store, and of those that bookies may forget."""

import pytest

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.offloading.offload_choice import (
    OffloadRules,
    newest_in_object_only,
    to_copy,
    to_forget,
)
from magnetar.ledger.position import Position

NOW_MS = 1_000_000_000
MIB = 1 << 20
ATTEMPT = "ab" * 16


def object_in(state: ObjectState, at_ms: int = NOW_MS) -> LedgerObject:
    return LedgerObject(state, ATTEMPT, 0, 1, 1, at_ms)


def closed(
    ledger_id: int,
    *,
    size: int = 10 * MIB,
    age_s: float = 10.0,
    found: LedgerObject | None = None,
) -> LogLedger:
    return LogLedger(ledger_id, 100, size, int(NOW_MS - age_s * 1000), found)


OPEN = LogLedger(9, 5, 2 * MIB)


def copied_ids(
    rules: OffloadRules, *ledgers: LogLedger, before: Position | None = None
) -> list[int]:
    return [each.ledger_id for each in to_copy(ledgers, rules, now_ms=NOW_MS, before=before)]


def test_nothing_moves_by_itself_unless_a_rule_says_so() -> None:
    assert copied_ids(OffloadRules(), closed(1), closed(2), OPEN) == []


@pytest.mark.parametrize(
    ("kept", "expected"),
    [(0, [1, 2, 3]), (MIB, [1, 2, 3]), (12 * MIB, [1, 2]), (31 * MIB, [1]), (32 * MIB, [])],
)
def test_the_newest_bytes_stay_on_bookies(kept: int, expected: list[int]) -> None:
    rules = OffloadRules(bytes_on_bookies=kept)
    assert copied_ids(rules, closed(1), closed(2), closed(3), OPEN) == expected


def test_what_is_as_old_as_the_age_moves() -> None:
    rules = OffloadRules(time_on_bookies_s=20)
    assert copied_ids(rules, closed(1, age_s=21), closed(2, age_s=20), closed(3, age_s=19)) == [
        1,
        2,
    ]


def test_a_small_ledger_waits_for_its_time() -> None:
    rules = OffloadRules(bytes_on_bookies=0, small_bytes=MIB, small_wait_s=100)
    young, old = closed(1, size=MIB - 1, age_s=99), closed(2, size=MIB - 1, age_s=100)
    assert copied_ids(rules, young, old, closed(3, size=MIB)) == [2, 3]


def test_open_empty_and_copied_ledgers_do_not_move() -> None:
    rules = OffloadRules(bytes_on_bookies=0)
    copied = [closed(each, found=object_in(state)) for each, state in enumerate(ObjectState)]
    empty = LogLedger(7, 0, 0, 1)
    assert copied_ids(rules, *copied, empty, OPEN) == [0]  # the one that was left unfinished


def test_who_asks_gets_all_that_ends_before_the_position_small_or_not() -> None:
    small = closed(1, size=1, age_s=0)
    assert copied_ids(OffloadRules(), small, closed(2), before=Position(2, 99)) == [1]
    assert copied_ids(OffloadRules(), small, closed(2), before=Position(2, 100)) == [1, 2]


def forgotten_ids(rules: OffloadRules, *ledgers: LogLedger) -> list[int]:
    return [each.ledger_id for each in to_forget(ledgers, rules, now_ms=NOW_MS)]


def test_bookies_forget_after_the_lag_in_the_order_of_the_log() -> None:
    due, young = (object_in(ObjectState.COPIED, NOW_MS - each) for each in (5_000, 4_999))
    only = object_in(ObjectState.ONLY)
    rules = OffloadRules(deletion_lag_s=5)
    one, two, three = closed(1, found=only), closed(2, found=due), closed(3, found=due)
    assert forgotten_ids(rules, one, two, three) == [2, 3]
    assert forgotten_ids(rules, one, closed(2, found=young), three) == []
    assert forgotten_ids(rules, one, closed(2), three) == []
    assert forgotten_ids(rules, one, closed(2, found=object_in(ObjectState.COPYING)), three) == []
    assert forgotten_ids(OffloadRules(deletion_lag_s=-1), one, two, three) == []


def test_the_newest_marked_ledger_is_found() -> None:
    only = object_in(ObjectState.ONLY)
    marked = closed(2, found=only)
    assert newest_in_object_only([closed(1, found=only), marked, closed(3), OPEN]) == marked
    assert newest_in_object_only([closed(1), OPEN]) is None
