"""Times of calls and changes of the session, on a clock that the test moves."""

import pytest

from magnetar.ledger.errors import MetadataUnavailableError, NoNodeError, UnknownOutcomeError
from magnetar.ledger.metadata.call_times import CallFacts, CallTimes
from magnetar.ledger.metadata.store import SessionState


class Hand:
    """A clock."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_before_the_first_call_there_are_no_times() -> None:
    assert CallTimes(Hand()).calls() == CallFacts(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_the_last_calls_are_summed_up_and_older_ones_forgotten() -> None:
    hand = Hand()
    times = CallTimes(hand, calls_kept=100)
    for took_s in [50.0] * 10 + [float(each) for each in range(1, 101)]:
        with times.timed("read"):
            hand.now_s += took_s
    with times.timed("write"):
        hand.now_s += 0.5
    hand.now_s += 7
    found = times.calls()
    assert (found.reads, found.writes, found.failed, found.kept) == (110, 1, 0, 100)
    # The first of the hundred, which took a second, has made room for the write.
    assert (found.last_s, found.median_s, found.p99_s, found.longest_s) == (0.5, 51, 99, 100)
    assert found.span_s == sum(range(3, 101)) + 0.5 + 7


@pytest.mark.parametrize(
    ("error", "failed"),
    [(MetadataUnavailableError("x"), 1), (UnknownOutcomeError("x"), 1), (NoNodeError("x"), 0)],
)
def test_no_answer_is_a_failure_and_a_refusal_is_an_answer(error: Exception, failed: int) -> None:
    times = CallTimes(Hand())
    with pytest.raises(type(error)), times.timed("read"):
        raise error
    assert (times.calls().reads, times.calls().failed) == (1, failed)


def test_losses_of_contact_and_of_the_session_are_counted() -> None:
    hand = Hand()
    times = CallTimes(hand)
    for state in ("SUSPENDED", "CONNECTED", "SUSPENDED", "EXPIRED", "CONNECTED"):
        hand.now_s += 10
        times.on_state(SessionState[state])
    hand.now_s += 3
    found = times.session()
    assert (found.state_s, found.times_suspended, found.times_expired) == (3, 2, 1)
