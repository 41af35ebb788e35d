"""W10 and W11 notice who believes a bookie that lags behind."""

import pytest

from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import (
    Acked,
    Appended,
    Began,
    Delivered,
    Ended,
    Event,
    SawBound,
    Wrote,
)
from tests.simulation.test_checks import OPEN, ok, sent, violated

Events = list[tuple[str, Event]]


def _written() -> Events:
    """b2 and b3 have e0, and e1, which carries that e0 is confirmed; b1 has nothing."""
    events: Events = [("w", Wrote(0, 0, OPEN))]
    for entry in (0, 1):
        events.append(("w", Appended(0, entry, b"x")))
        events += [("b", event) for each in ("b2", "b3") for event in ok(each, entry)]
        events.append(("w", Acked(0, entry)))
    return events


@pytest.mark.parametrize(("bound", "is_fine"), [(-1, False), (0, True), (1, True)])
def test_w10_a_reader_that_hears_less_than_an_ack_quorum_knew(bound: int, is_fine: bool) -> None:
    asked = [("t", sent("t", each, Op.READ_LAC, -1, reply=False)) for each in ("b1", "b2", "b3")]
    events: Events = [*_written(), ("t", Began(1, "read_lac", 0)), *asked]
    events += [("t", Ended(1, "read_lac", "")), ("t", SawBound("t/1", 0, bound))]
    assert ("W10" not in violated(events)) == is_fine


def test_w10_is_silent_about_a_read_that_failed() -> None:
    events: Events = [*_written(), ("t", Began(1, "read_lac", 0))]
    events += [("t", Ended(1, "read_lac", "BookieUnavailableError")), ("t", SawBound("t/1", 0, -1))]
    assert "W10" not in violated(events)


def _recovery(monkeypatch: pytest.MonkeyPatch, answers: list[str], first: int) -> set[str]:
    """Invariants violated when these bookies answer the fence and the recovery reads from `first`
    on."""
    # Events of a history made up by hand are seconds apart.
    monkeypatch.setattr("tests.simulation.checks_lac._SURELY_HEARD_S", 60.0)
    begun: Events = [("r", Began(1, "recover", 0)), ("r", Wrote(0, 1, OPEN.in_recovery()))]
    heard: Events = []
    for each in answers:
        status = Status.NO_SUCH_LEDGER if each == "b1" else Status.OK
        frame = sent(
            each, "r", Op.READ_LAC, -1, status=status, flags=Flag.FENCED, request_flags=Flag.FENCE
        )
        heard.append(("r", Delivered(*frame)))
    read = sent("r", "b2", Op.READ, first, request_flags=Flag.FENCE, reply=False)
    return violated([*_written(), *begun, *heard, ("r", read)])


@pytest.mark.parametrize("answers", [["b1", "b2"], ["b2", "b1"]])
def test_w11_a_recovery_that_begins_below_what_it_heard(
    monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    assert "W11" in _recovery(monkeypatch, answers, 0)
    assert "W11" not in _recovery(monkeypatch, answers, 1)


def test_w11_what_was_heard_after_enough_had_answered_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With (3, 3, 2) two answers are enough; b1 has heard of nothing, and b4 is no member.
    assert "W11" not in _recovery(monkeypatch, ["b1", "b4", "b2"], 0)
