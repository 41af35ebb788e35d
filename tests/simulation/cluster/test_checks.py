"""Each invariant of clusters notices a history that violates it, and is silent about a good one."""

from collections.abc import Sequence
from dataclasses import replace

from magnetar.broker.features import deduplication
from magnetar.cursors.node import CursorNode, encode_node
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.position import Position
from magnetar.ledger.under_replication import encode_item
from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.checks import judge_cluster
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.events import (
    AckCalled,
    Backlog,
    Calm,
    Closed,
    Closing,
    Confirmed,
    CursorSaved,
    Detached,
    Dropped,
    Got,
    Kept,
    NodeWrote,
    Published,
    Spoke,
    Unreadable,
)
from tests.simulation.history import (
    Acked,
    Corrupted,
    Delivered,
    Event,
    Fault,
    History,
    LogAppended,
    LogRead,
    Lost,
    Proposed,
    Sent,
    Wrote,
)
from tests.simulation.record import INVARIANTS, FinalState, Record
from tests.simulation.test_checks import OPEN, closed_at

TOPIC = "persistent://public/default/t"
PATH = Cluster.log_path("t")
NODE = f"{PATH}/s"
LEASE = "/namespace/public/default/0x00000000_0x40000000"
CLOSED = closed_at(1, 3)
OTHER = replace(CLOSED, ledger_id=1)

Line = tuple[str, Event]


def listed(*ledgers: LogLedger, at: int = 0, by: str = "br1", **fields: object) -> Line:
    value = LogMetadata(ledgers=ledgers, **fields)  # type: ignore[arg-type]  # of LogMetadata
    return by, NodeWrote(PATH, at, value.to_json())


def node(mark_delete: tuple[int, int], *, at: int = 0, ledger_id: int = -1) -> Line:
    value = CursorNode(epoch=1, mark_delete=mark_delete, cursor_ledger_id=ledger_id)
    return "br1", NodeWrote(NODE, at, encode_node(value))


def published(number: int, *, place: int | None = None) -> list[Line]:
    payload = f"p:{number}".encode()
    entry_id = number if place is None else place
    return [
        ("p", Published("p", TOPIC, payload)),
        ("p", Confirmed("p", TOPIC, payload, 0, entry_id, -1)),
    ]


def kept(*entries: int) -> list[Line]:
    return [("y", Kept(TOPIC, 0, entry, (f"p:{entry}".encode(),))) for entry in entries]


def got(entry: int, *, subscription: str = "s", consumer: str = "c") -> Line:
    payload = f"p:{entry}".encode()
    return "c", Got(consumer, TOPIC, subscription, 0, entry, -1, payload)


def acked(entry: int) -> Line:
    return "c", AckCalled("c", TOPIC, "s", 0, entry, False)


def said(
    command: str, *, by: str = "br1", entry: int = 0, connection: int = 1, note: str = ""
) -> Line:
    spoke = Spoke(connection, by, "c", command, TOPIC, "s", connection, ((0, entry),), note)
    return by, spoke


FILLED = LogLedger(0, 2, 3, 1)


def good() -> list[Line]:
    """Two messages, published, delivered, acknowledged and stored as such."""
    return [
        ("br1", NodeWrote(LEASE, 0, b"{}")),
        ("br1", Wrote(0, 0, OPEN)),
        listed(LogLedger(0)),
        node((-1, -1)),
        *published(0),
        *published(1),
        said("MESSAGE", entry=0),
        got(0),
        said("MESSAGE", entry=1),
        got(1),
        acked(0),
        acked(1),
        ("br1", CursorSaved(PATH, "s", 7, (0, 0), ())),
        node((0, 0), at=1, ledger_id=7),
        ("br1", CursorSaved(PATH, "s", 7, (0, 1), ())),
        ("br1", Wrote(0, 1, CLOSED)),
        listed(FILLED, at=1),
        ("br1", Backlog(TOPIC, "s", 0, ((0, 0), (0, 1)))),
        *kept(0, 1),
    ]


def violated(
    lines: Sequence[Line], final: FinalState | None = None, *, is_complete: bool = False
) -> set[str]:
    history = History()
    for at, (actor, event) in enumerate(lines):
        history.add(float(at), actor, event)
    record = Record(history, final or FinalState(), is_complete=is_complete)
    return {each.invariant for each in judge_cluster(record)}


def only(number: str, lines: Sequence[Line], **more: object) -> None:
    found = violated(lines, **more)  # type: ignore[arg-type]  # of `violated`
    assert number in found, found


def test_a_good_history_violates_nothing() -> None:
    assert violated(good(), is_complete=True) == set()


def test_every_invariant_of_the_sheets_is_there() -> None:
    wanted = {f"C{number}" for number in range(1, 13)} | {f"R{number}" for number in range(1, 8)}
    assert wanted <= set(INVARIANTS)


def test_c01_a_confirmed_message_is_gone() -> None:
    only("C1", [*good(), *published(2)])


def test_c01_a_topic_cannot_be_read() -> None:
    only("C1", [*good(), ("y", Unreadable(TOPIC, "LogDataLossError"))])


def test_c02_a_later_message_has_a_lower_id() -> None:
    only("C2", [*good(), *published(2, place=1)])


def test_c02_a_reader_is_given_a_message_twice() -> None:
    only("C2", [*good(), got(0, subscription=""), got(0, subscription="")])


def test_c02_a_reader_misses_a_message() -> None:
    lines = [*good(), *published(2), *kept(2)]
    only("C2", [*lines, got(0, subscription=""), got(2, subscription="")])


def test_c02_what_was_delivered_is_not_in_the_topic() -> None:
    only("C2", [*good(), got(2)])


def test_c03_a_confirmed_entry_is_in_a_ledger_that_is_not_listed() -> None:
    only("C3", [*good(), ("p", Confirmed("p", TOPIC, b"p:9", 5, 0, -1))])


def test_c03_a_listed_ledger_is_deleted() -> None:
    only("C3", [*good(), ("br2", Wrote(0, 2, None))])


def test_c04_three_ledgers_are_open() -> None:
    lines: list[Line] = [
        ("br1", Wrote(number, 0, replace(OPEN, ledger_id=number))) for number in (0, 1, 2)
    ]
    # The list calls the first one closed; its metadata does not.
    only("C4", [*lines, listed(FILLED, LogLedger(1), LogLedger(2))])


def test_c05_a_position_is_stored_that_nobody_acknowledged() -> None:
    lines = [*good(), *published(2), *kept(2)]
    only("C5", [*lines, ("br1", CursorSaved(PATH, "s", 7, (0, 2), ()))])


def test_c05_a_stored_position_goes_back() -> None:
    only("C5", [*good(), node((0, 0), at=2)])
    only("C5", [*good(), ("br1", CursorSaved(PATH, "s", 7, (0, 0), ()))])
    # A ledger that the node does not name counts for nothing.
    assert "C5" not in violated([*good(), ("br2", CursorSaved(PATH, "s", 8, (0, 0), ()))])


def test_c06_a_ledger_leaves_the_list_before_it_was_consumed() -> None:
    lines = [listed(FILLED, LogLedger(1)), node((0, 0)), listed(LogLedger(1), at=1)]
    only("C6", lines)
    only("C6", [listed(FILLED, LogLedger(1)), node((-1, -1)), listed(LogLedger(1), at=1)])
    assert "C6" not in violated(
        [listed(FILLED, LogLedger(1)), node((0, 1)), listed(LogLedger(1), at=1)]
    )
    # A subscription that is deleted needs nothing.
    assert "C6" not in violated(
        [
            listed(FILLED, LogLedger(1)),
            node((0, 0)),
            ("br1", NodeWrote(NODE, 1, None)),
            listed(LogLedger(1), at=1),
        ]
    )


def test_c13_a_stored_position_is_in_the_ledger_that_leaves_the_list() -> None:
    only("C13", [listed(FILLED, LogLedger(1)), node((0, 1)), listed(LogLedger(1), at=1)])
    assert not violated([listed(FILLED, LogLedger(1)), node((1, -1)), listed(LogLedger(1), at=1)])


def test_what_was_trimmed_need_not_be_readable() -> None:
    lines = [line for line in good() if not isinstance(line[1], Kept | Backlog)]
    behind = ("y", Kept(TOPIC, 1, 0, (b"p:7",)))
    assert violated([*lines, behind]) == {"C1", "C2"}
    trimmed = listed(LogLedger(1), at=2, removed_through=0)
    assert not violated([*lines, node((1, -1), at=2), trimmed, behind])


def test_c07_a_message_is_never_delivered() -> None:
    only("C7", [*good(), *published(2), *kept(2)], is_complete=True)


def test_c07_a_message_that_is_stored_as_acknowledged_comes_again() -> None:
    only("C7", [*good(), said("MESSAGE", entry=1)])


def test_c08_a_superseded_broker_confirms() -> None:
    taken = listed(FILLED, LogLedger(1), at=2, by="br2")
    only("C8", [*good(), taken, said("SEND_RECEIPT")])


def test_c08_a_superseded_broker_delivers() -> None:
    taken = listed(FILLED, LogLedger(1), at=2, by="br2")
    only("C8", [*good(), taken, said("MESSAGE", entry=5)])
    assert "C8" not in violated([*good(), taken, said("MESSAGE", entry=5, by="br2")])
    looked_at = listed(FILLED, LogLedger(1), at=2, by="y")
    assert "C8" not in violated([*good(), looked_at, said("MESSAGE", entry=5)])


def test_c09_a_backlog_is_wrong() -> None:
    only("C9", [*good(), ("br1", Backlog(TOPIC, "s", 1, ((0, 0), (0, 1))))])
    only("C9", [*good(), ("br1", Backlog(TOPIC, "s", -1, ((0, 0), (0, 1))))])


def test_c10_the_end_of_a_terminated_topic_moves() -> None:
    ended = listed(FILLED, at=2, terminated=Position(0, 1))
    only("C10", [*good(), ended, listed(FILLED, at=3, terminated=Position(0, 2))])


def test_c10_something_is_read_behind_the_end() -> None:
    ended = listed(FILLED, at=2, terminated=Position(0, 1))
    only("C10", [*good(), ended, ("c", LogRead("c", 0, 2, b"p:2"))])


def test_c11_two_consumers_hold_an_exclusive_subscription() -> None:
    first = said("SUBSCRIBED", connection=1, note="Exclusive")
    second = said("SUBSCRIBED", connection=2, note="Exclusive")
    only("C11", [first, second])
    assert "C11" not in violated([first, ("br1", Detached(1, "br1")), second])
    assert "C11" not in violated([first, said("CLOSE_CONSUMER", connection=1), second])


def test_c11_a_consumer_that_stands_by_is_given_a_message() -> None:
    only(
        "C11",
        [
            said("SUBSCRIBED", note="Failover"),
            said("ACTIVE_CONSUMER_CHANGE", note="standby"),
            said("MESSAGE", entry=4),
        ],
    )


def test_c12_a_superseded_owner_hears_of_an_entry_behind_the_takeover() -> None:
    lines = [
        listed(LogLedger(0), by="o1"),
        ("o1", LogAppended(b"a", 0, 1, "")),
        listed(FILLED, LogLedger(1), at=1, by="o2"),
    ]
    assert "C12" not in violated([*lines, ("o1", LogAppended(b"b", 0, 1, ""))])
    only("C12", [*lines, ("o1", LogAppended(b"c", 0, 2, ""))])


def test_c14_a_topic_that_deduplicates_has_a_message_twice() -> None:
    twice = [*kept(0), ("y", Kept(TOPIC, 0, 1, (b"p:0",)))]
    assert "C14" not in violated(twice)
    cursor = CursorNode(epoch=1, mark_delete=(-1, -1))
    only("C14", [("br1", NodeWrote(f"{PATH}/pulsar.dedup", 0, encode_node(cursor))), *twice])


def test_c1_a_message_that_was_confirmed_as_a_duplicate_is_nowhere() -> None:
    duplicate = ("p", Confirmed("p", TOPIC, b"p:1", -1, -1, -1))
    assert violated([*kept(0, 1), duplicate]) == set()
    only("C1", [*kept(0), duplicate])


# Re-replication


def stored(bookie: str, *entries: int, ledger_id: int = 0) -> list[Line]:
    return [
        (bookie, Sent(1, bookie, "w", Op.ADD, True, Status.OK, 0, 0, ledger_id, each, (each,)))
        for each in entries
    ]


def on(*bookies: str, metadata: LedgerMetadata = CLOSED) -> LedgerMetadata:
    return replace(metadata, ensembles=(Fragment(0, bookies),))


ITEM = "/ledgers/underreplication/ledgers/0000/0000/0000/0000/urL0"
LOCK = "/ledgers/underreplication/locks/urL0"


def repaired() -> list[Line]:
    """b1 of a closed ledger is lost; b4 takes its place."""
    return [
        ("w", Wrote(0, 0, OPEN)),
        *(line for bookie in ("b1", "b2", "b3") for line in stored(bookie, 0, 1)),
        ("w", Acked(0, 0)),
        ("w", Acked(0, 1)),
        ("w", Wrote(0, 1, CLOSED)),
        ("b1", Lost("b1")),
        ("ar1", NodeWrote(ITEM, 0, b"{}")),
        ("ar1", NodeWrote(LOCK, 0, b"ar1")),
        *stored("b4", 0, 1),
        ("ar1", Proposed(1, 0, 1, on("b4", "b2", "b3"))),
        ("ar1", Wrote(0, 2, on("b4", "b2", "b3"))),
        ("ar1", NodeWrote(ITEM, -1, None)),
        ("ar1", NodeWrote(LOCK, -1, None)),
    ]


def final_of(metadata: LedgerMetadata) -> FinalState:
    packets = {each: {0: {0: b"", 1: b""}} for each in ("b2", "b3", "b4")}
    return FinalState(metadata={0: metadata}, packets=packets, items={})


def repair_violations(lines: Sequence[Line], final: FinalState, *, is_complete: bool) -> set[str]:
    return {each for each in violated(lines, final, is_complete=is_complete) if each[0] == "R"}


def test_a_good_repair_violates_nothing() -> None:
    final = final_of(on("b4", "b2", "b3"))
    assert repair_violations(repaired(), final, is_complete=True) == set()


def test_r01_a_member_is_named_that_has_no_copies() -> None:
    only("R1", [*repaired(), ("ar2", Wrote(0, 3, on("b4", "b2", "b5")))])


def test_r02_copies_are_missing_and_there_is_no_item() -> None:
    final = final_of(on("b4", "b2", "b3"))
    only("R2", [*repaired(), ("b2", Lost("b2"))], final=final, is_complete=True)
    del final.packets["b4"][0][1]
    only("R2", repaired(), final=final, is_complete=True)


def test_r03_the_end_of_a_closed_ledger_moves() -> None:
    only("R3", [*repaired(), ("ar1", Wrote(0, 3, closed_at(0, 1)))])


def test_r03_a_closed_ledger_is_cut_into_fragments() -> None:
    cut = replace(
        CLOSED, ensembles=(Fragment(0, ("b1", "b2", "b3")), Fragment(1, ("b4", "b2", "b3")))
    )
    only("R3", [*repaired(), ("ar1", Wrote(0, 3, cut))])


def test_r04_an_item_goes_while_copies_are_missing() -> None:
    lines = [line for line in repaired() if line[0] != "b4"]
    only("R4", lines)
    named: Line = ("ar1", NodeWrote(ITEM, 1, encode_item(0, {"b2": [(0, 1)]}, 1)))
    spoiled: list[Line] = [("b2", Corrupted("b2", 0, 1)), named]
    only("R4", [*repaired()[:-2], *spoiled, *repaired()[-2:]])


def test_r04_a_copy_that_was_read_is_there_though_its_writer_never_heard_of_it() -> None:
    lines = [line for line in repaired() if line[0] != "b4"]
    read: Line = ("b4", Sent(1, "b4", "ar1", Op.READ, True, Status.OK, 0, 0, 0, 0, (0, 1)))
    assert "R4" in violated(lines)
    assert "R4" not in violated([*lines[:-2], read, *lines[-2:]])


def test_r05_two_workers_hold_one_lock() -> None:
    lines: list[Line] = [("ar1", NodeWrote(LOCK, 0, b"ar1")), ("ar2", NodeWrote(LOCK, 0, b"ar2"))]
    only("R5", lines)
    between: Line = ("ar1", Fault("the session has expired"))
    assert "R5" not in violated([lines[0], between, lines[1]])


def test_r05_a_worker_swaps_a_member_under_the_lock_of_another() -> None:
    lines = repaired()
    taken: Line = ("ar2", NodeWrote(LOCK, 0, b"ar2"))
    only("R5", [*lines, taken, ("ar1", Proposed(2, 0, 2, on("b5", "b2", "b3")))])


def test_r06_an_item_is_left() -> None:
    final = FinalState(metadata={0: on("b4", "b2", "b3")}, items={0: {"b1": [(0, 1)]}})
    only("R6", repaired(), final=final, is_complete=True)


def test_r06_a_lost_bookie_is_still_named() -> None:
    only("R6", repaired(), final=final_of(CLOSED), is_complete=True)


def test_r07_an_acknowledged_entry_is_behind_the_end() -> None:
    lines = [*repaired(), ("w", Acked(0, 2))]
    only("R7", lines, final=final_of(on("b4", "b2", "b3")))


def test_r08_a_member_is_named_before_its_copies_are_made() -> None:
    lines = repaired()
    copies = [line for line in lines if line[0] == "b4"]
    rest = [line for line in lines if line[0] != "b4"]
    only("R8", [*rest[:-2], *copies, *rest[-2:]])


DEDUPLICATION = f"{PATH}/{deduplication.CURSOR}"


def test_c15_a_snapshot_lacks_an_id_of_what_is_before_it() -> None:
    begun = encode_node(CursorNode(epoch=1, mark_delete=(-1, -1)))
    created: Line = ("br1", NodeWrote(DEDUPLICATION, 0, begun))
    lacking = CursorSaved(PATH, deduplication.CURSOR, 8, (0, 1), (), (("p", 0),))
    whole = CursorSaved(PATH, deduplication.CURSOR, 8, (0, 1), (), (("p", 1),))
    assert "C15" in violated([*good(), created, ("br1", lacking)])
    assert "C15" not in violated([*good(), created, ("br1", whole)])


def test_c16_an_owner_closes_a_topic_and_leaves_a_cursor_behind() -> None:
    calm: Line = ("plan", Calm())
    unsaved = [line for line in good() if getattr(line[1], "mark_delete", None) != (0, 1)]
    ended: list[Line] = [
        ("br1", Closing(TOPIC, (("s", (0, 1), ()),))),
        ("br1", Closed(TOPIC)),
    ]
    assert "C16" not in violated([calm, *good(), *ended])
    assert "C16" in violated([calm, *unsaved, *ended])
    assert "C16" not in violated([*unsaved, *ended])
    assert "C16" not in violated([calm, *unsaved, ("br1", Dropped(TOPIC)), *ended])


def test_c17_a_move_makes_a_message_come_twice() -> None:
    again: Line = ("y", Kept(TOPIC, 0, 2, (b"p:1",)))
    assert "C17" in violated([("plan", Calm()), *good(), again])
    assert "C17" not in violated([*good(), again])


def test_c18_a_topic_that_was_dropped_is_written_to() -> None:
    dropped: Line = ("br1", Dropped(TOPIC))
    asked: Line = ("br1", Proposed(9, 0, 1, CLOSED))
    assert "C18" in violated([*good(), dropped, asked])
    assert "C18" not in violated([*good(), dropped, ("br1", Closed(TOPIC)), asked])


def test_c18_a_crash_ends_what_was_dropped() -> None:
    dropped: Line = ("br1", Dropped(TOPIC))
    asked: Line = ("br1", Proposed(9, 0, 1, CLOSED))
    assert "C18" not in violated([*good(), dropped, ("br1", Fault("crashes")), asked])
    assert "C18" in violated([*good(), dropped, ("br2", Fault("crashes")), asked])


def test_c18_what_was_asked_of_one_bookie_may_reach_another_later() -> None:
    def add(bookie: str, entry: int) -> Line:
        return "br1", Sent(1, "br1", bookie, Op.ADD, False, 0, 0, 0, 0, entry, (entry,))

    dropped: Line = ("br1", Dropped(TOPIC))
    assert "C18" not in violated([*good(), add("b1", 7), dropped, add("b2", 7)])
    assert "C18" in violated([*good(), add("b1", 7), dropped, add("b2", 8)])


def test_c18_what_was_asked_may_wait_for_a_connection() -> None:
    add: Line = ("br1", Sent(1, "br1", "b1", Op.ADD, False, 0, 0, 0, 0, 7, (7,)))
    ready: Line = ("br1", Delivered(1, "b1", "br1", Op.INFO, True, Status.OK, 0, 0, 0, -1, ()))
    dropped: Line = ("br1", Dropped(TOPIC))
    assert "C18" not in violated([*good(), dropped, ready, add])
    assert "C18" in violated([*good(), ready, dropped, add])


def test_c18_a_ledger_that_left_the_list_may_be_deleted_later() -> None:
    dropped: Line = ("br1", Dropped(TOPIC))
    deletes: Line = ("br1", Proposed(9, 0, -1, None))
    assert "C18" in violated([*good(), dropped, deletes])
    trimmed = listed(at=9, removed_through=0)
    assert "C18" not in violated([*good(), dropped, trimmed, deletes])
    assert "C18" in violated([*good(), dropped, deletes, trimmed])
