"""The plan of a scrub: the objects that a pass reads, and what a log remembers of it."""

import pytest

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.offloading.scrub_plan import (
    FINDINGS_MAX,
    PROPERTY,
    Finding,
    ScrubMark,
    Verdict,
    current_pass,
    is_scrub_due,
    mark_in,
    to_read,
    to_read_again,
)

PERIOD_S = 100.0
PERIOD_MS = 100_000
OLD_MS = 1_000
NOW_MS = OLD_MS + PERIOD_MS
ATTEMPT, ANOTHER = "ab" * 16, "cd" * 16


def ledger(
    ledger_id: int,
    at_ms: int = OLD_MS,
    state: ObjectState = ObjectState.ONLY,
    attempt: str = ATTEMPT,
) -> LogLedger:
    return LogLedger(ledger_id, 10, 100, 1, LedgerObject(state, attempt, 0, 1, 1, at_ms))


def ids(ledgers: list[LogLedger]) -> list[int]:
    return [each.ledger_id for each in ledgers]


def due(ledgers: list[LogLedger], mark: ScrubMark, now_ms: int) -> list[int]:
    found = current_pass(ledgers, mark, period_s=PERIOD_S, now_ms=now_ms)
    return ids(to_read(ledgers, found))


def test_a_pass_begins_when_an_object_is_one_period_old_and_reads_all_there_are() -> None:
    ledgers = [ledger(1), ledger(2, NOW_MS - 1), LogLedger(3, 10, 100, 1), LogLedger(4)]
    assert due(ledgers, ScrubMark(), NOW_MS - 1) == []
    assert due(ledgers, ScrubMark(), NOW_MS) == [1, 2]


def test_an_unfinished_copy_is_not_read() -> None:
    assert due([ledger(1, state=ObjectState.COPYING)], ScrubMark(), NOW_MS) == []


def test_a_pass_goes_on_where_it_was_and_leaves_what_was_copied_meanwhile_to_the_next() -> None:
    ledgers = [ledger(1), ledger(2), ledger(3), ledger(4, NOW_MS + 1)]
    mark = ScrubMark(NOW_MS).read_through(2)
    assert due(ledgers, mark, NOW_MS + 5) == [3]
    done = mark.read_through(3)
    assert due(ledgers, done, NOW_MS + PERIOD_MS - 1) == []
    assert due(ledgers, done, NOW_MS + PERIOD_MS) == [1, 2, 3, 4]


def test_without_a_period_nothing_is_due() -> None:
    ledgers = [ledger(1)]
    assert is_scrub_due(ledgers, ScrubMark(), period_s=PERIOD_S, now_ms=NOW_MS)
    assert not is_scrub_due(ledgers, ScrubMark(), period_s=0.0, now_ms=NOW_MS)
    assert not is_scrub_due([], ScrubMark(), period_s=PERIOD_S, now_ms=NOW_MS)


@pytest.mark.parametrize("state", [ObjectState.COPIED, ObjectState.ONLY])
@pytest.mark.parametrize("verdict", [Verdict.DAMAGED, Verdict.GONE, Verdict.UNREACHABLE])
def test_what_can_still_be_settled_is_read_again(verdict: Verdict, state: ObjectState) -> None:
    ledgers = [ledger(1, state=state)]
    mark = ScrubMark(NOW_MS, 1).with_finding(1, Finding(verdict, ATTEMPT))
    can_settle = verdict is Verdict.UNREACHABLE or state is ObjectState.COPIED
    assert ids(to_read_again(ledgers, mark)) == ([1] if can_settle else [])


def test_what_can_be_healed_comes_before_what_cannot_be_reached() -> None:
    ledgers = [ledger(1), ledger(2, state=ObjectState.COPIED)]
    mark = (
        ScrubMark(NOW_MS, 2)
        .with_finding(1, Finding(Verdict.UNREACHABLE, ATTEMPT))
        .with_finding(2, Finding(Verdict.DAMAGED, ATTEMPT))
    )
    assert ids(to_read_again(ledgers, mark)) == [2, 1]


def test_a_finding_ends_with_its_object() -> None:
    mark = ScrubMark(findings={each: Finding(Verdict.DAMAGED, ATTEMPT) for each in (1, 2, 3)})
    ledgers = [ledger(2), ledger(3, attempt=ANOTHER)]
    assert list(mark.standing(ledgers).findings) == [2]
    assert to_read_again(ledgers, mark.read_through(3)) == []
    assert mark.with_finding(2, None).findings.keys() == {1, 3}


def test_findings_are_bounded_and_the_first_ones_stay() -> None:
    finding = Finding(Verdict.GONE, ATTEMPT)
    mark = ScrubMark()
    for each in range(FINDINGS_MAX):
        mark = mark.with_finding(each, finding)
    assert len(mark.findings) == FINDINGS_MAX
    assert FINDINGS_MAX not in mark.with_finding(FINDINGS_MAX, finding).findings
    changed = mark.with_finding(0, Finding(Verdict.DAMAGED, ATTEMPT))
    assert len(changed.findings) == FINDINGS_MAX
    assert changed.findings[0].verdict is Verdict.DAMAGED


def test_a_mark_comes_back_from_the_property_as_it_was() -> None:
    mark = ScrubMark(5, 7, {3: Finding(Verdict.GONE, ATTEMPT)})
    assert mark_in({PROPERTY: mark.to_property()}) == mark
    assert mark_in({}) == ScrubMark()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"began_ms":[]}', '{"findings":{"1":["odd","x"]}}', "[" * 9999]
)
def test_a_property_that_cannot_be_read_counts_as_no_mark(text: str) -> None:
    assert mark_in({PROPERTY: text}) == ScrubMark()
