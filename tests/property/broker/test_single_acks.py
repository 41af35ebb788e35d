"""Single acknowledgements against models: the marker, ranges, the index of origins, telling."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.acks import Acks, OriginAcks, decode_acks, encode_acks
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.features.replication.subscriptions.ack_ranges import (
    behind,
    in_turns,
    union,
    without,
)
from magnetar.broker.features.replication.subscriptions.ack_telling import AckTelling
from magnetar.broker.features.replication.subscriptions.origins import Origin, OriginIndex
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position

_NUMBERS = st.integers(0, (1 << 63) - 1)
_SOURCES = st.builds(Source, st.text(min_size=1, max_size=20), _NUMBERS)
_BATCHES = st.builds(BatchAck, _NUMBERS, _NUMBERS, st.integers(1, 1 << 100))
_RANGES = st.builds(
    lambda ledger_id, first, more: AckRange(ledger_id, first, min(first + more, (1 << 63) - 1)),
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
)
_ACKS = st.builds(
    Acks,
    st.text(min_size=1, max_size=20),
    st.dictionaries(
        _SOURCES,
        st.builds(
            lambda ranges, batches: OriginAcks(tuple(ranges), tuple(batches)),
            st.lists(_RANGES, max_size=5),
            st.lists(_BATCHES, max_size=5),
        ),
        max_size=4,
    ),
    st.booleans(),
)
_PLACES = st.sets(st.builds(Position, st.integers(1, 2), st.integers(0, 12)))


@given(_ACKS)
def test_a_marker_says_what_it_was_given(acks: Acks) -> None:
    assert decode_acks(encode_acks(acks)) == acks


@given(st.binary(max_size=60))
def test_any_bytes_are_a_body_or_refused(body: bytes) -> None:
    try:
        decode_acks(body)
    except BrokerMetadataError:
        pass


def ranges_of(places: set[Position]) -> list[AckRange]:
    return union([AckRange(*each, each.entry_id) for each in places], [])


def places_of(ranges: list[AckRange] | tuple[AckRange, ...]) -> set[Position]:
    found = [
        Position(ledger_id, each)
        for ledger_id, first, last in ranges
        for each in range(first, last + 1)
    ]
    assert len(found) == len(set(found)), "ranges do not overlap"
    return set(found)


def len_of(found: AckRange) -> int:
    return found.last_entry_id - found.first_entry_id + 1


@given(_PLACES, _PLACES, st.builds(Position, st.integers(0, 3), st.integers(-1, 12)))
def test_ranges_are_sets(one: set[Position], other: set[Position], after: Position) -> None:
    first, second = ranges_of(one), ranges_of(other)
    assert places_of(first) == one
    assert places_of(union(first, second)) == one | other
    assert places_of(without(first, second)) == one - other
    parts = list(in_turns(first, 3))
    assert union([], [each for part in parts for each in part]) == first
    assert all(sum(map(len_of, part)) == 3 for part in parts[:-1])
    assert places_of(behind(first, after)) == {each for each in one if each > after}


HERE, WEST, NORTH = Source("east", 1), Source("west", 2), Source("north", 3)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["here", "west", "north", "marker", "rotate"]),
        st.integers(1, 3),
        st.booleans(),
    ),
    max_size=30,
)


def log_of(steps: list[tuple[str, int, bool]]) -> list[tuple[Position, Origin | str | None]]:
    """A log, entry by entry: "here", None for a marker, or where a copy comes from."""
    found: list[tuple[Position, Origin | str | None]] = []
    local = Position(1, 0)
    ends = {WEST: Position(50, 0), NORTH: Position(60, 0)}
    for what, skipped, is_new_ledger in steps:
        if what == "rotate":
            local = Position(local.ledger_id + 1, 0)
            continue
        entry: Origin | str | None = None if what == "marker" else "here"
        source = {"west": WEST, "north": NORTH}.get(what)
        if source is not None:
            end = ends[source]
            at = Position(end.ledger_id, end.entry_id + skipped)
            if is_new_ledger:
                at = Position(end.ledger_id + 1, 0)
            ends[source] = at
            entry = Origin(source, at)
        found.append((local, entry))
        local = Position(local.ledger_id, local.entry_id + 1)
    return found


@given(_STEPS, st.integers(0, 30), st.integers(2, 6), st.data())
def test_an_index_maps_exactly_what_it_knows(
    steps: list[tuple[str, int, bool]], split: int, runs_max: int, data: st.DataObject
) -> None:
    log = log_of(steps)
    before, live = log[:split], log[split:]
    low = live[0][0] if live else Position(99, 0)
    index = OriginIndex(low, runs_max=runs_max)
    for at, entry in live:
        if not isinstance(entry, str):
            index.add(at, entry)
    if before and index.low == low:  # else what is next to it was forgotten
        index.extend_back(
            before[0][0], [(at, each) for at, each in before if not isinstance(each, str)]
        )
    assert len(index) <= runs_max
    acked = data.draw(st.sets(st.sampled_from([at for at, _ in log]))) if log else set()
    known: dict[Source, set[Position]] = {}
    for at, entry in log:
        if at in acked and at >= index.low and entry is not None:
            source, origin = (HERE, at) if isinstance(entry, str) else entry
            known.setdefault(source, set()).add(origin)
    found = index.to_origins(HERE, ranges_of(acked), [])
    assert {source: places_of(acks.ranges) for source, acks in found.items()} == known
    for source in (WEST, NORTH):
        told = found.get(source, OriginAcks())
        back, coming = index.to_locals(source, told)
        assert places_of(back.ranges) == {
            at
            for at, each in log
            if at in acked and at >= index.low and isinstance(each, Origin) and each[0] == source
        }
        assert not coming.ranges
        # Whatever else is asked for, nothing beside it is found.
        some = data.draw(st.sets(st.builds(Position, st.integers(50, 62), st.integers(0, 6))))
        there = {
            each.position: at
            for at, each in log
            if isinstance(each, Origin) and each.source == source and at >= index.low
        }
        back, _ = index.to_locals(source, OriginAcks(tuple(ranges_of(some))))
        assert places_of(back.ranges) == {there[each] for each in some if each in there}


@given(st.lists(st.tuples(_PLACES, st.integers(0, 25)), max_size=6))
def test_in_parts_everything_is_told_once(steps: list[tuple[set[Position], int]]) -> None:
    telling, told, acked = AckTelling(), set[Position](), set[Position]()
    ledgers = [LogLedger(1, entries=13, closed_ms=1), LogLedger(2)]
    for more, count in steps:
        acked |= more
        mark = Position(1, -1)
        while Position(1, mark.entry_id + 1) in acked and mark.entry_id < 11:
            mark = Position(1, mark.entry_id + 1)
        above = ranges_of({each for each in acked if each > mark})
        ranges, _ = telling.untold(mark, above, [], low=Position(1, 0), ledgers=ledgers)
        assert places_of(ranges) == acked - told
        part = ranges[:count]
        telling.known(part, [])
        told |= places_of(part)
