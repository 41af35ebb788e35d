"""What is known of the last stored entries, while a flush of many ledgers is noted in steps."""

from magnetar.bookie.engine.last_entries import LastEntries
from magnetar.bookie.engine.write_cache import WriteBuffer
from tests.ledger_storage import make_block

LEDGERS = 5_000
LAST = LEDGERS - 1


def flushed(*, entry_id: int = 3) -> WriteBuffer:
    buffer = WriteBuffer()
    for ledger_id in range(LEDGERS):
        buffer.add(ledger_id, make_block(ledger_id, [entry_id]), [entry_id])
    return buffer


def begun() -> LastEntries:
    entries = LastEntries()
    for ledger_id in range(LEDGERS):
        entries.begin(ledger_id)
    return entries


def test_very_many_ledgers_are_noted_in_several_steps() -> None:
    entries = begun()
    steps = entries.note(flushed(), set())
    assert next(steps, "end") is None
    assert (entries.find(0), entries.find(LAST)) == (3, -1)
    assert list(steps)
    assert entries.find(LAST) == 3


def test_what_was_looked_up_before_a_flush_is_not_learned_behind_its_step() -> None:
    """The look saw entry 1 in memory and nothing in the index; 3 was added since, and flushed."""
    entries = LastEntries()
    looked = entries.flushes
    steps = entries.note(flushed(), set())
    next(steps)  # ledger 0 is not known, and passed
    entries.learn(0, 1, flushes=looked)
    list(steps)
    assert entries.find(0) is None


def test_a_ledger_that_is_deleted_and_made_again_between_two_steps_has_nothing_stored() -> None:
    entries, deleted = begun(), set[int]()
    steps = entries.note(flushed(), deleted)
    next(steps)
    deleted.add(LAST)
    entries.forget(LAST)
    entries.begin(LAST)
    list(steps)
    assert entries.find(LAST) == -1
