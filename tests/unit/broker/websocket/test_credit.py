"""Windows, permits and ack timeouts of WebSocket consumers."""

from magnetar.broker.websocket.consumer_core import Credit, ReaderWindow


def test_a_window_is_freed_by_answers_to_what_was_sent_only() -> None:
    credit: Credit[str] = Credit(window=2, pull=False)
    credit.sent(["a", "b"], 0.0)
    assert credit.room == 0
    assert not credit.answered("x")
    assert credit.room == 0
    assert credit.answered("a")
    assert not credit.answered("a")
    assert credit.room == 1


def test_what_comes_again_takes_no_second_slot() -> None:
    credit: Credit[str] = Credit(window=2, pull=False)
    credit.sent(["a"], 0.0)
    credit.sent(["a"], 1.0)
    assert (credit.room, credit.unanswered) == (1, 1)


def test_permits_are_spent_one_by_one_and_never_come_back() -> None:
    credit: Credit[str] = Credit(window=100, pull=True)
    assert credit.room == 0
    credit.permit(3)
    credit.sent(["a", "b"], 0.0)
    credit.answered("a")
    assert credit.room == 1
    credit.permit((1 << 63) - 1)
    credit.permit((1 << 63) - 1)
    assert 0 < credit.room < 1 << 63
    assert credit.unanswered == 0  # nothing waits for them, so nothing is kept


def test_permits_mean_nothing_in_push_mode() -> None:
    credit: Credit[str] = Credit(window=1, pull=False)
    credit.permit(10)
    assert credit.room == 1


def test_an_ack_timeout_takes_back_what_was_not_answered_in_time() -> None:
    credit: Credit[str] = Credit(window=3, pull=False, ack_timeout_s=10)
    credit.sent(["a", "b"], 0.0)
    credit.sent(["c"], 5.0)
    credit.answered("a")
    assert credit.next_timeout_s == 10.0
    assert credit.take_expired(9.9) == []
    assert credit.take_expired(10.0) == ["b"]
    assert (credit.next_timeout_s, credit.room) == (15.0, 2)
    # Sent again, it has its whole time again.
    credit.sent(["c"], 14.0)
    assert credit.next_timeout_s == 24.0


def test_in_pull_mode_a_timeout_is_waited_for_up_to_a_bound() -> None:
    credit: Credit[int] = Credit(window=2, pull=True, ack_timeout_s=10)
    credit.permit(5)
    credit.sent([1, 2], 0.0)
    assert credit.room == 0
    credit.answered(1)
    assert credit.room == 1


def test_a_reader_has_never_more_slots_than_its_window() -> None:
    window = ReaderWindow(2)
    window.free()
    assert window.room == 2
    window.sent(2)
    window.free()
    assert window.room == 1
