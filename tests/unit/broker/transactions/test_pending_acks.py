"""Acknowledgements that wait for the end of their transaction."""

import json
import re
import time
import tracemalloc

import pytest

from magnetar.broker.features.transactions.errors import TransactionConflictError
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import (
    Ack,
    HeldCursor,
    PendingAckState,
    repeated_in,
)
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog

ONE, OTHER = TransactionId(0, 1), TransactionId(0, 2)


def at(entry_id: int) -> Position:
    return Position(7, entry_id)


@pytest.fixture
def cursor() -> NonDurableCursor:
    log = MemoryLog()
    log.store(*(entry() for _ in range(10)))
    return NonDurableCursor(log, "s", initial=EARLIEST)


def test_two_transactions_cannot_hold_the_same_entry(cursor: NonDurableCursor) -> None:
    pending = PendingAckState()
    pending.check(ONE, Ack(at(1)), cursor)
    pending.add(ONE, [Ack(at(1))])
    with pytest.raises(TransactionConflictError):
        pending.check(OTHER, Ack(at(1)), cursor)
    with pytest.raises(TransactionConflictError):
        pending.check(OTHER, Ack(at(1), (0b110,), 3), cursor)
    pending.end(ONE)
    pending.check(OTHER, Ack(at(1)), cursor)


def test_a_transaction_acknowledges_a_message_once(cursor: NonDurableCursor) -> None:
    """A consumer that gets a message twice, and makes something of each copy, is to be told."""
    pending = PendingAckState()
    pending.add(ONE, [Ack(at(1)), Ack(at(2), (0b110,), 3)])
    for ack in (Ack(at(1)), Ack(at(1), (0b110,), 3), Ack(at(2), (0b110,), 3)):
        with pytest.raises(TransactionConflictError, match="acknowledged it before"):
            pending.check(ONE, ack, cursor)
    pending.check(ONE, Ack(at(2), (0b100,), 3), cursor)
    pending.check(ONE, Ack(at(2)), cursor)
    pending.add_cumulative(ONE, Ack(at(5)))
    for entry_id in (4, 5):
        with pytest.raises(TransactionConflictError, match="acknowledged it before"):
            pending.check_cumulative(ONE, Ack(at(entry_id)), cursor)
    pending.check_cumulative(ONE, Ack(at(6)), cursor)


def test_a_transaction_acknowledges_no_message_that_it_has_covered_cumulatively(
    cursor: NonDurableCursor,
) -> None:
    pending = PendingAckState()
    pending.add_cumulative(ONE, Ack(at(5), (0b100,), 3))
    repeated = Ack(at(4)), Ack(at(5), (0b100,), 3), Ack(at(5), (0b110,), 3)
    for ack in repeated:
        with pytest.raises(TransactionConflictError, match="acknowledged it before"):
            pending.check(ONE, ack, cursor)
        with pytest.raises(TransactionConflictError, match="acknowledged it before"):
            pending.check_cumulative(ONE, ack, cursor)
    for ack in (Ack(at(5), (0b011,), 3), Ack(at(5)), Ack(at(6))):
        pending.check(ONE, ack, cursor)
    for ack in (Ack(at(5), (0b000,), 3), Ack(at(5)), Ack(at(6))):
        pending.check_cumulative(ONE, ack, cursor)


@pytest.mark.parametrize(
    ("acks", "repeated"),
    [
        ([Ack(at(1)), Ack(at(2))], None),
        ([Ack(at(1)), Ack(at(1))], at(1)),
        ([Ack(at(1)), Ack(at(1), (0b110,), 3)], at(1)),
        ([Ack(at(1), (0b100,), 3), Ack(at(1), (0b110,), 3)], at(1)),
        ([Ack(at(1), (0b110,), 3), Ack(at(1), (0b101,), 3), Ack(at(1), (0b100,), 3)], at(1)),
        ([Ack(at(1), (0b110,), 3), Ack(at(1), (0b101,), 3), Ack(at(1))], None),
    ],
)
def test_one_request_acknowledges_a_message_once(
    acks: list[Ack], repeated: Position | None
) -> None:
    assert repeated_in(acks) == repeated


def test_a_conflict_of_a_cumulative_one_names_the_other_transaction(
    cursor: NonDurableCursor,
) -> None:
    pending = PendingAckState()
    pending.add(ONE, [Ack(at(4), (0b110,), 3)])
    pending.add(OTHER, [Ack(at(4), (0b101,), 3)])
    with pytest.raises(TransactionConflictError, match=re.escape(f"transaction {OTHER},")):
        pending.check_cumulative(ONE, Ack(at(5)), cursor)


def test_what_is_acknowledged_is_a_conflict(cursor: NonDurableCursor) -> None:
    pending = PendingAckState()
    cursor.ack(at(1))
    cursor.ack_batch(at(2), (0b101,), 3)
    with pytest.raises(TransactionConflictError):
        pending.check(ONE, Ack(at(1)), cursor)
    with pytest.raises(TransactionConflictError):
        pending.check(ONE, Ack(at(2), (0b101,), 3), cursor)
    pending.check(ONE, Ack(at(2), (0b011,), 3), cursor)


def test_messages_of_a_batch_are_held_one_by_one(cursor: NonDurableCursor) -> None:
    pending = PendingAckState()
    pending.add(ONE, [Ack(at(4), (0b110,), 3)])
    pending.check(OTHER, Ack(at(4), (0b011,), 3), cursor)
    with pytest.raises(TransactionConflictError):
        pending.check(OTHER, Ack(at(4), (0b010,), 3), cursor)
    with pytest.raises(TransactionConflictError):
        pending.check(OTHER, Ack(at(4)), cursor)
    pending.add(ONE, [Ack(at(4), (0b101,), 3)])
    pending.add(OTHER, [Ack(at(4), (0b011,), 3)])
    held = HeldCursor(cursor, pending)
    assert held.is_acked(at(4)), "all of it is held by the two of them"
    assert held.next_unacked(at(3)) == at(5)
    pending.end(ONE)
    assert not held.is_acked(at(4))
    assert held.remaining_words(at(4)) == (0b011,)


def test_a_cumulative_one_holds_everything_before_it(cursor: NonDurableCursor) -> None:
    pending = PendingAckState()
    pending.add(OTHER, [Ack(at(2))])
    with pytest.raises(TransactionConflictError):
        pending.check_cumulative(ONE, Ack(at(5)), cursor)
    pending.end(OTHER)
    pending.check_cumulative(ONE, Ack(at(5)), cursor)
    pending.add_cumulative(ONE, Ack(at(5)))
    with pytest.raises(TransactionConflictError):
        pending.check(OTHER, Ack(at(3)), cursor)
    with pytest.raises(TransactionConflictError):
        pending.check_cumulative(OTHER, Ack(at(6)), cursor)
    held = HeldCursor(cursor, pending)
    assert held.mark_delete == at(5)
    assert held.next_unacked(at(-1)) == at(6)
    assert held.is_acked(at(5))
    assert cursor.mark_delete == at(-1), "the real one has not moved"
    pending.end(ONE)
    assert held.next_unacked(at(-1)) == at(0)


def test_a_dispatcher_does_not_see_what_is_held(cursor: NonDurableCursor) -> None:
    pending = PendingAckState()
    held = HeldCursor(cursor, pending)
    assert not held.has_holes
    pending.add(ONE, [Ack(at(0)), Ack(at(1)), Ack(at(3))])
    assert held.has_holes
    assert held.next_unacked(at(-1)) == at(2)
    assert held.next_unacked(at(2)) == at(4)
    assert not held.is_untouched(7, 3, 5)
    assert held.is_untouched(7, 4, 9)
    assert held.backlog_entries == 10, "nothing is acknowledged"


def test_a_snapshot_has_everything(cursor: NonDurableCursor) -> None:
    pending = PendingAckState()
    pending.add(ONE, [Ack(at(0)), Ack(at(4), (0b110,), 3)])
    pending.add_cumulative(OTHER, Ack(at(2), (0b1,), 2))
    pending.ended.note(TransactionId(9, 9), is_committed=True)
    again = PendingAckState.load(json.loads(json.dumps(pending.dump())))
    assert again.transactions == pending.transactions
    assert TransactionId(9, 9) in again.ended
    assert again.through() == at(1)
    assert len(again) == len(pending) == 3


def test_words_and_batch_sizes_that_no_entry_can_have_cost_little(
    cursor: NonDurableCursor,
) -> None:
    """The words come from the client as they are, and from the log when the topic is loaded."""
    pending = PendingAckState()
    many = Ack(at(1), (-2,) * 100_000)
    large = Ack(at(2), (-2,), (1 << 31) - 1)
    started_s = time.process_time()
    tracemalloc.start()
    try:
        for ack in (many, large):
            pending.check(ONE, ack, cursor)
            pending.add(ONE, [ack])
            with pytest.raises(TransactionConflictError):
                pending.check(OTHER, ack, cursor)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 20_000_000
    assert time.process_time() - started_s < 3
