"""The verdict of the drill notices what it must, and nothing else."""

from collections.abc import Sequence

import pytest

from tests.chaos.scalable.records import Kind, Place, Record
from tests.chaos.scalable.verdict import ACKNOWLEDGEMENT_S_MAX, Verdict, judge

_STREAM = (1, 7)
_S = 1_000_000_000
_LATER_NS = round(ACKNOWLEDGEMENT_S_MAX * _S) + 100


def _record(kind: Kind, time_ns: int, number: int, entry_id: int, *, segment: int = 0) -> Record:
    return Record(kind, time_ns, *_STREAM, number, segment, Place(5, entry_id, -1))


def _got(time_ns: int, number: int, entry_id: int, *, segment: int = 0) -> Record:
    return _record(Kind.RECEIVED, time_ns, number, entry_id, segment=segment)


def _judged(*records: Record, sent: int) -> Verdict:
    return judge(records, {_STREAM: sent})


def test_messages_in_order_through_a_split_are_fine() -> None:
    verdict = _judged(_got(1, 0, 0), _got(2, 1, 1), _got(3, 2, 0, segment=1), sent=3)
    assert verdict == Verdict(received=3, distinct=3)


def test_what_was_not_acknowledged_may_come_again_in_any_number() -> None:
    again = [_got(3, 0, 0), _got(4, 1, 1), _got(5, 0, 0)]
    verdict = _judged(_got(1, 0, 0), _got(2, 1, 1), *again, sent=2)
    assert (verdict.redelivered, verdict.problems) == (3, [])


@pytest.mark.parametrize(
    ("killed_s", "may_come"), [(8, False), (9, True), (10, True), (22, True), (23, False)]
)
def test_what_was_acknowledged_just_before_a_kill_may_come_again(
    killed_s: int, may_come: bool
) -> None:
    """A message that was acknowledged in second 10 comes again much later."""
    records = [
        _got(10 * _S, 0, 0),
        _record(Kind.CONFIRMED, 10 * _S, 0, 0),
        _got(60 * _S, 0, 0),
    ]
    verdict = judge(records, {_STREAM: 1}, [killed_s * _S])
    assert (verdict.redelivered, not verdict.problems) == (1, may_come)


def test_what_may_come_again_is_decided_anew_for_each_kill() -> None:
    records = [
        _got(10 * _S, 0, 0),
        _record(Kind.CONFIRMED, 10 * _S, 0, 0),
        _got(11 * _S, 0, 0),
        _got(13 * _S, 0, 0),
    ]
    verdict = judge(records, {_STREAM: 1}, [12 * _S])
    assert verdict.problems_found == 1, "the first time, nobody was killed"


def test_what_was_said_to_be_unacknowledged_may_come_again_and_counts_when_it_has() -> None:
    records = [
        _got(1, 0, 0),
        _got(1, 1, 1),
        _record(Kind.UNCONFIRMED, 2, 0, 0),
        _record(Kind.CONFIRMED, 3, 1, 1),
        _got(_LATER_NS, 0, 0),
    ]
    assert _judged(*records, sent=2).problems == []
    records += [_record(Kind.CONFIRMED, _LATER_NS, 1, 1), _got(2 * _LATER_NS, 1, 1)]
    assert _judged(*records, sent=2).problems_found == 1


def test_what_is_acknowledged_in_a_child_says_nothing_of_the_parent() -> None:
    """The parent's broker is killed right after; the child's is not."""
    child = _record(Kind.CONFIRMED, 5 * _S, 1, 0, segment=1)
    records = [
        _got(1, 0, 0),
        _record(Kind.CONFIRMED, 1, 0, 0),
        _got(5 * _S, 1, 0, segment=1),
        child,
        _got(9 * _S, 0, 0),
    ]
    assert judge(records, {_STREAM: 2}, [2 * _S]).problems == []
    assert judge([*records, _got(9 * _S, 1, 0, segment=1)], {_STREAM: 2}).problems_found == 2


def test_a_copy_in_a_child_is_counted() -> None:
    verdict = _judged(_got(1, 0, 0), _got(2, 1, 1), _got(3, 1, 0, segment=1), sent=2)
    assert (verdict.stored_again, verdict.problems) == (1, [])


@pytest.mark.parametrize(
    ("records", "sent", "why"),
    [
        ([_got(1, 1, 1), _got(2, 0, 0)], 2, "order"),
        ([_got(1, 0, 0), _got(2, 2, 1)], 3, "order"),
        ([_got(1, 0, 0)], 2, "lost"),
        ([_got(1, 0, 0)], 0, "unknown"),
        ([_got(1, 0, 0), _got(2, 0, 1)], 1, "stored twice"),
        (
            [_got(1, 0, 0), _record(Kind.CONFIRMED, 2, 0, 0), _got(_LATER_NS, 0, 0)],
            1,
            "twice",
        ),
    ],
)
def test_what_must_not_be_is_noticed(records: Sequence[Record], sent: int, why: str) -> None:
    verdict = judge(records, {_STREAM: sent})
    assert verdict.problems_found >= 1
    assert verdict.problems[0].startswith(why)
