"""Counters of transactions over topics that come and go."""

from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.http.metrics.broker_values import EndsHere


def of_a_topic(committed: int) -> BufferState:
    """One that was somewhere else before."""
    state = BufferState()
    end(state, committed, is_committed=True)
    state.ended_before = (state.committed_count, state.aborted_count)
    return state


def end(state: BufferState, count: int, *, is_committed: bool) -> None:
    first = state.committed_count + state.aborted_count
    for number in range(first, first + count):
        state.on_end(TransactionId(0, number), is_committed=is_committed)


def test_a_topic_that_comes_or_goes_neither_adds_nor_takes_away() -> None:
    ends = EndsHere()
    one, two = of_a_topic(100), of_a_topic(7)
    assert ends.look([one]) == (0, 0)
    end(one, 2, is_committed=True)
    assert ends.look([one, two]) == (2, 0)
    end(two, 3, is_committed=False)
    assert ends.look([two]) == (2, 3)
    assert ends.look([]) == (2, 3)
    again = of_a_topic(102)
    end(again, 1, is_committed=True)
    assert ends.look([again]) == (3, 3)
