"""Each invariant notices a history that violates it, and is silent about one that does not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from magnetar.bookie.storage import LedgerState as StoredState
from magnetar.ledger.digest import codec_for
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.checks import judge
from tests.simulation.history import (
    Acked,
    AddFailed,
    Answered,
    Appended,
    Began,
    Corrupted,
    Delivered,
    Ended,
    Event,
    Fault,
    History,
    LogAppended,
    LogRead,
    ReadFailed,
    SawBound,
    SawClosed,
    Sent,
    WasRead,
    Wrote,
)
from tests.simulation.history import Proposed as Proposal
from tests.simulation.record import INVARIANTS, FinalState, Record

OPEN = LedgerMetadata(
    ledger_id=0,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    ensembles=(Fragment(0, ("b1", "b2", "b3")),),
    digest_type=DigestType.CRC32C,
    created_ms=0,
    creation_token=1,
)
CHANGED = OPEN.with_ensemble(1, ("b4", "b2", "b3"))
PAYLOADS = (b"a", b"bb")


def closed_at(last: int, length: int, metadata: LedgerMetadata = OPEN) -> LedgerMetadata:
    return metadata.closed(last_entry_id=last, length=length)


CLOSED = closed_at(1, 3)


def sent(
    source: str,
    target: str,
    op: Op,
    entry: int,
    *,
    status: Status = Status.OK,
    flags: int = 0,
    request_flags: int = 0,
    reply: bool = True,
) -> Sent:
    entries = (entry,) if op is Op.ADD else ()
    return Sent(1, source, target, op, reply, status, flags, request_flags, 0, entry, entries)


def ok(bookie: str, entry: int, *, to: str = "w", request_flags: int = 0) -> list[Event]:
    reply = sent(bookie, to, Op.ADD, entry, request_flags=request_flags)
    return [reply, Delivered(*reply)]


def stored(*bookies: str, entries: Sequence[int] = (0, 1)) -> FinalState:
    """Both entries on these bookies, the ledger CLOSED at e1."""
    packets = codec_for(CLOSED).seal(0, -1, 0, PAYLOADS)
    return FinalState(
        metadata={0: CLOSED},
        packets={each: {0: {at: packets[at] for at in entries}} for each in bookies},
        states={each: {0: StoredState(b"k" * 20, True, -1)} for each in bookies},
    )


def added() -> list[tuple[str, Event]]:
    """A ledger with two acknowledged entries on b1 and b2, closed."""
    events: list[tuple[str, Event]] = [("w", Wrote(0, 0, OPEN))]
    for entry, payload in enumerate(PAYLOADS):
        events.append(("w", Appended(0, entry, payload)))
        for bookie in ("b1", "b2"):
            events += [("b", event) for event in ok(bookie, entry)]
        events.append(("w", Acked(0, entry)))
    return [*events, ("w", Wrote(0, 1, CLOSED)), ("w", SawClosed(0, 1, 3, "closed"))]


def violated(
    events: Sequence[tuple[str, Event]],
    final: FinalState | None = None,
    *,
    is_complete: bool = False,
) -> set[str]:
    history = History()
    for at, (actor, event) in enumerate(events):
        history.add(float(at), actor, event)
    record = Record(history, final or FinalState(), is_complete=is_complete)
    return {violation.invariant for violation in judge(record)}


def test_a_good_history_violates_nothing() -> None:
    assert violated(added(), stored("b1", "b2"), is_complete=True) == set()


def test_every_invariant_of_the_protocol_is_there() -> None:
    assert {f"I{number}" for number in range(1, 22)} <= set(INVARIANTS)


def only(number: str, found: set[str]) -> None:
    assert number in found, found


def test_i01_an_acknowledged_entry_behind_the_end() -> None:
    only("I1", violated([*added(), ("w", Acked(0, 2))], stored("b1", "b2")))


def test_i01_an_acknowledged_entry_that_nobody_has() -> None:
    only("I1", violated(added(), stored("b1", "b2", entries=[0])))


def test_i02_an_acknowledged_entry_on_too_few_members() -> None:
    events = added()[:-2]
    del events[2:4]  # b1's answer for e0
    only("I2", violated(events))


def test_i02_an_ensemble_that_does_not_hold_what_was_acknowledged() -> None:
    moved = replace(OPEN, ensembles=(Fragment(0, ("b4", "b5", "b2")),))
    only("I2", violated([*added()[:-2], ("m", Wrote(0, 1, moved))]))


def test_i03_two_clients_that_see_different_ends() -> None:
    only("I3", violated([*added(), ("r", SawClosed(0, 0, 1, "recovered"))]))


def test_i03_two_readers_that_see_different_payloads() -> None:
    reads: list[tuple[str, Event]] = [
        ("r", WasRead("r/1", 0, 0, b"a", 1)),
        ("r", WasRead("r/2", 0, 0, b"x", 1)),
    ]
    only("I3", violated([*added(), *reads]))


def test_i04_a_recovery_that_reports_another_end_than_the_metadata_has() -> None:
    only("I4", violated([("r", SawClosed(0, 0, 1, "recovered"))], stored("b1", "b2")))


def test_i04_a_recovery_that_reports_an_end_before_it_is_written() -> None:
    *before, closed, saw = added()
    only("I4", violated([*before, saw, closed], stored("b1", "b2")))


def test_i05_a_read_above_the_bound() -> None:
    only("I5", violated([("t", WasRead("t/1", 0, 1, b"bb", 0))]))


def test_i05_a_read_above_the_end() -> None:
    read = WasRead("t/1", 0, 2, b"ccc", 2)
    only("I5", violated([*added(), ("t", read)], stored("b1", "b2")))


def test_i06_a_bound_that_goes_back() -> None:
    only("I6", violated([("t", SawBound("t/1", 0, 3)), ("t", SawBound("t/1", 0, 2))]))


def test_i06_metadata_that_ends_below_what_it_confirmed() -> None:
    confirmed = OPEN.with_ensemble(5, ("b4", "b2", "b3"))
    early = closed_at(1, 3)
    only(
        "I6",
        violated(
            [("w", Wrote(0, 0, OPEN)), ("w", Wrote(0, 1, confirmed)), ("r", Wrote(0, 2, early))]
        ),
    )


def test_i07_another_payload_than_was_added() -> None:
    only("I7", violated([*added(), ("t", WasRead("t/1", 0, 0, b"bb", 1))]))


def test_i07_a_length_that_is_not_the_sum_of_the_payloads() -> None:
    final = stored("b1", "b2")
    final.metadata[0] = closed_at(1, 99)
    only("I7", violated(added(), final))


def test_i08_an_acknowledgement_out_of_order() -> None:
    only("I8", violated([("w", Acked(0, 1)), ("w", Acked(0, 0))]))


def test_i09_an_acknowledgement_behind_the_end_after_it_was_set() -> None:
    only("I9", violated([*added(), ("w", Acked(0, 2))]))


def test_i10_a_closed_ledger_with_too_few_copies() -> None:
    only("I10", violated(added(), stored("b1")))


def test_i11_fragments_that_do_not_increase() -> None:
    broken = replace(CHANGED)
    object.__setattr__(broken, "ensembles", (*OPEN.ensembles, *OPEN.ensembles))
    only("I11", violated([("w", Wrote(0, 0, OPEN)), ("w", Wrote(0, 1, broken))]))


def test_i11_an_earlier_fragment_that_changes() -> None:
    changed = replace(CHANGED, ensembles=(Fragment(0, ("b5", "b2", "b3")), CHANGED.ensembles[1]))
    only(
        "I11",
        violated(
            [
                ("w", Wrote(0, 0, CHANGED.with_ensemble(1, ("b6", "b2", "b3")))),
                ("w", Wrote(0, 1, changed)),
            ]
        ),
    )


def test_i11_a_recovery_that_commits_its_ensembles_before_its_end() -> None:
    recovering = OPEN.in_recovery()
    moved = replace(recovering, ensembles=(Fragment(0, ("b4", "b2", "b3")),))
    events: list[tuple[str, Event]] = [
        ("w", Wrote(0, 0, OPEN)),
        ("r", Wrote(0, 1, recovering)),
        ("r", Wrote(0, 2, moved)),
    ]
    only("I11", violated(events))


def test_i12_a_ledger_that_is_opened_again() -> None:
    only("I12", violated([*added(), ("w", Wrote(0, 2, OPEN))]))


def test_i12_an_end_that_moves() -> None:
    only("I12", violated([*added(), ("r", Wrote(0, 2, closed_at(0, 1)))]))


def test_i12_a_version_that_is_written_twice() -> None:
    only(
        "I12",
        violated(
            [
                ("w", Wrote(0, 0, OPEN)),
                ("w", Wrote(0, 1, CHANGED)),
                ("r", Wrote(0, 1, OPEN.in_recovery())),
            ]
        ),
    )


def fence_reply(status: Status = Status.OK, flags: int = Flag.FENCED, op: Op = Op.READ_LAC) -> Sent:
    return sent("b1", "r", op, 0, status=status, flags=flags, request_flags=Flag.FENCE)


def test_i13_a_fence_that_is_gone() -> None:
    later = sent("b1", "r", Op.READ, 0, status=Status.NO_SUCH_ENTRY)
    only("I13", violated([("b1", fence_reply()), ("b1", later)]))


def test_i13_an_ordinary_add_after_the_fence() -> None:
    request = Delivered(*sent("w", "b1", Op.ADD, 1, reply=False))
    events: list[tuple[str, Event]] = [
        ("b1", fence_reply()),
        ("b1", request),
        ("b1", sent("b1", "w", Op.ADD, 1)),
    ]
    only("I13", violated(events))
    # On its way to the disk together with the fence, and reported behind it: fine.
    assert "I13" not in violated([events[1], events[0], events[2]])


def test_i13_a_fence_that_no_restart_brings_back() -> None:
    final = stored("b1", "b2")
    final.states["b1"] = {0: StoredState(b"k" * 20, False, -1)}
    only("I13", violated([("b1", fence_reply())], final))


@pytest.mark.parametrize("status", [Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER])
def test_i14_an_entry_that_is_denied_after_it_was_acknowledged(status: Status) -> None:
    denial = sent("b1", "r", Op.READ, 0, status=status, flags=Flag.FENCED)
    only("I14", violated([("b1", sent("b1", "w", Op.ADD, 0)), ("b1", denial)]))


def test_i15_an_entry_that_is_stored_after_it_was_denied() -> None:
    denial = fence_reply(Status.NO_SUCH_ENTRY, op=Op.READ)
    only("I15", violated([("b1", denial), ("b1", sent("b1", "w", Op.ADD, 0))]))
    by_recovery = sent("b1", "r", Op.ADD, 0, request_flags=Flag.RECOVERY)
    assert "I15" not in violated([("b1", denial), ("b1", by_recovery)])


def test_i16_an_acknowledgement_by_a_member_that_is_not_committed() -> None:
    events: list[tuple[str, Event]] = [("w", Wrote(0, 0, OPEN)), ("w", Appended(0, 0, b"a"))]
    events += [("b", event) for each in ("b1", "b4") for event in ok(each, 0)]
    only("I16", violated([*events, ("w", Acked(0, 0))]))


def test_i17_an_acknowledgement_during_an_ensemble_change() -> None:
    events = added()[:-2]
    events.insert(-1, ("w", Proposal(7, 0, 0, CHANGED)))
    only("I17", violated(events))
    events.insert(-1, ("w", Answered(7, 0, "done")))
    assert "I17" not in violated(events)


def test_i17_two_ensemble_changes_at_once() -> None:
    events = added()[:1]
    events += [("w", Proposal(number, 0, 0, CHANGED)) for number in (7, 8)]
    only("I17", violated(events))


def test_i18_a_ledger_that_is_never_closed() -> None:
    only("I18", violated(added()[:-2], is_complete=True))


def test_i19_an_operation_that_never_ends() -> None:
    only("I19", violated([("r", Began(1, "recover", 0))], is_complete=True))
    assert "I19" not in violated(
        [("r", Began(1, "recover", 0)), ("r", Fault("crashes"))], is_complete=True
    )


def test_i19_an_operation_that_ends_twice() -> None:
    end = Ended(1, "recover", "")
    only("I19", violated([("r", Began(1, "recover", 0)), ("r", end), ("r", end)]))


def test_i19_an_entry_with_two_outcomes_or_none() -> None:
    only("I19", violated([*added(), ("w", AddFailed(0, 0, "?"))]))
    only("I19", violated([("w", Appended(0, 0, b"a"))], is_complete=True))


def test_i20_rot_that_a_reader_returns() -> None:
    rot: list[tuple[str, Event]] = [
        ("b1", Corrupted("b1", 0, 0)),
        ("t", WasRead("t/1", 0, 0, b"?", 1)),
    ]
    only("I20", violated([*added(), *rot]))


def test_i20_rot_that_keeps_a_reader_from_a_sound_replica() -> None:
    rot: list[tuple[str, Event]] = [
        ("b1", Corrupted("b1", 0, 0)),
        ("y", ReadFailed("y/1", 0, 0, "no", True)),
    ]
    only("I20", violated([*added(), *rot], stored("b1", "b2")))


def test_i21_a_replica_that_moves_without_its_entries() -> None:
    moved = replace(CLOSED, ensembles=(Fragment(0, ("b4", "b2", "b3")),))
    only("I21", violated([*added(), ("m", Wrote(0, 2, moved))]))
    copies = [("b4", sent("b4", "m", Op.ADD, e, request_flags=Flag.RECOVERY)) for e in (0, 1)]
    assert "I21" not in violated([*added(), *copies, ("m", Wrote(0, 2, moved))])


def test_i21_an_end_that_re_replication_moves() -> None:
    only("I21", violated([*added(), ("m", Wrote(0, 2, closed_at(0, 1)))]))


def test_log_entries_that_are_lost_repeated_or_out_of_order() -> None:
    appended: list[tuple[str, Event]] = [
        ("w", LogAppended(b"1", 0, 0, "")),
        ("w", LogAppended(b"2", 0, 1, "")),
    ]
    first, second = LogRead("y", 0, 0, b"1"), LogRead("y", 0, 1, b"2")
    assert violated([*appended, ("y", first), ("y", second)]) == set()
    only("L1", violated([*appended, ("y", first)], is_complete=True))
    only("L2", violated([*appended, ("y", second), ("y", first)]))
    only("L3", violated([*appended, ("y", LogRead("y", 0, 0, b"x"))]))
