"""W1 to W5 notice what violates them, and are silent about what does not."""

import pytest

from magnetar.ledger.under_replication import Missing
from magnetar.ledger.wire import Flag, Op
from tests.simulation.history import (
    AddFailed,
    Appended,
    Began,
    Ended,
    Event,
    Fault,
    ReadFailed,
    Said,
    Wrote,
)
from tests.simulation.record import FinalState
from tests.simulation.test_checks import (
    CLOSED,
    OPEN,
    added,
    closed_at,
    only,
    sent,
    stored,
    violated,
)

Events = list[tuple[str, Event]]

_FENCED = "LedgerFencedError: the ledger is fenced by another client"


def test_w1_a_writer_that_is_superseded_by_nobody() -> None:
    only("W1", violated([*added(), ("w", AddFailed(0, 2, _FENCED))], stored("b1", "b2")))
    close: Events = [("w", Began(1, "close", 0)), ("w", Ended(1, "close", _FENCED))]
    only("W1", violated([*added(), *close], stored("b1", "b2")))


@pytest.mark.parametrize(
    "event",
    [sent("r", "b1", Op.READ_LAC, -1, request_flags=Flag.FENCE, reply=False), Wrote(0, 1, CLOSED)],
)
def test_w1_is_silent_when_somebody_fenced_or_wrote(event: Event) -> None:
    begun: Events = [("w", Wrote(0, 0, OPEN)), ("r", event), ("w", AddFailed(0, 2, _FENCED))]
    assert "W1" not in violated(begun)


def _appended_at(seconds: int) -> Events:
    waiting: Events = [("test", Said("-"))] * (seconds - 1)
    return [
        ("w", Wrote(0, 0, OPEN)),
        ("r", Wrote(0, 1, CLOSED)),
        ("test", Said("everything is healed")),
        *waiting,
        ("w", Appended(0, 2, b"late")),
    ]


def test_w2_a_writer_that_goes_on_when_its_ledger_is_long_closed() -> None:
    only("W2", violated(_appended_at(3)))
    assert "W2" not in violated(_appended_at(1))


def test_w3_a_confirmed_entry_that_is_called_absent() -> None:
    only("W3", violated([("t", ReadFailed("t/1", 0, 1, "NoSuchEntryError: no", False))]))
    unknown = ReadFailed("t/1", 0, 1, "BookieUnavailableError: no answer", False)
    assert "W3" not in violated([("t", unknown)])


@pytest.mark.parametrize(("what", "is_violated"), [("recover", True), ("close", False)])
def test_w4_a_recovery_that_closes_what_is_open(what: str, is_violated: bool) -> None:
    begun: Events = [("r", Wrote(0, 0, OPEN)), ("r", Began(1, what, 0))]
    assert ("W4" in violated([*begun, ("r", Wrote(0, 1, CLOSED))])) is is_violated


@pytest.mark.parametrize(("what", "is_violated"), [("close", True), ("recover", False)])
def test_w4_a_writer_that_closes_what_is_in_recovery(what: str, is_violated: bool) -> None:
    events: Events = [
        ("w", Wrote(0, 0, OPEN)),
        ("r", Wrote(0, 1, OPEN.in_recovery())),
        ("w", Began(1, what, 0)),
        ("w", Wrote(0, 2, closed_at(1, 3, OPEN.in_recovery()))),
        ("w", Ended(1, what, "")),
    ]
    assert ("W4" in violated(events)) is is_violated


def _missing(published: dict[int, Missing]) -> FinalState:
    final = stored("b1", "b2")  # b3 has neither e0 nor e1
    final.missing = published
    return final


@pytest.mark.parametrize(
    ("published", "is_violated"),
    [({}, True), ({0: {"b3": [(1, 1)]}}, True), ({0: {"b3": [(0, 1)]}}, False)],
)
def test_w5_a_copy_that_is_missing_and_on_no_record(
    published: dict[int, Missing], is_violated: bool
) -> None:
    found = violated(added(), _missing(published), is_complete=True)
    assert ("W5" in found) is is_violated


def test_w8_a_recovery_that_makes_metadata_that_cannot_be() -> None:
    ended = Ended(1, "recover", "InvalidLedgerMetadataError: closed at entry 0, ...")
    only("W8", violated([("r", Began(1, "recover", 0)), ("r", ended)]))


@pytest.mark.parametrize("excuse", [("w", Fault("crashes"))])
def test_w5_is_silent_about_what_a_dead_client_knew(excuse: tuple[str, Event]) -> None:
    assert "W5" not in violated([*added(), excuse], _missing({}), is_complete=True)
