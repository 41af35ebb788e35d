"""Entries that a transaction buffer hides, and those that are aborted."""

import json

from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.ids import EndedTransactions, TransactionId
from magnetar.broker.features.transactions.markers import Sender
from magnetar.broker.topic.dispatch.visibility import Visibility, VisibleRuns
from magnetar.broker.topic.run import Run
from magnetar.ledger.position import Position

ONE, OTHER, THIRD = (TransactionId(0, least) for least in range(3))


class Log:
    def __init__(self, last: Position) -> None:
        self.last_confirmed = last


def at(entry_id: int, ledger_id: int = 7) -> Position:
    return Position(ledger_id, entry_id)


def test_readers_go_up_to_the_oldest_open_transaction() -> None:
    state = BufferState()
    assert state.limit(at(9)) == at(9)
    state.on_entry(ONE, at(3))
    state.on_entry(OTHER, at(5))
    assert state.limit(at(9)) == at(2)
    state.on_end(ONE, is_committed=True)
    assert state.limit(at(9)) == at(4)
    state.on_end(OTHER, is_committed=False)
    assert state.limit(at(9)) == at(9)
    assert at(5) in state.aborted
    assert at(3) not in state.aborted


def test_what_is_under_way_is_hidden_from_where_the_log_ended_then() -> None:
    state = BufferState()
    first = state.handed_over(at(4))
    second = state.handed_over(at(6))
    assert state.limit(at(9)) == state.known_through(at(9)) == at(4)
    state.on_entry(ONE, at(8))
    state.answered(first)
    assert state.limit(at(9)) == at(6)
    state.answered(second)
    assert state.limit(at(9)) == at(7)
    assert state.known_through(at(9)) == at(9)


def test_a_second_marker_changes_nothing() -> None:
    state = BufferState()
    state.on_entry(ONE, at(1))
    state.on_end(ONE, is_committed=True)
    state.on_end(ONE, is_committed=False)
    assert not state.aborted
    assert (state.committed_count, state.aborted_count) == (1, 0)


def test_what_never_joined_is_known_by_the_low_watermark() -> None:
    state = BufferState()
    state.on_entry(ONE, at(1))
    state.on_entry(THIRD, at(2))
    assert state.overdue(0, 1) == [ONE]
    assert state.overdue(5, 9) == []


def test_a_snapshot_has_everything() -> None:
    state = BufferState()
    state.on_entry(ONE, at(1))
    state.on_entry(OTHER, at(2))
    state.on_entry(OTHER, at(0, ledger_id=8))
    state.on_end(OTHER, is_committed=False)
    state.ended.pass_watermark(4, 17)
    again = BufferState.load(json.loads(json.dumps(state.dump())))
    assert again.limit(at(5, ledger_id=8)) == at(0)
    assert at(2) in again.aborted
    assert at(0, ledger_id=8) in again.aborted
    assert OTHER in again.ended
    assert TransactionId(4, 17) in again.ended
    assert TransactionId(4, 18) not in again.ended
    again.trimmed(at(0, ledger_id=8))
    assert at(2) not in again.aborted


def test_ended_ones_are_forgotten_below_the_watermark_and_still_known() -> None:
    ended = EndedTransactions()
    for least in range(5):
        ended.note(TransactionId(1, least), is_committed=least % 2 == 0)
    assert ended.was_committed(TransactionId(1, 3)) is False
    ended.pass_watermark(1, 3)
    assert len(ended) == 1
    assert TransactionId(1, 3) in ended
    assert ended.was_committed(TransactionId(1, 3)) is None
    assert ended.was_committed(TransactionId(1, 4)) is True


def test_outcomes_above_a_watermark_that_stays_cost_bits_alone() -> None:
    ended, count = EndedTransactions(), 50_000
    for least in range(1, count):
        ended.note(TransactionId(3, least), is_committed=least % 3 == 0)
    again = EndedTransactions.load(json.loads(json.dumps(ended.dump())))
    assert len(json.dumps(ended.dump())) < count
    for each in (ended, again):
        assert len(each) == count - 1
        assert TransactionId(3, 0) not in each
        assert TransactionId(2, 1) not in each
        assert each.was_committed(TransactionId(3, 999)) is True
        assert each.was_committed(TransactionId(3, 1024)) is False
        assert each.was_committed(TransactionId(3, count)) is None
    again.pass_watermark(3, 2047)
    assert len(again) == count - 2048
    again.pass_watermark(3, 2048)
    assert again.was_committed(TransactionId(3, 2048)) is None
    assert again.was_committed(TransactionId(3, 2049)) is True
    assert TransactionId(3, 7) in again


def test_outcomes_are_read_as_they_were_written_before_there_were_pages() -> None:
    again = EndedTransactions.load({"watermarks": [[1, 4]], "outcomes": [[1, 5, True]]})
    assert again.was_committed(TransactionId(1, 5)) is True
    assert TransactionId(1, 6) not in again


def test_a_run_is_seen_up_to_the_limit_and_without_what_is_aborted() -> None:
    log = Log(at(5))
    visibility = Visibility(log)
    runs = VisibleRuns(visibility)
    run = Run(7, 0, [b"."] * 6, messages=[1] * 6)
    assert runs.see(run) is run
    state = visibility.hidden = BufferState()
    assert runs.see(run) is run
    state.on_entry(ONE, at(1))
    state.on_end(ONE, is_committed=False)
    state.on_entry(OTHER, at(4))
    seen = runs.see(run)
    assert seen.messages == [1, 0, 1, 1]
    assert runs.see(run) is seen, "it is kept while nothing changes"
    assert run.messages == [1] * 6
    state.on_end(OTHER, is_committed=True)
    assert runs.see(run).messages == [1, 0, 1, 1, 1, 1]
    assert visibility.is_aborted(at(1))


def test_sets_of_positions_are_joined_looked_through_and_stored() -> None:
    one, other = PositionSet(), PositionSet()
    for each in (1, 300, 2000):
        one.add(at(each))
    other.add(at(299))
    other.add(at(1))
    other.add(at(3, ledger_id=9))
    one.update(other)
    assert len(one) == 5
    assert one.has_any(7, 299, 299)
    assert one.has_any(7, 2, 1999)
    assert not one.has_any(7, 2, 298)
    assert not one.has_any(8, 0, 5000)
    again = PositionSet.load(json.loads(json.dumps(one.dump())))
    assert len(again) == 5
    assert all(each in again for each in (at(1), at(299), at(300), at(2000), at(3, 9)))


def test_what_a_producer_sends_again_in_a_transaction_is_known_also_after_a_restart() -> None:
    state = BufferState()
    state.on_entry(ONE, at(1), Sender("p", (4, 0)))
    for known in (state, BufferState.load(json.loads(json.dumps(state.dump())))):
        assert known.is_stored(ONE, Sender("p", (4, 0)))
        assert known.is_stored(ONE, Sender("p", (3, 0)))
        assert not known.is_stored(ONE, Sender("p", (4, 1))), "the next chunk"
        assert not known.is_stored(ONE, Sender("p", (5, 0)))
        assert not known.is_stored(ONE, Sender("q", (4, 0)))
        assert not known.is_stored(OTHER, Sender("p", (4, 0)))
