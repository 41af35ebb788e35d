"""The invariants of a scalable topic on short histories: one that violates nothing, and one that
violates each."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.base import naming
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.position import Position
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.cluster.events import (
    AckCalled,
    Confirmed,
    Dropped,
    Got,
    Kept,
    NodeWrote,
    Published,
    Spoke,
    Unreadable,
)
from tests.simulation.history import Event, History
from tests.simulation.scalable.checks import INVARIANTS, judge_scalable
from tests.simulation.scalable.drawing import draw
from tests.simulation.scalable.events import (
    Assigned,
    Departed,
    Given,
    InOrder,
    LayoutTold,
    Left,
    Moved,
    NotSettled,
    ReadingFrom,
    SeekBegan,
)
from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.stored import RECORD_PATH, SEGMENTS

ROOT = f"{SEGMENTS}/0000-ffff-0"
LEFT, RIGHT = f"{SEGMENTS}/0000-7fff-1", f"{SEGMENTS}/8000-ffff-2"
BROKER, PRODUCER, CONSUMER = "br1", "p1", "c1"

Actions = Sequence[tuple[str, Event]]


def plan(**values: Any) -> ScalablePlan:
    return replace(draw(0), steps=(), queues=0, prunes=False, keeps_min=0, **values)


def segment(number: int, start: int, end: int, **values: Any) -> dict[str, Any]:
    return {
        "id": number,
        "hash_start": start,
        "hash_end": end,
        "state": "ACTIVE",
        "parents": [],
        "children": [],
        "created_epoch": 1,
        "created_ms": 0,
        **values,
    }


CHILDREN = [
    segment(1, 0, 0x7FFF, parents=[0]),
    segment(2, 0x8000, 0xFFFF, parents=[0]),
]
SEALED_ROOT = segment(0, 0, 0xFFFF, state="SEALED", children=[1, 2], sealed_epoch=2, sealed_ms=0)


def wrote(epoch: int, segments: list[dict[str, Any]], **values: Any) -> tuple[str, Event]:
    value = {"epoch": epoch, "segments": segments, "pruned": [], **values}
    return BROKER, NodeWrote(RECORD_PATH, epoch, json.dumps(value).encode())


CREATED = wrote(1, [segment(0, 0, 0xFFFF)])
BEGUN = wrote(1, [segment(0, 0, 0xFFFF)], change={"parents": [0], "children": CHILDREN})
SPLIT = wrote(2, [SEALED_ROOT, *CHILDREN])


def log(name: str, *, end: tuple[int, int]) -> tuple[str, Event]:
    """The list of a segment's log is written: it has ended."""
    ledger_id, last = end
    ledger = LogLedger(ledger_id, entries=last + 1, bytes=10, closed_ms=1)
    value = LogMetadata((ledger,), {}, terminated=Position(*end)).to_json()
    return BROKER, NodeWrote(naming.log_path(parse_topic_name(name)), 1, value)


def payload(number: int) -> bytes:
    return b"p1:%d:k0" % number


def stored(name: str, number: int, place: tuple[int, int]) -> Actions:
    """A message is published and confirmed, and in the end it is there."""
    return [
        (PRODUCER, Published(PRODUCER, "t", payload(number))),
        (BROKER, Spoke(1, BROKER, PRODUCER, "SEND_RECEIPT", name, "", 1, (place,), "")),
        (PRODUCER, Confirmed(PRODUCER, name, payload(number), *place, -1)),
        ("y", Kept(name, *place, (payload(number),))),
    ]


def got(
    name: str,
    number: int,
    place: tuple[int, int],
    subscription: str = "s",
    *,
    consumer: str = CONSUMER,
) -> Actions:
    return [(consumer, Got(consumer, name, subscription, *place, -1, payload(number)))]


def acked(name: str, place: tuple[int, int]) -> Actions:
    return [(CONSUMER, AckCalled(CONSUMER, name, "s", *place, True))]


def judged(run: ScalablePlan, *events: tuple[str, Event]) -> set[str]:
    history = History()
    for at, (actor, event) in enumerate(events):
        history.add(float(at), actor, event)
    return {violation.invariant for violation in judge_scalable(history, run)}


OF_ROOT = stored(ROOT, 0, (7, 0))
OF_LEFT = stored(LEFT, 1, (8, 0))
END = log(ROOT, end=(7, 0))


def test_a_split_with_everything_in_its_order_violates_nothing() -> None:
    told = (CONSUMER, LayoutTold("c1/0", 1, ((0, 0, 0xFFFF, False),)))
    consumed = [*got(ROOT, 0, (7, 0)), *acked(ROOT, (7, 0)), *got(LEFT, 1, (8, 0))]
    events = [CREATED, told, *OF_ROOT, BEGUN, END, SPLIT, *OF_LEFT, *consumed]
    assert judged(plan(), *events) == set()


@pytest.mark.parametrize(
    ("events", "invariant"),
    [
        ([CREATED, *OF_ROOT, BEGUN, END, SPLIT, *OF_LEFT, *got(LEFT, 1, (8, 0))], "S1"),
        ([wrote(1, [segment(0, 0, 0xFFF0)])], "S3"),
        ([CREATED, BEGUN, SPLIT, *OF_LEFT], "S4"),
        ([CREATED, BEGUN, log(ROOT, end=(6, 0)), SPLIT, *OF_ROOT], "S4"),
        ([CREATED, SPLIT], "S5"),
        ([CREATED, BEGUN, wrote(2, CHILDREN)], "S5"),
        ([SPLIT, wrote(2, CHILDREN, pruned=[SEALED_ROOT])], "S6"),
        ([CREATED, (CONSUMER, LayoutTold("c1/0", 4, ()))], "S6"),
        (
            [
                CREATED,
                *[(CONSUMER, LayoutTold("c1/0", 1, ((0, 0, 0xFFFF, False),)))] * 2,
            ],
            "S6",
        ),
        ([(CONSUMER, Assigned("s", 0, each, ())) for each in (3, 2)], "S6"),
        ([("plan", NotSettled("S7", "why"))], "S7"),
        ([CREATED, *OF_ROOT[:3]], "S8"),
        ([CREATED, *OF_ROOT, ("y", Unreadable(ROOT, "why"))], "S8"),
        ([CREATED, wrote(2, [segment(0, 0, 0x7FFF), segment(1, 0x8000, 0xFFFF)])], "S13"),
        ([CREATED, BEGUN, wrote(2, CHILDREN)], "S14"),
        (
            [CREATED, *OF_ROOT, BEGUN, END, SPLIT, wrote(3, CHILDREN, pruned=[SEALED_ROOT])],
            "S14",
        ),
        (
            [
                *[CREATED, *OF_ROOT, BEGUN, END, SPLIT],
                (BROKER, Moved(ROOT, "s")),
                (BROKER, Given("s", CONSUMER, 2, (1,))),
            ],
            "S15",
        ),
        (
            [
                *[CREATED, *OF_ROOT, BEGUN, END, SPLIT],
                (BROKER, Given("s", CONSUMER, 2, (1,))),
                (BROKER, Moved(ROOT, "s")),
            ],
            "S15",
        ),
        ([CREATED, ("plan", Left(LEFT))], "S16"),
        ([CREATED, *OF_ROOT, ("y", Kept(ROOT, 7, 1, (payload(0),)))], "S18"),
        (
            [CREATED, *got(ROOT, 3, (7, 1)), *got(ROOT, 2, (7, 0))],
            "K1",
        ),
        (
            [CREATED, *got(ROOT, 0, (7, 0)), *got(ROOT, 1, (7, 1), consumer="c2")],
            "E1",
        ),
        ([("plan", InOrder()), *got(ROOT, 0, (7, 0)), *got(ROOT, 0, (7, 0))], "K2"),
        (
            [
                CREATED,
                *OF_ROOT,
                *stored(ROOT, 1, (7, 1)),
                ("r", ReadingFrom(CONSUMER, ROOT, None)),
                *got(ROOT, 1, (7, 1), ""),
            ],
            "Q1",
        ),
        ([("plan", NotSettled("L1", "why"))], "L1"),
    ],
)
def test_what_violates_an_invariant_is_noticed(events: Actions, invariant: str) -> None:
    assert invariant in judged(plan(), *events)


def test_a_message_may_follow_what_is_acknowledged_or_with_the_same_consumer() -> None:
    first, second = got(ROOT, 0, (7, 0)), got(ROOT, 1, (7, 1))
    other = got(ROOT, 1, (7, 1), consumer="c2")
    assert "E1" not in judged(plan(), CREATED, *first, *second)
    assert "E1" not in judged(plan(), CREATED, *first, *acked(ROOT, (7, 0)), *other)
    again = got(ROOT, 0, (7, 0), consumer="c2")
    assert "E1" not in judged(plan(), CREATED, *first, *again, *other), "the first one is gone"


def test_what_was_sent_again_over_a_lost_topic_may_be_stored_twice() -> None:
    again = ("y", Kept(LEFT, 8, 0, (payload(0),)))
    closed = (BROKER, Spoke(1, BROKER, PRODUCER, "CLOSE_PRODUCER", ROOT, "", 1, (), ""))
    assert "S18" not in judged(plan(), CREATED, *OF_ROOT, (BROKER, Dropped(ROOT)), again)
    assert "S18" in judged(plan(), CREATED, *OF_ROOT, closed, again), "its segment has ended"


def test_a_coordinator_that_begins_in_a_seek_knows_of_it() -> None:
    events = [CREATED, *OF_ROOT, BEGUN, END, SPLIT, ("plan", SeekBegan("s"))]
    given = (BROKER, Given("s", CONSUMER, 2, (1,)))
    moved, gone = (BROKER, Moved(ROOT, "s")), (BROKER, Departed("s", CONSUMER))
    assert "S15" in judged(plan(), *events, given, moved)
    assert "S15" in judged(plan(), *events, moved, given)
    assert "S15" not in judged(plan(), *events, given, gone, moved)


def test_every_invariant_is_stated() -> None:
    assert set(INVARIANTS) >= {"S1", "S3", "S8", "S18", "E1", "K1", "K2", "Q1", "L1"}
