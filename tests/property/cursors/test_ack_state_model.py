"""Acknowledgement state against a plain set, over logs that grow, roll and are trimmed."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.cursors.ack_state import AckState, bits_from_words, words_from_bits
from magnetar.cursors.entry_set import CHUNK_ENTRIES, EntrySet
from magnetar.ledger.position import EARLIEST, LATEST, Position
from tests.unit.cursors.growing_log import GrowingLog

BATCH_SIZE = 4


@dataclass
class Model:
    """What the state must be, said as simply as can be."""

    log: GrowingLog
    acked: set[Position] = field(default_factory=set)
    batches: dict[Position, int] = field(default_factory=dict)

    @property
    def open(self) -> list[Position]:
        return [p for p in self.log.positions() if p not in self.acked]

    def ack(self, position: Position) -> None:
        if position in self.log.positions():
            self.acked.add(position)
            self.batches.pop(position, None)

    def ack_batch(self, position: Position, bits: int) -> None:
        if position not in self.log.positions() or position in self.acked:
            return
        bits &= self.batches.get(position, (1 << BATCH_SIZE) - 1)
        if bits:
            self.batches[position] = bits
        else:
            self.ack(position)

    def ack_cumulative(self, position: Position, bits: int | None) -> None:
        if position > self.log.last_confirmed:
            return
        for each in self.log.positions():
            if each < position or (each == position and bits is None):
                self.ack(each)
        if bits is not None:
            self.ack_batch(position, bits)

    def reset(self, position: Position) -> None:
        self.acked = {p for p in self.log.positions() if p < position}
        self.batches = {}

    def trim(self) -> None:
        left = set(self.log.positions())
        self.acked &= left
        self.batches = {p: bits for p, bits in self.batches.items() if p in left}


def check(state: AckState, model: Model) -> None:
    positions = model.log.positions()
    assert state.backlog_entries == len(model.open)
    assert [p for p in positions if not state.is_acked(p)] == model.open
    end = model.log.next_position(model.log.last_confirmed)
    assert state.is_caught_up == (not model.open)
    first_open = model.open[0] if model.open else end
    assert state.next_unacked(EARLIEST) == first_open
    assert model.log.next_position(state.mark_delete) == first_open
    for position in positions:
        later = [p for p in model.open if p > position]
        assert state.next_unacked(position) == (later[0] if later else end)
        assert state.remaining_words(position) == words_from_bits(model.batches.get(position, 0))
    above = sorted(p for p in model.acked if p > first_open and p in set(positions))
    assert state.individual_count == len(above)
    assert state.batch_count == state.batch_bytes == len(model.batches)  # of one byte each
    assert state.has_holes == bool(above or model.batches)
    snapshot = state.snapshot()
    assert len(snapshot.ranges) == state.range_count
    assert [
        Position(ledger, entry)
        for ledger, first, last in snapshot.ranges
        for entry in range(first, last + 1)
    ] == above


# Mostly entries that exist, by their index from the start or the end; now and then anything.
positions = st.one_of(
    st.integers(-12, 11),
    st.integers(0, 4),
    st.builds(Position, st.integers(0, 14), st.integers(-1, 6)),
    st.sampled_from([EARLIEST, LATEST]),
)
bits = st.integers(0, (1 << BATCH_SIZE) - 1)
operations = st.one_of(
    st.tuples(st.just("ack"), positions),
    st.tuples(st.just("ack"), positions),
    st.tuples(st.just("range"), positions, st.integers(0, 8)),
    st.tuples(st.just("batch"), positions, bits),
    st.tuples(st.just("cumulative"), positions, st.one_of(st.none(), bits)),
    st.tuples(st.just("reset"), positions),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("roll"), st.integers(1, 3)),
    st.tuples(st.just("trim")),
    st.tuples(st.just("restore")),
)
logs = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=5)


def resolve(log: GrowingLog, position: Position | int) -> Position:
    if isinstance(position, Position):
        return position
    existing = log.positions()
    return existing[position % len(existing)] if existing else log.first_position()


def apply(state: AckState, model: Model, operation: tuple) -> AckState:  # type: ignore[type-arg]
    """Do the same to both. The tuple is one of `operations`."""
    log = model.log
    if len(operation) > 1 and operation[0] not in ("append", "roll"):
        operation = (operation[0], resolve(log, operation[1]), *operation[2:])
    match operation:
        case ("ack", position):
            is_new = position in model.open
            assert state.ack(position) == is_new
            model.ack(position)
        case ("range", position, length):
            ledger, first = position
            expected = [p for p in model.open if position <= p <= (ledger, first + length)]
            assert state.ack_range(ledger, first, first + length) == len(expected)
            for each in expected:
                model.ack(each)
        case ("batch", position, remaining):
            is_acked = state.ack_batch(position, words_from_bits(remaining), BATCH_SIZE)
            model.ack_batch(position, remaining)
            if position in log.positions():
                assert is_acked == (position in model.acked)
        case ("cumulative", position, remaining):
            words = () if remaining is None else (remaining,)
            state.ack_cumulative(position, words, BATCH_SIZE)
            model.ack_cumulative(position, remaining)
        case ("reset", position):
            state.reset(position)
            model.reset(position)
        case ("append", entries):
            log.append(entries)
        case ("roll", step):
            log.roll(log.ledgers[-1][0] + step)
        case ("trim",):
            log.trim()
            model.trim()
            assert state.backlog_entries == len(model.open)
        case ("restore",):
            return AckState.restore(log, state.snapshot())
    return state


@given(logs, st.lists(operations, min_size=12, max_size=40))
@settings(max_examples=400, deadline=None)
def test_every_sequence_of_operations_equals_the_model(
    steps: list[tuple[int, int]],
    sequence: list[tuple],  # type: ignore[type-arg]
) -> None:
    ledgers, ledger_id = [], 0
    for step, entries in steps:
        ledger_id += step
        ledgers.append((ledger_id, entries))
    log = GrowingLog(*ledgers)
    state, model = AckState(log, EARLIEST), Model(log)
    for operation in sequence:
        before = log.next_position(state.mark_delete)
        state = apply(state, model, operation)
        check(state, model)
        if operation[0] not in ("reset", "append", "roll", "trim"):
            assert log.next_position(state.mark_delete) >= before


entry_ids = st.one_of(
    st.integers(0, 40),
    st.integers(CHUNK_ENTRIES - 5, CHUNK_ENTRIES + 5),
    st.integers(2 * CHUNK_ENTRIES - 5, 2 * CHUNK_ENTRIES + 5),
)


@given(st.lists(st.tuples(st.sampled_from(["add", "range", "discard"]), entry_ids, entry_ids)))
@settings(deadline=None)
def test_the_entry_set_equals_a_set(sequence: list[tuple[str, int, int]]) -> None:
    entries, model = EntrySet(), set[int]()
    for name, first, second in sequence:
        low, high = sorted((first, second))
        span = set(range(low, high + 1))
        if name == "add":
            assert entries.add(first) == (first not in model)
            model.add(first)
        elif name == "range":
            assert entries.add_range(low, high) == len(span - model)
            model |= span
        else:
            assert entries.discard_range(low, high) == len(span & model)
            model -= span
        assert entries.count == len(model)
        absent = first
        while absent in model:
            absent += 1
        assert entries.first_absent(first) == absent
        runs = list(entries.runs())
        assert [e for low, high in runs for e in range(low, high + 1)] == sorted(model)
        assert all(end + 1 < start for (_, end), (start, _) in pairwise(runs))
        assert entries.run_count() == len(runs)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=6))
def test_words_and_bits_are_the_same_set(words: list[int]) -> None:
    back = words_from_bits(bits_from_words(words))
    assert list(back) + [0] * (len(words) - len(back)) == words
