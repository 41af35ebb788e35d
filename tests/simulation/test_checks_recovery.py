"""W6 and W7 notice a recovery that closed a ledger before it had heard enough."""

from collections.abc import Sequence

import pytest

from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import Delivered, Event, Wrote
from tests.simulation.test_checks import OPEN, closed_at, sent, violated


def _answer(bookie: str, op: Op, entry: int, status: Status, flags: int) -> tuple[str, Event]:
    frame = sent(bookie, "r", op, entry, status=status, flags=flags, request_flags=Flag.FENCE)
    return "r", Delivered(*frame)


def _recovery(
    fenced: Sequence[str], denied: Sequence[str], *, flags: int = Flag.FENCED, entry: int = 2
) -> set[str]:
    """r closes the ledger at e1, having heard these bookies."""
    answers = [_answer(each, Op.READ_LAC, -1, Status.OK, flags) for each in fenced]
    answers += [_answer(each, Op.READ, entry, Status.NO_SUCH_ENTRY, flags) for each in denied]
    recovering = OPEN.in_recovery()
    begun: list[tuple[str, Event]] = [("w", Wrote(0, 0, OPEN)), ("r", Wrote(0, 1, recovering))]
    return violated([*begun, *answers, ("r", Wrote(0, 2, closed_at(1, 3, recovering)))])


def test_a_recovery_that_heard_enough_is_fine() -> None:
    assert not {"W6", "W7"} & _recovery(["b1", "b2"], ["b2", "b3"])


@pytest.mark.parametrize("fenced", [[], ["b1"], ["b1", "b4"]])
def test_w6_too_few_bookies_were_fenced(fenced: list[str]) -> None:
    assert "W6" in _recovery(fenced, ["b2", "b3"])


@pytest.mark.parametrize("denied", [[], ["b1"], ["b1", "b4"]])
def test_w7_too_few_bookies_denied_the_entry_behind_the_end(denied: list[str]) -> None:
    assert "W7" in _recovery(["b1", "b2"], denied)


def test_w7_another_entry_was_denied() -> None:
    assert "W7" in _recovery(["b1", "b2"], ["b2", "b3"], entry=3)


def test_answers_of_bookies_that_do_not_say_that_they_are_fenced_do_not_count() -> None:
    assert {"W6", "W7"} <= _recovery(["b1", "b2", "b3"], ["b1", "b2", "b3"], flags=0)
