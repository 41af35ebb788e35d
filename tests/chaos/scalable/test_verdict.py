"""The verdict of the drill notices what it must, and nothing else."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.scalable.records import ITEM, Items, Kind, Run
from tests.chaos.scalable.verdict import (
    ACKNOWLEDGEMENT_S_MAX,
    UNKNOWN_S_MAX,
    Verdict,
    judge,
)

_STREAM = (1, 7)
_S = 1_000_000_000
_LATER_NS = round(ACKNOWLEDGEMENT_S_MAX * _S) + 100


def _items(messages: Iterable[tuple[int, int, int]]) -> Items:
    """Messages with these keys, numbers and entries."""
    return np.array([(1, key, number, 5, entry, -1) for key, number, entry in messages], ITEM)


def _run(kind: Kind, time_ns: int, number: int, entry_id: int, *, segment: int = 0) -> Run:
    return Run(kind, time_ns, segment, _items([(_STREAM[1], number, entry_id)]))


def _got(time_ns: int, number: int, entry_id: int, *, segment: int = 0) -> Run:
    return _run(Kind.RECEIVED, time_ns, number, entry_id, segment=segment)


def _judged(*runs: Run, sent: int) -> Verdict:
    return judge(runs, {_STREAM: sent})


def test_messages_in_order_through_a_split_are_fine() -> None:
    verdict = _judged(_got(1, 0, 0), _got(2, 1, 1), _got(3, 2, 0, segment=1), sent=3)
    assert verdict == Verdict(received=3, distinct=3)


def test_what_was_not_acknowledged_may_come_again_in_any_number() -> None:
    again = [_got(3, 0, 0), _got(4, 1, 1), _got(5, 0, 0)]
    verdict = _judged(_got(1, 0, 0), _got(2, 1, 1), *again, sent=2)
    assert (verdict.redelivered, verdict.problems) == (3, [])


@pytest.mark.parametrize(
    ("killed_s", "may_come"),
    [
        (8, False),
        (9, True),
        (10, True),
        (10 + ACKNOWLEDGEMENT_S_MAX, True),
        (11 + ACKNOWLEDGEMENT_S_MAX, False),
    ],
)
def test_what_was_acknowledged_just_before_a_kill_may_come_again(
    killed_s: float, may_come: bool
) -> None:
    """A message that was acknowledged in second 10 comes again much later."""
    runs = [_got(10 * _S, 0, 0), _run(Kind.CONFIRMED, 10 * _S, 0, 0), _got(60 * _S, 0, 0)]
    verdict = judge(runs, {_STREAM: 1}, [round(killed_s * _S)])
    assert (verdict.redelivered, not verdict.problems) == (1, may_come)
    assert (verdict.acknowledged, verdict.excused) == (int(not may_come), int(may_come))


def test_what_may_come_again_is_decided_anew_for_each_kill() -> None:
    runs = [
        _got(10 * _S, 0, 0),
        _run(Kind.CONFIRMED, 10 * _S, 0, 0),
        _got(11 * _S, 0, 0),
        _got(13 * _S, 0, 0),
    ]
    verdict = judge(runs, {_STREAM: 1}, [12 * _S])
    assert verdict.problems_found == 1, "the first time, nobody was killed"


def test_what_was_said_to_be_unacknowledged_may_come_again_and_counts_when_it_has() -> None:
    runs = [
        _got(1, 0, 0),
        _got(1, 1, 1),
        _run(Kind.UNCONFIRMED, 2, 0, 0),
        _run(Kind.CONFIRMED, 3, 1, 1),
        _got(_LATER_NS, 0, 0),
    ]
    assert _judged(*runs, sent=2).problems == []
    runs += [_run(Kind.CONFIRMED, _LATER_NS, 1, 1), _got(2 * _LATER_NS, 1, 1)]
    assert _judged(*runs, sent=2).problems_found == 1


def test_what_is_acknowledged_in_a_child_says_nothing_of_the_parent() -> None:
    """The parent's broker is killed right after; the child's is not."""
    child = _run(Kind.CONFIRMED, 5 * _S, 1, 0, segment=1)
    runs = [
        _got(1, 0, 0),
        _run(Kind.CONFIRMED, 1, 0, 0),
        _got(5 * _S, 1, 0, segment=1),
        child,
        _got(9 * _S, 0, 0),
    ]
    assert judge(runs, {_STREAM: 2}, [2 * _S]).problems == []
    assert judge([*runs, _got(9 * _S, 1, 0, segment=1)], {_STREAM: 2}).problems_found == 2


def _copied(time_ns: int, *, first: int, second: int) -> list[Run]:
    """A message that came in a segment comes at another place in a second one."""
    before = [_got(1, 0, 0, segment=first), _got(2, 1, 1, segment=first)]
    return [*before, _got(time_ns, 1, 0, segment=second)]


def test_a_copy_in_a_child_is_counted_after_a_loss() -> None:
    verdict = judge(_copied(3 * _S, first=1, second=2), {_STREAM: 2}, [2 * _S])
    assert (verdict.stored_again, verdict.problems) == (1, [])


def test_a_copy_in_an_older_segment_is_a_problem_whatever_was_lost() -> None:
    verdict = judge(_copied(3 * _S, first=2, second=1), {_STREAM: 2}, [2 * _S])
    assert (verdict.stored_again, verdict.problems_found) == (0, 1)
    assert verdict.problems[0].startswith("stored again in an older segment")


@pytest.mark.parametrize(
    ("losses_s", "is_fine"),
    [
        ([], False),
        ([10], True),
        ([10 - 1e-9], False),
        ([9, 10, 10 + UNKNOWN_S_MAX + 1], True),
        ([10 + UNKNOWN_S_MAX], True),
        ([10 + UNKNOWN_S_MAX + 1e-9], False),  # It comes after the copy.
    ],
)
def test_a_copy_without_a_loss_shortly_before_it_is_a_problem(
    losses_s: Sequence[float], is_fine: bool
) -> None:
    runs = _copied(round((10 + UNKNOWN_S_MAX) * _S), first=1, second=2)
    verdict = judge(runs, {_STREAM: 2}, [round(each * _S) for each in losses_s])
    assert (verdict.stored_again, verdict.problems_found) == (int(is_fine), int(not is_fine))


def test_a_copy_that_is_stored_twice_in_the_child_is_a_problem() -> None:
    runs = [*_copied(3 * _S, first=1, second=2), _got(4 * _S, 1, 1, segment=2)]
    verdict = judge(runs, {_STREAM: 2}, [2 * _S])
    assert (verdict.stored_again, verdict.problems_found) == (1, 1)
    again = [*_copied(3 * _S, first=1, second=2), _got(4 * _S, 1, 0, segment=2)]
    verdict = judge(again, {_STREAM: 2}, [2 * _S])
    assert (verdict.redelivered, verdict.problems) == (1, [])


def test_after_an_answer_that_was_lost_later_acknowledgements_are_judged() -> None:
    """The broker has stored the acknowledgement of messages 0 and 1, so they do not come again."""
    runs = [
        *(_got(1, number, number) for number in range(3)),
        Run(Kind.UNCONFIRMED, 2, 0, _items([(_STREAM[1], 0, 0), (_STREAM[1], 1, 1)])),
        _run(Kind.CONFIRMED, 3, 2, 2),
    ]
    verdict = _judged(*runs, _got(_LATER_NS, 2, 2), sent=3)
    assert (verdict.acknowledged, verdict.unconfirmed, verdict.problems_found) == (1, 1, 1)
    for number in (0, 1):
        assert _judged(*runs, _got(_LATER_NS, number, number), sent=3).problems == []


def test_what_was_acknowledged_in_vain_may_not_come_again_after_it_was_confirmed() -> None:
    runs = [
        *(_got(1, number, number) for number in range(3)),
        Run(Kind.UNCONFIRMED, 2, 0, _items((_STREAM[1], each, each) for each in range(3))),
        _got(3, 1, 1),
        _run(Kind.CONFIRMED, 4, 1, 1),
    ]
    for number, problems in ((0, 0), (1, 1), (2, 0)):
        for at_ns in (5, _LATER_NS):  # The confirmed one is not stored yet, and it is.
            again = _got(at_ns, number, number)
            assert _judged(*runs, again, sent=3).problems_found == problems
    lost = judge([*runs, _got(_LATER_NS, 1, 1)], {_STREAM: 3}, [5])
    assert lost.problems == [], "the broker was lost before it had stored the second one"


@pytest.mark.parametrize(
    ("confirmed", "unconfirmed", "losses", "problems"),
    [
        (20, 0, [], 0),
        (19, 1, [], 0),
        (19, 2, [], 1),
        (20, 0, [1], 1),
        (0, 0, [], 1),
    ],
)
def test_too_few_acknowledgements_that_can_be_judged_are_a_problem(
    confirmed: int, unconfirmed: int, losses: Sequence[int], problems: int
) -> None:
    kinds = [Kind.CONFIRMED] * confirmed + [Kind.UNCONFIRMED] * unconfirmed
    runs = [
        run
        for number, kind in enumerate(kinds)
        for run in (_got(1, number, number), _run(kind, 1, number, number))
    ]
    verdict = judge(runs, {_STREAM: len(kinds)}, losses)
    assert verdict.problems == [], "a run with kills reports the share"
    verdict.check_judged()
    assert verdict.problems_found == problems


@pytest.mark.parametrize(
    ("runs", "sent", "why"),
    [
        ([_got(1, 1, 1), _got(2, 0, 0)], 2, "order"),
        ([_got(1, 0, 0), _got(2, 2, 1)], 3, "order"),
        ([_got(1, 0, 0)], 2, "lost"),
        ([_got(1, 0, 0)], 0, "unknown"),
        ([_got(1, 0, 0), _got(2, 0, 1)], 1, "stored twice"),
        (
            [_got(1, 0, 0), _run(Kind.CONFIRMED, 2, 0, 0), _got(_LATER_NS, 0, 0)],
            1,
            "twice",
        ),
    ],
)
def test_what_must_not_be_is_noticed(runs: Sequence[Run], sent: int, why: str) -> None:
    verdict = judge(runs, {_STREAM: sent})
    assert verdict.problems_found >= 1
    assert verdict.problems[0].startswith(why)


_MESSAGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=8
)
_RUNS = st.lists(
    st.tuples(
        st.sampled_from([Kind.RECEIVED, Kind.RECEIVED, Kind.CONFIRMED, Kind.UNCONFIRMED]),
        st.integers(0, 1),
        _MESSAGES,
    ),
    max_size=12,
)


@given(_RUNS)
def test_a_run_is_judged_as_its_messages_one_by_one(
    drawn: list[tuple[Kind, int, list[tuple[int, int, int]]]],
) -> None:
    together, apart = [], []
    for number, (kind, segment, messages) in enumerate(drawn):
        run = Run(kind, number * _S, segment, _items(messages))
        together.append(run)
        if kind is Kind.RECEIVED:
            apart += [run._replace(items=run.items[at : at + 1]) for at in range(len(messages))]
        else:
            apart.append(run)
    sent = {(1, key): 2 for key in range(3)}
    losses = [3 * _S, 9 * _S]
    assert judge(together, sent, losses) == judge(apart, sent, losses)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 9))
def test_messages_in_order_are_fine_in_runs_of_any_length(keys: list[int], length: int) -> None:
    counts = [0] * 3
    messages = []
    for entry, key in enumerate(keys):
        messages.append((key, counts[key], entry))
        counts[key] += 1
    runs = [
        Run(Kind.RECEIVED, at, 0, _items(messages[at : at + length]))
        for at in range(0, len(messages), length)
    ]
    verdict = judge(runs, {(1, key): count for key, count in enumerate(counts)})
    assert verdict == Verdict(received=len(keys), distinct=len(keys))


_COUNT = 8


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Kind.CONFIRMED, Kind.UNCONFIRMED]),
            st.sets(st.integers(0, _COUNT - 1), min_size=1),
        ),
        max_size=6,
    ),
    st.integers(0, _COUNT - 1),
)
def test_only_what_is_past_the_last_answer_or_had_none_may_come_again(
    acknowledgements: list[tuple[Kind, set[int]]], again: int
) -> None:
    runs = [_got(1, number, number) for number in range(_COUNT)]
    without_answer: set[int] = set()
    done = -1
    for at, (kind, numbers) in enumerate(acknowledgements, start=1):
        ordered = sorted(numbers)
        runs.append(Run(kind, at * _LATER_NS, 0, _items((_STREAM[1], n, n) for n in ordered)))
        if kind is Kind.CONFIRMED:
            without_answer -= numbers
            done = max(done, ordered[-1])
        else:
            without_answer |= numbers
    runs.append(_got((len(acknowledgements) + 1) * _LATER_NS, again, again))
    verdict = _judged(*runs, sent=_COUNT)
    assert bool(verdict.problems) == (again <= done and again not in without_answer)
