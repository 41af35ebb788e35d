"""The flight recorder keeps what took long, and only that, within its bound."""

import pytest

from magnetar.ledger.flight_recorder import COMMIT, LOOP, THRESHOLDS_S, FlightRecorder, SlowMoment


def test_a_moment_is_kept_from_the_threshold_of_its_kind_on() -> None:
    recorder = FlightRecorder(wall_s=lambda: 12.3456)
    recorder.note(COMMIT, THRESHOLDS_S[COMMIT] - 0.001, "short")
    recorder.note(COMMIT, THRESHOLDS_S[COMMIT], "3 bytes")
    assert list(recorder.moments()) == [SlowMoment(COMMIT, 12346, 20.0, "3 bytes")]


def test_a_cause_is_made_only_for_what_is_kept() -> None:
    def cause() -> str:
        pytest.fail("nobody reads it")

    FlightRecorder().note(LOOP, 0.0, cause)


def test_the_newest_come_first_and_the_oldest_go() -> None:
    recorder = FlightRecorder(moments_max=3)
    for number in range(5):
        recorder.note(LOOP, 1.0 + number, lambda number=number: str(number))  # type: ignore[misc]
    assert [each.cause for each in recorder.moments()] == ["4", "3", "2"]
    assert [each.cause for each in recorder.moments(limit=2)] == ["4", "3"]
    assert recorder.moments(limit=-1) == []
    assert len(recorder.moments(limit=1 << 63)) == 3


def test_a_moment_may_be_noted_while_the_moments_are_read() -> None:
    """A garbage collection can begin there."""
    recorder = FlightRecorder()

    class Interrupting(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            recorder.note(LOOP, 1.0, "during")
            return str.__eq__(self, other)

    recorder.note(COMMIT, 1.0, "before")
    assert [each.cause for each in recorder.moments(kind=Interrupting(COMMIT))] == ["before"]
    assert recorder.moments(kind=LOOP)[0].cause == "during"


def test_moments_are_found_by_kind_and_length() -> None:
    recorder = FlightRecorder()
    recorder.note(LOOP, 0.1, "a")
    recorder.note(COMMIT, 0.2, "b")
    recorder.note(LOOP, 0.3, "c")
    assert [each.cause for each in recorder.moments(kind=LOOP)] == ["c", "a"]
    assert [each.cause for each in recorder.moments(milliseconds_min=200)] == ["c", "b"]
    assert recorder.moments(kind="no such kind") == []
