"""W9 notices an entry that was confirmed one reply too late."""

import pytest

from magnetar.ledger.wire import Op
from tests.simulation.history import Acked, Answered, Appended, Delivered, Event, Proposed, Wrote
from tests.simulation.test_checks import OPEN, ok, sent, violated

_MOVED = OPEN.with_ensemble(0, ("b1", "b2", "b4"))
_PROPOSED = Proposed(1, 0, 0, _MOVED)


def _stored(bookie: str, entry: int) -> list[tuple[str, Event]]:
    return [("b", event) for event in ok(bookie, entry)]


def _begun() -> list[tuple[str, Event]]:
    return [("w", Wrote(0, 0, OPEN)), ("w", Appended(0, 0, b"a"))]


def test_w9_an_entry_that_waits_for_more_than_its_ack_quorum() -> None:
    quorum = [*_begun(), *_stored("b1", 0), *_stored("b2", 0)]
    assert "W9" not in violated([*quorum, ("w", Acked(0, 0))])
    assert "W9" in violated([*quorum, *_stored("b3", 0), ("w", Acked(0, 0))])


@pytest.mark.parametrize("is_late", [False, True])
def test_w9_an_entry_that_is_not_released_when_a_change_has_ended(is_late: bool) -> None:
    changed: list[tuple[str, Event]] = [
        *_begun(),
        ("w", _PROPOSED),
        *_stored("b1", 0),
        *_stored("b2", 0),
        ("w", Wrote(0, 1, _MOVED)),
        ("w", Answered(1, 0, "done")),
    ]
    late = _stored("b4", 0) if is_late else []
    assert ("W9" in violated([*changed, *late, ("w", Acked(0, 0))])) == is_late


def test_w9_what_a_replaced_member_had_said_does_not_count() -> None:
    back = _MOVED.with_ensemble(0, ("b1", "b4", "b2"))
    events: list[tuple[str, Event]] = [
        *_begun(),
        *_stored("b2", 0),
        ("w", Wrote(0, 1, back)),
        *_stored("b1", 0),
        ("b", Delivered(*sent("b4", "w", Op.ADD, 0))),
        ("w", Acked(0, 0)),
    ]
    assert "W9" not in violated(events)
