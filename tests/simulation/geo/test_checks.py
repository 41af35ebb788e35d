"""The invariants of several clusters on histories that violate them."""

from dataclasses import replace

import pytest

from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from tests.simulation.cluster.events import (
    AckCalled,
    Backlog,
    Confirmed,
    CursorSaved,
    NodeWrote,
    Published,
    Unreadable,
)
from tests.simulation.cluster.topics import log_path
from tests.simulation.geo.checks import INVARIANTS, judge_geo
from tests.simulation.geo.drawing import draw
from tests.simulation.geo.events import Copying, Listed, NotSettled, Place, Stored
from tests.simulation.geo.plan import EAST, NORTH, WEST, GeoPlan, topic_name
from tests.simulation.history import Event, History

TOPIC = topic_name(1)
PRODUCER = "east-p1"
NONE: Place = (-1, -1)


def plan(topology: str = "pair", *, trims: bool = False, earliest: bool = False) -> GeoPlan:
    return replace(draw(0), topology=topology, trims=trims, starts_at_earliest=earliest, steps=())


def own(number: int, *goes_to: str, place: int | None = None) -> Stored:
    """The message with this number as it is at east."""
    at = (1, number if place is None else place)
    return Stored(TOPIC, at, "", NONE, goes_to, False, (b"%s:%d" % (PRODUCER.encode(), number),))


def copy(number: int, place: int, *goes_to: str, origin: str = EAST) -> Stored:
    """A copy of it, at this place."""
    message = b"%s:%d" % (PRODUCER.encode(), number)
    return Stored(TOPIC, (5, place), origin, (1, number), goes_to, False, (message,))


def published(number: int) -> tuple[str, Event]:
    return PRODUCER, Published(PRODUCER, TOPIC, b"%s:%d" % (PRODUCER.encode(), number))


def begun(cluster: str = EAST, *remotes: str) -> list[tuple[str, Event]]:
    return [(cluster, Copying(each)) for each in remotes or (WEST,)]


def judged(run: GeoPlan, *events: tuple[str, Event]) -> set[str]:
    history = History()
    for at, (actor, event) in enumerate(events):
        history.add(float(at), actor, event)
    return {violation.invariant for violation in judge_geo(history, run)}


def test_a_run_in_which_everything_arrives_violates_nothing() -> None:
    events = [*begun(), published(0), published(1)]
    stored = [(EAST, own(0)), (EAST, own(1)), (WEST, copy(0, 0)), (WEST, copy(1, 1))]
    acked = ("west-c1", AckCalled("west-c1", TOPIC, "s", 5, 1, True))
    backlog = ("east-br1", Backlog(TOPIC, "s", 0, ((1, 0), (1, 1))))
    assert judged(plan(), *events, acked, backlog, *stored) == set()


@pytest.mark.parametrize(
    ("stored", "invariants"),
    [
        ([(EAST, own(0))], {"G1"}),
        ([(EAST, own(0)), (WEST, copy(0, 0)), (WEST, copy(0, 1))], {"G2"}),
        (
            [(EAST, own(0)), (EAST, own(1)), (WEST, copy(1, 0)), (WEST, copy(0, 1))],
            {"G3"},
        ),
        ([(EAST, own(0)), (WEST, copy(0, 0)), (EAST, copy(0, 9))], {"G4"}),
        ([(EAST, own(0)), (WEST, copy(0, 0)), (EAST, copy(0, 9, origin=WEST))], {"G4"}),
        ([(EAST, own(0, NORTH)), (WEST, copy(0, 0, NORTH))], {"G5"}),
        ([(EAST, own(0)), (WEST, copy(0, 0)._replace(messages=(b"east-p1:7",)))], {"G6"}),
        ([(EAST, own(0)), (WEST, copy(0, 0)), (WEST, Unreadable(TOPIC, "why"))], {"G7"}),
        ([(EAST, own(0)), (WEST, copy(0, 0)), ("plan", NotSettled("GL1", "why"))], {"GL1"}),
    ],
)
def test_what_is_stored_is_judged(stored: list[tuple[str, Event]], invariants: set[str]) -> None:
    assert judged(plan(), *begun(), published(0), published(1), *stored) == invariants


def test_what_was_published_while_a_cluster_was_not_listed_need_not_be_there() -> None:
    stored: list[tuple[str, Event]] = [(EAST, own(0)), (EAST, own(1)), (EAST, own(2))]
    events = [*begun(), published(0), (EAST, Listed((EAST,))), published(1)]
    back = [(EAST, Listed((EAST, WEST))), *begun(), published(2)]
    found = (WEST, copy(2, 0))
    assert judged(plan(), *events, *back, *stored, found) == set()
    assert judged(plan(), *events, *back, *stored) == {"G1"}
    assert judged(plan(earliest=True), *events, *back, *stored, found) == {"G1"}


def test_a_list_that_names_nobody_keeps_what_is_to_be_copied() -> None:
    first = (PRODUCER, Confirmed(PRODUCER, TOPIC, b"east-p1:0", 1, 0, -1))
    no_list = [(EAST, Listed(())), published(1), (EAST, Listed((EAST, WEST))), *begun()]
    stored: list[tuple[str, Event]] = [(EAST, own(0)), (EAST, own(1)), (WEST, copy(0, 0))]
    assert judged(plan(), *begun(), published(0), first, *no_list, *stored) == {"G1"}


def test_a_topic_that_begins_while_nobody_is_listed_need_not_be_copied_until_then() -> None:
    no_list = [(EAST, Listed(())), published(0), (EAST, Listed((EAST, WEST))), *begun()]
    stored: list[tuple[str, Event]] = [(EAST, own(0)), (EAST, own(1))]
    assert judged(plan(), *begun(), *no_list, (EAST, own(0))) == set()
    assert judged(plan(), *begun(), *no_list, published(1), *stored) == {"G1"}


def test_what_was_trimmed_counts_by_its_receipt() -> None:
    confirmed = (PRODUCER, Confirmed(PRODUCER, TOPIC, b"east-p1:0", 1, 0, -1))
    events = [*begun(), published(0), confirmed, (EAST, own(3))]
    assert judged(plan("one_way", trims=True), *events, published(3)) == {"G1"}
    there = [(WEST, copy(0, 0))]
    assert judged(plan("one_way", trims=True), *events, *there) == set()
    assert judged(plan("one_way"), *events, *there) == {"G1"}, "it is lost at home"


def ledgers(*ledger_ids: int, actor: str = "east-br1") -> tuple[str, Event]:
    """The log at east has these ledgers."""
    value = LogMetadata(tuple(map(LogLedger, ledger_ids))).to_json()
    return actor, NodeWrote(log_path(TOPIC), 1, value)


def test_what_was_trimmed_while_a_cluster_was_not_listed_cannot_be_copied() -> None:
    """Copying begins with the earliest message that is there then."""
    run = plan("one_way", trims=True, earliest=True)
    confirmed = (PRODUCER, Confirmed(PRODUCER, TOPIC, b"east-p1:0", 1, 0, -1))
    first = [*begun(), ledgers(1), published(0), confirmed]
    away, back = [(EAST, Listed((EAST,)))], [(EAST, Listed((EAST, WEST))), *begun()]
    trimmed = [ledgers(1, 2), ledgers(2)]
    later: list[tuple[str, Event]] = [published(1), (WEST, copy(1, 0))]
    assert judged(run, *first, *away, *trimmed, *back, *later) == set()
    elsewhere = ledgers(2, actor="west-br1")
    assert judged(run, *first, *away, elsewhere, *back, *trimmed, *later) == {"G1"}
    assert judged(run, *first, *trimmed, *later) == {"G1"}, "it was listed all the time"
    kept = (EAST, own(0))
    assert judged(run, *first, *away, ledgers(), *back, *later, kept) == {"G1"}


@pytest.mark.parametrize("is_acked", [True, False])
def test_only_what_a_consumer_has_acknowledged_is_acknowledged(is_acked: bool) -> None:
    stored: list[tuple[str, Event]] = [(EAST, own(0)), (WEST, copy(0, 0))]
    acked = ("west-c1", AckCalled("west-c1", TOPIC, "s", 5, 0, False))
    saved = ("east-br1", CursorSaved(log_path(TOPIC), "s", 8, (1, 0), ()))
    events = [*begun(), published(0), *([acked] if is_acked else []), saved]
    assert judged(plan(), *events, *stored) == (set() if is_acked else {"GS1"})
    late = [*begun(), published(0), saved, acked]
    assert judged(plan(), *late, *stored) == {"GS1"}


def test_every_invariant_is_stated() -> None:
    assert set(INVARIANTS) >= {"G1", "G7", "GL1", "GL2", "GS1", "GS2"}
